-- Stage 1. Statements run with parameters, so a literal percent is written twice.

-- name: known_versions
-- What is live under these keys; `gap` where a context is missing that is asked for again: one that
-- failed, and with `ask_refused` also one that was refused for good.
select document.key, document.content_hash, document.modified_at,
       exists (
           select from ragpg.context_gap
            where context_gap.tenant_id = document.tenant_id
              and context_gap.document_id = document.document_id
              and (not context_gap.context_refused or %(ask_refused)s)) as gap
  from ragpg.document
 where document.tenant_id = (select ragpg.current_tenant())
   and document.collection_id = %(collection_id)s
   and document.key = any (%(keys)s);

-- name: refused_contexts
select count(*) as chunks
  from ragpg.context_gap
 where context_gap.tenant_id = (select ragpg.current_tenant())
   and context_gap.collection_id = %(collection_id)s
   and context_gap.context_refused;

-- name: forget_staged
-- A version that failed is moot when the live one is what the caller has now.
with locked as materialized (
         select staged_document.key
           from ragpg.staged_document
          where staged_document.tenant_id = (select ragpg.current_tenant())
            and staged_document.collection_id = %(collection_id)s
            and staged_document.key = any (%(keys)s)
          order by staged_document.key
            for update
     )
delete from ragpg.staged_document
 using locked
 where staged_document.tenant_id = (select ragpg.current_tenant())
   and staged_document.collection_id = %(collection_id)s
   and staged_document.key = locked.key;

-- name: text_is_live
-- Whether the live version of a document has this text, and whether it is the same in all.
select count(*) > 0 as same,
       coalesce(bool_or(document.content_hash = %(content_hash)s), false) as unchanged
  from ragpg.document
 where document.tenant_id = (select ragpg.current_tenant())
   and document.collection_id = %(collection_id)s
   and document.key = %(key)s
   and document.text = %(text)s;

-- name: staged_since
-- When this very text was first staged, if it is what is staged.
select staged_document.created_at
  from ragpg.staged_document
 where staged_document.tenant_id = (select ragpg.current_tenant())
   and staged_document.collection_id = %(collection_id)s
   and staged_document.key = %(key)s
   and staged_document.text = %(text)s;

-- name: stage_document
-- Claims the key: an ingest with an older claim can no longer publish, nor a worker take it.
insert into ragpg.staged_document (
    tenant_id, collection_id, key, status, attempts, claim, text, content_hash, title, source, tags,
    metadata, modified_at, owner, review_by, expires_at, media_type, page_starts, batched)
values (
    (select ragpg.current_tenant()), %(collection_id)s, %(key)s, 'staged', 1, %(claim)s, %(text)s,
    %(content_hash)s, %(title)s, %(source)s, %(tags)s, %(metadata)s, %(modified_at)s, %(owner)s,
    %(review_by)s, %(expires_at)s, %(media_type)s, %(page_starts)s, %(batched)s)
    on conflict (tenant_id, collection_id, key) do update
   set status = 'staged', attempts = staged_document.attempts + 1, claim = excluded.claim,
       queued_at = null,
       text = excluded.text, content_hash = excluded.content_hash, title = excluded.title,
       source = excluded.source, tags = excluded.tags, metadata = excluded.metadata,
       modified_at = excluded.modified_at, owner = excluded.owner,
       review_by = excluded.review_by, expires_at = excluded.expires_at,
       media_type = excluded.media_type, page_starts = excluded.page_starts, updated_at = now(),
       -- Whoever collects what is on its way at the vendor publishes it, whoever stages it.
       batched = excluded.batched or exists (
               select from ragpg.awaited_context as awaited
                where awaited.tenant_id = staged_document.tenant_id
                  and awaited.collection_id = staged_document.collection_id
                  and awaited.document_key = staged_document.key);

-- name: hold_claims
-- The keys whose claim, taken with the text, still holds; they are locked until the transaction ends.
select staged_document.key
  from ragpg.staged_document
  join unnest(%(keys)s::text[], %(claims)s::uuid[]) as taken(key, claim)
    on taken.key = staged_document.key and taken.claim = staged_document.claim
 where staged_document.tenant_id = (select ragpg.current_tenant())
   and staged_document.collection_id = %(collection_id)s
 order by staged_document.key
   for update of staged_document;

-- name: set_aside_staged_chunks
-- Chunks of an earlier try: negative positions, until stage_chunks has taken what they paid for.
update ragpg.staged_chunk
   set position = -1 - staged_chunk.position
 where staged_chunk.tenant_id = (select ragpg.current_tenant())
   and staged_chunk.collection_id = %(collection_id)s
   and staged_chunk.document_key = any (%(keys)s);

-- name: stage_chunks
-- A passage whose text did not change takes context and vector from the live chunk, or from an
-- earlier try; the n-th of several equal passages of a document takes from the n-th. Without `reuse`
-- contexts are written anew, but for those that an earlier try of the same text wrote `since` then.
-- A refusal is handed on as a context is, unless `ask_refused`; any other failure is not.
with given as (
         select passage.*, hashed.text_hash,
                row_number() over (partition by passage.key, hashed.text_hash
                                   order by passage.position) as nth
           from jsonb_to_recordset(%(chunks)s) as passage(
                    key text, position integer, start integer, stop integer, page integer,
                    section_path text[], table_header text, text text, reuse boolean,
                    since timestamptz, ask_refused boolean)
          cross join lateral (
                    select sha256(convert_to(
                               jsonb_build_array(passage.section_path, passage.table_header,
                                                 passage.text)::text, 'UTF8')) as text_hash
                ) as hashed
     ),
     live as (
         select document.key, chunk.chunk_id, chunk.text_hash, chunk.context,
                chunk.contextualized_at, embedding.embedding,
                case when chunk.context_refused then chunk.context_error end as refusal,
                row_number() over (partition by document.key, chunk.text_hash
                                   order by chunk.position) as nth
           from ragpg.document
           join ragpg.chunk using (tenant_id, document_id)
           join ragpg.embedding using (tenant_id, chunk_id)
          where document.tenant_id = (select ragpg.current_tenant())
            and document.collection_id = %(collection_id)s
            and document.key = any (%(keys)s)
     ),
     tried as (
         select staged_chunk.document_key as key, staged_chunk.text_hash, staged_chunk.context,
                staged_chunk.contextualized_at, staged_chunk.embedding,
                staged_chunk.window_hash,
                case when staged_chunk.context_refused then staged_chunk.context_error
                     end as refusal,
                row_number() over (partition by staged_chunk.document_key, staged_chunk.text_hash
                                   order by staged_chunk.position desc) as nth
           from ragpg.staged_chunk
          where staged_chunk.tenant_id = (select ragpg.current_tenant())
            and staged_chunk.collection_id = %(collection_id)s
            and staged_chunk.document_key = any (%(keys)s)
            and staged_chunk.position < 0
     )
insert into ragpg.staged_chunk (
    tenant_id, collection_id, document_key, position, start, stop, page, section_path,
    table_header, text, text_hash, context, contextualized_at, embedding, window_hash, chunk_id,
    context_error, context_refused)
select (select ragpg.current_tenant()), %(collection_id)s, given.key, given.position, given.start,
       given.stop, given.page, given.section_path, given.table_header, given.text, given.text_hash,
       case when kept.context is null then tried.context else kept.context end,
       case when kept.context is null then tried.contextualized_at
            else kept.contextualized_at end,
       case when chosen.tried then tried.embedding else kept.embedding end,
       case when chosen.tried then tried.window_hash end,
       live.chunk_id, chosen.refusal, chosen.refusal is not null
  from given
  left join live using (key, text_hash, nth)
  left join tried
    on tried.key = given.key and tried.text_hash = given.text_hash and tried.nth = given.nth
   and (given.reuse or tried.contextualized_at >= given.since
        or given.since is not null and tried.refusal is not null)
 cross join lateral (
           select case when given.reuse then live.context end as context,
                  case when given.reuse then live.contextualized_at end as contextualized_at,
                  case when given.reuse then live.embedding end as embedding,
                  case when given.reuse then live.refusal end as refusal
       ) as kept
 cross join lateral (
           select live.chunk_id is null
                  or kept.context is null and tried.context is not null
                  or tried.window_hash is not null as tried,
                  case when kept.context is null and tried.context is null
                            and not given.ask_refused
                       then coalesce(tried.refusal, kept.refusal) end as refusal
       ) as chosen;

-- name: drop_set_aside
delete from ragpg.staged_chunk
 where staged_chunk.tenant_id = (select ragpg.current_tenant())
   and staged_chunk.collection_id = %(collection_id)s
   and staged_chunk.document_key = any (%(keys)s)
   and staged_chunk.position < 0;

-- name: staged_chunks
-- The work list of these documents, each in order.
select staged_chunk.document_key, staged_chunk.position, staged_chunk.start, staged_chunk.stop,
       staged_chunk.text, staged_chunk.section_path, staged_chunk.table_header,
       staged_chunk.context, staged_chunk.embedding is not null as embedded,
       staged_chunk.chunk_id is not null as live, staged_chunk.contextualized_at,
       staged_chunk.context_error, staged_chunk.context_refused, staged_chunk.window_hash,
       staged_chunk.context is null and exists (
           select from ragpg.awaited_context as awaited
            where awaited.tenant_id = staged_chunk.tenant_id
              and awaited.collection_id = staged_chunk.collection_id
              and awaited.document_key = staged_chunk.document_key
              and awaited.text_hash = staged_chunk.text_hash) as waiting
  from ragpg.staged_chunk
 where staged_chunk.tenant_id = (select ragpg.current_tenant())
   and staged_chunk.collection_id = %(collection_id)s
   and staged_chunk.document_key = any (%(keys)s)
 order by staged_chunk.document_key, staged_chunk.position;

-- name: batched_keys
-- Documents that batches are asked for; `ready` when no context of theirs is awaited any more.
select staged_document.key,
       not exists (
           select from ragpg.open_context
            where open_context.tenant_id = staged_document.tenant_id
              and open_context.collection_id = staged_document.collection_id
              and open_context.document_key = staged_document.key) as ready
  from ragpg.staged_document
 where staged_document.tenant_id = (select ragpg.current_tenant())
   and staged_document.collection_id = %(collection_id)s
   and staged_document.batched
   and staged_document.status = 'staged'
 order by staged_document.key;

-- name: claim_batched
update ragpg.staged_document
   set claim = %(claim)s, updated_at = now()
 where staged_document.tenant_id = (select ragpg.current_tenant())
   and staged_document.collection_id = %(collection_id)s
   and staged_document.key = %(key)s
   and staged_document.batched
   and staged_document.status = 'staged'
returning staged_document.key, staged_document.text, staged_document.title, staged_document.source,
          staged_document.tags, staged_document.metadata, staged_document.modified_at,
          staged_document.owner, staged_document.review_by, staged_document.expires_at,
          staged_document.media_type, staged_document.page_starts;

-- name: publish_documents
select published.key, published.document_id, published.revision, published.chunks,
       published.kept_chunks, published.state
  from ragpg.publish_documents(%(collection)s, %(keys)s, %(claims)s) as published;

-- name: stage_failure
-- Keeps what was paid for, and says why; a version that never was staged gets a row of its own. A
-- claim that does not hold any more changes nothing: the newer ingest may be done by now.
insert into ragpg.staged_document (
    tenant_id, collection_id, key, status, attempts, last_error, text, content_hash, tags,
    metadata, media_type, page_starts)
select (select ragpg.current_tenant()), %(collection_id)s, %(key)s, %(status)s, 1, %(last_error)s, '', '',
       '{}', '{}', 'text', '{}'
 where %(claim)s::uuid is null
    or exists (
           select from ragpg.staged_document
            where staged_document.tenant_id = (select ragpg.current_tenant())
              and staged_document.collection_id = %(collection_id)s
              and staged_document.key = %(key)s
              and staged_document.claim = %(claim)s)
    on conflict (tenant_id, collection_id, key) do update
   set status = excluded.status, last_error = excluded.last_error, updated_at = now()
 where staged_document.claim = %(claim)s or %(claim)s::uuid is null;

-- name: touch_staged
-- Says that these are in work still. Passes over what is being published, which needs no saying.
with held as materialized (
         select staged_document.key, claimed.claim
           from ragpg.staged_document
           join unnest(%(keys)s::text[], %(claims)s::uuid[]) as claimed(key, claim)
             on claimed.key = staged_document.key and claimed.claim = staged_document.claim
          where staged_document.tenant_id = (select ragpg.current_tenant())
            and staged_document.collection_id = %(collection_id)s
            for update of staged_document skip locked
     )
update ragpg.staged_document
   set updated_at = now()
  from held
 where staged_document.tenant_id = (select ragpg.current_tenant())
   and staged_document.collection_id = %(collection_id)s
   and staged_document.key = held.key
   and staged_document.claim = held.claim
   and staged_document.status = 'staged';

-- name: leave_staged
-- Says why work on these ended. Whoever collects the batch of one publishes it all the same.
with held as materialized (
         select staged_document.key, claimed.claim
           from ragpg.staged_document
           join unnest(%(keys)s::text[], %(claims)s::uuid[]) as claimed(key, claim)
             on claimed.key = staged_document.key and claimed.claim = staged_document.claim
          where staged_document.tenant_id = (select ragpg.current_tenant())
            and staged_document.collection_id = %(collection_id)s
          order by staged_document.key
            for update of staged_document
     )
update ragpg.staged_document
   set last_error = %(last_error)s, updated_at = now(),
       status = case when staged_document.batched then staged_document.status else 'failed' end
  from held
 where staged_document.tenant_id = (select ragpg.current_tenant())
   and staged_document.collection_id = %(collection_id)s
   and staged_document.key = held.key
   and staged_document.claim = held.claim
   and staged_document.status = 'staged';

-- name: delete_document
select ragpg.delete_document(%(collection)s, %(key)s) as deleted;

-- name: documents
-- A page of the collection's documents by key, without their texts.
select overview.key, overview.title, overview.revision, overview.media_type, overview.tags,
       overview.modified_at, overview.owner, overview.review_by, overview.expires_at,
       overview.updated_at, overview.characters, overview.chunks, overview.without_context,
       overview.pages_without_text
  from ragpg.collection
  join ragpg.document_overview as overview
    on overview.tenant_id = collection.tenant_id and overview.collection = collection.name
 where collection.tenant_id = (select ragpg.current_tenant())
   and collection.collection_id = ragpg.collection_number(%(collection)s)
   and (%(key_prefix)s::text is null or overview.key ^@ %(key_prefix)s)
   and (%(after)s::text is null or overview.key > %(after)s)
   and not overview.expired
 order by overview.key
 limit %(limit)s;

-- name: document
select document.key, document.text, document.title, document.source, document.tags,
       document.metadata, document.modified_at, document.owner, document.review_by,
       document.expires_at, document.media_type, document.page_starts,
       coalesce(document.expires_at <= now(), false) as expired
  from ragpg.document
 where document.tenant_id = (select ragpg.current_tenant())
   and document.collection_id = ragpg.collection_number(%(collection)s)
   and document.key = %(key)s;
