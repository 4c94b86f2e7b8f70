-- Contexts that a vendor writes in batches; part of stage 2.

-- name: keys_without_context
-- Staged documents with a chunk that no batch is asked for; a chunk that failed for good is left.
-- `held` while a batch of this staging is asked for others of its chunks; `seeded` when one has
-- ended that reached the vendor, and `warm` while what it wrote to the vendor's cache may last, an
-- hour from its request.
select staged_document.key,
       exists (
           select from ragpg.awaited_context as awaited
             join ragpg.context_batch using (tenant_id, batch_id)
            where awaited.tenant_id = staged_document.tenant_id
              and awaited.collection_id = staged_document.collection_id
              and awaited.document_key = staged_document.key
              and context_batch.created_at >= staged_document.updated_at) as held,
       ended.items > 0 as seeded, coalesce(ended.warm, false) as warm
  from ragpg.staged_document
 cross join lateral (
           select count(*) as items,
                  bool_or(item.status = 'written'
                          and context_batch.finished_at > now() - interval '1 hour'
                          and context_batch.finished_at
                              < context_batch.submitted_at + interval '1 hour') as warm
             from ragpg.context_batch_item as item
             join ragpg.context_batch using (tenant_id, batch_id)
            where item.tenant_id = staged_document.tenant_id
              and item.collection_id = staged_document.collection_id
              and item.document_key = staged_document.key
              and item.status <> 'waiting'
              and context_batch.status <> 'dropped'
              and context_batch.created_at >= staged_document.created_at
       ) as ended
 where staged_document.tenant_id = ragpg.current_tenant()
   and staged_document.collection_id = %(collection_id)s
   and staged_document.status = 'staged'
   and staged_document.batched
   and exists (
           select from ragpg.unasked_context as unasked
            where unasked.tenant_id = staged_document.tenant_id
              and unasked.collection_id = staged_document.collection_id
              and unasked.document_key = staged_document.key)
 order by staged_document.key;

-- name: staged_text
select staged_document.key, staged_document.title, staged_document.text
  from ragpg.staged_document
 where staged_document.tenant_id = ragpg.current_tenant()
   and staged_document.collection_id = %(collection_id)s
   and staged_document.key = %(key)s;

-- name: chunks_without_context
select unasked.position, unasked.start, unasked.stop, unasked.text, unasked.section_path,
       unasked.table_header, unasked.text_hash
  from ragpg.unasked_context as unasked
 where unasked.tenant_id = ragpg.current_tenant()
   and unasked.collection_id = %(collection_id)s
   and unasked.document_key = %(key)s
 order by unasked.position;

-- name: intend_batch
insert into ragpg.context_batch (
    tenant_id, batch_id, collection_id, provider, model, status, requests)
values (
    ragpg.current_tenant(), %(batch_id)s, %(collection_id)s, %(provider)s, %(model)s, 'intended',
    %(requests)s);

-- name: intend_items
-- Leaves out what another submitter was faster to ask for.
insert into ragpg.context_batch_item (
    tenant_id, batch_id, number, collection_id, document_key, position, text_hash)
select (select ragpg.current_tenant()), %(batch_id)s, asked.number, %(collection_id)s, asked.document_key,
       asked.position, asked.text_hash
  from unnest(%(numbers)s::integer[], %(document_keys)s::text[], %(positions)s::integer[],
              %(text_hashes)s::bytea[]) as asked(number, document_key, position, text_hash)
    on conflict (tenant_id, collection_id, document_key, text_hash, position)
       where status = 'waiting' do nothing
returning context_batch_item.number;

-- name: set_requests
update ragpg.context_batch
   set requests = %(requests)s
 where context_batch.tenant_id = ragpg.current_tenant()
   and context_batch.batch_id = %(batch_id)s;

-- name: submitted
update ragpg.context_batch
   set status = 'submitted', vendor_id = %(vendor_id)s, submitted_at = now(), last_error = null
 where context_batch.tenant_id = ragpg.current_tenant()
   and context_batch.batch_id = %(batch_id)s
   and context_batch.status = 'intended';

-- name: batch_error
update ragpg.context_batch
   set last_error = %(last_error)s
 where context_batch.tenant_id = ragpg.current_tenant()
   and context_batch.batch_id = %(batch_id)s;

-- name: finish_batch
-- Requests that got no answer are free to be asked again; returns how many there were.
with finished as (
         update ragpg.context_batch
            set status = %(status)s, last_error = %(last_error)s, finished_at = now()
          where context_batch.tenant_id = ragpg.current_tenant()
            and context_batch.batch_id = %(batch_id)s
         returning context_batch.tenant_id, context_batch.batch_id
     ),
     dropped as (
         update ragpg.context_batch_item as item
            set status = 'dropped', error = %(last_error)s
           from finished
          where item.tenant_id = finished.tenant_id
            and item.batch_id = finished.batch_id
            and item.status = 'waiting'
         returning item.number
     )
select count(*) as dropped from dropped;

-- name: open_batches
select context_batch.batch_id, context_batch.vendor_id, context_batch.requests,
       context_batch.created_at,
       context_batch.created_at < now() - %(grace)s::interval as overdue
  from ragpg.context_batch
 where context_batch.tenant_id = ragpg.current_tenant()
   and context_batch.collection_id = %(collection_id)s
   and context_batch.provider = %(provider)s
   and context_batch.model = %(model)s
   and context_batch.status in ('intended', 'submitted')
 order by context_batch.created_at, context_batch.batch_id;

-- name: vendor_ids
select context_batch.vendor_id
  from ragpg.context_batch
 where context_batch.tenant_id = ragpg.current_tenant()
   and context_batch.vendor_id is not null;

-- name: settle_item
-- Once: a result that is read again after a restart settles nothing.
update ragpg.context_batch_item as item
   set status = %(status)s, error = %(error)s
 where item.tenant_id = ragpg.current_tenant()
   and item.batch_id = %(batch_id)s
   and item.number = %(number)s
   and item.status = 'waiting'
returning item.document_key, item.position, item.text_hash;

-- name: set_item_unused
update ragpg.context_batch_item as item
   set status = 'unused'
 where item.tenant_id = ragpg.current_tenant()
   and item.batch_id = %(batch_id)s
   and item.number = %(number)s;

-- name: place_of_item
-- The staged chunk of this text that has no context yet, the one at the same position first, and
-- how often its context failed in batches since the document was staged. Locked, so that no newer
-- ingest splits the document before the context is written.
select staged_chunk.position, staged_document.claim,
       (select count(*)
          from ragpg.context_batch_item as item
          join ragpg.context_batch using (tenant_id, batch_id)
         where item.tenant_id = staged_chunk.tenant_id
           and item.collection_id = staged_chunk.collection_id
           and item.document_key = staged_chunk.document_key
           and item.text_hash = staged_chunk.text_hash
           and item.position = %(position)s
           and item.status = 'failed'
           and context_batch.created_at >= staged_document.created_at) as failures
  from ragpg.staged_chunk
  join ragpg.staged_document
    on staged_document.tenant_id = staged_chunk.tenant_id
   and staged_document.collection_id = staged_chunk.collection_id
   and staged_document.key = staged_chunk.document_key
 where staged_chunk.tenant_id = ragpg.current_tenant()
   and staged_chunk.collection_id = %(collection_id)s
   and staged_chunk.document_key = %(document_key)s
   and staged_chunk.text_hash = %(text_hash)s
   and staged_chunk.context is null
 order by staged_chunk.position = %(position)s desc, staged_chunk.position
 limit 1
   for share of staged_document;
