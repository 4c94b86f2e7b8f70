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
begin atomic
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
                   select sum(-(run.counts operator(public.<#>) ragpg._unit(asked.number)))
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
     where size.chunks > 0;
end;
comment on function ragpg._query_terms(integer, integer, text) is
    'The lexemes of a query with the collection''s statistics of now. Empty for an empty collection.';

create or replace function ragpg._query_weights(
    tenant_id integer, collection_id integer, query text
)
returns table (
    numbers integer[],
    factors double precision[],
    frequencies bigint[],
    chunks bigint,
    average_length double precision,
    reference_length double precision
)
language sql stable
rows 1
begin atomic
    -- Of a query with more than 500 known lexemes the 500 of the largest idf count.
    select array_agg(term.number order by term.frequency, term.number),
           array_agg(term.times * term.idf order by term.frequency, term.number),
           array_agg(term.frequency order by term.frequency, term.number),
           min(term.chunks), min(term.average_length), min(term.reference_length)
      from (
               select asked.*
                 from ragpg._query_terms(_query_weights.tenant_id, _query_weights.collection_id,
                                         _query_weights.query) as asked
                where asked.frequency > 0
                order by asked.times * asked.idf desc, asked.number
                limit 500
           ) as term;
end;
comment on function ragpg._query_weights(integer, integer, text) is
    'The known lexemes of a query, the rarest first: number, times * idf and frequency of each, and what _bm25 must know of the collection. Nulls if none is known.';

create or replace function ragpg._bm25(
    tenant_id integer, collection_id integer, numbers integer[], factors double precision[],
    average_length double precision, reference_length double precision, chunk_ids bigint[]
)
returns table (chunk_id bigint, score double precision)
language sql stable
begin atomic
    with term as materialized (
        select ragpg._unit(asked.number) as unit, asked.factor
          from unnest(numbers, factors) as asked(number, factor)
         order by asked.number
    )
    select vector.chunk_id, coalesce(scored.score, 0)
      from unnest(_bm25.chunk_ids) as wanted(chunk_id)
     -- A look-up each, whatever the statistics: by those of many tenants a collection has few chunks,
     -- and the plan of "= any" read it all: for 150 chunks 6 ms of 5,000 and 138 of 50,000, now 0.6.
     cross join lateral (
               select held.chunk_id, held.length, held.weights
                 from ragpg.lexeme_vector as held
                where held.tenant_id = _bm25.tenant_id
                  and held.collection_id = _bm25.collection_id
                  and held.chunk_id = wanted.chunk_id
               offset 0
           ) as vector
     cross join lateral (
               select 1.2 * (0.25 + 0.75 * vector.length / reference_length) as stored_norm,
                      1.2 * (0.25 + 0.75 * vector.length / average_length) as norm
           ) as scale
     cross join lateral (
               -- The frequency is read back out of the weight: w = 2.2 tf / (tf + norm).
               select sum(term.factor * 2.2 * found.frequency / (found.frequency + scale.norm))
                      as score
                 from term,
                      lateral (select -(vector.weights operator(public.<#>) term.unit) as weight offset 0) as stored,
                      lateral (select round(stored.weight * scale.stored_norm
                                            / (2.2 - stored.weight)) as frequency offset 0) as found
                where stored.weight > 0
           ) as scored;
end;
comment on function ragpg._bm25(integer, integer, integer[], double precision[], double precision, double precision, bigint[]) is
    'The BM25 scores of these chunks, of one named twice twice; the same sum in the same order for each, so equal texts score equal.';

create or replace function ragpg._threshold(
    keys text[], factors double precision[], rest double precision[], levels integer[],
    place integer, need double precision
) returns text
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    reached text;
    before text;
    parts text[];
    key text := keys[place];
begin
    if need <= 0 then
        return 'any';
    end if;
    if place > cardinality(keys) or 2.2 * rest[place] < need then
        return null;
    end if;
    before := ragpg._threshold(keys, factors, rest, levels, place + 1, need);
    if before = 'any' then
        return 'any';
    end if;
    parts := array[before];
    -- From the weakest occurrence to the strongest; each condition is implied by the one before, so
    -- what adds nothing to it is left out.
    for level in 1..levels[place] loop
        reached := ragpg._threshold(
            keys, factors, rest, levels, place + 1,
            need - factors[place] * case when level = levels[place] then 2.2 when level = 1 then 1.2
                                         else 1.5 end);
        if reached is distinct from before then
            parts := parts || (
                case level when 1 then key
                           when 2 then replace(key, '.', '.+')
                           else '(' || replace(key, '.', '.1+') || '|'
                                    || replace(key, '.', '.2+') || ')' end
                || case reached when 'any' then '' else '&(' || reached || ')' end);
            before := reached;
        end if;
    end loop;
    return nullif(array_to_string(parts, '|'), '');
end $$;
comment on function ragpg._threshold(text[], double precision[], double precision[], integer[], integer, double precision) is
    'The condition that the largest possible weights of a chunk''s keys add up to need. An occurrence of a term of three levels weighs at most 1.2, 1.5 or 2.2 by its keys, of two 1.2 or 2.2, of one 2.2. Null if they cannot, any if they always do. factors descending; rest[i] is their sum from i on.';

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
    levels integer[];
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
    end loop;
    rest[inside + 1] := 0;
    -- The index looks at every operand for every chunk that it visits, so a long condition costs
    -- more than it holds back.
    foreach levels slice 1 in array array[
        [3, 3, 3, 3, 3, 3, 3, 3], [2, 2, 2, 2, 2, 2, 2, 2], [2, 2, 2, 1, 1, 1, 1, 1],
        [2, 2, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]]
    loop
        condition := ragpg._threshold(keys, sorted[1:inside], rest, levels, 1, need);
        exit when length(condition) <= 500;
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
    if rare = terms or total >= 2 * k then
        return condition;
    end if;
    if rare + 1 = terms then
        -- One common term is left: of its chunks some 10 % have it strongly, few very strongly.
        return concat_ws('|', condition, case
            when frequencies[terms] <= 4 * budget then keys[terms]
            when frequencies[terms] <= 20 * budget then replace(keys[terms], '.', '.+')
            when frequencies[terms] <= 100 * budget
            then replace(keys[terms], '.', '.1+') || '|' || replace(keys[terms], '.', '.2+')
            else replace(keys[terms], '.', '.2+') end);
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

create or replace function ragpg._block_scores(
    tenant integer, collection integer, numbers integer[], factors double precision[],
    taken_off double precision, blocks text
) returns text
language sql stable
begin atomic
    -- The weights of a lexeme in a whole block are one vector: a sum of vectors, each times its
    -- factor, is the rough score of 4,000 chunks. Numbers only, so nothing here needs to be quoted.
    select format(
        'select (%s) operator(public.-) taken_off as scores, block.chunk_ids || ''{}''::bigint[] as chunk_ids'
        ' from (select %s, array_fill(%s::real, array[%s])::public.vector as taken_off offset 0) as given,'
        ' (select block.*, row_number() over (order by block.block_id) as place,'
        ' count(*) over () as blocks from ragpg.lexeme_block as block'
        ' where block.tenant_id = %s and block.collection_id = %s) as block where %s offset 0',
        string_agg(format(
            '(factor%s operator(public.*) (select held.weights::public.vector from ragpg.lexeme_column as held'
            ' where held.tenant_id = %s and held.collection_id = %s and held.number = %s'
            ' and held.block_id = block.block_id))',
            term.place, tenant, collection, term.number), ' operator(public.+) ' order by term.place),
        string_agg(format('array_fill(%s::real, array[%s])::public.vector as factor%s',
                          term.factor, ragpg._block_rows(), term.place), ', ' order by term.place),
        taken_off, ragpg._block_rows(), tenant, collection, blocks)
      from unnest(numbers, factors) with ordinality as term(number, factor, place);
end;
comment on function ragpg._block_scores(integer, integer, integer[], double precision[], double precision, text) is
    'The statement that reads the rough scores of chunks by these lexemes, less taken_off, from some blocks; each lexeme has a column in every block.';

create or replace function ragpg._in_every_block(
    tenant integer, collection integer, numbers integer[]
) returns boolean[]
language sql stable
begin atomic
    select array_agg(
               (select count(*) from ragpg.lexeme_column as held
                 where held.tenant_id = _in_every_block.tenant
                   and held.collection_id = _in_every_block.collection
                   and held.number = term.number)
               = (select count(*) from ragpg.lexeme_block as block
                   where block.tenant_id = _in_every_block.tenant
                     and block.collection_id = _in_every_block.collection)
               order by term.place)
      from unnest(numbers) with ordinality as term(number, place);
end;
comment on function ragpg._in_every_block(integer, integer, integer[]) is
    'Of each lexeme, whether every block has a column of it.';

drop function if exists ragpg._sampled_score(integer, integer, integer[], double precision[], bigint, integer);

create or replace function ragpg._sampling(
    tenant integer, collection integer, numbers integer[], factors double precision[],
    common boolean[], chunks bigint, k integer, passes text
) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
set extra_float_digits = 1
as $$
declare
    share double precision := least(1, 4.0 * ragpg._block_rows() / chunks);
    -- Of the best k so many are in the sample that more come in one case of a hundred; then the
    -- search is done once more.
    beyond integer := ceil(k * share + 2.5 * sqrt(k * share));
    common_numbers integer[];
    common_factors double precision[];
begin
    select array_agg(term.number), array_agg(term.factor) into common_numbers, common_factors
      from unnest(numbers, factors, common) as term(number, factor, common)
     where term.common;
    if common_numbers is null then
        return null;
    end if;
    -- A filter is asked of few: where a fortieth of the best would not do, it is no broad one.
    return format(
        'select best.score, null::bigint[], null::double precision, null::double precision'
        ' from (select sampled.* from (%s) as sample, unnest(sample.scores::real[]%s)'
        ' where sampled.score > 0 order by sampled.score desc limit %s) as best'
        ' where true%s order by best.score desc offset %s limit 1',
        ragpg._block_scores(tenant, collection, common_numbers, common_factors, 0,
                            'block.place % greatest(1, block.blocks / 4) = 0'),
        case when passes = '' then ') as sampled(score'
             else ', sample.chunk_ids) as sampled(score, chunk_id' end,
        case when passes = '' then beyond + 1 else 40 * (beyond + 1) end,
        format(passes, 'best'), beyond);
end $$;
comment on function ragpg._sampling(integer, integer, integer[], double precision[], boolean[], bigint, integer, text) is
    'The statement for _gathered that gives about the rough score of the k-th chunk that passes, rather too low, from four blocks, or no row where these hold too few; null where no lexeme has a column in every block, as common tells of each. passes is a condition with %s for the name of the row.';

create or replace function ragpg._gathered(
    statement text,
    asked public.sparsevec default null,
    sources text[] default null,
    tags_all text[] default null,
    tags_any text[] default null,
    modified_from timestamptz default null,
    modified_before timestamptz default null,
    key_prefix text default null,
    filter jsonpath default null,
    condition tsquery default null,
    chunk_ids bigint[] default null,
    passing bigint[] default null,
    out threshold double precision,
    out survivors bigint[],
    out guess double precision,
    out reach double precision
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(current_setting('ragpg.explain', true), '') <> '' then
        perform ragpg._note_plan(statement, asked, sources, tags_all, tags_any, modified_from,
                                 modified_before, key_prefix, filter, condition, chunk_ids, passing);
    end if;
    execute statement
       into threshold, survivors, guess, reach
      using asked, sources, tags_all, tags_any, modified_from, modified_before, key_prefix, filter,
            condition, chunk_ids, passing;
end $$;
comment on function ragpg._gathered is
    'The one row of a statement written by the lexical arm, whose plan it notes for explain_hybrid: the k-th rough score, or null if fewer pass, and the chunks near enough to it or above; guess: about the rough score from which on k pass, where it does not say for certain; reach: the rank at which it expects the k-th that passes.';

create or replace function ragpg._scan(
    tenant integer, collection integer, asked public.sparsevec, k integer, slack double precision
)
returns table (threshold double precision, survivors bigint[])
language sql stable
rows 1
begin atomic
    -- offset 0, so that a row's score is computed once and not again for the condition on it.
    with matched as materialized (
        select scored.chunk_id, scored.rough
          from (
                   select vector.chunk_id, -(vector.weights operator(public.<#>) _scan.asked) as rough
                     from ragpg.lexeme_vector as vector
                    where vector.tenant_id = _scan.tenant
                      and vector.collection_id = _scan.collection
                      and (vector.expires_at is null or vector.expires_at > now())
                   offset 0
               ) as scored
         where scored.rough > 0
    ), bar as (
        select matched.rough from matched order by matched.rough desc offset _scan.k - 1 limit 1
    )
    select (select bar.rough from bar), array_agg(matched.chunk_id)
      from matched
     where matched.rough >= coalesce((select bar.rough from bar), 0) * _scan.slack;
end;
comment on function ragpg._scan(integer, integer, public.sparsevec, integer, double precision) is
    'The k-th best rough score in a collection, and the chunks that are near enough to it or above.';

create or replace function ragpg._worth_blocks(chunks bigint, terms integer) returns bigint
language sql immutable parallel safe
begin atomic
    -- Measured: a visit takes 0.02 microseconds for each pair of terms, a block 40 and 17 for each.
    select greatest(10000, (chunks * (40 + 17 * greatest(terms, 2))
                           / (72.0 * greatest(terms, 2) ^ 2))::bigint);
end;
comment on function ragpg._worth_blocks(bigint, integer) is
    'From how many visits of the index a search for so many common terms is faster by way of the blocks.';

create or replace function ragpg._index_visits(
    frequencies bigint[], factors double precision[], chunks bigint, need double precision,
    k integer, budget double precision
) returns bigint
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    terms integer := cardinality(frequencies);
    rest double precision := 2.2 * (select sum(factor) from unnest(factors) as factor);
    visited bigint := 0;
    place integer := 1;
begin
    if need is null then
        -- What _first_condition takes up: all of the rarest, or those of the next term with others.
        while place <= terms and visited + frequencies[place] <= budget loop
            visited := visited + frequencies[place];
            place := place + 1;
        end loop;
        -- Where none is rare, the search that follows looks at more of them than this one.
        -- Two alone cannot be narrowed down: of each chunk that holds both the row is read.
        return case when place > terms or visited >= 2 * k then 0
                    when place = 1 then 3 * frequencies[place] else frequencies[place] end
               + case when place = terms - 1 and visited < 2 * k
                      then 2 * frequencies[place] * frequencies[terms] / chunks else 0 end;
    end if;
    -- The rarest, as many as it takes until the others alone cannot reach the score.
    while place <= terms and rest >= need loop
        visited := visited + frequencies[place];
        rest := rest - 2.2 * factors[place];
        place := place + 1;
    end loop;
    return visited;
end $$;
comment on function ragpg._index_visits(bigint[], double precision[], bigint, double precision, integer, double precision) is
    'Of how many chunks the index looks at the lexemes, to find those that reach a score or, where that is null, some good ones. frequencies ascending.';

drop function if exists ragpg._reaching(integer, integer, integer[], double precision[], bigint[], bigint, integer, double precision, bigint, double precision);

create or replace function ragpg._reaching(
    tenant integer, collection integer, numbers integer[], factors double precision[],
    frequencies bigint[], common boolean[], chunks bigint, need double precision,
    fewest_visits bigint
) returns bigint[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_indexscan = on
set extra_float_digits = 1
as $$
#variable_conflict use_column
declare
    common_numbers integer[];
    common_factors double precision[];
    keys text;
    others bigint;
    condition text;
    waiting bigint[];
    reached bigint[];
    worded bigint[];
begin
    -- From some 120 terms on it is faster to score every chunk.
    if cardinality(numbers) > 100
       or ragpg._index_visits(frequencies, factors, chunks, need, null, null) < fewest_visits
    then
        return null;
    end if;
    waiting := array(
        select held.chunk_id
          from ragpg.lexeme_waiting as held
         where held.tenant_id = tenant and held.collection_id = collection
         limit ragpg._scan_up_to() + 1);
    if cardinality(waiting) > ragpg._scan_up_to() then
        return null;
    end if;
    select array_agg(term.number) filter (where term.common),
           array_agg(term.factor) filter (where term.common),
           string_agg(format('''%s.%s''', to_hex(collection), term.number), '|')
               filter (where not term.common),
           sum(term.frequency) filter (where not term.common)
      into common_numbers, common_factors, keys, others
      from unnest(numbers, factors, frequencies,
                  coalesce(common, ragpg._in_every_block(tenant, collection, numbers)))
           as term(number, factor, frequency, common);
    if common_numbers is null then
        return null;
    end if;
    -- From a vector of bits to the places of those that are set.
    select gathered.survivors into reached
      from ragpg._gathered(format(
          'select null::double precision, array(select hit.chunk_id'
          ' from (select public.binary_quantize(scored.scores) as bits, scored.chunk_ids from (%s) as scored'
          ' offset 0) as reached, lateral (select reached.chunk_ids[found.place] as chunk_id from ('
          'select sum(length(part.zeros) + 1) over (order by part.number) as place, part.number,'
          ' count(*) over () as parts'
          ' from string_to_table(reached.bits::text, ''1'') with ordinality as part(zeros, number)'
          ') as found where found.number < found.parts) as hit),'
          ' null::double precision, null::double precision',
          ragpg._block_scores(tenant, collection, common_numbers, common_factors,
                              need * (1 - 1e-5), 'true'))) as gathered;
    if keys is not null then
        -- The blocks do not tell what a chunk with one of the other terms can reach.
        if others > 4000 then
            condition := ragpg._beating(collection, numbers, factors, need);
        end if;
        select gathered.survivors into worded
          from ragpg._gathered(format(
              'select null::double precision, array('
              'select vector.chunk_id from ragpg.lexeme_vector as vector'
              ' where vector.tenant_id + 0 = %s and vector.collection_id + 0 = %s and vector.indexed'
              ' and ragpg.lexeme_keys(vector.collection_id, vector.weights) @@ $9),'
              ' null::double precision, null::double precision',
              tenant, collection),
              condition => concat('(', keys, ')', '&(' || condition || ')')::tsquery) as gathered;
    end if;
    return waiting || reached || worded;
end $$;
comment on function ragpg._reaching(integer, integer, integer[], double precision[], bigint[], boolean[], bigint, double precision, bigint) is
    'The chunks that can have the rough score need or more, found by way of the blocks, and perhaps some that cannot or are gone. Null where the index of lexemes would visit fewer chunks than fewest_visits, or the blocks hold too few chunks. frequencies ascending; common: what _in_every_block says, if it is known.';

create or replace function ragpg._lexical_arm(
    tenant integer,
    collection integer,
    query text,
    k integer,
    sources text[],
    tags_all text[],
    tags_any text[],
    modified_from timestamptz,
    modified_before timestamptz,
    key_prefix text,
    filter jsonpath,
    passing bigint[] default null,
    is_broad boolean default null,
    scan_up_to integer default ragpg._scan_up_to(),
    list_up_to integer default null,
    out ids bigint[],
    out scores double precision[],
    out mode text,
    out numbers integer[],
    out factors double precision[],
    out average double precision,
    out reference double precision
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set extra_float_digits = 1
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_indexscan = on
set work_mem = '64MB'
-- By its usual value the planner reads the entries of the whole tenant to spare a filter the rows of
-- other tenants: 30 ms for 5,000 rows of 500,000, and 8 without.
set random_page_cost = 1.1
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    frequencies bigint[];
    keys text[];
    chunks bigint;
    slack double precision;
    asked public.sparsevec;
    conditions text;
    tagged text;
    keyed text;
    others text;
    listing text;
    expected double precision;
    within bigint[] := passing;
    -- Of the filter: the condition on a scored chunk, with %s for the name of the row.
    passes text := '';
    rated text;
    -- Where the planner sees how many there are, it at times reads the whole collection for some of it.
    listed constant text := ' and vector.chunk_id = any (array(select unnest($10)))';
    gather text;
    -- Asks the filter of a few of the best chunks only, to guess how far down the k-th that passes is.
    probe text;
    sampling text;
    by_index text;
    by_blocks text;
    threshold double precision;
    survivors bigint[];
    guess double precision;
    reach double precision;
    condition text;
    complete boolean := false;
    scattered boolean;
    worth_blocks bigint;
    common boolean[];
    reaching bigint[];
    -- The rough score from which on all chunks are looked for, whether k that pass are known to have
    -- it, and whether the blocks say so.
    target double precision;
    is_certain boolean := false;
    is_sampled boolean := false;
    is_probing boolean;
    -- At which rank the k-th that passes may be.
    depth double precision := k;
    budget double precision;
begin
    select asked.numbers, asked.factors, asked.frequencies, asked.chunks, asked.average_length,
           asked.reference_length
      into numbers, factors, frequencies, chunks, average, reference
      from ragpg._query_weights(tenant, collection, query) as asked;
    if numbers is null then
        return;
    end if;
    select ('{' || string_agg(summed.number || ':' || summed.factor, ',') || '}/1000000000')::public.sparsevec
      into asked
      from (
               select term.number, sum(term.factor)::real as factor
                 from unnest(numbers, factors) as term(number, factor)
                group by term.number
           ) as summed;
    -- How far a rough score can be from the truth, relative to that of another chunk; the remainder
    -- is for single precision.
    slack := least(1, average / reference) / greatest(1, average / reference) * (1 - 1e-5);

    filter := ragpg._own_filter(collection, filter);
    -- Fixed texts; values are parameters, numbered as _planned_rows has them, and numbers are integers
    -- by type.
    tagged := concat(
        case when tags_all is not null then ' and embedding.tags @> $3' end,
        case when tags_any is not null then ' and embedding.tags && $4' end);
    others := concat(
        case when sources is not null then ' and embedding.source = any ($2)' end,
        case when modified_from is not null then ' and embedding.modified_at >= $5' end,
        case when modified_before is not null then ' and embedding.modified_at < $6' end,
        case when key_prefix is not null then ' and embedding.document_key ^@ $7' end,
        case when filter is not null then ' and embedding.attributes @@ $8' end);
    conditions := tagged || others;
    -- Of M chunks that pass among N the k-th best has rank k * N / M. To list and score M takes as long
    -- as to score and ask down to that rank where M * M is some 4 k N, measured at 50,000 and 500,000.
    list_up_to := coalesce(list_up_to, least(20000, sqrt(5.0 * k * chunks))::integer);
    if conditions <> '' and within is null then
        keyed := ragpg._tagged(collection, tags_all, tags_any, chunks, null, null);
        -- + 0 as in _dense_arm.
        listing := format(
            'select null::double precision, array(select embedding.chunk_id from ragpg.embedding'
            ' where embedding.tenant_id%1$s = %2$s and embedding.collection_id%1$s = %3$s%4$s limit %5$s),'
            ' null::double precision, null::double precision',
            case when keyed <> ''
                      and coalesce(sources::text, modified_from::text, modified_before::text, key_prefix)
                          is null
                 then ' + 0' else '' end,
            tenant, collection, coalesce(keyed, tagged) || others, list_up_to + 1);
        -- A wrong estimate costs time only. A filter names its collection itself.
        if chunks > list_up_to then
            expected := ragpg._planned_rows(
                ' from ragpg.embedding where '
                || case when filter is null then 'embedding.collection_id = ' || collection
                        else 'true' end || conditions,
                null, sources, tags_all, tags_any, modified_from, modified_before, key_prefix,
                filter);
        end if;
        -- Of metadata the planner knows some hundred values: a list that gets too long costs less than
        -- to ask of thousands what few pass.
        if not coalesce(is_broad, false)
           and coalesce(expected <= list_up_to * case when filter is null then 0.8 else 1.5 end, true)
        then
            select gathered.survivors into within
              from ragpg._gathered(listing, asked, sources, tags_all, tags_any, modified_from,
                                   modified_before, key_prefix, filter) as gathered;
            if cardinality(within) > list_up_to then
                within := null;
                listing := null;
            end if;
        end if;
    end if;
    if within = '{}' then
        return;
    end if;
    if within is not null and cardinality(within) > list_up_to then
        passes := ' and %1$s.chunk_id = any ($11)';
        expected := cardinality(within);
    elsif within is null and conditions <> '' then
        passes := format(
            ' and (select true from ragpg.embedding where embedding.tenant_id = %s'
            ' and embedding.chunk_id = %%1$s.chunk_id%s offset 0)', tenant, conditions);
    end if;
    if passes <> '' then
        depth := least(k * chunks / greatest(expected, list_up_to, 1), chunks);
    end if;
    mode := case when within is not null and passes = '' then 'filtered'
                 when chunks <= scan_up_to then 'scan' else 'index' end;

    -- offset 0, so that a row's score is computed once and not again for the condition on it.
    rated := format(
        'select vector.chunk_id, -(vector.weights operator(public.<#>) $1) as rough'
        ' from ragpg.lexeme_vector as vector where vector.tenant_id%s = %s'
        ' and vector.collection_id%s = %s'
        ' and (vector.expires_at is null or vector.expires_at > now())%s offset 0',
        '%1$s', tenant, '%1$s', collection, '%2$s');
    gather := 'with matched as materialized (select scored.* from (%s) as scored where scored.rough > 0)';
    if passes = '' then
        gather := gather || format(
            ', bar as (select matched.rough from matched order by matched.rough desc offset %s limit 1)'
            ' select (select bar.rough from bar), array_agg(matched.chunk_id),'
            ' null::double precision, null::double precision from matched'
            ' where matched.rough >= coalesce((select bar.rough from bar), 0) * %s',
            k - 1, slack);
    else
        -- From the best chunk down and no further than k that pass: each question is a look-up.
        probe := format(
            '%s, passed as materialized (select asked.* from (select matched.* from matched'
            ' order by matched.rough desc %s) as asked where true%s order by asked.rough desc limit %s)'
            ', counted as (select count(*) as passing, min(passed.rough) as rough from passed)',
            gather, '%s', format(passes, 'asked'), k);
        gather := format(probe, '%s', 'offset 0') || format(
            ', bar as (select counted.rough from counted where counted.passing = %s)'
            ' select (select bar.rough from bar), array(select passed.chunk_id from passed'
            ' union select matched.chunk_id from matched where matched.rough <= (select bar.rough from bar)'
            ' and matched.rough >= (select bar.rough from bar) * %s%s),'
            ' null::double precision, null::double precision',
            k, slack, format(passes, 'matched'));
        -- One and a half standard deviations deeper, since less than k costs another round.
        probe := format(
            '%s, expected as (select (%s + 1.5 * sqrt(%s)) * least(%s, (select count(*) from matched))'
            ' / greatest(counted.passing - 1.5 * sqrt(counted.passing), 0.5) as reach from counted)'
            ' select case when counted.passing = %s then counted.rough end, null::bigint[],'
            ' (select matched.rough from matched order by matched.rough desc'
            ' offset (select expected.reach::bigint from expected) limit 1), expected.reach'
            ' from counted, expected',
            format(probe, '%s', 'limit ' || 150 + 2 * k), k, k, 150 + 2 * k, k);
    end if;
    is_probing := passes <> '';

    if mode = 'index' then
        keys := array(select format('''%s.%s''', to_hex(collection), term.number)
                        from unnest(numbers) with ordinality as term(number, place)
                       order by term.place);
        -- + 0 keeps the primary key from being combined with the index of lexemes.
        by_index := format(
            rated, ' + 0',
            ' and vector.indexed'
            ' and ragpg.lexeme_keys(vector.collection_id, vector.weights) @@ $9');
        by_blocks := format(rated, '', listed);
        worth_blocks := ragpg._worth_blocks(
            chunks, (select count(*)::integer from unnest(frequencies) as frequency
                      where frequency > chunks / 200));
        scattered := exists (select from ragpg.lexeme_vector as vector
                              where vector.tenant_id = tenant and vector.collection_id = collection
                                and not vector.indexed);
        if scattered then
            by_index := format('(%s) union all (%s)', by_index,
                               format(rated, '', ' and not vector.indexed'));
        end if;
        budget := greatest(1500, 8 * k, 2.5 * depth);
        if not scattered and cardinality(numbers) <= 100
           and ragpg._index_visits(frequencies, factors, chunks, null, depth::integer, budget)
               >= worth_blocks then
            common := ragpg._in_every_block(tenant, collection, numbers);
            sampling := ragpg._sampling(tenant, collection, numbers, factors, common, chunks, k,
                                        passes);
            if sampling is not null then
                select gathered.threshold into target
                  from ragpg._gathered(sampling, asked, sources, tags_all, tags_any, modified_from,
                                       modified_before, key_prefix, filter,
                                       passing => within) as gathered;
            end if;
            is_sampled := target is not null;
        end if;
    end if;
    if mode <> 'filtered' then
        -- Within this function only. The planner knows nothing of the keys and at times prefers to
        -- read the whole table along its primary key: 435 ms instead of 4 in a million chunks. Who
        -- scores every chunk has a fifth less to do when a bitmap leads to each page once.
        perform set_config('enable_indexscan', 'off', true);
    end if;
    while mode = 'index' loop
        if target is null then
            condition := ragpg._first_condition(keys, frequencies, chunks, depth::integer, budget);
            complete := condition = array_to_string(keys, '|');
            select gathered.threshold, gathered.survivors, gathered.guess, gathered.reach
              into threshold, survivors, guess, reach
              from ragpg._gathered(
                       format(case when is_probing and not complete then probe else gather end, by_index),
                       asked, sources, tags_all, tags_any, modified_from, modified_before,
                       key_prefix, filter, condition::tsquery, null, within) as gathered;
            exit when complete;
            if threshold is null and reach > list_up_to and listing is not null then
                -- So few of the best pass that all that pass may be fewer than it would ask.
                select gathered.survivors into reaching
                  from ragpg._gathered(listing, asked, sources, tags_all, tags_any, modified_from,
                                       modified_before, key_prefix, filter) as gathered;
                if cardinality(reaching) <= list_up_to then
                    within := reaching;
                    mode := 'filtered';
                    exit;
                end if;
                listing := null;
            end if;
            budget := greatest(2 * budget, least(2 * reach, 8 * budget));
            target := coalesce(threshold, guess) * slack;
            is_certain := threshold is not null;
            continue when target is null;
        end if;
        -- Every chunk that can reach it, by way of the blocks or of the index.
        reaching := null;
        condition := null;
        if not scattered then
            reaching := ragpg._reaching(tenant, collection, numbers, factors, frequencies, common,
                                        chunks, target,
                                        case when is_sampled then 0 else worth_blocks end);
        end if;
        if reaching is null and is_sampled then
            -- Too many chunks wait for a block.
            is_sampled := false;
            target := null;
            continue;
        end if;
        if reaching is null then
            condition := ragpg._beating(collection, numbers, factors, target);
            if condition is null and not scattered then
                reaching := ragpg._reaching(tenant, collection, numbers, factors, frequencies,
                                            common, chunks, target, 0);
            end if;
            if condition is null and reaching is null then
                mode := 'scan';
                exit;
            end if;
        end if;
        select gathered.threshold, gathered.survivors into threshold, survivors
          from ragpg._gathered(
                   format(gather, case when reaching is null then by_index else by_blocks end),
                   asked, sources, tags_all, tags_any, modified_from, modified_before, key_prefix,
                   filter, condition::tsquery, reaching, within) as gathered;
        exit when coalesce(is_certain or threshold * slack >= target, false);
        -- It was guessed too high: once more from the k-th found, or without a guess.
        target := threshold * slack;
        is_certain := true;
        is_sampled := false;
        is_probing := false;
    end loop;
    if mode = 'scan' and conditions = '' then
        -- Planned once a session: for a small collection planning would take as long as the search.
        if coalesce(current_setting('ragpg.explain', true), '') <> '' then
            perform ragpg._note_plan(
                format('select * from ragpg._scan(%s, %s, $1, %s, %s)', tenant, collection, k, slack),
                asked, sources, tags_all, tags_any, modified_from, modified_before, key_prefix,
                filter, null, null, null);
        end if;
        select scan.survivors into survivors
          from ragpg._scan(tenant, collection, asked, k, slack) as scan;
    elsif mode <> 'index' then
        select gathered.survivors into survivors
          from ragpg._gathered(
                   format(gather, format(rated, '', case when mode = 'filtered' then listed end)),
                   asked, sources, tags_all, tags_any, modified_from, modified_before, key_prefix,
                   filter, null, within, within) as gathered;
    end if;
    perform set_config('enable_indexscan', 'on', true);
    select array_agg(best.chunk_id order by best.score desc, best.chunk_id),
           array_agg(best.score order by best.score desc, best.chunk_id)
      into ids, scores
      from (
               select found.chunk_id, found.score
                 from ragpg._bm25(tenant, collection, numbers, factors, average, reference,
                                  survivors) as found
                order by found.score desc, found.chunk_id
                limit k
           ) as best;
    if ids is null then
        mode := null;
    end if;
end $$;
comment on function ragpg._lexical_arm is
    'The chunks of highest BM25 score, best first, for search_lexical and search_hybrid, with the weights of the query. mode: scan scores every chunk, as it does anyway in a collection of up to scan_up_to chunks, filtered every chunk that passes a filter, if those are at most list_up_to, by default as many as pay, index those whose lexemes can reach the k-th score, by the index of lexemes or by blocks, and asks the filter from the best one down. passing and is_broad are what _dense_arm found out about the filter; nulls leave that to this arm.';

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
    filter jsonpath default null,
    scan_up_to integer default ragpg._scan_up_to(),
    list_up_to integer default null
)
returns table (chunk_id bigint, rank integer, score double precision, mode text)
language sql stable
begin atomic
    select found.chunk_id, found.rank::integer, found.score, arm.mode
      from ragpg._lexical_arm(tenant, collection, query, k, sources, tags_all, tags_any,
                              modified_from, modified_before, key_prefix, filter, null, null,
                              scan_up_to, list_up_to) as arm,
           unnest(arm.ids, arm.scores) with ordinality as found(chunk_id, score, rank)
     order by found.rank;
end;
comment on function ragpg._search_lexical is
    'What search_lexical does, for a tenant and collection by number.';

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
set search_path = pg_catalog, pg_temp
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
language sql stable
begin atomic
    select found.chunk_id, found.score
      from ragpg._query_weights(tenant, collection, query) as asked,
           ragpg._bm25(tenant, collection, asked.numbers, asked.factors,
                       coalesce(asked.average_length, 1), coalesce(asked.reference_length, 1),
                       array(select distinct unnest(chunk_ids))) as found
     where score_lexical.query is not null;
end;
comment on function ragpg.score_lexical(integer, integer, text, bigint[]) is
    'The BM25 scores of given chunks of a collection; 0 where no lexeme of the query is in the chunk.';

create or replace function ragpg.query_lexemes(collection text, query text)
returns table (lexeme text, times integer, chunks bigint, idf double precision)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
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
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
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
     cross join lateral (select -(vector.weights operator(public.<#>) ragpg._unit(term.number)) as weight) as stored
     cross join lateral (
               select round(stored.weight
                            * 1.2 * (0.25 + 0.75 * vector.length / term.reference_length)
                            / (2.2 - stored.weight))::integer as frequency
           ) as found
     order by 5 desc, term.lexeme;
end $$;
comment on function ragpg.explain_lexical(text, text, bigint) is
    'Why a chunk scores what it scores: every lexeme of the query, chunks that hold it, its idf, its occurrences in this chunk and what it adds. Raises RG001, RG003.';
