-- 12_publish.sql: the one way in which documents become live, and vanish.

create or replace function ragpg.attributes(
    metadata jsonb, key text, source text, tags text[], modified_at timestamptz
) returns jsonb
language sql stable parallel safe
begin atomic
    select metadata || jsonb_strip_nulls(jsonb_build_object(
               '@key', key,
               '@source', source,
               '@tags', to_jsonb(tags),
               '@instants', ragpg.instants(metadata),
               '@modified_at', to_char(modified_at at time zone 'UTC',
                                       'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')));
end;
comment on function ragpg.attributes(jsonb, text, text, text[], timestamptz) is
    'What a filter''s jsonpath reads: metadata plus "@key", "@source", "@tags", "@modified_at" and "@instants", its dates (UTC, fixed width).';

create or replace function ragpg.publish(collection text, document_key text, claim uuid)
returns table (document_id bigint, revision integer, chunks integer, kept_chunks integer)
language plpgsql volatile security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(publish.collection);
    staged ragpg.staged_document;
    live ragpg.document;
    gone bigint[];
    added bigint[];
    refiled bigint[];
    fields jsonb;
begin
    select staged_document.* into staged
      from ragpg.staged_document
     where staged_document.tenant_id = tenant
       and staged_document.collection_id = home
       and staged_document.key = publish.document_key
       and staged_document.claim = publish.claim
       for update;
    if not found then
        raise exception using errcode = 'RG007',
            message = format('document %L was claimed by a newer ingest', publish.document_key),
            hint = 'Nothing to do: the newer ingest publishes it.';
    end if;
    if exists (
        select from ragpg.staged_chunk
         where staged_chunk.tenant_id = tenant and staged_chunk.collection_id = home
           and staged_chunk.document_key = publish.document_key and staged_chunk.embedding is null
    ) or not exists (
        select from ragpg.staged_chunk
         where staged_chunk.tenant_id = tenant and staged_chunk.collection_id = home
           and staged_chunk.document_key = publish.document_key
    ) then
        raise exception using errcode = 'RG008',
            message = format('document %L is not complete: a chunk has no embedding, or there is none',
                             publish.document_key),
            hint = 'Ingest it again; finished chunks are kept.';
    end if;

    insert into ragpg.document as known (
        tenant_id, collection_id, key, revision, text, content_hash, title, source, tags, metadata,
        modified_at, owner, review_by, expires_at, media_type, page_starts)
    values (tenant, home, staged.key, 1, staged.text, staged.content_hash, staged.title,
            staged.source, staged.tags, staged.metadata, staged.modified_at, staged.owner,
            staged.review_by, staged.expires_at, staged.media_type, staged.page_starts)
        on conflict on constraint document_key_unique do update
       set revision = known.revision + 1, text = excluded.text,
           content_hash = excluded.content_hash, title = excluded.title, source = excluded.source,
           tags = excluded.tags, metadata = excluded.metadata, modified_at = excluded.modified_at,
           owner = excluded.owner, review_by = excluded.review_by,
           expires_at = excluded.expires_at, media_type = excluded.media_type,
           page_starts = excluded.page_starts, updated_at = now()
    returning known.* into live;

    -- The staged rows that keep a live chunk; a chunk that has gone meanwhile is made anew.
    update ragpg.staged_chunk set chunk_id = null
     where staged_chunk.tenant_id = tenant and staged_chunk.collection_id = home
       and staged_chunk.document_key = staged.key
       and staged_chunk.chunk_id is not null
       and not exists (
               select from ragpg.chunk
                where chunk.tenant_id = tenant and chunk.chunk_id = staged_chunk.chunk_id
                  and chunk.document_id = live.document_id
                  and chunk.text_hash = staged_chunk.text_hash
                  and chunk.context is not distinct from staged_chunk.context);
    gone := array(
        select chunk.chunk_id from ragpg.chunk
         where chunk.tenant_id = tenant and chunk.document_id = live.document_id
           and not exists (
                   select from ragpg.staged_chunk
                    where staged_chunk.tenant_id = tenant and staged_chunk.collection_id = home
                      and staged_chunk.document_key = staged.key
                      and staged_chunk.chunk_id = chunk.chunk_id));
    perform ragpg.lexical_remove(tenant, home, gone);
    delete from ragpg.chunk where chunk.tenant_id = tenant and chunk.chunk_id = any (gone);

    set constraints ragpg.chunk_position_unique deferred;
    update ragpg.chunk
       set position = kept.position, start = kept.start, stop = kept.stop, page = kept.page
      from ragpg.staged_chunk as kept
     where kept.tenant_id = tenant and kept.collection_id = home
       and kept.document_key = staged.key and kept.chunk_id = chunk.chunk_id
       and chunk.tenant_id = tenant
       and (chunk.position, chunk.start, chunk.stop, chunk.page)
           is distinct from (kept.position, kept.start, kept.stop, kept.page);

    fields := ragpg.attributes(live.metadata, live.key, live.source, live.tags, live.modified_at)
              || jsonb_build_object('@collection', home);
    with made as (
        insert into ragpg.chunk (
            tenant_id, collection_id, document_id, position, start, stop, page, section_path,
            table_header, text, text_hash, context, context_error, contextualized_at)
        select tenant, home, live.document_id, fresh.position, fresh.start, fresh.stop, fresh.page,
               fresh.section_path, fresh.table_header, fresh.text, fresh.text_hash, fresh.context,
               fresh.context_error, fresh.contextualized_at
          from ragpg.staged_chunk as fresh
         where fresh.tenant_id = tenant and fresh.collection_id = home
           and fresh.document_key = staged.key and fresh.chunk_id is null
         order by fresh.position
        returning chunk.chunk_id, chunk.position
    ), embedded as (
        insert into ragpg.embedding (
            tenant_id, chunk_id, collection_id, document_key, source, tags, modified_at,
            expires_at, attributes, embedding)
        select tenant, made.chunk_id, home, live.key, live.source, live.tags, live.modified_at,
               live.expires_at, fields, fresh.embedding
          from made
          join ragpg.staged_chunk as fresh
            on fresh.tenant_id = tenant and fresh.collection_id = home
           and fresh.document_key = staged.key and fresh.position = made.position
        returning embedding.chunk_id
    )
    select coalesce(array_agg(embedded.chunk_id), '{}') into added from embedded;

    -- A kept chunk has a new vector only where chunks are embedded in sight of their neighbours.
    update ragpg.embedding
       set embedding = kept.embedding
      from ragpg.staged_chunk as kept
     where kept.tenant_id = tenant and kept.collection_id = home
       and kept.document_key = staged.key and kept.chunk_id = embedding.chunk_id
       and embedding.tenant_id = tenant
       and embedding.embedding <> kept.embedding;

    with changed as (
        update ragpg.embedding
           set source = live.source, tags = live.tags, modified_at = live.modified_at,
               expires_at = live.expires_at, attributes = fields
          from ragpg.chunk
         where chunk.tenant_id = tenant and chunk.document_id = live.document_id
           and embedding.tenant_id = tenant and embedding.chunk_id = chunk.chunk_id
           and not chunk.chunk_id = any (added)
           and (embedding.attributes, embedding.expires_at)
               is distinct from (fields, live.expires_at)
        returning embedding.chunk_id
    )
    select coalesce(array_agg(changed.chunk_id), '{}') into refiled from changed;
    -- Facets are keys of the lexical index, so changed metadata files a kept chunk anew.
    perform ragpg.lexical_remove(tenant, home, refiled);
    perform ragpg.lexical_add(tenant, home, added || refiled);

    delete from ragpg.staged_document
     where staged_document.tenant_id = tenant and staged_document.collection_id = home
       and staged_document.key = staged.key;
    return query
        select live.document_id, live.revision, count(*)::integer,
               (count(*) - cardinality(added))::integer
          from ragpg.chunk
         where chunk.tenant_id = tenant and chunk.document_id = live.document_id;
end $$;
comment on function ragpg.publish(text, text, uuid) is
    'Swaps a document''s whole live state for its staged one, in this transaction. Unchanged chunks keep their number. Raises RG007 when a newer ingest holds the document, RG008 when it is not complete.';

create or replace function ragpg.delete_document(collection text, document_key text)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(delete_document.collection);
    doomed bigint;
    was_staged boolean;
begin
    delete from ragpg.staged_document
     where staged_document.tenant_id = tenant and staged_document.collection_id = home
       and staged_document.key = delete_document.document_key;
    was_staged := found;
    select document.document_id into doomed
      from ragpg.document
     where document.tenant_id = tenant and document.collection_id = home
       and document.key = delete_document.document_key
       for update;
    if doomed is null then
        return was_staged;
    end if;
    perform ragpg.lexical_remove(tenant, home, array(
        select chunk.chunk_id from ragpg.chunk
         where chunk.tenant_id = tenant and chunk.document_id = doomed));
    delete from ragpg.document
     where document.tenant_id = tenant and document.document_id = doomed;
    return true;
end $$;
comment on function ragpg.delete_document(text, text) is
    'Deletes a live document with its chunks, and a staged version of it. False when there was none.';
