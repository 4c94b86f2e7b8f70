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
as $$
#variable_conflict use_column
declare
    numbers integer[];
    factors double precision[];
    average double precision;
    reference double precision;
    asked sparsevec;
    survivors bigint[];
begin
    -- Of a query with more than 500 known lexemes the 500 of the largest idf count.
    select array_agg(term.number order by term.number), array_agg(term.times * term.idf order by term.number),
           min(term.average_length), min(term.reference_length)
      into numbers, factors, average, reference
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
    with matched as materialized (
        select vector.chunk_id, -(vector.weights <#> asked) as rough
          from ragpg.lexeme_vector as vector
          join ragpg.embedding
            on embedding.tenant_id = tenant and embedding.chunk_id = vector.chunk_id
         where vector.tenant_id = tenant
           and vector.collection_id = collection
           and (vector.weights <#> asked) < 0
           and (embedding.expires_at is null or embedding.expires_at > now())
           and (sources is null or embedding.source = any (sources))
           and (tags_all is null or embedding.tags @> tags_all)
           and (tags_any is null or embedding.tags && tags_any)
           and (modified_from is null or embedding.modified_at >= modified_from)
           and (modified_before is null or embedding.modified_at < modified_before)
           and (key_prefix is null or starts_with(embedding.document_key, key_prefix))
           and (filter is null or jsonb_path_match(embedding.attributes, filter, silent => true))
    ), bar as (
        select matched.rough * least(1, average / reference) / greatest(1, average / reference)
               * (1 - 1e-5) as rough
          from matched
         order by matched.rough desc
        offset k - 1
         limit 1
    )
    select array_agg(matched.chunk_id) into survivors
      from matched
     where matched.rough >= coalesce((select bar.rough from bar), 0);
    return query
    select best.chunk_id, row_number() over (order by best.score desc, best.chunk_id)::integer,
           best.score, 'exact'
      from ragpg._bm25(tenant, collection, numbers, factors, average, reference, survivors) as best
     order by best.score desc, best.chunk_id
     limit k;
end $$;
comment on function ragpg._search_lexical is
    'What search_lexical does, for a tenant and collection by number; mode says how the chunks were found.';

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
