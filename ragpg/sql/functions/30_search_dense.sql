-- 30_search_dense.sql: the dense arm. Exact where that is fast, otherwise a plan that is checked.

create or replace function ragpg.dense_mode(
    row_count bigint, dimensions integer, has_index boolean
)
returns text
language sql stable
set search_path = pg_catalog, pg_temp
begin atomic
    select case when row_count <= dense_setting.exact_max then 'exact'
                when has_index then 'ann'
                -- So few bits order almost nothing (recall .6 at 16), and so short a vector is
                -- compared as fast as its sketch.
                when dimensions < 128 then 'exact'
                when row_count is not null then 'sketch' end
      from ragpg.dense_setting;
end;
comment on function ragpg.dense_mode(bigint, integer, boolean) is
    'The plan of a search without a filter in a collection of this size; null for an unknown size.';

create or replace function ragpg._planned_rows(
    rows_of text,
    query_embedding halfvec,
    sources text[],
    tags_all text[],
    tags_any text[],
    modified_from timestamptz,
    modified_before timestamptz,
    key_prefix text,
    filter jsonpath
)
returns bigint
-- EXPLAIN is refused in a stable function, which _search_dense is so that it sees its caller's
-- snapshot: an arm with a later one finds chunks that the other arm and the caller do not see.
language plpgsql volatile
set search_path = pg_catalog, public, pg_temp
as $$
declare
    plan json;
begin
    execute 'explain (format json) select' || rows_of
       into plan
      using query_embedding, sources, tags_all, tags_any, modified_from, modified_before,
            key_prefix, filter;
    return (plan #>> '{0,Plan,Plan Rows}')::numeric;
end $$;
comment on function ragpg._planned_rows is
    'How many rows the planner expects of "select" and this text, written by _search_dense alone.';

create or replace function ragpg._nearest(
    tenant integer, collection integer, query_embedding halfvec, k integer
)
returns table (ids bigint[], scores double precision[])
language sql stable
rows 1
begin atomic
    -- "+ 0" keeps the ordering away from any HNSW index, so this is exact whatever indexes exist.
    select array_agg(near.chunk_id order by near.distance, near.chunk_id),
           array_agg(1 - near.distance order by near.distance, near.chunk_id)
      from (
               select embedding.chunk_id,
                      (embedding.embedding <=> _nearest.query_embedding) + 0 as distance
                 from ragpg.embedding
                where embedding.tenant_id = _nearest.tenant
                  and embedding.collection_id = _nearest.collection
                  and (embedding.expires_at is null or embedding.expires_at > now())
                order by 2, 1
                limit _nearest.k
           ) as near
     where near.distance <> 'NaN';
end;
comment on function ragpg._nearest(integer, integer, halfvec, integer) is
    'The k nearest of all chunks of a collection, exactly, best first.';

create or replace function ragpg._dense_arm(
    tenant integer,
    collection integer,
    query_embedding halfvec,
    k integer,
    sources text[],
    tags_all text[],
    tags_any text[],
    modified_from timestamptz,
    modified_before timestamptz,
    key_prefix text,
    filter jsonpath,
    forced_mode text default 'auto',
    list_up_to integer default 20000,
    out ids bigint[],
    out scores double precision[],
    out mode text,
    out passing bigint[],
    out is_broad boolean
)
language plpgsql stable
set search_path = pg_catalog, public, pg_temp
set jit = off
-- A search is one of many; starting workers costs more than it saves on most of them.
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_sort = on
set enable_bitmapscan = on
set enable_indexscan = on
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    setting ragpg.dense_setting;
    dimensions integer;
    row_count bigint;
    has_index boolean;
    covered text := '';
    uncovered text := '';
    conditions text;
    nearest text;
    statement text;
    -- For ragpg.explain_hybrid, which shows each statement's plan.
    explained boolean := coalesce(current_setting('ragpg.explain', true), '') <> '';
    expected bigint;
    wanted integer;
    rescored integer;
    is_listing boolean := false;
    ef_before text;
    scan_before text;
    tuples_before text;
    memory_before text;
begin
    if k is null or k not between 1 and 1000 then
        raise exception using errcode = 'RG009',
            message = format('k is %s, it must be 1 to 1000', coalesce(k::text, 'null')),
            hint = 'Ask for fewer.';
    end if;
    select known.dimensions into dimensions
      from ragpg.collection as known
     where known.tenant_id = _dense_arm.tenant and known.collection_id = _dense_arm.collection;
    if vector_dims(query_embedding) <> dimensions then
        raise exception using errcode = 'RG005',
            message = format('the query vector has %s dimensions, the collection''s have %s',
                             vector_dims(query_embedding), dimensions),
            hint = 'Embed the query with the model of the collection''s recipe.';
    end if;
    -- A vector without a direction is near nothing; null is a query without a vector.
    if query_embedding is null or dimensions is null or l2_norm(query_embedding) = 0 then
        return;
    end if;

    filter := ragpg._own_filter(collection, filter);
    -- Fixed texts; values are parameters. Numbers of tenant and collection are integers by type and
    -- must stand in the text, or the planner could not prove that a partial index serves the query.
    if sources is not null then
        covered := covered || ' and embedding.source = any ($2)';
    end if;
    if modified_from is not null then
        covered := covered || ' and embedding.modified_at >= $5';
    end if;
    if modified_before is not null then
        covered := covered || ' and embedding.modified_at < $6';
    end if;
    if tags_all is not null then
        uncovered := uncovered || ' and embedding.tags @> $3';
    end if;
    if tags_any is not null then
        uncovered := uncovered || ' and embedding.tags && $4';
    end if;
    if key_prefix is not null then
        uncovered := uncovered || ' and embedding.document_key ^@ $7';
    end if;
    if filter is not null then
        uncovered := uncovered || ' and embedding.attributes @@ $8';
    end if;
    conditions := format(' from ragpg.embedding where embedding.tenant_id = %s and embedding.collection_id = %s',
                         tenant, collection)
               || ' and (embedding.expires_at is null or embedding.expires_at > now())'
               || covered || uncovered;

    select dense_setting.* into setting from ragpg.dense_setting;
    select counted.rows into row_count
      from ragpg.dense_collection as counted
     where counted.tenant_id = _dense_arm.tenant
       and counted.collection_id = _dense_arm.collection;
    -- A collection that is new, or was small when it was counted: count as far as it matters, and
    -- beyond that trust the planner.
    if row_count is null or row_count <= setting.exact_max then
        select count(*) into row_count
          from (select from ragpg.embedding
                 where embedding.tenant_id = _dense_arm.tenant
                   and embedding.collection_id = _dense_arm.collection
                 limit setting.exact_max + 1) as counted;
        if row_count > setting.exact_max then
            row_count := greatest(row_count, ragpg._planned_rows(
                format(' from ragpg.embedding where tenant_id = %s and collection_id = %s',
                       tenant, collection),
                null, null, null, null, null, null, null, null));
        end if;
    end if;
    expected := row_count;
    mode := case when forced_mode = 'auto' and row_count <= setting.exact_max then 'exact'
                 else forced_mode end;
    if mode = 'auto' then
        has_index := exists (
            select from pg_index
             where pg_index.indexrelid
                   = to_regclass(format('ragpg.embedding_ann_%s_%s', tenant, collection))
               and pg_index.indisvalid);
        mode := ragpg.dense_mode(row_count, dimensions, has_index);
        if covered || uncovered <> '' then
            -- The planner's own estimate, 0.1 ms: good for source, tags and time, rough for
            -- metadata, where a wrong one costs time only. A filter names its collection itself, and
            -- the share of the collection must not be counted twice.
            expected := least(row_count, ragpg._planned_rows(
                case when filter is null then conditions
                     else ' from ragpg.embedding where true' || covered || uncovered end,
                query_embedding, sources, tags_all, tags_any, modified_from, modified_before,
                key_prefix, filter));
            is_broad := expected > list_up_to;
            mode := case
                when expected <= setting.exact_max then 'exact'
                when uncovered = '' and row_count <= setting.sketch_max
                    then ragpg.dense_mode(row_count, dimensions, false)
                when expected <= setting.prefilter_max then 'exact'
                else mode
            end;
        end if;
    end if;

    wanted := k;
    if mode = 'ann' then
        -- A relaxed scan stops at the last row asked for, in no exact order: with a filter, or near
        -- the breadth of the search, recall needs 8/3 of k.
        if covered || uncovered <> '' or k * 4 > setting.ef_search then
            wanted := k * 8 / 3;
        end if;
        ef_before := current_setting('hnsw.ef_search');
        scan_before := current_setting('hnsw.iterative_scan');
        tuples_before := current_setting('hnsw.max_scan_tuples');
        memory_before := current_setting('hnsw.scan_mem_multiplier');
        perform set_config('enable_sort', 'off', true),
                set_config('enable_bitmapscan', 'off', true),
                set_config('hnsw.ef_search', greatest(setting.ef_search, k)::text, true),
                set_config('hnsw.iterative_scan', 'relaxed_order', true),
                set_config('hnsw.max_scan_tuples', '20000', true),
                set_config('hnsw.scan_mem_multiplier', '4', true);
        -- PostgreSQL 17 and later trust the order of the index, so the sort is by distance + 0.
        statement := format(
            'with near as materialized ('
            'select embedding.chunk_id, embedding.embedding::halfvec(%1$s) <=> $1::halfvec(%1$s) as distance'
            || conditions
            || ' order by embedding.embedding::halfvec(%1$s) <=> $1::halfvec(%1$s) limit $9)'
            ' select array_agg(near.chunk_id order by near.distance + 0, near.chunk_id),'
            ' array_agg(1 - near.distance order by near.distance + 0, near.chunk_id) from near',
            dimensions);
        if explained then
            perform ragpg._note_plan(statement, query_embedding, sources, tags_all, tags_any,
                                     modified_from, modified_before, key_prefix, filter, wanted,
                                     mode);
        end if;
        execute statement
           into ids, scores
          using query_embedding, sources, tags_all, tags_any, modified_from, modified_before,
                key_prefix, filter, wanted;
        perform set_config('enable_sort', 'on', true),
                set_config('enable_bitmapscan', 'on', true),
                set_config('hnsw.ef_search', ef_before, true),
                set_config('hnsw.iterative_scan', scan_before, true),
                set_config('hnsw.max_scan_tuples', tuples_before, true),
                set_config('hnsw.scan_mem_multiplier', memory_before, true);
        if coalesce(cardinality(ids), 0) >= wanted or forced_mode = 'ann' then
            ids := ids[:k];
            scores := scores[:k];
            return;
        end if;
        -- The budget of the scan ran out: the matches are not where the query is.
        mode := 'exact-after-ann';
        wanted := k;
    end if;

    if mode = 'sketch' then
        -- One array of ids is looked up in one pass over the primary key, at three quarters of the
        -- cost of a join.
        nearest := format(
            'select rescored.chunk_id, rescored.embedding <=> $1 as distance'
            ' from ragpg.embedding as rescored where rescored.tenant_id = %s'
            ' and rescored.chunk_id = any (array(select embedding.chunk_id' || conditions
            || ' order by embedding.sketch <~> binary_quantize($1) limit $10))', tenant);
        -- Among more rows, more of them have as near a sketch: by the root of their number
        -- recall stays at .99 from 5,000 to 100,000 rows of 384 dimensions.
        rescored := (greatest(setting.sketch_rescored, k * 6)
                     * sqrt(greatest(expected, 10000) / 10000.0))::integer;
    else
        -- "+ 0" keeps the ordering away from any HNSW index, so this is exact whatever indexes exist.
        nearest := 'select embedding.chunk_id, (embedding.embedding <=> $1) + 0 as distance'
                   || conditions;
        -- It meets every chunk that passes the filter: the other arm need not look for them again.
        is_listing := list_up_to > 0 and covered || uncovered <> '';
    end if;
    if mode <> 'sketch' and covered || uncovered = '' then
        -- Planned once a session: for a small collection planning would take as long as the search.
        -- A bitmap leads to each page once, a fifth less to do than along an index.
        perform set_config('enable_indexscan', 'off', true);
        if explained then
            perform ragpg._note_plan(
                format('select * from ragpg._nearest(%s, %s, $1, $9)', tenant, collection),
                query_embedding, sources, tags_all, tags_any, modified_from, modified_before,
                key_prefix, filter, k, mode);
        end if;
        select near.ids, near.scores into ids, scores
          from ragpg._nearest(tenant, collection, query_embedding, k) as near;
        perform set_config('enable_indexscan', 'on', true);
    else
        statement :=
            case when is_listing then 'with met as materialized (' || nearest || ') ' else '' end
            || 'select array_agg(near.chunk_id order by near.distance, near.chunk_id),'
            ' array_agg(1 - near.distance order by near.distance, near.chunk_id), '
            || case when is_listing then 'array(select met.chunk_id from met)' else 'null' end
            || ' from (' || case when is_listing then 'select met.* from met' else nearest end
            || ' order by 2, 1 limit $9) as near where near.distance <> ''NaN''';
        if explained then
            perform ragpg._note_plan(statement, query_embedding, sources, tags_all, tags_any,
                                     modified_from, modified_before, key_prefix, filter, wanted,
                                     rescored);
        end if;
        execute statement
           into ids, scores, passing
          using query_embedding, sources, tags_all, tags_any, modified_from, modified_before,
                key_prefix, filter, wanted, rescored;
    end if;
    if cardinality(passing) > list_up_to then
        passing := null;
        is_broad := true;
    end if;
    if ids is null then
        mode := null;
    end if;
end $$;
comment on function ragpg._dense_arm is
    'The nearest chunks, best first, for search_dense and search_hybrid. passing: where a filter is given and the arm met all chunks that pass it, those; is_broad: they are more than list_up_to, as it saw or as the planner expects.';

create or replace function ragpg._search_dense(
    tenant integer,
    collection integer,
    query_embedding halfvec,
    k integer default 150,
    sources text[] default null,
    tags_all text[] default null,
    tags_any text[] default null,
    modified_from timestamptz default null,
    modified_before timestamptz default null,
    key_prefix text default null,
    filter jsonpath default null,
    forced_mode text default 'auto'
)
returns table (chunk_id bigint, rank integer, score double precision, mode text)
language sql stable
begin atomic
    select found.chunk_id, found.rank::integer, found.score, arm.mode
      from ragpg._dense_arm(tenant, collection, query_embedding, k, sources, tags_all, tags_any,
                            modified_from, modified_before, key_prefix, filter, forced_mode,
                            0) as arm,
           unnest(arm.ids, arm.scores) with ordinality as found(chunk_id, score, rank)
     order by found.rank;
end;
comment on function ragpg._search_dense is
    'search_dense for functions that know the numbers; forced_mode (exact, sketch, ann) is for checks.';

create or replace function ragpg.search_dense(
    collection text,
    query_embedding halfvec,
    k integer default 150,
    sources text[] default null,
    tags_all text[] default null,
    tags_any text[] default null,
    modified_from timestamptz default null,
    modified_before timestamptz default null,
    key_prefix text default null,
    filter jsonpath default null
)
returns table (chunk_id bigint, rank integer, score double precision, mode text)
language plpgsql stable security definer
set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    tenant integer := ragpg.current_tenant();
begin
    return query
        select found.chunk_id, found.rank::integer, found.score, arm.mode
          from ragpg._dense_arm(
                   tenant, ragpg.collection_number(search_dense.collection), query_embedding, k,
                   sources, tags_all, tags_any, modified_from, modified_before, key_prefix,
                   filter, 'auto', 0) as arm,
               unnest(arm.ids, arm.scores) with ordinality as found(chunk_id, score, rank)
         order by found.rank;
end $$;
comment on function ragpg.search_dense is
    'The k nearest chunks by cosine (score, -1 to 1), ties by chunk_id; expired documents are left out. Never fewer than k while as many match. mode says how: exact, sketch (1 bit a dimension, rescored exactly), ann (HNSW), exact-after-ann. A zero or null vector finds nothing. Raises RG001, RG003, RG005, RG009.';

create or replace function ragpg.score_dense(
    tenant integer, collection integer, query_embedding halfvec, chunk_ids bigint[]
)
returns table (chunk_id bigint, score double precision)
language sql stable
begin atomic
    select embedding.chunk_id, 1 - (embedding.embedding <=> score_dense.query_embedding)
      from ragpg.embedding
     where embedding.tenant_id = score_dense.tenant
       and embedding.collection_id = score_dense.collection
       and embedding.chunk_id = any (score_dense.chunk_ids)
       and l2_norm(score_dense.query_embedding) > 0;
end;
comment on function ragpg.score_dense is
    'Cosine of the query with each of these chunks; none for a zero or null vector.';
