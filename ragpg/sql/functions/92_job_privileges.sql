-- 92_job_privileges.sql: the service enqueues and works; a reader sees counts, never the queue.

grant select on ragpg.ingest_status to ragpg_app, ragpg_reader;
grant execute on function ragpg.enqueue(text, text[]) to ragpg_app;

revoke all on function
    ragpg_jobs.lock_of(integer, integer, text),
    ragpg_jobs.defer_ingest(integer, integer, text[]),
    ragpg_jobs.home(integer, integer),
    ragpg_jobs.reclaim(double precision, double precision),
    ragpg_jobs.expire()
    from public;
grant execute on function
    ragpg_jobs.home(integer, integer), ragpg_jobs.reclaim(double precision, double precision),
    ragpg_jobs.expire()
    to ragpg_app;
