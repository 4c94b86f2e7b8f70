-- 43_whole_corpus.sql: a small collection as a whole, for an answer that reads it instead of hits.

create or replace function ragpg.set_whole_corpus_tokens(collection text, tokens integer)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(set_whole_corpus_tokens.collection);
begin
    if tokens is null or tokens < 0 then
        raise exception using errcode = 'RG009',
            message = format('whole_corpus_tokens is %s, it must be 0 or more',
                             coalesce(tokens::text, 'null')),
            hint = '0 means that answers never read a whole collection.';
    end if;
    update ragpg.collection
       set whole_corpus_tokens = tokens
     where collection.tenant_id = tenant and collection.collection_id = home;
end $$;
comment on function ragpg.set_whole_corpus_tokens(text, integer) is
    'Up to how many estimated tokens an answer reads the whole collection from the next one on; 0 means never. Nothing is ingested anew. Raises RG001, RG003, RG009.';

create or replace function ragpg.whole_corpus(
    collection text,
    max_tokens integer default null,
    sources text[] default null,
    tags_all text[] default null,
    tags_any text[] default null,
    modified_from timestamptz default null,
    modified_before timestamptz default null,
    key_prefix text default null,
    filter jsonpath default null
)
returns table (place integer, chunk_id bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- As in _search_dense; besides, the count below would otherwise read a large table from its beginning
-- for a tenant at its end.
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(whole_corpus.collection);
    most_tokens integer;
    ids bigint[];
    characters bigint;
begin
    select greatest(0, least(whole_corpus.max_tokens, known.whole_corpus_tokens))
      into most_tokens
      from ragpg.collection as known
     where known.tenant_id = tenant and known.collection_id = home;
    -- A chunk takes 16 tokens at least, for its address and title (retrieve.py), so more chunks than
    -- this cannot fit; a large collection is left after so many entries of the index.
    if (select count(*) from (
            select from ragpg.embedding
             where embedding.tenant_id = tenant and embedding.collection_id = home
               and (embedding.expires_at is null or embedding.expires_at > now())
             limit most_tokens / 16 + 1) as counted) > most_tokens / 16 then
        return;
    end if;
    filter := ragpg._own_filter(home, filter);
    select array_agg(permitted.chunk_id
                     order by permitted.document_key collate "C", permitted.position),
           sum(permitted.characters)
      into ids, characters
      from (
               select embedding.chunk_id, embedding.document_key, chunk.position,
                      chunk.stop - chunk.start + coalesce(length(chunk.context), 0) as characters
                 from ragpg.embedding
                 join ragpg.chunk on chunk.tenant_id = tenant
                                 and chunk.chunk_id = embedding.chunk_id
                where embedding.tenant_id = tenant and embedding.collection_id = home
                  and (embedding.expires_at is null or embedding.expires_at > now())
                  and (sources is null or embedding.source = any (sources))
                  and (tags_all is null or embedding.tags @> tags_all)
                  and (tags_any is null or embedding.tags && tags_any)
                  and (modified_from is null or embedding.modified_at >= modified_from)
                  and (modified_before is null or embedding.modified_at < modified_before)
                  and (key_prefix is null or embedding.document_key ^@ key_prefix)
                  and (filter is null or embedding.attributes @@ filter)
           ) as permitted;
    -- Who counts tokens reads the texts. Nothing that people write has above 8 characters to a
    -- token (English 4 to 5, code 3 to 4, Chinese 1), so longer texts need not be read.
    if characters > 8::bigint * most_tokens then
        return;
    end if;
    return query
        select corpus.place::integer, corpus.chunk_id
          from unnest(ids) with ordinality as corpus(chunk_id, place)
         order by corpus.place;
end $$;
comment on function ragpg.whole_corpus is
    'All live chunks that the filter lets through, by document key and position, if the collection may be read whole; otherwise, and where there are none, no row. It may where it has at most max_tokens / 16 live chunks and those let through at most 8 * max_tokens characters; the service then counts their tokens. max_tokens is at most the recipe''s whole_corpus_tokens. Raises RG001, RG003, RG009.';
