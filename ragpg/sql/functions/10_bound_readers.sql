-- 10_bound_readers.sql: which readers were bound, so that a restore without their roles frees none.

create or replace function ragpg._keep_reader_name() returns trigger
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op <> 'INSERT' then
        delete from ragpg.reader_name as kept
         where kept.tenant_id = old.tenant_id
           and (kept.role_number = old.role or kept.role_name = pg_get_userbyid(old.role));
    end if;
    if tg_op <> 'DELETE' then
        insert into ragpg.reader_name (tenant_id, role_name, role_number)
        values (new.tenant_id, pg_get_userbyid(new.role), new.role)
            on conflict (tenant_id, role_name) do update set role_number = excluded.role_number;
    end if;
    return null;
end $$;
comment on function ragpg._keep_reader_name() is
    'Keeps reader_name equal to reader_tenant.';

create or replace trigger keep_reader_name
    after insert or update or delete on ragpg.reader_tenant
    for each row execute function ragpg._keep_reader_name();

create or replace function ragpg._refuse_bound_service() returns trigger
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if ragpg._is_confined(new.role) and pg_has_role(new.role, 'ragpg_app', 'member') then
        raise exception using errcode = 'RG009',
            message = format('role %I is a member of ragpg_app, which works for all tenants: its jobs and its tenants are not held by a binding', pg_get_userbyid(new.role)),
            hint = 'Bind a role of ragpg_reader.';
    end if;
    return new;
end $$;
comment on function ragpg._refuse_bound_service() is
    'Refuses to bind a role of ragpg_app. One that becomes a member afterwards is found by `ragpg doctor`.';

create or replace trigger refuse_bound_service
    before insert or update on ragpg.reader_tenant
    for each row execute function ragpg._refuse_bound_service();

create or replace view ragpg.lost_reader with (security_invoker = true) as
select kept.tenant_id, tenant.key as tenant, kept.role_name,
       to_regrole(quote_ident(kept.role_name)) is not null as role_exists
  from ragpg.reader_name as kept
  join ragpg.tenant using (tenant_id)
 where not exists (
           select from ragpg.reader_tenant
            where reader_tenant.tenant_id = kept.tenant_id
              and (reader_tenant.role = kept.role_number
                   or pg_get_userbyid(reader_tenant.role) = kept.role_name));
comment on view ragpg.lost_reader is
    'Roles that were bound to a tenant and are no more, of every tenant: the database was restored without them. For the owner.';

create or replace function ragpg.bind_readers_again() returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    bound integer;
begin
    insert into ragpg.reader_tenant (role, tenant_id)
    select to_regrole(quote_ident(lost.role_name)), lost.tenant_id
      from ragpg.lost_reader as lost
     where lost.role_exists
        on conflict (role) do nothing;
    get diagnostics bound = row_count;
    return bound;
end $$;
comment on function ragpg.bind_readers_again() is
    'Binds the roles of lost_reader that are there again to their tenants, by name, and returns how many. For the owner.';
