-- 51_jobs.sql: background ingestion. A staged document says what is to be done, a job only who is
-- next: a job that was lost is made again from the rows.

create or replace function ragpg_jobs.lock_of(tenant integer, home integer, document_key text)
returns text
language sql immutable parallel safe
begin atomic
    -- A hash, since a key of 1000 characters is longer than an index entry may be.
    select concat_ws('/', tenant, home, encode(sha256(convert_to(document_key, 'UTF8')), 'hex'));
end;
comment on function ragpg_jobs.lock_of(integer, integer, text) is
    'What two jobs of one document share, so that they never run at once.';

create or replace function ragpg_jobs.defer_ingest(tenant integer, home integer, keys text[])
returns void
language plpgsql volatile security definer
set search_path = ragpg_jobs, pg_catalog, pg_temp
as $$
declare
    turn integer;
begin
    -- A tenant's tenth waiting document has the turn of every other's tenth, and who comes later
    -- begins with the turn that is being served: one document does not wait for ten thousand that
    -- another tenant queued before. An own job that is older than the newest 2000 is overlooked.
    select greatest(0, 1 - min(newest.priority) filter (
                           where (newest.args ->> 'tenant_id')::integer = tenant),
                    (select - ready.priority
                       from procrastinate_jobs as ready
                      where ready.status = 'todo' and ready.queue_name = 'ragpg'
                        and (ready.scheduled_at is null or ready.scheduled_at <= now())
                      order by ready.priority desc limit 1))
      into turn
      from (select waiting.priority, waiting.args
              from procrastinate_jobs as waiting
             where waiting.status = 'todo' and waiting.queue_name = 'ragpg'
             order by waiting.id desc limit 2000) as newest;
    -- A waiting job of the document does for this version too; it need not wait for its next try.
    update procrastinate_jobs set scheduled_at = now()
     where procrastinate_jobs.status = 'todo' and procrastinate_jobs.scheduled_at > now()
       and procrastinate_jobs.lock in (
               select lock_of(tenant, home, wanted.key) from unnest(keys) as wanted(key));
    perform procrastinate_defer_jobs_v1(array_agg(
                row('ragpg', 'ragpg.ingest', -(turn + wanted.place - 1)::integer,
                    lock_of(tenant, home, wanted.key), null,
                    jsonb_build_object('tenant_id', tenant, 'collection_id', home,
                                       'key', wanted.key), null)::procrastinate_job_to_defer_v1
                order by wanted.place))
       from unnest(keys) with ordinality as wanted(key, place)
      where not exists (
                select from procrastinate_jobs
                 where procrastinate_jobs.status = 'todo'
                   and procrastinate_jobs.lock = lock_of(tenant, home, wanted.key))
     having count(*) > 0;
end $$;
comment on function ragpg_jobs.defer_ingest(integer, integer, text[]) is
    'One job for each of these documents that has none waiting, in this transaction; its priority is the turn of the tenant, so that tenants take turns.';

create or replace function ragpg.enqueue(collection text, document_keys text[]) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(enqueue.collection);
    queued text[];
begin
    perform ragpg._hold_collection(tenant, home, enqueue.collection);
    with locked as materialized (
        select staged_document.key
          from ragpg.staged_document
         where staged_document.tenant_id = tenant and staged_document.collection_id = home
           and staged_document.key = any (document_keys)
           -- One that could not be read has no text to work on.
           and staged_document.content_hash <> ''
         order by staged_document.key
           for update
    ), waiting as (
        update ragpg.staged_document
           set status = 'queued', attempts = 0, queued_at = now(), claim = null, updated_at = now()
          from locked
         where staged_document.tenant_id = tenant and staged_document.collection_id = home
           and staged_document.key = locked.key
        returning staged_document.key
    )
    select coalesce(array_agg(waiting.key order by array_position(document_keys, waiting.key)), '{}')
      into queued from waiting;
    perform ragpg_jobs.defer_ingest(tenant, home, queued);
    return cardinality(queued);
end $$;
comment on function ragpg.enqueue(text, text[]) is
    'Gives staged documents to the workers, in this transaction, those that failed with all their tries anew; their last error stays until they succeed. Returns how many.';

create or replace function ragpg_jobs.home(tenant_id integer, collection_id integer)
returns table (tenant text, collection text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select tenant.key, collection.name
      from ragpg.collection
      join ragpg.tenant on tenant.tenant_id = collection.tenant_id
     where collection.tenant_id = home.tenant_id and collection.collection_id = home.collection_id;
end;
comment on function ragpg_jobs.home(integer, integer) is
    'The names by which a worker opens the collection of a job. No row when it is gone.';

create or replace function ragpg_jobs.reclaim(
    stalled_after_s double precision, lost_after_s double precision
) returns integer
language plpgsql volatile security definer
set search_path = ragpg_jobs, pg_catalog, pg_temp
as $$
declare
    stalled bigint;
    lost record;
    reclaimed integer := 0;
begin
    for stalled in
        select job.id
          from procrastinate_jobs as job
          left join procrastinate_workers as worker on worker.id = job.worker_id
         where job.status = 'doing'
           and (worker.id is null
                or worker.last_heartbeat < now() - make_interval(secs => stalled_after_s))
           for update of job skip locked
    loop
        perform procrastinate_retry_job_v2(stalled, now(), null, null, null);
        reclaimed := reclaimed + 1;
    end loop;
    for lost in
        select document.tenant_id, document.collection_id, array_agg(document.key) as keys
          from ragpg.staged_document as document
         where document.status in ('queued', 'staged') and document.queued_at is not null
           -- Who collects its batch publishes it.
           and not document.batched
           and document.updated_at < now() - make_interval(secs => lost_after_s)
           and not exists (
                   select from procrastinate_jobs as job
                    where job.status in ('todo', 'doing')
                      and job.lock = lock_of(document.tenant_id, document.collection_id, document.key))
         group by document.tenant_id, document.collection_id
    loop
        perform defer_ingest(lost.tenant_id, lost.collection_id, lost.keys);
        reclaimed := reclaimed + cardinality(lost.keys);
    end loop;
    return reclaimed;
end $$;
comment on function ragpg_jobs.reclaim(double precision, double precision) is
    'Puts back the jobs of workers without a heartbeat, and makes those that documents wait for and that are gone. Times are the server''s, so the workers'' clocks do not matter. Returns how many.';

create or replace function ragpg_jobs.defer_collect(lost_after_s double precision) returns integer
language plpgsql volatile security definer
set search_path = ragpg_jobs, pg_catalog, pg_temp
as $$
declare
    deferred integer;
begin
    -- Two workers that look at once would make two jobs.
    perform pg_advisory_xact_lock(hashtext('ragpg_jobs.defer_collect'));
    with wanted as (
        select context_batch.tenant_id, context_batch.collection_id
          from ragpg.context_batch
         where context_batch.status in ('intended', 'submitted')
         union
        -- Nobody submitted their batch, or nobody published what came back.
        select document.tenant_id, document.collection_id
          from ragpg.staged_document as document
         where document.batched and document.status = 'staged'
           and document.updated_at < now() - make_interval(secs => lost_after_s)
    ), missing as (
        select wanted.tenant_id, wanted.collection_id,
               concat_ws('/', 'collect', wanted.tenant_id, wanted.collection_id) as lock
          from wanted
    )
    select count(*), procrastinate_defer_jobs_v1(array_agg(
               row('ragpg.batches', 'ragpg.collect', 0, missing.lock, null,
                   jsonb_build_object('tenant_id', missing.tenant_id,
                                      'collection_id', missing.collection_id),
                   null)::procrastinate_job_to_defer_v1
               order by missing.lock))
      into deferred
      from missing
     where not exists (
               select from procrastinate_jobs
                where procrastinate_jobs.status in ('todo', 'doing')
                  and procrastinate_jobs.lock = missing.lock)
    having count(*) > 0;
    return coalesce(deferred, 0);
end $$;
comment on function ragpg_jobs.defer_collect(double precision) is
    'A job for each collection with batches at the vendor, or with documents left to batches for so long without one, that has none. The job asks the vendor again and again until nothing waits. Returns how many.';

-- What there was before deleted in one transaction for all tenants.
drop function if exists ragpg_jobs.expire();
create or replace function ragpg_jobs.overdue(log_days integer)
returns table (tenant text, collection text, expired boolean, old_log boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select tenant.key, collection.name, judged.expired, judged.old_log
      from ragpg.collection
      join ragpg.tenant on tenant.tenant_id = collection.tenant_id
     cross join lateral (
               select exists (select from ragpg.document
                               where document.tenant_id = collection.tenant_id
                                 and document.collection_id = collection.collection_id
                                 and document.expires_at <= now()) as expired,
                      exists (select from ragpg.search
                               where search.tenant_id = collection.tenant_id
                                 and search.collection_id = collection.collection_id
                                 and search.searched_at
                                     <= now() - make_interval(days => overdue.log_days)) as old_log
           ) as judged
     where judged.expired or judged.old_log
     order by tenant.key, collection.name;
end;
comment on function ragpg_jobs.overdue(integer) is
    'The collections of all tenants with documents that have expired, or with searches that were logged so many days ago or earlier (null: none is too old); for workers, who delete them by delete_expired and prune_log, a part in each transaction.';

create or replace function ragpg_jobs.queue_health(stalled_after_s double precision)
returns table (workers bigint, ready bigint, later bigint, in_work bigint, waiting_since timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select (select count(*) from ragpg_jobs.procrastinate_workers as worker
             where worker.last_heartbeat
                   >= now() - make_interval(secs => queue_health.stalled_after_s)),
           count(*) filter (where job.status = 'todo'
                              and (job.scheduled_at is null or job.scheduled_at <= now())),
           count(*) filter (where job.status = 'todo' and job.scheduled_at > now()),
           count(*) filter (where job.status = 'doing'),
           (select min(staged_document.queued_at) from ragpg.staged_document
             where staged_document.status = 'queued')
      from ragpg_jobs.procrastinate_jobs as job
     where job.queue_name = 'ragpg';
end;
comment on function ragpg_jobs.queue_health(double precision) is
    'One row: how many workers had a heartbeat in so many seconds, how many documents of all tenants can be begun now, wait for another try, and are in work, and since when the oldest waits. For `ragpg doctor` and for monitoring.';

create or replace view ragpg.ingest_status with (security_invoker = true) as
select collection.tenant_id, collection.name as collection,
       (select count(*) from ragpg.document
         where document.tenant_id = collection.tenant_id
           and document.collection_id = collection.collection_id
           and (document.expires_at is null or document.expires_at > now())) as live,
       counted.queued, counted.retrying, counted.in_work, counted.failed, counted.no_text,
       counted.waiting_since, counted.batched, asked.batched_since, counted.interrupted,
       (select count(*) from ragpg.context_gap
         where context_gap.tenant_id = collection.tenant_id
           and context_gap.collection_id = collection.collection_id
           and context_gap.context_refused) as refused_contexts,
       (select count(*) from ragpg.document
         where document.tenant_id = collection.tenant_id
           and document.collection_id = collection.collection_id
           and document.expires_at <= now()) as expired
  from ragpg.collection
 cross join lateral (
           select count(*) filter (where staged_document.status = 'queued'
                                     and staged_document.last_error is null) as queued,
                  count(*) filter (where staged_document.status = 'queued'
                                     and staged_document.last_error is not null) as retrying,
                  count(*) filter (where staged_document.status = 'staged'
                                     and not staged_document.batched
                                     and staged_document.updated_at
                                         >= now() - interval '5 minutes') as in_work,
                  count(*) filter (where staged_document.status = 'staged'
                                     and not staged_document.batched
                                     and staged_document.updated_at
                                         < now() - interval '5 minutes') as interrupted,
                  count(*) filter (where staged_document.status = 'failed') as failed,
                  count(*) filter (where staged_document.status = 'no_text') as no_text,
                  min(staged_document.queued_at) filter (
                      where staged_document.status = 'queued') as waiting_since,
                  count(*) filter (where staged_document.status = 'staged'
                                     and staged_document.batched) as batched
             from ragpg.staged_document
            where staged_document.tenant_id = collection.tenant_id
              and staged_document.collection_id = collection.collection_id
       ) as counted
 cross join lateral (
           select min(context_batch.created_at) as batched_since
             from ragpg.context_batch
            where context_batch.tenant_id = collection.tenant_id
              and context_batch.collection_id = collection.collection_id
              and context_batch.status in ('intended', 'submitted')
       ) as asked;
comment on view ragpg.ingest_status is
    'One row per collection: how many documents are live, and of the versions that are not, how many wait, wait for another try, are in work, are interrupted (in work once and not touched for five minutes), are left to batches at the vendor (the oldest open one since batched_since), failed, or hold no text. refused_contexts counts live chunks without a context because the model refused their text. expired counts documents that no search finds any more and that are not deleted yet.';
