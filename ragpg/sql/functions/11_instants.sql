-- 11_instants.sql: the dates of metadata, in a form in which order of text is order of time.

create or replace function ragpg.instant(value text) returns text
language plpgsql stable parallel safe
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
    moment timestamptz;
begin
    -- The expression keeps out what Postgres reads and Python does not: 24:00, a leap second,
    -- zone names, "today". Text without a zone is UTC, as YAML says of its timestamps.
    if value !~ ('^\d{4}-\d\d-\d\d([T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?'
                 '(Z|[+-](0\d|1[0-4]):?[0-5]\d)?)?$') then
        return null;
    end if;
    moment := (value || case when value ~ '([Zz]|[T ].*[+-]\d\d:?\d\d)$' then '' else ' UTC' end)
              ::timestamptz;
    if moment < '0001-01-01 UTC' or moment >= '10000-01-01 UTC' then
        return null;
    end if;
    return to_char(moment at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
exception when datetime_field_overflow or invalid_datetime_format then
    return null;
end $$;
comment on function ragpg.instant(text) is
    'An ISO 8601 date or timestamp in UTC at a fixed width; null for any other text. A date is its midnight, text without a zone is UTC.';

create or replace function ragpg.instants(metadata jsonb) returns jsonb
language plpgsql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    entry record;
    found_one jsonb;
    found_all jsonb := '{}';
begin
    for entry in select named.key, named.value from jsonb_each(metadata) as named loop
        found_one := case jsonb_typeof(entry.value)
                         when 'string' then to_jsonb(ragpg.instant(entry.value #>> '{}'))
                         when 'object' then ragpg.instants(entry.value)
                     end;
        if found_one is not null then
            found_all := found_all || jsonb_build_object(entry.key, found_one);
        end if;
    end loop;
    return nullif(found_all, '{}');
end $$;
comment on function ragpg.instants(jsonb) is
    'The instants within metadata, under the same names; null if there are none. Lists are left out.';
