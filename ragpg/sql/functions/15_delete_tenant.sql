-- 15_delete_tenant.sql: the end of a tenant.

create or replace function ragpg.delete_tenant(key text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    before text := current_setting('ragpg.tenant_id', true);
    doomed integer := ragpg.use_tenant(delete_tenant.key);
    home text;
begin
    -- Whoever writes a row of this tenant holds its key: this waits for them, and they for this.
    perform from ragpg.tenant where tenant.tenant_id = doomed for update;
    for home in
        select collection.name from ragpg.collection
         where collection.tenant_id = doomed order by collection.name
    loop
        perform ragpg.delete_collection(home);
    end loop;
    -- One that is in work deletes itself when its worker finds nothing to do.
    delete from ragpg_jobs.procrastinate_jobs
     where procrastinate_jobs.args ->> 'tenant_id' = doomed::text
       and procrastinate_jobs.status <> 'doing';
    delete from ragpg.tenant where tenant.tenant_id = doomed;
    perform set_config('ragpg.tenant_id', coalesce(before, ''), true);
end $$;
comment on function ragpg.delete_tenant(text) is
    'Deletes a tenant with everything of it, in every table, history, log and usage too, and its jobs; nothing brings it back. Raises RG002 when there is none. For ragpg_app only.';
