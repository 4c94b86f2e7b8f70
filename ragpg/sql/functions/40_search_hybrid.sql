-- 40_search_hybrid.sql: both arms to full depth, reciprocal rank fusion, then the limit.

create or replace function ragpg.search_hybrid(
    collection text,
    query text,
    query_embedding halfvec,
    k integer default 20,
    depth integer default 150,
    sources text[] default null,
    tags_all text[] default null,
    tags_any text[] default null,
    modified_from timestamptz default null,
    modified_before timestamptz default null,
    key_prefix text default null,
    filter jsonpath default null,
    dense_weight double precision default 1,
    lexical_weight double precision default 1,
    rrf_k integer default 60,
    exclude bigint[] default '{}',
    after bigint default null
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
    lexical_mode text
)
language plpgsql volatile security definer
set search_path = pg_catalog, public, pg_temp
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
begin
    if k not between 1 and 1000 or depth not between 1 and 1000 then
        raise exception using errcode = 'RG009',
            message = format('k is %s and depth is %s, both must be 1 to 1000', k, depth),
            hint = 'Ask for fewer, or page with after.';
    end if;
    if rrf_k < 0 or dense_weight < 0 or lexical_weight < 0 or dense_weight + lexical_weight <= 0 then
        raise exception using errcode = 'RG009',
            message = format('rrf_k is %s, the weights are %s and %s: none may be negative, and one weight must be above 0',
                             rrf_k, dense_weight, lexical_weight),
            hint = 'The usual values are rrf_k 60 and both weights 1.';
    end if;
    if query_embedding is not null and dense_weight > 0 then
        select array_agg(arm.chunk_id order by arm.rank), array_agg(arm.score order by arm.rank),
               min(arm.mode)
          into dense_ids, dense_scores, dense_took
          from ragpg._search_dense(tenant, home, query_embedding, depth, sources, tags_all,
                                   tags_any, modified_from, modified_before, key_prefix,
                                   filter) as arm;
    end if;
    if query is not null and lexical_weight > 0 then
        select array_agg(arm.chunk_id order by arm.rank), array_agg(arm.score order by arm.rank),
               min(arm.mode)
          into lexical_ids, lexical_scores, lexical_took
          from ragpg._search_lexical(tenant, home, query, depth, sources, tags_all, tags_any,
                                     modified_from, modified_before, key_prefix, filter) as arm;
    end if;

    -- Fused here and limited only afterwards; a chunk that one arm lacks gets nothing from that arm,
    -- and its true score there all the same, since a reranker may want both.
    return query
      with dense as (
               select arm.chunk_id, arm.rank::integer, arm.score
                 from unnest(dense_ids, dense_scores) with ordinality as arm(chunk_id, score, rank)
           ),
           lexical as (
               select arm.chunk_id, arm.rank::integer, arm.score
                 from unnest(lexical_ids, lexical_scores)
                      with ordinality as arm(chunk_id, score, rank)
           ),
           fused as (
               select chunk_id, dense.rank as dense_rank, dense.score as dense_score,
                      lexical.rank as lexical_rank, lexical.score as lexical_score,
                      coalesce(dense_weight / (rrf_k + dense.rank), 0)
                      + coalesce(lexical_weight / (rrf_k + lexical.rank), 0) as fused_score
                 from dense full join lexical using (chunk_id)
           ),
           ranked as (
               select fused.*,
                      row_number() over (order by fused.fused_score desc, fused.chunk_id)::integer
                      as rank
                 from fused
                where not fused.chunk_id = any (exclude)
           ),
           page as (
               select ranked.*
                 from ranked
                where after is null
                   or ranked.rank > (select known.rank from ranked as known
                                      where known.chunk_id = search_hybrid.after)
                order by ranked.rank
                limit k
           )
    select page.chunk_id, page.rank, page.fused_score,
           page.dense_rank, coalesce(page.dense_score, cosine.score),
           page.lexical_rank, coalesce(page.lexical_score, bm25.score),
           dense_took, lexical_took
      from page
      left join ragpg.score_dense(
               tenant, home, query_embedding,
               array(select page.chunk_id from page where page.dense_rank is null)) as cosine
        using (chunk_id)
      left join ragpg.score_lexical(
               tenant, home, query,
               array(select page.chunk_id from page where page.lexical_rank is null)) as bm25
        using (chunk_id)
     order by page.rank;
end $$;
comment on function ragpg.search_hybrid is
    'The k best chunks by reciprocal rank fusion, weight / (rrf_k + rank) summed over both arms, each searched to depth. Ties by chunk_id. exclude leaves chunks out; after continues behind that chunk of the same search. Raises RG001, RG003, RG005, RG009.';
