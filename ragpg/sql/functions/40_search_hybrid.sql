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
    -- An arm that found fewer than it was asked for found every chunk that holds a lexeme.
    lexical_is_complete boolean := false;
    fused_ids bigint[];
    fused_scores double precision[];
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
        lexical_is_complete := coalesce(cardinality(lexical_ids), 0) < depth;
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

    -- Limited only here. The page's scores are the true ones of both arms, also where an arm lacks
    -- the chunk, since a reranker may want both.
    return query
      with fused as (
               select found.chunk_id, found.score, found.place
                 from unnest(fused_ids, fused_scores) with ordinality
                      as found(chunk_id, score, place)
           ),
           alike as (
               select fused.chunk_id, fused.score, fused.place,
                      case when deduplicate
                           then btrim(chunk.table_header || chunk.text, E' \t\n\r\f\v') end as text
                 from fused
                 left join ragpg.chunk
                        on deduplicate
                       and chunk.tenant_id = tenant and chunk.chunk_id = fused.chunk_id
           ),
           listed as (
               select first.chunk_id, first.score, first.place, first.others,
                      row_number() over (order by first.place) as rank
                 from (
                          select alike.chunk_id, alike.score, alike.place,
                                 '{}'::bigint[] as others
                            from alike
                           where alike.text is null
                           union all
                          select (array_agg(alike.chunk_id order by alike.place))[1],
                                 max(alike.score), min(alike.place),
                                 (array_agg(alike.chunk_id order by alike.place))[2:]
                            from alike
                           where alike.text is not null
                           group by alike.text
                      ) as first
                where exclude is null or not first.chunk_id = any (exclude)
           ),
           page as (
               select listed.chunk_id, listed.score, listed.rank, listed.others,
                      array_position(dense_ids, listed.chunk_id) as dense_rank,
                      array_position(lexical_ids, listed.chunk_id) as lexical_rank
                 from listed
                where after is null or listed.place > array_position(fused_ids, after)
                order by listed.place
                limit k
           )
    select page.chunk_id, page.rank::integer, page.score,
           page.dense_rank, coalesce(dense_scores[page.dense_rank], cosine.score),
           page.lexical_rank,
           coalesce(lexical_scores[page.lexical_rank], bm25.score,
                    case when lexical_is_complete then 0 end),
           dense_took, lexical_took, page.others
      from page
      left join ragpg.score_dense(
               tenant, home, query_embedding,
               array(select page.chunk_id from page where page.dense_rank is null)) as cosine
        using (chunk_id)
      left join ragpg.score_lexical(
               tenant, home, query,
               array(select page.chunk_id from page
                      where page.lexical_rank is null and not lexical_is_complete)) as bm25
        using (chunk_id)
     order by page.rank;
end $$;
comment on function ragpg.search_hybrid is
    'The k best chunks by reciprocal rank fusion, weight / (rrf_k + rank) summed over both arms, each searched to depth; at most 2 * depth are found. Ties by chunk_id. A null query or query_embedding leaves its arm out. deduplicate keeps the best of chunks with one text (table header and text, outer white space aside) and lists the others in duplicates; exclude then leaves chunks out of that list, and after continues behind that chunk, so pages neither overlap nor leave gaps. Raises RG001, RG003, RG005, RG009.';
