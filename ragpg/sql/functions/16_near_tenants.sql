-- 16_near_tenants.sql: whom an operator may have meant who mistyped a tenant's key.

create or replace function ragpg._letter_pairs(key text) returns text[]
language sql immutable parallel safe
begin atomic
    select array_agg(distinct substr(' ' || lower(key) || ' ', place, 2))
      from generate_series(1, length(key) + 1) as place;
end;
comment on function ragpg._letter_pairs(text) is
    'The neighbouring letters of a key in small letters, with a blank before it and behind it.';

create or replace function ragpg.near_tenants(key text) returns table (near_key text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    bound integer[] := ragpg._bound_tenants();
    asked text[] := ragpg._letter_pairs(near_tenants.key);
begin
    -- Comparing takes 45 us a key, so those that begin and end alike, of the most similar lengths.
    return query
    select likely.key
      from (
               select tenant.key
                 from ragpg.tenant
                cross join lateral (
                          select lower(tenant.key) as own, lower(near_tenants.key) as other
                      ) as small
                where (bound is null or tenant.tenant_id = any (bound))
                  and tenant.key <> near_tenants.key
                  and (left(small.own, 1) = left(small.other, 1)
                       and right(small.own, 1) = right(small.other, 1)
                       or left(small.own, 3) = left(small.other, 3)
                       or right(small.own, 3) = right(small.other, 3))
                order by abs(length(tenant.key) - length(near_tenants.key)), tenant.key
                limit 2000
           ) as likely
     cross join lateral ragpg._letter_pairs(likely.key) as own(pairs)
     cross join lateral (
               select 2.0 * count(*) / (cardinality(own.pairs) + cardinality(asked)) as likeness
                 from unnest(own.pairs) as pair
                where pair = any (asked)
           ) as compared
     where compared.likeness >= 0.4
     order by compared.likeness desc, likely.key
     limit 3;
end $$;
comment on function ragpg.near_tenants(text) is
    'Up to three keys of other tenants that share most of their letter pairs with this key, most alike first. For ragpg_app only, which may use any tenant; who is bound gets its own alone. Not for what a tenant''s user reads.';
