-- 10_current_tenant.sql: which tenant a statement runs for, and the door that sets it.
-- Function files run without parameters, so a literal percent is %.

create or replace function ragpg.current_tenant() returns integer
language plpgsql stable parallel safe security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    chosen integer := nullif(current_setting('ragpg.tenant_id', true), '')::integer;
    bound integer;
begin
    -- A bound reader is known by its login or by the role it has taken; inside a definer function
    -- current_user is the owner, so it is not asked.
    select reader_tenant.tenant_id into bound
      from ragpg.reader_tenant
     where reader_tenant.role_name in (session_user, current_setting('role')::name)
     order by reader_tenant.role_name = session_user desc
     limit 1;
    if bound is not null and chosen is not null and chosen <> bound then
        raise exception using errcode = 'RG004',
            message = 'this role is bound to another tenant',
            hint = 'Leave ragpg.tenant_id unset: the role''s own tenant is used.';
    end if;
    if coalesce(bound, chosen) is null then
        raise exception using errcode = 'RG001',
            message = 'no tenant is set',
            hint = 'Call ragpg.use_tenant(''<key>'') first, in the same transaction.';
    end if;
    return coalesce(bound, chosen);
exception when invalid_text_representation or numeric_value_out_of_range then
    raise exception using errcode = 'RG001',
        message = 'ragpg.tenant_id is not the number of a tenant',
        hint = 'Call ragpg.use_tenant(''<key>''), which looks the number up.';
end $$;
comment on function ragpg.current_tenant() is
    'The tenant of this transaction. Raises RG001 when none is set, RG004 when the role is bound to another.';

create or replace function ragpg.use_tenant(key text, session boolean default false) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    found_id integer;
begin
    select tenant.tenant_id into found_id from ragpg.tenant where tenant.key = use_tenant.key;
    if found_id is null then
        raise exception using errcode = 'RG002',
            message = format('there is no tenant %L', use_tenant.key),
            hint = 'Check the key, or make it with ragpg.create_tenant.';
    end if;
    perform set_config('ragpg.tenant_id', found_id::text, not use_tenant.session);
    return ragpg.current_tenant();
exception when sqlstate 'RG004' then
    perform set_config('ragpg.tenant_id', '', not use_tenant.session);
    raise exception using errcode = 'RG002',
        message = format('there is no tenant %L', use_tenant.key),
        hint = 'This role is bound to one tenant and may use that one only.';
end $$;
comment on function ragpg.use_tenant(text, boolean) is
    'Sets the tenant by its key for this transaction (session => true: for this session, in psql). Returns its number. Raises RG002.';

create or replace function ragpg.create_tenant(key text) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    found_id integer;
begin
    insert into ragpg.tenant (key) values (create_tenant.key) on conflict do nothing;
    select tenant.tenant_id into found_id from ragpg.tenant where tenant.key = create_tenant.key;
    return found_id;
end $$;
comment on function ragpg.create_tenant(text) is
    'The number of the tenant with this key, which is made if it is not there. For ragpg_app only.';
