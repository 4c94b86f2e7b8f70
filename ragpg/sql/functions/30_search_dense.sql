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
    query_embedding public.halfvec,
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
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
    top text;
begin
    -- The first line: "Bitmap Heap Scan on embedding  (cost=9.20..13.21 rows=98 width=0)".
    execute 'explain select' || rows_of
       into top
      using query_embedding, sources, tags_all, tags_any, modified_from, modified_before,
            key_prefix, filter;
    return substring(top from 'rows=([0-9]+)')::numeric;
end $$;
comment on function ragpg._planned_rows is
    'How many rows the planner expects of "select" and this text, written by _search_dense alone.';

create or replace function ragpg._nearest(
    tenant integer, collection integer, query_embedding public.halfvec, k integer
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
                      (embedding.embedding operator(public.<=>) _nearest.query_embedding) + 0 as distance
                 from ragpg.embedding
                where embedding.tenant_id = _nearest.tenant
                  and embedding.collection_id = _nearest.collection
                  and (embedding.expires_at is null or embedding.expires_at > now())
                order by 2, 1
                limit _nearest.k
           ) as near
     where near.distance <> 'NaN';
end;
comment on function ragpg._nearest(integer, integer, public.halfvec, integer) is
    'The k nearest of all chunks of a collection, exactly, best first.';

create or replace function ragpg._dense_arm(
    tenant integer,
    collection integer,
    query_embedding public.halfvec,
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
set search_path = pg_catalog, pg_temp
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
    dimensions integer;
    exact_max integer;
    sketch_max integer;
    prefilter_max integer;
    sketch_rescored integer;
    ef_search integer;
    breadth double precision;
    row_count bigint;
    has_index boolean;
    is_filtered boolean;
    covered text := '';
    uncovered text := '';
    tagged text := '';
    keyed text;
    home text;
    conditions text;
    nearest text;
    statement text;
    -- For ragpg.explain_hybrid, which shows each statement's plan.
    explained boolean := coalesce(current_setting('ragpg.explain', true), '') <> '';
    expected bigint;
    estimated text;
    -- What the other conditions let through, where there are some beside those on tags.
    others bigint;
    wanted integer;
    rescored integer;
    is_listing boolean := false;
    scan text;
    restored text;
    ef_before text;
    scan_before text;
    tuples_before text;
    pages_before text;
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
    if public.vector_dims(query_embedding) <> dimensions then
        raise exception using errcode = 'RG005',
            message = format('the query vector has %s dimensions, the collection''s have %s',
                             public.vector_dims(query_embedding), dimensions),
            hint = 'Embed the query with the model of the collection''s recipe.';
    end if;
    -- A vector without a direction is near nothing; null is a query without a vector.
    if query_embedding is null or dimensions is null or public.l2_norm(query_embedding) = 0 then
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
        tagged := tagged || ' and embedding.tags @> $3';
    end if;
    if tags_any is not null then
        tagged := tagged || ' and embedding.tags && $4';
    end if;
    if key_prefix is not null then
        uncovered := uncovered || ' and embedding.document_key ^@ $7';
    end if;
    if filter is not null then
        uncovered := uncovered || ' and embedding.attributes @@ $8';
    end if;
    is_filtered := covered || tagged || uncovered <> '';

    select setting.exact_max, setting.sketch_max, setting.prefilter_max, setting.sketch_rescored,
           setting.ef_search
      into exact_max, sketch_max, prefilter_max, sketch_rescored, ef_search
      from ragpg.dense_setting as setting;
    select counted.rows into row_count
      from ragpg.dense_collection as counted
     where counted.tenant_id = _dense_arm.tenant
       and counted.collection_id = _dense_arm.collection;
    -- A collection that is new, or was small when it was counted: count as far as it matters, and
    -- beyond that trust the planner.
    if row_count is null or row_count <= exact_max then
        select count(*) into row_count
          from (select from ragpg.embedding
                 where embedding.tenant_id = _dense_arm.tenant
                   and embedding.collection_id = _dense_arm.collection
                 limit exact_max + 1) as counted;
        if row_count > exact_max then
            row_count := greatest(row_count, ragpg._planned_rows(
                format(' from ragpg.embedding where tenant_id = %s and collection_id = %s',
                       tenant, collection),
                null, null, null, null, null, null, null, null));
        end if;
    end if;
    expected := row_count;
    mode := case when forced_mode = 'auto' and row_count <= exact_max then 'exact'
                 else forced_mode end;
    if mode = 'auto' and is_filtered then
        -- The planner's own estimate, 0.05 ms: good for source, tags and time, rough for metadata,
        -- where a wrong one costs time only. A filter names its collection itself, and the share of
        -- the collection must not be counted twice; nor that of the tenant, whom it implies.
        estimated := ' from ragpg.embedding where '
                     || case when filter is null then 'embedding.collection_id = ' || collection
                             else 'true' end;
        expected := least(row_count, ragpg._planned_rows(
            estimated || covered || tagged || uncovered,
            query_embedding, sources, tags_all, tags_any, modified_from, modified_before,
            key_prefix, filter));
        is_broad := expected > list_up_to;
        if tagged <> '' and covered || uncovered <> '' then
            others := ragpg._planned_rows(
                estimated || covered || uncovered, query_embedding, sources, null, null,
                modified_from, modified_before, key_prefix, filter);
        end if;
        mode := case
            when expected <= exact_max then 'exact'
            when tagged || uncovered = '' and row_count <= sketch_max
                then ragpg.dense_mode(row_count, dimensions, false)
            else mode
        end;
    end if;
    if mode = 'auto' then
        has_index := exists (
            select from pg_index
             where pg_index.indexrelid
                   = to_regclass(format('ragpg.embedding_ann_%s_%s', tenant, collection))
               and pg_index.indisvalid);
        -- A filtered scan of an index costs as the rows over the matches, comparing every match as
        -- the matches: both the same at the root of the rows.
        mode := case
            when is_filtered and expected <= case
                when has_index then prefilter_max * sqrt(row_count / 200000.0)
                else prefilter_max end then 'exact'
            else ragpg.dense_mode(row_count, dimensions, has_index)
        end;
    end if;

    wanted := k;
    if mode <> 'exact' or is_filtered then
        home := ' from ragpg.embedding where embedding.tenant_id%3$s = %1$s'
                ' and embedding.collection_id%3$s = %2$s'
                ' and (embedding.expires_at is null or embedding.expires_at > now())';
        keyed := ragpg._tagged(collection, tags_all, tags_any, row_count, expected, others);
        -- + 0 keeps an index of the whole collection from being combined with that of tags, whose keys
        -- the planner takes for frequent: 3.9 ms for 50 of 50,000 rows, and .5 without.
        conditions := format(home, tenant, collection,
                             case when keyed <> '' and covered = '' and key_prefix is null
                                  then ' + 0' else '' end)
                      || covered || coalesce(keyed, tagged) || uncovered;
    end if;
    if mode = 'ann' then
        -- Among more rows a search of the same breadth finds less: at 600 recall is .996 of 100,000
        -- rows of 384 dimensions and .953 of 500,000, at 1,000 (pgvector's limit) .975.
        breadth := ef_search * greatest(1, sqrt(row_count / 100000.0));
        -- A relaxed scan stops at the last row asked for, in no exact order: with a filter, or near
        -- the breadth of the search, recall needs 8/3 of k.
        if is_filtered or k * 4 > breadth then
            wanted := k * 8 / 3;
        end if;
        -- A scan that must go on does so in steps of its breadth, and finds as much in smaller ones.
        if is_filtered and least(breadth, 1000) * expected < wanted::double precision * row_count then
            breadth := breadth * 0.75;
        end if;
        ef_search := least(greatest(breadth, k), 1000);
        ef_before := current_setting('hnsw.ef_search');
        scan_before := current_setting('hnsw.iterative_scan');
        tuples_before := current_setting('hnsw.max_scan_tuples');
        memory_before := current_setting('hnsw.scan_mem_multiplier');
        perform set_config('enable_sort', 'off', true),
                set_config('enable_bitmapscan', 'off', true),
                set_config('hnsw.ef_search', ef_search::text, true),
                -- In 500,000 rows recall under a tenth is .979 after 20,000 tuples, .992 after 40,000.
                set_config('hnsw.max_scan_tuples',
                           (20000 * greatest(1, sqrt(row_count / 125000.0)))::integer::text, true),
                set_config('hnsw.scan_mem_multiplier', '4', true);
        -- PostgreSQL 17 and later trust the order of the index, so the sort is by distance + 0.
        statement := format(
            'with near as materialized ('
            'select embedding.chunk_id, embedding.embedding::public.halfvec(%1$s) operator(public.<=>) $1::public.halfvec(%1$s) as distance'
            || format(home, tenant, collection, '') || covered || tagged || uncovered
            || ' order by embedding.embedding::public.halfvec(%1$s) operator(public.<=>) $1::public.halfvec(%1$s) limit $9)'
            ' select array_agg(near.chunk_id order by near.distance + 0, near.chunk_id),'
            ' array_agg(1 - near.distance order by near.distance + 0, near.chunk_id) from near',
            dimensions);
        if explained then
            perform ragpg._note_plan(statement, query_embedding, sources, tags_all, tags_any,
                                     modified_from, modified_before, key_prefix, filter, wanted,
                                     mode);
        end if;
        -- What the breadth holds is enough unless most of it has expired, and being ready to go on
        -- costs a twentieth of the scan.
        foreach scan in array case when wanted > k then array['relaxed_order']
                                   else array['off', 'relaxed_order'] end loop
            perform set_config('hnsw.iterative_scan', scan, true);
            execute statement
               into ids, scores
              using query_embedding, sources, tags_all, tags_any, modified_from, modified_before,
                    key_prefix, filter, wanted;
            exit when cardinality(ids) >= wanted;
        end loop;
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
            'select rescored.chunk_id, rescored.embedding operator(public.<=>) $1 as distance'
            ' from ragpg.embedding as rescored where rescored.tenant_id = %s'
            ' and rescored.chunk_id = any (array(select embedding.chunk_id' || conditions
            || ' order by embedding.sketch operator(public.<~>) public.binary_quantize($1) limit $10))', tenant);
        -- Among more rows, more of them have as near a sketch: by the root of their number
        -- recall stays at .99 from 5,000 to 100,000 rows of 384 dimensions.
        rescored := (greatest(sketch_rescored, k * 6)
                     * sqrt(greatest(expected, 10000) / 10000.0))::integer;
    else
        -- "+ 0" keeps the ordering away from any HNSW index, so this is exact whatever indexes exist.
        nearest := 'select embedding.chunk_id, (embedding.embedding operator(public.<=>) $1) + 0 as distance'
                   || conditions;
        -- It meets every chunk that passes the filter: the other arm need not look for them again.
        is_listing := list_up_to > 0 and is_filtered;
    end if;
    if mode <> 'sketch' and not is_filtered then
        -- Planned once a session: for a small collection planning would take as long as the search.
        -- A bitmap leads to each page once, a fifth less to do than along an index.
        restored := set_config('enable_indexscan', 'off', true);
        if explained then
            perform ragpg._note_plan(
                format('select * from ragpg._nearest(%s, %s, $1, $9)', tenant, collection),
                query_embedding, sources, tags_all, tags_any, modified_from, modified_before,
                key_prefix, filter, k, mode);
        end if;
        select near.ids, near.scores into ids, scores
          from ragpg._nearest(tenant, collection, query_embedding, k) as near;
        restored := set_config('enable_indexscan', 'on', true);
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
        -- By 4 the planner combines a filter's index with one of the whole tenant.
        pages_before := current_setting('random_page_cost');
        restored := set_config('random_page_cost', '1.1', true);
        execute statement
           into ids, scores, passing
          using query_embedding, sources, tags_all, tags_any, modified_from, modified_before,
                key_prefix, filter, wanted, rescored;
        restored := set_config('random_page_cost', pages_before, true);
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
    query_embedding public.halfvec,
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
    select arm.ids[place], place, arm.scores[place], arm.mode
      from ragpg._dense_arm(tenant, collection, query_embedding, k, sources, tags_all, tags_any,
                            modified_from, modified_before, key_prefix, filter, forced_mode,
                            0) as arm,
           generate_series(1, cardinality(arm.ids)) as place
     order by place;
end;
comment on function ragpg._search_dense is
    'search_dense for functions that know the numbers; forced_mode (exact, sketch, ann) is for checks.';

create or replace function ragpg.search_dense(
    collection text,
    query_embedding public.halfvec,
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
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    tenant integer := ragpg.current_tenant();
    home integer;
    ids bigint[];
    scores double precision[];
    took text;
begin
    select known.collection_id into home
      from ragpg.collection as known
     where known.tenant_id = tenant and known.name = search_dense.collection;
    if home is null then
        -- An alias, or an error.
        home := ragpg.collection_number(search_dense.collection);
    end if;
    select arm.ids, arm.scores, arm.mode into ids, scores, took
      from ragpg._dense_arm(tenant, home, query_embedding, k, sources, tags_all, tags_any,
                            modified_from, modified_before, key_prefix, filter, 'auto', 0) as arm;
    return query
        -- Not from a function: its rows would be kept a second time.
        select unnest(ids), generate_subscripts(ids, 1), unnest(scores), took;
end $$;
comment on function ragpg.search_dense is
    'The k nearest chunks by cosine (score, -1 to 1), ties by chunk_id; expired documents are left out. Never fewer than k while as many match. mode says how: exact, sketch (1 bit a dimension, rescored exactly), ann (HNSW), exact-after-ann. A zero or null vector finds nothing. Raises RG001, RG003, RG005, RG009.';

create or replace function ragpg.score_dense(
    tenant integer, collection integer, query_embedding public.halfvec, chunk_ids bigint[]
)
returns table (chunk_id bigint, score double precision)
language sql stable
begin atomic
    select embedding.chunk_id, 1 - (embedding.embedding operator(public.<=>) score_dense.query_embedding)
      from ragpg.embedding
     where embedding.tenant_id = score_dense.tenant
       and embedding.collection_id = score_dense.collection
       and embedding.chunk_id = any (score_dense.chunk_ids)
       and public.l2_norm(score_dense.query_embedding) > 0;
end;
comment on function ragpg.score_dense is
    'Cosine of the query with each of these chunks; none for a zero or null vector.';
