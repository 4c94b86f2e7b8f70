-- 10_current_tenant.sql: which tenant a statement runs for, and the door that sets it.
-- Function files run without parameters, so a literal percent is %.

create or replace function ragpg._bound_tenants() returns integer[]
language plpgsql stable parallel restricted
set search_path = pg_catalog, pg_temp
as $$
declare
    taken text := nullif(current_setting('role'), 'none');
    login_id oid;
    taken_id oid;
    bound integer[];
begin
    if not exists (select from ragpg.reader_tenant) and not exists (select from ragpg.reader_name) then
        return null;
    end if;
    -- Inside a definer function current_user is the owner, so who asks is the login and the role
    -- that it has taken; the setting keeps a role's old name when that is renamed meanwhile.
    login_id := to_regrole(quote_ident(session_user));
    taken_id := to_regrole(quote_ident(taken));
    if login_id is null or taken is not null and taken_id is null then
        raise exception using errcode = 'RG004',
            message = 'the role of this session was renamed or dropped',
            hint = 'Connect again.';
    end if;
    bound := (
        select array_agg(known.tenant_id)
          from (
                   select reader_tenant.tenant_id
                     from ragpg.reader_tenant
                    cross join lateral (
                              -- A group can be taken and left again, a login's own row holds.
                              select case
                                  when reader_tenant.role = login_id then 1
                                  when reader_tenant.role = taken_id then 2
                                  when ragpg._is_confined(taken_id)
                                       and pg_has_role(taken_id, reader_tenant.role, 'member') then 3
                                  when ragpg._is_confined(login_id)
                                       and pg_has_role(login_id, reader_tenant.role, 'member') then 4
                                  end as step
                          ) as known
                    where known.step is not null
                    order by known.step
                    fetch first row with ties
               ) as known);
    -- Which of the readers that are there now was bound, or in a group that was, nobody knows.
    -- A service is asked first, as it is at every statement.
    if bound is null and not pg_has_role(login_id, 'ragpg_app', 'member')
       and ragpg._is_confined(login_id) and exists (select from ragpg.lost_reader) then
        raise exception using errcode = 'RG004',
            message = 'readers of this database were bound to tenants and are no more, as after a restore without their roles',
            hint = 'Have ragpg_owner bind them again: select ragpg.bind_readers_again(), and see table ragpg.lost_reader.';
    end if;
    return bound;
end $$;
comment on function ragpg._bound_tenants() is
    'The tenants to which reader_tenant binds this session: by its login, else by the role it took, else by the groups of that role, else by those of the login. Null if it is not bound. Raises RG004 for a reader without a binding while bindings are lost.';

create or replace function ragpg._is_confined(role_id oid) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
begin atomic
    -- A superuser counts as a member of every role, and who creates a role since PostgreSQL 16 is one.
    select not (pg_roles.rolsuper or pg_has_role(pg_roles.oid, 'ragpg_owner', 'member'))
      from pg_roles
     where pg_roles.oid = role_id;
end;
comment on function ragpg._is_confined(oid) is
    'Whether membership in a bound group binds this role: not a superuser, not an owner of the schema.';

-- Restricted: until 15.9 and 16.5 a parallel worker did not know the role that was taken. The cost
-- keeps the planner from a scan that would ask once a row instead of once.
create or replace function ragpg.current_tenant() returns integer
language plpgsql stable parallel restricted security definer
cost 1000
set search_path = pg_catalog, pg_temp
as $$
declare
    asked text := nullif(current_setting('ragpg.tenant_id', true), '');
    bound integer[] := ragpg._bound_tenants();
    chosen integer;
begin
    if asked is null and cardinality(bound) = 1 then
        return bound[1];
    end if;
    if asked is null then
        raise exception using errcode = 'RG001',
            message = 'no tenant is set',
            hint = 'Call ragpg.use_tenant(''<key>'') first, in the same transaction.';
    end if;
    -- Whether a foreign number exists is not told: a bound role gets RG004 for every one.
    if asked ~ '^[1-9][0-9]{0,9}$' then
        if not asked::bigint = any (bound) then
            raise exception using errcode = 'RG004',
                message = 'this role is bound to another tenant',
                hint = 'Leave ragpg.tenant_id unset: the role''s own tenant is used.';
        end if;
        select tenant.tenant_id into chosen
          from ragpg.tenant
         where tenant.tenant_id = asked::bigint;
    end if;
    if chosen is null then
        raise exception using errcode = 'RG001',
            message = 'ragpg.tenant_id is not the number of a tenant',
            hint = 'Call ragpg.use_tenant(''<key>''), which looks the number up.';
    end if;
    return chosen;
end $$;
comment on function ragpg.current_tenant() is
    'The tenant of this transaction. Raises RG001 when none is set, or one that does not exist; RG004 when the role is bound to another.';

create or replace function ragpg.use_tenant(key text, session boolean default false) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    bound integer[] := ragpg._bound_tenants();
    found_id integer;
begin
    select tenant.tenant_id into found_id from ragpg.tenant where tenant.key = use_tenant.key;
    -- One message from one line: a bound role does not learn which other tenants there are.
    if found_id is null or not coalesce(found_id = any (bound), true) then
        raise exception using errcode = 'RG002',
            message = format('there is no tenant %L', use_tenant.key),
            hint = 'Check the key, or make it with ragpg.create_tenant; a role that is bound to a tenant may use that one only.';
    end if;
    perform set_config('ragpg.tenant_id', found_id::text, not coalesce(use_tenant.session, false));
    return found_id;
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
    -- Looked up first: an insert that conflicts uses up a number all the same.
    select tenant.tenant_id into found_id from ragpg.tenant where tenant.key = create_tenant.key;
    if found_id is null then
        insert into ragpg.tenant (key) values (create_tenant.key) on conflict do nothing;
        select tenant.tenant_id into found_id from ragpg.tenant where tenant.key = create_tenant.key;
    end if;
    return found_id;
end $$;
comment on function ragpg.create_tenant(text) is
    'The number of the tenant with this key, which is made if it is not there. For ragpg_app only.';
