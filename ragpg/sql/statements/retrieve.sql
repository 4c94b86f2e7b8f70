-- Stage 4.

-- name: retrieve_hybrid
-- One row per hit, best first; columns are the fields of ragpg.Hit, and the two arms' modes.
select hit.rank, hit.chunk_id, document.key as document_key, document.title as document_title,
       document.source, chunk.section_path, chunk.position, chunk.start, chunk.stop, chunk.page,
       chunk.text, chunk.table_header, chunk.context, document.tags, document.metadata,
       document.modified_at, hit.dense_rank, hit.dense_score, hit.lexical_rank, hit.lexical_score,
       hit.fused_score, hit.duplicates, hit.dense_mode, hit.lexical_mode,
       array(select page_start from unnest(document.page_starts) as page_start
              where chunk.page is not null and chunk.start < page_start and page_start < chunk.stop
              order by page_start) as page_breaks
  from ragpg.search_hybrid(
           %(collection)s, %(query)s, %(embedding)s::public.halfvec, %(k)s, depth => %(depth)s,
           sources => %(sources)s, tags_all => %(tags_all)s, tags_any => %(tags_any)s,
           modified_from => %(modified_from)s, modified_before => %(modified_before)s,
           key_prefix => %(key_prefix)s, filter => %(filter)s::jsonpath,
           dense_weight => %(dense_weight)s, lexical_weight => %(lexical_weight)s,
           exclude => %(exclude)s, after => %(after)s, deduplicate => %(deduplicate)s) as hit
  join ragpg.chunk on chunk.tenant_id = (select ragpg.current_tenant()) and chunk.chunk_id = hit.chunk_id
  join ragpg.document on document.tenant_id = chunk.tenant_id
                     and document.document_id = chunk.document_id
 order by hit.rank;

-- name: reaches_depth
-- Whether an arm found as many as it was asked for, so that there may be more.
select case when %(embedding)s::public.halfvec is not null and %(dense_weight)s::float8 > 0 then (
           select count(*)
             from ragpg.search_dense(
                      %(collection)s, %(embedding)s::public.halfvec, %(depth)s, sources => %(sources)s,
                      tags_all => %(tags_all)s, tags_any => %(tags_any)s,
                      modified_from => %(modified_from)s, modified_before => %(modified_before)s,
                      key_prefix => %(key_prefix)s, filter => %(filter)s::jsonpath))
       else 0 end >= %(depth)s
    or case when %(lexical_weight)s::float8 > 0 then (
           select count(*)
             from ragpg.search_lexical(
                      %(collection)s, %(query)s, %(depth)s, sources => %(sources)s,
                      tags_all => %(tags_all)s, tags_any => %(tags_any)s,
                      modified_from => %(modified_from)s, modified_before => %(modified_before)s,
                      key_prefix => %(key_prefix)s, filter => %(filter)s::jsonpath))
       else 0 end >= %(depth)s as reached;

-- name: whole_corpus
-- One row per chunk, in the order in which it is read; columns are the fields of ragpg.Hit that it has.
select corpus.place as rank, chunk.chunk_id, document.key as document_key,
       document.title as document_title, document.source, chunk.section_path, chunk.position,
       chunk.start, chunk.stop, chunk.page, chunk.text, chunk.table_header, chunk.context,
       document.tags, document.metadata, document.modified_at,
       array(select page_start from unnest(document.page_starts) as page_start
              where chunk.page is not null and chunk.start < page_start and page_start < chunk.stop
              order by page_start) as page_breaks
  from ragpg.whole_corpus(
           %(collection)s, %(max_tokens)s, sources => %(sources)s, tags_all => %(tags_all)s,
           tags_any => %(tags_any)s, modified_from => %(modified_from)s,
           modified_before => %(modified_before)s, key_prefix => %(key_prefix)s,
           filter => %(filter)s::jsonpath) as corpus
  join ragpg.chunk on chunk.tenant_id = (select ragpg.current_tenant())
                  and chunk.chunk_id = corpus.chunk_id
  join ragpg.document on document.tenant_id = chunk.tenant_id
                     and document.document_id = chunk.document_id
 order by corpus.place;

-- name: expand
-- One row per added chunk, in reading order; columns are the fields of ragpg.Hit that it has.
select around.expanded_from, chunk.chunk_id, document.key as document_key,
       document.title as document_title, document.source, chunk.section_path, chunk.position,
       chunk.start, chunk.stop, chunk.page, chunk.text, chunk.table_header, chunk.context,
       document.tags, document.metadata, document.modified_at,
       array(select page_start from unnest(document.page_starts) as page_start
              where chunk.page is not null and chunk.start < page_start and page_start < chunk.stop
              order by page_start) as page_breaks
  from ragpg.expand(%(collection)s, %(chunk_ids)s, %(unit)s) as around
  join ragpg.chunk on chunk.tenant_id = (select ragpg.current_tenant())
                  and chunk.chunk_id = around.chunk_id
  join ragpg.document on document.tenant_id = chunk.tenant_id
                     and document.document_id = chunk.document_id
 where around.expanded_from is not null
 order by around.place;

-- name: query_lexemes
-- In the query alone: an empty collection counts no lexeme, whatever is asked.
select length(ragpg.tokenize(%(query)s, collection.language)) as lexemes
  from ragpg.collection
 where collection.tenant_id = (select ragpg.current_tenant())
   and collection.collection_id = ragpg.collection_number(%(collection)s);

-- name: log_search
insert into ragpg.search (
    tenant_id, collection_id, query, query_embedding, filter, k, dense_mode, lexical_mode,
    reranker, notices, degraded, timings_ms, mode)
values (
    ragpg.current_tenant(), %(collection_id)s, %(query)s, %(embedding)s::public.halfvec, %(filter)s,
    %(k)s, %(dense_mode)s, %(lexical_mode)s, %(reranker)s, %(notices)s, %(degraded)s,
    %(timings_ms)s, %(mode)s)
returning search.search_id;

-- name: log_search_hits
insert into ragpg.search_hit (
    tenant_id, search_id, chunk_id, dense_rank, dense_score, lexical_rank, lexical_score,
    fused_rank, fused_score, rerank_rank, rerank_score, shown, document_key, start, stop)
select (select ragpg.current_tenant()), %(search_id)s, hit.chunk_id, hit.dense_rank, hit.dense_score,
       hit.lexical_rank, hit.lexical_score, hit.fused_rank, hit.fused_score, hit.rerank_rank,
       hit.rerank_score, hit.shown, hit.document_key, hit.start, hit.stop
  from jsonb_to_recordset(%(hits)s) as hit(
           chunk_id bigint, dense_rank integer, dense_score double precision,
           lexical_rank integer, lexical_score double precision, fused_rank integer,
           fused_score double precision, rerank_rank integer, rerank_score double precision,
           shown boolean, document_key text, start integer, stop integer);

-- name: log_citations
update ragpg.search_hit
   set cited = true
 where search_hit.tenant_id = ragpg.current_tenant()
   and search_hit.search_id = %(search_id)s
   and search_hit.chunk_id = any (%(chunk_ids)s);
