-- Stage 1. Statements run with parameters, so a literal percent is written twice.

-- name: known_versions
-- What is live and what is staged under these keys.
select document.key, document.content_hash, document.modified_at
  from ragpg.document
 where document.tenant_id = ragpg.current_tenant()
   and document.collection_id = %(collection_id)s
   and document.key = any (%(keys)s);

-- name: forget_staged
-- A version that failed is moot when the live one is what the caller has now.
delete from ragpg.staged_document
 where staged_document.tenant_id = ragpg.current_tenant()
   and staged_document.collection_id = %(collection_id)s
   and staged_document.key = any (%(keys)s);

-- name: stage_document
-- Claims the key: an ingest with an older claim can no longer publish.
insert into ragpg.staged_document (
    tenant_id, collection_id, key, status, attempts, claim, text, content_hash, title, source, tags,
    metadata, modified_at, owner, review_by, expires_at, media_type, page_starts)
values (
    ragpg.current_tenant(), %(collection_id)s, %(key)s, 'staged', 1, %(claim)s, %(text)s,
    %(content_hash)s, %(title)s, %(source)s, %(tags)s, %(metadata)s, %(modified_at)s, %(owner)s,
    %(review_by)s, %(expires_at)s, %(media_type)s, %(page_starts)s)
    on conflict (tenant_id, collection_id, key) do update
   set status = 'staged', attempts = staged_document.attempts + 1, claim = excluded.claim,
       text = excluded.text, content_hash = excluded.content_hash, title = excluded.title,
       source = excluded.source, tags = excluded.tags, metadata = excluded.metadata,
       modified_at = excluded.modified_at, owner = excluded.owner,
       review_by = excluded.review_by, expires_at = excluded.expires_at,
       media_type = excluded.media_type, page_starts = excluded.page_starts, updated_at = now();

-- name: set_aside_staged_chunks
-- Chunks of an earlier try: negative positions, until stage_chunks has taken what they paid for.
update ragpg.staged_chunk
   set position = -1 - staged_chunk.position
 where staged_chunk.tenant_id = ragpg.current_tenant()
   and staged_chunk.collection_id = %(collection_id)s
   and staged_chunk.document_key = %(key)s;

-- name: stage_chunks
-- A passage whose text did not change takes context and vector from the live chunk, or from an
-- earlier try; the n-th of several equal passages takes from the n-th.
with given as (
         select passage.*, hashed.text_hash,
                row_number() over (partition by hashed.text_hash order by passage.position) as nth
           from jsonb_to_recordset(%(chunks)s) as passage(
                    position integer, start integer, stop integer, page integer,
                    section_path text[], table_header text, text text)
          cross join lateral (
                    select sha256(convert_to(
                               jsonb_build_array(passage.section_path, passage.table_header,
                                                 passage.text)::text, 'UTF8')) as text_hash
                ) as hashed
     ),
     live as (
         select chunk.chunk_id, chunk.text_hash, chunk.context, chunk.contextualized_at,
                embedding.embedding,
                row_number() over (partition by chunk.text_hash order by chunk.position) as nth
           from ragpg.chunk
           join ragpg.document using (tenant_id, document_id)
           join ragpg.embedding using (tenant_id, chunk_id)
          where chunk.tenant_id = ragpg.current_tenant()
            and document.collection_id = %(collection_id)s
            and document.key = %(key)s
     ),
     tried as (
         select staged_chunk.text_hash, staged_chunk.context, staged_chunk.contextualized_at,
                staged_chunk.embedding,
                row_number() over (partition by staged_chunk.text_hash
                                   order by staged_chunk.position desc) as nth
           from ragpg.staged_chunk
          where staged_chunk.tenant_id = ragpg.current_tenant()
            and staged_chunk.collection_id = %(collection_id)s
            and staged_chunk.document_key = %(key)s
            and staged_chunk.position < 0
     )
insert into ragpg.staged_chunk (
    tenant_id, collection_id, document_key, position, start, stop, page, section_path,
    table_header, text, text_hash, context, contextualized_at, embedding, chunk_id)
select ragpg.current_tenant(), %(collection_id)s, %(key)s, given.position, given.start, given.stop,
       given.page, given.section_path, given.table_header, given.text, given.text_hash,
       case when live.chunk_id is null then tried.context else live.context end,
       case when live.chunk_id is null then tried.contextualized_at
            else live.contextualized_at end,
       case when live.chunk_id is null then tried.embedding else live.embedding end,
       live.chunk_id
  from given
  left join live using (text_hash, nth)
  left join tried using (text_hash, nth);

-- name: drop_set_aside
delete from ragpg.staged_chunk
 where staged_chunk.tenant_id = ragpg.current_tenant()
   and staged_chunk.collection_id = %(collection_id)s
   and staged_chunk.document_key = %(key)s
   and staged_chunk.position < 0;

-- name: staged_chunks
-- The work list of one document, in order.
select staged_chunk.position, staged_chunk.start, staged_chunk.stop, staged_chunk.text,
       staged_chunk.section_path, staged_chunk.table_header, staged_chunk.context,
       staged_chunk.embedding is not null as embedded,
       staged_chunk.chunk_id is not null as live
  from ragpg.staged_chunk
 where staged_chunk.tenant_id = ragpg.current_tenant()
   and staged_chunk.collection_id = %(collection_id)s
   and staged_chunk.document_key = %(key)s
 order by staged_chunk.position;

-- name: publish
select published.document_id, published.revision, published.chunks, published.kept_chunks
  from ragpg.publish(%(collection)s, %(key)s, %(claim)s) as published;

-- name: stage_failure
-- Keeps what was paid for, and says why; a version that never was staged gets a row of its own.
insert into ragpg.staged_document (
    tenant_id, collection_id, key, status, attempts, last_error, text, content_hash, tags,
    metadata, media_type, page_starts)
values (
    ragpg.current_tenant(), %(collection_id)s, %(key)s, %(status)s, 1, %(last_error)s, '', '',
    '{}', '{}', 'text', '{}')
    on conflict (tenant_id, collection_id, key) do update
   set status = excluded.status, last_error = excluded.last_error, updated_at = now()
 where staged_document.claim = %(claim)s or %(claim)s::uuid is null;

-- name: delete_document
select ragpg.delete_document(%(collection)s, %(key)s) as deleted;

-- name: document
select document.key, document.text, document.title, document.source, document.tags,
       document.metadata, document.modified_at, document.owner, document.review_by,
       document.expires_at, document.media_type, document.page_starts
  from ragpg.document
 where document.tenant_id = ragpg.current_tenant()
   and document.collection_id = ragpg.collection_number(%(collection)s)
   and document.key = %(key)s;
