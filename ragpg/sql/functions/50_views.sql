-- 50_views.sql: views for people; row-level security of the tables beneath applies to each.

create or replace view ragpg.collection_overview with (security_invoker = true) as
select collection.tenant_id, collection.collection_id, collection.name,
       (select array_agg(collection_alias.alias order by collection_alias.alias)
          from ragpg.collection_alias
         where collection_alias.tenant_id = collection.tenant_id
           and collection_alias.collection_id = collection.collection_id) as aliases,
       collection.embedding_provider, collection.embedding_model, collection.dimensions,
       collection.context_provider, collection.context_model, collection.splitter,
       collection.max_tokens, collection.language,
       (select count(*) from ragpg.document
         where document.tenant_id = collection.tenant_id
           and document.collection_id = collection.collection_id) as documents,
       (select count(*) from ragpg.embedding
         where embedding.tenant_id = collection.tenant_id
           and embedding.collection_id = collection.collection_id) as chunks,
       (select count(*) from ragpg.document
         where document.tenant_id = collection.tenant_id
           and document.collection_id = collection.collection_id
           and document.expires_at <= now()) as expired_documents
  from ragpg.collection;
comment on view ragpg.collection_overview is
    'One row per collection: its recipe, aliases, and how much it holds. Among documents are expired_documents, which no search finds any more and `ragpg expire` deletes.';

create or replace view ragpg.document_overview with (security_invoker = true) as
select document.tenant_id, collection.name as collection, document.key, document.title,
       document.revision, document.media_type, document.tags, document.modified_at,
       document.owner, document.review_by, document.expires_at, document.updated_at,
       length(document.text) as characters, counted.chunks, counted.without_context,
       -- A page without text begins where the next one does, or the document ends: with its chunks.
       array(select page.number::int
               from unnest(document.page_starts) with ordinality as page (start, number)
              where page.start = coalesce(document.page_starts[page.number::int + 1], counted.stop)
              order by page.number) as pages_without_text,
       coalesce(document.expires_at <= now(), false) as expired
  from ragpg.document
  join ragpg.collection using (tenant_id, collection_id)
 cross join lateral (
           select count(*) as chunks, count(*) filter (where chunk.context is null) as without_context,
                  max(chunk.stop) as stop
             from ragpg.chunk
            where chunk.tenant_id = document.tenant_id
              and chunk.document_id = document.document_id
       ) as counted;
comment on view ragpg.document_overview is 'One row per published document, with its number of chunks, and the pages of a PDF that hold no text. One that has expired is found by no search and no longer live; it stays here until `ragpg expire` deletes it.';

create or replace view ragpg.chunk_overview with (security_invoker = true) as
select chunk.tenant_id, collection.name as collection, document.key as document_key,
       document.title as document_title, chunk.chunk_id, chunk.position, chunk.start, chunk.stop,
       chunk.page, chunk.section_path, chunk.context, chunk.context_error, chunk.table_header,
       chunk.text, document.source, document.tags, document.metadata, document.modified_at,
       chunk.context_refused, coalesce(document.expires_at <= now(), false) as expired
  from ragpg.chunk
  join ragpg.document using (tenant_id, document_id)
  join ragpg.collection on collection.tenant_id = chunk.tenant_id
                       and collection.collection_id = chunk.collection_id;
comment on view ragpg.chunk_overview is
    'One row per published chunk with its document''s title, source, tags, metadata and modified time. The chunks of an expired document are found by no search; they stay here until `ragpg expire` deletes it.';

create or replace view ragpg.context_gap with (security_invoker = true) as
select chunk.tenant_id, chunk.collection_id, chunk.document_id, chunk.chunk_id, chunk.position,
       chunk.context_error, chunk.context_refused
  from ragpg.chunk
 where chunk.context_error is not null;
comment on view ragpg.context_gap is
    'One row per live chunk whose context failed, and why. The next ingest of its document asks again, unless context_refused: then only one that says so (--recontextualize).';

create or replace view ragpg.awaited_context with (security_invoker = true) as
select item.tenant_id, item.collection_id, item.document_key, item.text_hash, item.position,
       item.batch_id
  from ragpg.context_batch_item as item
 where item.status = 'waiting';
comment on view ragpg.awaited_context is
    'One row per context that a batch at the vendor is asked for and that has not come back: the chunk of this text waits for it.';

create or replace view ragpg.open_context with (security_invoker = true) as
select staged_chunk.tenant_id, staged_chunk.collection_id, staged_chunk.document_key,
       staged_chunk.position, staged_chunk.text_hash, staged_chunk.start, staged_chunk.stop,
       staged_chunk.text, staged_chunk.section_path, staged_chunk.table_header
  from ragpg.staged_chunk
 where staged_chunk.context is null
   and staged_chunk.context_error is null;
comment on view ragpg.open_context is
    'One row per staged chunk whose context is neither written nor failed: nobody was asked yet, or a batch is (awaited_context).';

create or replace view ragpg.unasked_context with (security_invoker = true) as
select open_context.tenant_id, open_context.collection_id, open_context.document_key,
       open_context.position, open_context.text_hash, open_context.start, open_context.stop,
       open_context.text, open_context.section_path, open_context.table_header
  from ragpg.open_context
 where not exists (
           select from ragpg.awaited_context as awaited
            where awaited.tenant_id = open_context.tenant_id
              and awaited.collection_id = open_context.collection_id
              and awaited.document_key = open_context.document_key
              and awaited.text_hash = open_context.text_hash);
comment on view ragpg.unasked_context is
    'One row per staged chunk whose context is open and that no batch is asked for.';

create or replace view ragpg.pending with (security_invoker = true) as
select staged_document.tenant_id, collection.name as collection, staged_document.key,
       case when staged_document.batched and staged_document.status = 'staged' then 'batched'
            -- Ingests and workers touch what they have in work every minute.
            when staged_document.status = 'staged'
                 and staged_document.updated_at < now() - interval '5 minutes' then 'interrupted'
            else staged_document.status end as status,
       staged_document.attempts, staged_document.last_error,
       counted.chunks, counted.without_context, counted.without_embedding,
       staged_document.updated_at,
       asked.waiting_contexts, oldest.batch_id, oldest.vendor_id as vendor_batch_id,
       oldest.created_at as batch_since, counted.refused_contexts
  from ragpg.staged_document
  join ragpg.collection using (tenant_id, collection_id)
 cross join lateral (
           select count(*) as chunks,
                  count(*) filter (where staged_chunk.context is null) as without_context,
                  count(*) filter (where staged_chunk.embedding is null) as without_embedding,
                  count(*) filter (where staged_chunk.context_refused) as refused_contexts
             from ragpg.staged_chunk
            where staged_chunk.tenant_id = staged_document.tenant_id
              and staged_chunk.collection_id = staged_document.collection_id
              and staged_chunk.document_key = staged_document.key
       ) as counted
 cross join lateral (
           select count(*) as waiting_contexts
             from ragpg.awaited_context as awaited
            where awaited.tenant_id = staged_document.tenant_id
              and awaited.collection_id = staged_document.collection_id
              and awaited.document_key = staged_document.key
       ) as asked
  left join lateral (
           select context_batch.batch_id, context_batch.vendor_id, context_batch.created_at
             from ragpg.awaited_context as awaited
             join ragpg.context_batch using (tenant_id, batch_id)
            where awaited.tenant_id = staged_document.tenant_id
              and awaited.collection_id = staged_document.collection_id
              and awaited.document_key = staged_document.key
            order by context_batch.created_at, context_batch.batch_id
            limit 1
       ) as oldest on true;
comment on view ragpg.pending is
    'One row per version that is not live: queued, in work (staged), interrupted (in work once and not touched for five minutes: killed, say), left to batches at the vendor (batched: the oldest that it waits for, since when; null when none has been submitted or all are collected), failed with its last error, or without text.';

create or replace view ragpg.spend with (security_invoker = true) as
select usage.tenant_id, usage.collection_id, usage.provider, usage.model, usage.operation,
       date_trunc('day', usage.used_at) as day, count(*) as calls,
       sum(usage.input_tokens) as input_tokens, sum(usage.output_tokens) as output_tokens,
       sum(usage.cache_write_tokens) as cache_write_tokens,
       sum(usage.cache_read_tokens) as cache_read_tokens,
       sum(usage.cost_usd) as cost_usd,
       count(*) filter (where usage.cost_usd is null) as calls_without_price
  from ragpg.usage
 group by usage.tenant_id, usage.collection_id, usage.provider, usage.model, usage.operation,
       date_trunc('day', usage.used_at);
comment on view ragpg.spend is 'What was paid, by day, provider, model and operation.';

create or replace view ragpg.search_log with (security_invoker = true) as
select search.tenant_id, search.search_id, search.searched_at, search.query, search.filter,
       search_hit.fused_rank, search_hit.dense_rank, search_hit.dense_score,
       search_hit.lexical_rank, search_hit.lexical_score, search_hit.fused_score,
       search_hit.rerank_rank, search_hit.rerank_score, search_hit.shown, search_hit.cited,
       search_hit.chunk_id, coalesce(document.key, search_hit.document_key) as document_key,
       chunk.section_path, left(chunk.text, 80) as beginning, search.mode,
       collection.name as collection, search_hit.start, search_hit.stop
  from ragpg.search
  join ragpg.collection using (tenant_id, collection_id)
  join ragpg.search_hit using (tenant_id, search_id)
  left join ragpg.chunk on chunk.tenant_id = search_hit.tenant_id
                       and chunk.chunk_id = search_hit.chunk_id
  left join ragpg.document on document.tenant_id = chunk.tenant_id
                          and document.document_id = chunk.document_id;
comment on view ragpg.search_log is
    'One row per candidate of each logged search: its rank in each arm, and what became of it. Where mode is whole_corpus, one per chunk that the answer read, without ranks. Where its text has been replaced since, section_path and beginning are null; document_key, start and stop stay, and document_history says which version was live at searched_at.';
