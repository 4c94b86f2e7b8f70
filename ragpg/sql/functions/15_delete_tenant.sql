-- 15_delete_tenant.sql: the end of a tenant.

create or replace function ragpg.delete_tenant(key text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    before text := current_setting('ragpg.tenant_id', true);
    doomed integer := ragpg.use_tenant(delete_tenant.key);
begin
    -- In the order of 11_locks.sql: writers hold their collection and the tenant's row before any
    -- other, so from then on nobody of this tenant holds anything that is deleted here.
    perform pg_advisory_xact_lock(hashtextextended('ragpg.rebuild_lexical', home.collection_id))
       from (
               select collection.collection_id from ragpg.collection
                where collection.tenant_id = doomed order by collection.collection_id
               offset 0
           ) as home;
    perform from ragpg.tenant where tenant.tenant_id = doomed for update;
    delete from ragpg.collection where collection.tenant_id = doomed;
    -- One that is in work deletes itself when its worker finds nothing to do.
    delete from ragpg_jobs.procrastinate_jobs
     where procrastinate_jobs.args ->> 'tenant_id' = doomed::text
       and procrastinate_jobs.status <> 'doing';
    delete from ragpg.tenant where tenant.tenant_id = doomed;
    perform set_config('ragpg.tenant_id', coalesce(before, ''), true);
end $$;
comment on function ragpg.delete_tenant(text) is
    'Deletes a tenant with everything of it, in every table, history, log and usage too, and its jobs; nothing brings it back. Raises RG002 when there is none. For ragpg_app only.';
