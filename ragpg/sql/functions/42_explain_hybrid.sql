-- 42_explain_hybrid.sql: the plans of both arms for a given search, as they are run.
--
-- Each arm hands every statement that it composes, with its parameters, to _note_plan where
-- ragpg.explain is set; what is shown is therefore what runs, and no second text can drift away.

create or replace function ragpg._plan_lines(lines text[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
    -- A vector in a line would fill a page. Counts of what an index of all tenants gave, or of what
    -- was thrown away after it, would tell about rows of other tenants.
    perform set_config('ragpg.explained', concat(
        current_setting('ragpg.explained', true),
        (select string_agg(
                    case when line ~ 'Bitmap (Index Scan|And|Or)'
                         then regexp_replace(line, ' \(actual.*\)$', '')
                         else regexp_replace(line, '''(\[[^'']*|[^'']{80,})''', '''..''', 'g') end || E'\n', ''
                    order by place)
           from (
                    select regexp_replace(noted.line, 'OPERATOR\(public\.(<.>)\)|\ypublic\.', '\1', 'g')
                           as line, noted.place
                      from unnest(lines) with ordinality as noted(line, place)
                ) as plan
          where line !~ 'Rows Removed|Heap Blocks|Heap Fetches|Index Searches')), true);
end $$;
comment on function ragpg._plan_lines(text[]) is
    'Adds the lines of a plan to ragpg.explained, without vectors and without counts of other rows.';

create or replace function ragpg._note_plan(
    statement text, p1 public.halfvec, p2 text[], p3 text[], p4 text[], p5 timestamptz, p6 timestamptz,
    p7 text, p8 jsonpath, p9 integer, p10 anyelement
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    line text;
    lines text[];
begin
    for line in execute
        'explain (costs off' || case current_setting('ragpg.explain') when 'analyze' then
        ', analyze, buffers off' else '' end || ') ' || statement
        using p1, p2, p3, p4, p5, p6, p7, p8, p9, p10
    loop
        lines := lines || line;
    end loop;
    perform ragpg._plan_lines(lines);
end $$;
comment on function ragpg._note_plan(text, public.halfvec, text[], text[], text[], timestamptz, timestamptz, text, jsonpath, integer, anyelement) is
    'Notes the plan of a statement of the dense arm. Volatile, since EXPLAIN is refused in a stable function.';

drop function if exists ragpg._note_plan(text, public.sparsevec, tsquery, bigint[], text[], text[], text[], timestamptz, timestamptz, text, jsonpath);

create or replace function ragpg._note_plan(
    statement text, p1 public.sparsevec, p2 text[], p3 text[], p4 text[], p5 timestamptz, p6 timestamptz,
    p7 text, p8 jsonpath, p9 tsquery, p10 bigint[], p11 bigint[]
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    line text;
    lines text[];
begin
    for line in execute
        'explain (costs off' || case current_setting('ragpg.explain') when 'analyze' then
        ', analyze, buffers off' else '' end || ') ' || statement
        using p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11
    loop
        lines := lines || line;
    end loop;
    perform ragpg._plan_lines(lines);
end $$;
comment on function ragpg._note_plan(text, public.sparsevec, text[], text[], text[], timestamptz, timestamptz, text, jsonpath, tsquery, bigint[], bigint[]) is
    'Notes the plan of a statement of the lexical arm. Volatile, since EXPLAIN is refused in a stable function.';

create or replace function ragpg.explain_hybrid(
    collection text,
    query text,
    query_embedding public.halfvec,
    depth integer default 150,
    sources text[] default null,
    tags_all text[] default null,
    tags_any text[] default null,
    modified_from timestamptz default null,
    modified_before timestamptz default null,
    key_prefix text default null,
    filter jsonpath default null,
    analyze_plans boolean default false
)
returns table (arm text, line text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(explain_hybrid.collection);
    took text;
    passing bigint[];
    is_broad boolean;
begin
    if depth is null or depth not between 1 and 1000 then
        raise exception using errcode = 'RG009',
            message = format('depth is %s, it must be 1 to 1000', coalesce(depth::text, 'null')),
            hint = 'A search of the client goes 150 deep.';
    end if;
    perform set_config('ragpg.explain', case when analyze_plans then 'analyze' else 'plan' end, true);
    if query_embedding is not null then
        perform set_config('ragpg.explained', '', true);
        select arm.mode, arm.passing, arm.is_broad into took, passing, is_broad
          from ragpg._dense_arm(
                   tenant, home, query_embedding, depth, sources, tags_all, tags_any,
                   modified_from, modified_before, key_prefix, filter) as arm;
        return query
        select 'dense', 'mode: ' || coalesce(took, 'nothing found')
         union all
        select 'dense', plan.line
          from string_to_table(rtrim(current_setting('ragpg.explained'), E'\n'), E'\n') as plan(line);
    end if;
    if query is not null then
        perform set_config('ragpg.explained', '', true);
        select arm.mode into took
          from ragpg._lexical_arm(
                   tenant, home, query, depth, sources, tags_all, tags_any, modified_from,
                   modified_before, key_prefix, filter, passing, is_broad) as arm;
        return query
        select 'lexical', 'mode: ' || coalesce(took, 'nothing found')
         union all
        select 'lexical', plan.line
          from string_to_table(rtrim(current_setting('ragpg.explained'), E'\n'), E'\n') as plan(line);
    end if;
    perform set_config('ragpg.explain', '', true), set_config('ragpg.explained', '', true);
end $$;
comment on function ragpg.explain_hybrid is
    'The EXPLAIN of every statement that both arms run for this search, in order, after the mode that the arm took; analyze_plans adds actual rows and times. Counts that could tell of other tenants'' rows are left out. Searches once, and twice with analyze_plans. Raises RG001, RG003, RG005, RG009.';
