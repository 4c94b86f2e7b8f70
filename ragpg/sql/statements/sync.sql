-- Plans, and the sync of a folder.

-- name: live_versions
-- Every live document by key, with the folder that a sync took it from, if one did; `gap` as in
-- known_versions.
select document.key, document.content_hash, synced_key.root,
       exists (
           select from ragpg.context_gap
            where context_gap.tenant_id = document.tenant_id
              and context_gap.document_id = document.document_id
              and (not context_gap.context_refused or %(ask_refused)s)) as gap
  from ragpg.document
  left join ragpg.synced_key
    on synced_key.tenant_id = document.tenant_id
   and synced_key.collection_id = document.collection_id
   and synced_key.document_key = document.key
 where document.tenant_id = ragpg.current_tenant()
   and document.collection_id = %(collection_id)s;

-- name: known_chunks
-- What stage_chunks would find for the passages of one document; writes nothing.
with given as (
         select passage.*, hashed.text_hash,
                row_number() over (partition by hashed.text_hash order by passage.position) as nth
           from jsonb_to_recordset(%(chunks)s) as passage(
                    key text, position integer, section_path text[], table_header text, text text,
                    reuse boolean, since timestamptz, ask_refused boolean)
          cross join lateral (
                    select sha256(convert_to(
                               jsonb_build_array(passage.section_path, passage.table_header,
                                                 passage.text)::text, 'UTF8')) as text_hash
                ) as hashed
     ),
     live as (
         select chunk.chunk_id, chunk.text_hash, chunk.context, chunk.contextualized_at,
                chunk.context_refused,
                row_number() over (partition by chunk.text_hash order by chunk.position) as nth
           from ragpg.document
           join ragpg.chunk using (tenant_id, document_id)
          where document.tenant_id = ragpg.current_tenant()
            and document.collection_id = %(collection_id)s
            and document.key = %(key)s
     ),
     tried as (
         select staged_chunk.text_hash, staged_chunk.context, staged_chunk.contextualized_at,
                staged_chunk.embedding is not null as embedded, staged_chunk.context_refused,
                row_number() over (partition by staged_chunk.text_hash
                                   order by staged_chunk.position) as nth
           from ragpg.staged_chunk
          where staged_chunk.tenant_id = ragpg.current_tenant()
            and staged_chunk.collection_id = %(collection_id)s
            and staged_chunk.document_key = %(key)s
     )
select given.position,
       case when kept.context is null then tried.context else kept.context end as context,
       case when kept.context is null then null else kept.contextualized_at end as reused_from,
       case when live.chunk_id is null or kept.context is null and tried.context is not null
            then coalesce(tried.embedded, false) else given.reuse end as embedded,
       exists (
           select from ragpg.awaited_context as awaited
            where awaited.tenant_id = ragpg.current_tenant()
              and awaited.collection_id = %(collection_id)s
              and awaited.document_key = %(key)s
              and awaited.text_hash = given.text_hash) as waiting,
       kept.context is null and tried.context is null and not given.ask_refused
       and (coalesce(tried.context_refused, false)
            or given.reuse and coalesce(live.context_refused, false)) as refused
  from given
  left join live using (text_hash, nth)
  left join tried
    on tried.text_hash = given.text_hash and tried.nth = given.nth
   and (given.reuse or tried.contextualized_at >= given.since
        or given.since is not null and tried.context_refused)
 cross join lateral (
           select case when given.reuse then live.context end as context,
                  case when given.reuse then live.contextualized_at end as contextualized_at
       ) as kept
 order by given.position;

-- name: own_keys
-- Writes only what changes: a folder that is in sync costs no row version.
insert into ragpg.synced_key (tenant_id, collection_id, document_key, root)
select (select ragpg.current_tenant()), %(collection_id)s, owned.key, %(root)s
  from unnest(%(keys)s::text[]) as owned(key)
    on conflict (tenant_id, collection_id, document_key) do update
   set root = excluded.root, synced_at = now()
 where synced_key.root <> excluded.root;

-- name: disown_keys
-- Keys that the folder no longer has; their documents are gone, or never became live. What may be
-- below folders that cannot be read now stays the sync's own.
delete from ragpg.synced_key
 where synced_key.tenant_id = ragpg.current_tenant()
   and synced_key.collection_id = %(collection_id)s
   and synced_key.root = %(root)s
   and not synced_key.document_key = any (%(keys)s)
   and not exists (
           select from unnest(%(folders)s::text[]) as unread(folder)
            where starts_with(synced_key.document_key, unread.folder));

-- name: rename_document
select ragpg.rename_document(%(collection)s, %(from_key)s, %(to_key)s);

-- name: is_renamed
-- Whether another sync has done meanwhile what a renaming was to do.
select exists (
           select from ragpg.document
            where document.tenant_id = ragpg.current_tenant()
              and document.collection_id = %(collection_id)s
              and document.key = %(to_key)s
              and document.content_hash = %(content_hash)s)
       and not exists (
           select from ragpg.document
            where document.tenant_id = ragpg.current_tenant()
              and document.collection_id = %(collection_id)s
              and document.key = %(from_key)s) as done;

-- name: delete_version
-- Only the version that the plan saw: a document that changed meanwhile stays. One that another
-- sync has deleted meanwhile is gone as well.
select coalesce(bool_and(
           case when live.content_hash = %(content_hash)s
                then ragpg.delete_document(%(collection)s, live.key) is not null
                else false end), true) as gone
  from (
           select document.key, document.content_hash
             from ragpg.document
            where document.tenant_id = ragpg.current_tenant()
              and document.collection_id = %(collection_id)s
              and document.key = %(key)s
       ) as live;
