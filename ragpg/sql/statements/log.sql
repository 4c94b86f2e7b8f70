-- The log of searches.

-- name: searches
-- Newest first: a page, or the one with this number.
select search.search_id, search.searched_at, collection.name as collection, search.query,
       search.filter, search.k, search.mode, search.dense_mode, search.lexical_mode,
       search.reranker, search.notices, search.degraded, search.timings_ms,
       counted.candidates, counted.shown, counted.cited
  from ragpg.search
  join ragpg.collection using (tenant_id, collection_id)
 cross join lateral (
           select count(*) as candidates, count(*) filter (where search_hit.shown) as shown,
                  count(*) filter (where search_hit.cited) as cited
             from ragpg.search_hit
            where search_hit.tenant_id = search.tenant_id
              and search_hit.search_id = search.search_id
       ) as counted
 where search.tenant_id = ragpg.current_tenant()
   and case when %(collection)s::text is null then true
            else search.collection_id = ragpg.collection_number(%(collection)s) end
   and (%(search_id)s::bigint is null or search.search_id = %(search_id)s)
   and (%(after)s::bigint is null or search.search_id < %(after)s)
 order by search.search_id desc
 limit %(limit)s;

-- name: candidates
-- What was shown as it was shown, then the others by their rank after fusion.
select logged.chunk_id, logged.document_key, logged.start, logged.stop, logged.section_path,
       logged.beginning, logged.dense_rank, logged.dense_score, logged.lexical_rank,
       logged.lexical_score, logged.fused_rank, logged.fused_score, logged.rerank_rank,
       logged.rerank_score, logged.shown, logged.cited
  from ragpg.search_log as logged
 where logged.tenant_id = ragpg.current_tenant()
   and logged.search_id = %(search_id)s
 order by not logged.shown, logged.rerank_rank, logged.fused_rank, logged.chunk_id;

-- name: not_found
-- What can be said now about a chunk that a logged search did not find.
select document.key as document_key, chunk.collection_id = search.collection_id as is_there,
       coalesce(document.expires_at <= search.searched_at, false) as expired,
       document.updated_at > search.searched_at as published_since,
       (%(sources)s::text[] is null or embedding.source = any (%(sources)s))
       and (%(tags_all)s::text[] is null or embedding.tags @> %(tags_all)s)
       and (%(tags_any)s::text[] is null or embedding.tags && %(tags_any)s)
       and (%(modified_from)s::timestamptz is null or embedding.modified_at >= %(modified_from)s)
       and (%(modified_before)s::timestamptz is null
            or embedding.modified_at < %(modified_before)s)
       and (%(key_prefix)s::text is null or embedding.document_key ^@ %(key_prefix)s)
       and (%(filter)s::jsonpath is null or embedding.attributes @@ %(filter)s::jsonpath) as passes,
       case when chunk.collection_id = search.collection_id and public.l2_norm(search.query_embedding) > 0
            then 1 - (embedding.embedding operator(public.<=>) search.query_embedding) end as dense_score,
       exists (select from ragpg.search_hit
                 join ragpg.chunk as found using (tenant_id, chunk_id)
                where search_hit.tenant_id = search.tenant_id
                  and search_hit.search_id = search.search_id
                  and found.text_hash = chunk.text_hash) as repeats
  from ragpg.search
  join ragpg.chunk on chunk.tenant_id = search.tenant_id and chunk.chunk_id = %(chunk_id)s
  join ragpg.document on document.tenant_id = chunk.tenant_id
                     and document.document_id = chunk.document_id
  join ragpg.embedding on embedding.tenant_id = chunk.tenant_id
                      and embedding.chunk_id = chunk.chunk_id
 where search.tenant_id = ragpg.current_tenant()
   and search.search_id = %(search_id)s;

-- name: lexemes
select word.lexeme, word.contribution
  from ragpg.explain_lexical(%(collection)s, %(query)s, %(chunk_id)s) as word
 order by word.contribution desc, word.lexeme;
