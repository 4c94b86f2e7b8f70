-- 40_search_hybrid.sql: both arms to full depth, reciprocal rank fusion, then the limit.

create or replace function ragpg.search_hybrid(
    collection text,
    query text,
    query_embedding public.halfvec,
    k integer default 20,
    depth integer default 150,
    sources text[] default null,
    tags_all text[] default null,
    tags_any text[] default null,
    modified_from timestamptz default null,
    modified_before timestamptz default null,
    key_prefix text default null,
    filter jsonpath default null,
    dense_weight double precision default 0.6,
    lexical_weight double precision default 1,
    rrf_k integer default 60,
    exclude bigint[] default '{}',
    after bigint default null,
    deduplicate boolean default false
)
returns table (
    chunk_id bigint,
    rank integer,
    fused_score double precision,
    dense_rank integer,
    dense_score double precision,
    lexical_rank integer,
    lexical_score double precision,
    dense_mode text,
    lexical_mode text,
    duplicates bigint[]
)
-- Stable, like both arms: all of them and the caller's joins then see one snapshot, so that an update
-- in between is seen by all or by none.
language plpgsql stable security definer
-- A page, not the 1,000 that Postgres would expect: a caller's join then looks its rows up instead of
-- reading the tenant's chunks.
rows 20
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(search_hybrid.collection);
    dense_ids bigint[];
    dense_scores double precision[];
    dense_took text;
    lexical_ids bigint[];
    lexical_scores double precision[];
    lexical_took text;
    passing bigint[];
    is_broad boolean;
    numbers integer[];
    factors double precision[];
    average double precision;
    reference double precision;
    -- An arm that found fewer than it was asked for found every chunk that holds a lexeme.
    lexical_is_complete boolean := false;
    fused_ids bigint[];
    fused_scores double precision[];
    -- By place in fused_ids, the best chunk of the same text; null without deduplicate.
    firsts bigint[];
begin
    if k is null or depth is null or k not between 1 and 1000 or depth not between 1 and 1000 then
        raise exception using errcode = 'RG009',
            message = format('k is %s and depth is %s, both must be 1 to 1000',
                             coalesce(k::text, 'null'), coalesce(depth::text, 'null')),
            hint = 'Ask for fewer, or page with after.';
    end if;
    -- Not between is also true of NaN, which sorts above every number.
    if rrf_k is null or rrf_k not between 0 and 1000000
       or dense_weight is null or dense_weight not between 0 and 1000000
       or lexical_weight is null or lexical_weight not between 0 and 1000000
       or dense_weight + lexical_weight = 0 then
        raise exception using errcode = 'RG009',
            message = format('rrf_k is %s, the weights are %s and %s: each must be 0 to 1000000, and one weight above 0',
                             coalesce(rrf_k::text, 'null'), coalesce(dense_weight::text, 'null'),
                             coalesce(lexical_weight::text, 'null')),
            hint = 'The usual values are rrf_k 60, dense_weight 0.6 and lexical_weight 1.';
    end if;
    if query is null and query_embedding is null then
        raise exception using errcode = 'RG009',
            message = 'there is neither a query nor a query_embedding',
            hint = 'Give one of them; the arm of the other one is then left out.';
    end if;
    if query_embedding is not null and dense_weight > 0 then
        select arm.ids, arm.scores, arm.mode, arm.passing, arm.is_broad
          into dense_ids, dense_scores, dense_took, passing, is_broad
          from ragpg._dense_arm(
                   tenant, home, query_embedding, depth, sources, tags_all, tags_any,
                   modified_from, modified_before, key_prefix, filter) as arm;
    end if;
    if query is not null and lexical_weight > 0 then
        select arm.ids, arm.scores, arm.mode, arm.numbers, arm.factors, arm.average, arm.reference
          into lexical_ids, lexical_scores, lexical_took, numbers, factors, average, reference
          from ragpg._lexical_arm(
                   tenant, home, query, depth, sources, tags_all, tags_any, modified_from,
                   modified_before, key_prefix, filter, passing, is_broad) as arm;
        lexical_is_complete := coalesce(cardinality(lexical_ids), 0) < depth;
    elsif query is not null then
        select asked.numbers, asked.factors, asked.average_length, asked.reference_length
          into numbers, factors, average, reference
          from ragpg._query_weights(tenant, home, query) as asked;
    end if;

    select array_agg(summed.chunk_id order by summed.fused_score desc, summed.chunk_id),
           array_agg(summed.fused_score order by summed.fused_score desc, summed.chunk_id)
      into fused_ids, fused_scores
      from (
               -- A chunk that one arm lacks gets nothing from that arm.
               select chunk_id,
                      coalesce(dense_weight / (rrf_k + dense.rank), 0)
                      + coalesce(lexical_weight / (rrf_k + lexical.rank), 0) as fused_score
                 from unnest(dense_ids) with ordinality as dense(chunk_id, rank)
                 full join unnest(lexical_ids) with ordinality as lexical(chunk_id, rank)
                using (chunk_id)
           ) as summed;
    if after is not null and array_position(fused_ids, after) is null then
        raise exception using errcode = 'RG009',
            message = format('after names chunk %s, which is not among the %s that this search found',
                             after, coalesce(cardinality(fused_ids), 0)),
            hint = 'Page with the query, filter and depth of the page before; if the chunk is gone since, begin again.';
    end if;

    if deduplicate then
        select array_agg(alike.first order by alike.place) into firsts
          from (
                   select fused.place,
                          first_value(fused.chunk_id) over (
                              partition by btrim(chunk.table_header || chunk.text, E' \t\n\r\f\v')
                              order by fused.place) as first
                     from unnest(fused_ids) with ordinality as fused(chunk_id, place)
                     join ragpg.chunk
                       on chunk.tenant_id = tenant and chunk.chunk_id = fused.chunk_id
               ) as alike;
    end if;

    -- Limited only here. The page's scores are the true ones of both arms, also where an arm lacks
    -- the chunk, since a reranker may want both.
    return query
      with page as (
               select listed.chunk_id, listed.score, listed.rank,
                      array_position(dense_ids, listed.chunk_id) as dense_rank,
                      array_position(lexical_ids, listed.chunk_id) as lexical_rank
                 from (
                          select fused.chunk_id, fused.score, fused.place,
                                 row_number() over (order by fused.place) as rank
                            from unnest(fused_ids, fused_scores, firsts) with ordinality
                                 as fused(chunk_id, score, first, place)
                           where (fused.first is null or fused.first = fused.chunk_id)
                             and (exclude is null or not fused.chunk_id = any (exclude))
                      ) as listed
                where after is null or listed.place > array_position(fused_ids, after)
                order by listed.place
                limit k
           ),
           -- Run only if a chunk of the page asks for it; one row, so that each finds its score there.
           worded as materialized (
               select array_agg(found.chunk_id) as ids, array_agg(found.score) as scores
                 from ragpg._bm25(
                          tenant, home, numbers, factors, average, reference,
                          array(select page.chunk_id from page
                                 where page.lexical_rank is null and query is not null)) as found
           )
    select page.chunk_id, page.rank::integer, page.score,
           page.dense_rank,
           -- Evaluated only where the arm lacks the chunk.
           coalesce(dense_scores[page.dense_rank], (
               select cosine.score
                 from ragpg.score_dense(tenant, home, query_embedding, array[page.chunk_id])
                      as cosine)),
           page.lexical_rank,
           case when page.lexical_rank is not null then lexical_scores[page.lexical_rank]
                when lexical_is_complete then 0
                else (select worded.scores[array_position(worded.ids, page.chunk_id)]
                        from worded) end,
           dense_took, lexical_took,
           array(select alike.chunk_id
                   from unnest(fused_ids, firsts) with ordinality as alike(chunk_id, first, place)
                  where deduplicate and alike.first = page.chunk_id
                    and alike.chunk_id <> page.chunk_id
                  order by alike.place)
      from page
     order by page.rank;
end $$;
comment on function ragpg.search_hybrid is
    'The k best chunks by reciprocal rank fusion, weight / (rrf_k + rank) summed over both arms, each searched to depth; at most 2 * depth are found. Ties by chunk_id. A null query or query_embedding leaves its arm out. deduplicate keeps the best of chunks with one text (table header and text, outer white space aside) and lists the others in duplicates; exclude then leaves chunks out of that list, and after continues behind that chunk, so pages neither overlap nor leave gaps. Raises RG001, RG003, RG005, RG009.';
