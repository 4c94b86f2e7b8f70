-- 22_search_lexical.sql: the exact BM25 top k of one collection.
--
--   score(chunk) = sum over the query's lexemes of  times * idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / average))
--   idf = ln(1 + (N - df + 0.5) / (df + 0.5)), times = occurrences in the query
--
-- N, df and the average length are those of the collection now. The stored weights were computed
-- with the reference length instead: a chunk's rough score, one inner product in C, is off by a
-- factor between 1 and average / reference. So every chunk whose rough score comes near enough to the
-- k-th is scored exactly, from its frequencies, and only then ranked.

create or replace function ragpg._query_terms(tenant_id integer, collection_id integer, query text)
returns table (
    lexeme text,
    number integer,
    times integer,
    frequency bigint,
    idf double precision,
    chunks bigint,
    average_length double precision,
    reference_length double precision
)
language sql stable
set search_path = pg_catalog, public, pg_temp
as $$
    with size as materialized (
        select sum(run.chunks) as chunks,
               greatest(sum(run.total_length)::double precision / nullif(sum(run.chunks), 0), 1)
               as average_length
          from ragpg.lexeme_count as run
         where run.tenant_id = _query_terms.tenant_id
           and run.collection_id = _query_terms.collection_id
           and run.slice = 0
    ), asked as materialized (
        select lexeme.lexeme, ragpg.lexeme_number(lexeme.lexeme) as number,
               cardinality(lexeme.positions) as times
          from ragpg.collection,
               unnest(ragpg.tokenize(_query_terms.query, collection.language)) as lexeme
         where collection.tenant_id = _query_terms.tenant_id
           and collection.collection_id = _query_terms.collection_id
    ), counted as (
        select asked.*, coalesce((
                   select sum(-(run.counts <#> ragpg._unit(asked.number)))
                     from ragpg.lexeme_count as run
                    where run.tenant_id = _query_terms.tenant_id
                      and run.collection_id = _query_terms.collection_id
                      and run.first_number <= asked.number and run.last_number >= asked.number
               ), 0)::bigint as frequency
          from asked
    )
    select counted.lexeme, counted.number, counted.times, counted.frequency,
           ln(1 + (size.chunks - counted.frequency + 0.5) / (counted.frequency + 0.5)),
           size.chunks, size.average_length, reference.average_length
      from counted
     cross join size
      join ragpg.lexical_reference as reference
        on reference.tenant_id = _query_terms.tenant_id
       and reference.collection_id = _query_terms.collection_id
     where size.chunks > 0
$$;
comment on function ragpg._query_terms(integer, integer, text) is
    'The lexemes of a query with the collection''s statistics of now. Empty for an empty collection.';

create or replace function ragpg._bm25(
    tenant_id integer, collection_id integer, numbers integer[], factors double precision[],
    average_length double precision, reference_length double precision, chunk_ids bigint[]
)
returns table (chunk_id bigint, score double precision)
language sql stable
set search_path = pg_catalog, public, pg_temp
as $$
    with term as materialized (
        select array_agg(ragpg._unit(asked.number) order by asked.number) as units,
               array_agg(asked.factor order by asked.number) as factors
          from unnest(numbers, factors) as asked(number, factor)
    )
    select vector.chunk_id, coalesce(scored.score, 0)
      from ragpg.lexeme_vector as vector
     cross join term
     cross join lateral (
               select 1.2 * (0.25 + 0.75 * vector.length / reference_length) as stored_norm,
                      1.2 * (0.25 + 0.75 * vector.length / average_length) as norm
           ) as scale
     cross join lateral (
               -- The frequency is read back out of the weight: w = 2.2 tf / (tf + norm).
               select sum(asked.factor * 2.2 * found.frequency / (found.frequency + scale.norm))
                      as score
                 from unnest(term.units, term.factors) as asked(unit, factor),
                      lateral (select -(vector.weights <#> asked.unit) as weight offset 0) as stored,
                      lateral (select round(stored.weight * scale.stored_norm
                                            / (2.2 - stored.weight)) as frequency offset 0) as found
                where stored.weight > 0
           ) as scored
     where vector.tenant_id = _bm25.tenant_id
       and vector.collection_id = _bm25.collection_id
       and vector.chunk_id = any (_bm25.chunk_ids)
$$;
comment on function ragpg._bm25(integer, integer, integer[], double precision[], double precision, double precision, bigint[]) is
    'The BM25 scores of these chunks; the same sum in the same order for each, so equal texts score equal.';

create or replace function ragpg._threshold(
    keys text[], strong_keys text[], factors double precision[], rest double precision[],
    tiered integer, place integer, need double precision
) returns text
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    without text;
    weakly text;
    strongly text;
begin
    if need <= 0 then
        return 'any';
    end if;
    if place > cardinality(keys) or 2.2 * rest[place] < need then
        return null;
    end if;
    without := ragpg._threshold(keys, strong_keys, factors, rest, tiered, place + 1, need);
    if without = 'any' then
        return 'any';
    end if;
    strongly := ragpg._threshold(keys, strong_keys, factors, rest, tiered, place + 1,
                                 need - 2.2 * factors[place]);
    if place > tiered then
        weakly := strongly;
    else
        weakly := ragpg._threshold(keys, strong_keys, factors, rest, tiered, place + 1,
                                   need - 1.2 * factors[place]);
    end if;
    -- Each is implied by the one before, so what adds nothing to it is left out.
    return nullif(concat_ws('|',
        without,
        case when weakly is distinct from without then
            keys[place] || case weakly when 'any' then '' else '&(' || weakly || ')' end end,
        case when strongly is distinct from weakly then
            strong_keys[place] || case strongly when 'any' then '' else '&(' || strongly || ')' end
        end), '');
end $$;
comment on function ragpg._threshold(text[], text[], double precision[], double precision[], integer, integer, double precision) is
    'The condition that the largest possible weights of a chunk''s keys add up to need: 2.2 with a strong key, 1.2 without, told apart for the first tiered terms. Null if they cannot, any if they always do. factors descending; rest[i] is their sum from i on.';

create or replace function ragpg._beating(
    collection integer, numbers integer[], factors double precision[], need double precision
) returns text
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    ordered integer[];
    sorted double precision[];
    rest double precision[];
    inside integer;
    keys text[];
    strong_keys text[];
    tiered integer;
    condition text;
begin
    select array_agg(term.number order by term.factor desc, term.number),
           array_agg(term.factor order by term.factor desc, term.number)
      into ordered, sorted
      from unnest(numbers, factors) as term(number, factor);
    rest := array_fill(0::double precision, array[cardinality(sorted) + 1]);
    for place in reverse cardinality(sorted)..1 loop
        rest[place] := rest[place + 1] + sorted[place];
    end loop;
    -- Five to eight terms enter the condition; the others are taken for matched at 2.2.
    inside := least(cardinality(sorted), 5);
    while inside < least(cardinality(sorted), 8) and 2.2 * rest[inside + 1] > 0.4 * need loop
        inside := inside + 1;
    end loop;
    if need - 2.2 * rest[inside + 1] <= 0.15 * need then
        return null;
    end if;
    need := need - 2.2 * rest[inside + 1];
    for place in 1..inside loop
        rest[place] := rest[place] - rest[inside + 1];
        keys[place] := format('''%s.%s''', to_hex(collection), ordered[place]);
        strong_keys[place] := format('''%s.+%s''', to_hex(collection), ordered[place]);
    end loop;
    rest[inside + 1] := 0;
    -- The index looks at every operand for every chunk that it visits, so a long condition costs
    -- more than it holds back.
    foreach tiered in array array[8, 3, 1, 0] loop
        condition := ragpg._threshold(keys, strong_keys, sorted, rest, tiered, 1, need);
        exit when length(condition) <= 450;
    end loop;
    return condition;
end $$;
comment on function ragpg._beating(integer, integer[], double precision[], double precision) is
    'The condition on keys that every chunk of this rough score or more fulfils; null if it would hold back too few, or if no chunk can reach it.';

create or replace function ragpg._first_condition(
    keys text[], frequencies bigint[], chunks bigint, k integer, budget double precision
) returns text
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    terms integer := cardinality(keys);
    rare integer := 0;
    total double precision := 0;
    lead integer;
    wide integer;
    expected double precision;
    missing double precision;
    condition text;
begin
    while rare < terms and total + frequencies[rare + 1] <= budget loop
        rare := rare + 1;
        total := total + frequencies[rare];
    end loop;
    if rare > 0 then
        condition := array_to_string(keys[1:rare], '|');
    end if;
    if rare = terms or total >= 10 * k then
        return condition;
    end if;
    if rare + 1 = terms then
        return concat_ws('|', condition, keys[terms]);
    end if;
    -- Too few: add the next term together with another one, as many as independence lets expect.
    lead := rare + 1;
    expected := frequencies[lead];
    while lead < terms - 1 and expected * frequencies[lead + 1] / chunks > budget loop
        lead := lead + 1;
        expected := expected * frequencies[lead] / chunks;
    end loop;
    wide := lead + 1;
    missing := 1 - frequencies[wide]::double precision / chunks;
    while wide < terms
          and expected * (1 - missing * (1 - frequencies[wide + 1]::double precision / chunks))
              <= budget loop
        wide := wide + 1;
        missing := missing * (1 - frequencies[wide]::double precision / chunks);
    end loop;
    return concat_ws('|', condition,
                     '(' || array_to_string(keys[rare + 1:lead], '&')
                     || '&(' || array_to_string(keys[lead + 1:wide], '|') || '))');
end $$;
comment on function ragpg._first_condition(text[], bigint[], bigint, integer, double precision) is
    'A condition on few chunks, about budget if terms were independent, with good ones among them. frequencies ascending.';

create or replace function ragpg._search_lexical(
    tenant integer,
    collection integer,
    query text,
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
language plpgsql stable
set search_path = pg_catalog, public, pg_temp
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set work_mem = '64MB'
as $$
#variable_conflict use_column
declare
    numbers integer[];
    factors double precision[];
    frequencies bigint[];
    keys text[];
    chunks bigint;
    average double precision;
    reference double precision;
    slack double precision;
    asked sparsevec;
    conditions text;
    gather text;
    by_index text := ' and ragpg.lexeme_keys(vector.collection_id, vector.weights) @@ $2';
    within bigint[];
    threshold double precision;
    survivors bigint[];
    condition text;
    budget double precision := greatest(1500, 8 * k);
begin
    -- Of a query with more than 500 known lexemes the 500 of the largest idf count.
    select array_agg(term.number order by term.frequency, term.number),
           array_agg(term.times * term.idf order by term.frequency, term.number),
           array_agg(term.frequency order by term.frequency, term.number),
           min(term.chunks), min(term.average_length), min(term.reference_length)
      into numbers, factors, frequencies, chunks, average, reference
      from (
               select term.* from ragpg._query_terms(tenant, collection, query) as term
                where term.frequency > 0
                order by term.times * term.idf desc, term.number
                limit 500
           ) as term;
    if numbers is null then
        return;
    end if;
    select ('{' || string_agg(summed.number || ':' || summed.factor, ',') || '}/1000000000')::sparsevec
      into asked
      from (
               select term.number, sum(term.factor)::real as factor
                 from unnest(numbers, factors) as term(number, factor)
                group by term.number
           ) as summed;
    -- How far a rough score can be from the truth, relative to that of another chunk; the remainder
    -- is for single precision.
    slack := least(1, average / reference) / greatest(1, average / reference) * (1 - 1e-5);

    -- Fixed texts; values are parameters, and numbers are integers by type.
    conditions := concat(
        case when sources is not null then ' and embedding.source = any ($4)' end,
        case when tags_all is not null then ' and embedding.tags @> $5' end,
        case when tags_any is not null then ' and embedding.tags && $6' end,
        case when modified_from is not null then ' and embedding.modified_at >= $7' end,
        case when modified_before is not null then ' and embedding.modified_at < $8' end,
        case when key_prefix is not null then ' and embedding.document_key ^@ $9' end,
        case when filter is not null then ' and embedding.attributes @@ $10' end);
    if conditions <> '' then
        execute format(
            'select array_agg(passing.chunk_id) from (select embedding.chunk_id from ragpg.embedding'
            ' where embedding.tenant_id = %s and embedding.collection_id = %s%s limit 20001)'
            ' as passing', tenant, collection, conditions)
           into within
          using null::sparsevec, null::tsquery, null::bigint[], sources, tags_all, tags_any,
                modified_from, modified_before, key_prefix, filter;
        if within is null then
            return;
        end if;
        if cardinality(within) <= 20000 then
            conditions := ' and vector.chunk_id = any ($3)';
        else
            within := null;
            conditions := format(
                ' and (select true from ragpg.embedding where embedding.tenant_id = %s'
                ' and embedding.chunk_id = vector.chunk_id%s offset 0)', tenant, conditions);
        end if;
    end if;
    gather := format(
        'with matched as materialized (select vector.chunk_id, -(vector.weights <#> $1) as rough'
        ' from ragpg.lexeme_vector as vector where vector.tenant_id = %s'
        ' and vector.collection_id = %s and (vector.weights <#> $1) < 0'
        ' and (vector.expires_at is null or vector.expires_at > now())%s),'
        ' bar as (select matched.rough from matched order by matched.rough desc offset %s limit 1)'
        ' select (select bar.rough from bar), array_agg(matched.chunk_id) from matched'
        ' where matched.rough >= coalesce((select bar.rough from bar), 0) * %s',
        -- + 0 keeps the primary key out of the plans that read the index of lexemes.
        '%1$s', '%2$s', conditions || '%3$s', k - 1, slack);

    mode := case when within is not null then 'filtered' when chunks <= 4000 then 'scan'
                 else 'index' end;
    if mode = 'index' then
        keys := array(select format('''%s.%s''', to_hex(collection), term.number)
                        from unnest(numbers) with ordinality as term(number, place)
                       order by term.place);
        loop
            condition := ragpg._first_condition(keys, frequencies, chunks, k, budget);
            execute format(gather, tenant || ' + 0', collection || ' + 0', by_index)
               into threshold, survivors
              using asked, condition::tsquery, within, sources, tags_all, tags_any, modified_from,
                    modified_before, key_prefix, filter;
            exit when threshold is not null or budget > chunks;
            budget := budget * 8;
        end loop;
        condition := ragpg._beating(collection, numbers, factors, coalesce(threshold * slack, 0));
        if condition is null then
            mode := 'scan';
        else
            execute format(gather, tenant || ' + 0', collection || ' + 0', by_index)
               into threshold, survivors
              using asked, condition::tsquery, within, sources, tags_all, tags_any, modified_from,
                    modified_before, key_prefix, filter;
        end if;
    end if;
    if mode <> 'index' then
        execute format(gather, tenant, collection, '')
           into threshold, survivors
          using asked, null::tsquery, within, sources, tags_all, tags_any, modified_from,
                modified_before, key_prefix, filter;
    end if;
    return query
    select best.chunk_id, row_number() over (order by best.score desc, best.chunk_id)::integer,
           best.score, mode
      from ragpg._bm25(tenant, collection, numbers, factors, average, reference, survivors) as best
     order by best.score desc, best.chunk_id
     limit k;
end $$;
comment on function ragpg._search_lexical is
    'What search_lexical does, for a tenant and collection by number. mode: scan scores every chunk, filtered every chunk that passes the filter, index those whose lexemes can reach the k-th score.';

create or replace function ragpg.search_lexical(
    collection text,
    query text,
    k integer default 150,
    sources text[] default null,
    tags_all text[] default null,
    tags_any text[] default null,
    modified_from timestamptz default null,
    modified_before timestamptz default null,
    key_prefix text default null,
    filter jsonpath default null
)
returns table (chunk_id bigint, rank integer, score double precision)
language plpgsql stable security definer
set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(search_lexical.collection);
begin
    if k is null or k not between 1 and 1000 then
        raise exception using errcode = 'RG009',
            message = format('k is %s, it must be 1 to 1000', k),
            hint = 'Ask for fewer.';
    end if;
    return query
    select arm.chunk_id, arm.rank, arm.score
      from ragpg._search_lexical(tenant, home, query, k, sources, tags_all, tags_any,
                                 modified_from, modified_before, key_prefix, filter) as arm
     order by arm.rank;
end $$;
comment on function ragpg.search_lexical is
    'The k chunks of highest BM25 score; rank starts at 1, ties by chunk_id. Any text is a query; one without a known lexeme finds nothing. Raises RG001, RG003, RG009.';

create or replace function ragpg.score_lexical(
    tenant integer, collection integer, query text, chunk_ids bigint[]
)
returns table (chunk_id bigint, score double precision)
language plpgsql stable
set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    numbers integer[];
    factors double precision[];
    average double precision;
    reference double precision;
begin
    if query is null or coalesce(cardinality(chunk_ids), 0) = 0 then
        return;
    end if;
    select array_agg(term.number), array_agg(term.times * term.idf),
           min(term.average_length), min(term.reference_length)
      into numbers, factors, average, reference
      from (
               select term.* from ragpg._query_terms(tenant, collection, query) as term
                where term.frequency > 0
                order by term.times * term.idf desc, term.number
                limit 500
           ) as term;
    return query
    select found.chunk_id, found.score
      from ragpg._bm25(tenant, collection, coalesce(numbers, '{}'), coalesce(factors, '{}'),
                       coalesce(average, 1), coalesce(reference, 1), chunk_ids) as found;
end $$;
comment on function ragpg.score_lexical(integer, integer, text, bigint[]) is
    'The BM25 scores of given chunks of a collection; 0 where no lexeme of the query is in the chunk.';

create or replace function ragpg.query_lexemes(collection text, query text)
returns table (lexeme text, times integer, chunks bigint, idf double precision)
language plpgsql stable security definer
set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    select term.lexeme, term.times, term.frequency, term.idf
      from ragpg._query_terms(ragpg.current_tenant(),
                              ragpg.collection_number(query_lexemes.collection), query) as term
     order by term.idf desc, term.lexeme;
end $$;
comment on function ragpg.query_lexemes(text, text) is
    'What the lexical arm reads in a query: each lexeme, how often it is asked, how many chunks hold it, its idf. Raises RG001, RG003.';

create or replace function ragpg.explain_lexical(collection text, query text, chunk_id bigint)
returns table (
    lexeme text,
    chunks bigint,
    idf double precision,
    frequency integer,
    contribution double precision
)
language plpgsql stable security definer
set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(explain_lexical.collection);
begin
    return query
    select term.lexeme, term.frequency, term.idf, found.frequency,
           coalesce(term.times * term.idf * 2.2 * found.frequency
                    / (found.frequency
                       + 1.2 * (0.25 + 0.75 * vector.length / term.average_length)), 0)
      from ragpg._query_terms(tenant, home, query) as term
      join ragpg.lexeme_vector as vector
        on vector.tenant_id = tenant and vector.collection_id = home
       and vector.chunk_id = explain_lexical.chunk_id
     cross join lateral (select -(vector.weights <#> ragpg._unit(term.number)) as weight) as stored
     cross join lateral (
               select round(stored.weight
                            * 1.2 * (0.25 + 0.75 * vector.length / term.reference_length)
                            / (2.2 - stored.weight))::integer as frequency
           ) as found
     order by 5 desc, term.lexeme;
end $$;
comment on function ragpg.explain_lexical(text, text, bigint) is
    'Why a chunk scores what it scores: every lexeme of the query, chunks that hold it, its idf, its occurrences in this chunk and what it adds. Raises RG001, RG003.';
