-- Documents that workers make live.

-- name: queue_document
-- Keeps the text and ends any older claim; ragpg.enqueue, right after, makes the job.
insert into ragpg.staged_document (
    tenant_id, collection_id, key, status, text, content_hash, title, source, tags, metadata,
    modified_at, owner, review_by, expires_at, media_type, page_starts)
values (
    ragpg.current_tenant(), %(collection_id)s, %(key)s, 'queued', %(text)s, %(content_hash)s,
    %(title)s, %(source)s, %(tags)s, %(metadata)s, %(modified_at)s, %(owner)s, %(review_by)s,
    %(expires_at)s, %(media_type)s, %(page_starts)s)
    on conflict (tenant_id, collection_id, key) do update
   set claim = null, text = excluded.text, content_hash = excluded.content_hash,
       title = excluded.title, source = excluded.source, tags = excluded.tags,
       metadata = excluded.metadata, modified_at = excluded.modified_at, owner = excluded.owner,
       review_by = excluded.review_by, expires_at = excluded.expires_at,
       media_type = excluded.media_type, page_starts = excluded.page_starts;

-- name: enqueue
-- Without keys, all that failed or were interrupted.
select ragpg.enqueue(
           %(collection)s,
           coalesce(%(keys)s::text[], array(
               select pending.key
                 from ragpg.pending
                 join ragpg.collection using (tenant_id)
                where pending.tenant_id = ragpg.current_tenant()
                  and collection.collection_id = ragpg.collection_number(%(collection)s)
                  and pending.collection = collection.name
                  and pending.status in ('failed', 'interrupted')
                order by pending.key))) as queued;

-- name: without_text
-- Failed before there was a text to keep, so a worker has nothing to work on.
select staged_document.key
  from ragpg.staged_document
 where staged_document.tenant_id = ragpg.current_tenant()
   and staged_document.collection_id = ragpg.collection_number(%(collection)s)
   and staged_document.status = 'failed'
   and staged_document.content_hash = ''
   and (%(keys)s::text[] is null or staged_document.key = any (%(keys)s))
 order by staged_document.key;

-- name: take
-- Claims a document for a worker; the try is counted before it begins. Until the worker leaves it
-- to batches again, no batch is submitted for it.
update ragpg.staged_document
   set claim = %(claim)s, status = 'staged', batched = false, attempts = staged_document.attempts + 1,
       updated_at = now()
 where staged_document.tenant_id = ragpg.current_tenant()
   and staged_document.collection_id = %(collection_id)s
   and staged_document.key = %(key)s
   and staged_document.status in ('queued', 'staged')
   and staged_document.queued_at is not null
   and staged_document.attempts < %(max_attempts)s
returning staged_document.key, staged_document.text, staged_document.title, staged_document.source,
          staged_document.tags, staged_document.metadata, staged_document.modified_at,
          staged_document.owner, staged_document.review_by, staged_document.expires_at,
          staged_document.media_type, staged_document.page_starts, staged_document.attempts;

-- name: bury
-- Every try ended without an error or a result: its workers were killed.
update ragpg.staged_document
   set status = 'failed', claim = null, updated_at = now(),
       last_error = concat(
           'each of ', staged_document.attempts, ' workers was killed or crashed over this document;'
           ' look at their logs, then queue it again',
           '; the last error before: ' || staged_document.last_error)
 where staged_document.tenant_id = ragpg.current_tenant()
   and staged_document.collection_id = %(collection_id)s
   and staged_document.key = %(key)s
   and staged_document.status in ('queued', 'staged')
   and staged_document.queued_at is not null
   and staged_document.attempts >= %(max_attempts)s;

-- name: release
-- A try that was interrupted is none.
update ragpg.staged_document
   set status = %(status)s, last_error = coalesce(%(last_error)s, staged_document.last_error),
       attempts = staged_document.attempts - case when %(interrupted)s then 1 else 0 end,
       claim = null, updated_at = now()
 where staged_document.tenant_id = ragpg.current_tenant()
   and staged_document.collection_id = %(collection_id)s
   and staged_document.key = %(key)s
   and staged_document.claim = %(claim)s;

-- name: leave_to_batches
-- A try that found contexts at the vendor is none; who collects them publishes the document.
update ragpg.staged_document
   set batched = true, attempts = staged_document.attempts - 1, updated_at = now()
 where staged_document.tenant_id = ragpg.current_tenant()
   and staged_document.collection_id = %(collection_id)s
   and staged_document.key = %(key)s
   and staged_document.claim = %(claim)s;

-- name: awaited_batches
select pending.vendor_batch_id, pending.batch_since, pending.waiting_contexts
  from ragpg.pending
 where pending.tenant_id = ragpg.current_tenant()
   and pending.collection = %(collection)s
   and pending.key = %(key)s;

-- name: home
select home.tenant, home.collection
  from ragpg_jobs.home(%(tenant_id)s, %(collection_id)s) as home;

-- name: reclaim
select ragpg_jobs.reclaim(%(stalled_after_s)s, %(lost_after_s)s) as reclaimed;

-- name: defer_collect
select ragpg_jobs.defer_collect(%(lost_after_s)s) as deferred;

-- name: queue_health
select health.workers, health.ready, health.later, health.in_work,
       coalesce(extract(epoch from now() - health.waiting_since), 0)::float8 as waited_s
  from ragpg_jobs.queue_health(%(stalled_after_s)s) as health;

-- name: status
select ingest_status.collection, ingest_status.live, ingest_status.queued, ingest_status.retrying,
       ingest_status.in_work, ingest_status.batched, ingest_status.interrupted,
       ingest_status.failed, ingest_status.no_text, ingest_status.waiting_since,
       ingest_status.refused_contexts
  from ragpg.ingest_status
 order by ingest_status.collection;

-- name: own_name
select collection.name
  from ragpg.collection
 where collection.tenant_id = ragpg.current_tenant()
   and collection.collection_id = ragpg.collection_number(%(collection)s);

-- name: problems
select pending.collection, pending.key, pending.status, pending.attempts,
       coalesce(pending.last_error,
                'whoever worked on it ended without a word; ingest it again, or `ragpg retry`'
                ' queues what there is of it') as last_error
  from ragpg.pending
 where pending.last_error is not null or pending.status = 'interrupted'
 order by pending.collection, pending.key;

-- name: pages_without_text
-- Live PDFs that say nothing on some page: scanned, or blank.
select overview.collection, overview.key, overview.pages_without_text
  from ragpg.document_overview as overview
 where overview.media_type = 'pdf'
   and cardinality(overview.pages_without_text) > 0
 order by overview.collection, overview.key;

-- name: batches
-- Batches that are at the vendor, or may be (no vendor id yet), oldest first, with what waits.
select collection.name as collection, context_batch.batch_id, context_batch.vendor_id,
       context_batch.created_at as since, count(distinct awaited.document_key) as documents,
       count(awaited.batch_id) as contexts, context_batch.last_error
  from ragpg.context_batch
  join ragpg.collection using (tenant_id, collection_id)
  left join ragpg.awaited_context as awaited
    on awaited.tenant_id = context_batch.tenant_id
   and awaited.batch_id = context_batch.batch_id
 where context_batch.tenant_id = ragpg.current_tenant()
   and context_batch.status in ('intended', 'submitted')
 group by collection.name, context_batch.batch_id, context_batch.vendor_id,
       context_batch.created_at, context_batch.last_error
 order by context_batch.created_at, context_batch.batch_id;
