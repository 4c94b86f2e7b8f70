-- 12_publish.sql: the one way in which documents become live, and vanish; each change is a row of
-- document_history, written in the same transaction.

create or replace function ragpg.attributes(
    metadata jsonb, key text, source text, tags text[], modified_at timestamptz
) returns jsonb
language sql stable parallel safe
begin atomic
    -- What the document does not have is not added, so metadata of that name must not stand for it.
    select metadata - '{@key,@source,@tags,@instants,@modified_at,@collection}'::text[]
           || jsonb_strip_nulls(jsonb_build_object(
               '@key', key,
               '@source', source,
               '@tags', to_jsonb(tags),
               '@instants', ragpg.instants(metadata),
               '@modified_at', to_char(modified_at at time zone 'UTC',
                                       'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')));
end;
comment on function ragpg.attributes(jsonb, text, text, text[], timestamptz) is
    'What a filter''s jsonpath reads: metadata plus "@key", "@source", "@tags", "@modified_at" and "@instants", its dates (UTC, fixed width); metadata of these names is left out.';

create or replace function ragpg._record_history(
    tenant_id integer, document_ids bigint[], action text, former_key text default null
) returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    insert into ragpg.document_history (
        tenant_id, collection_id, document_key, former_key, action, revision, content_hash,
        kept_chunks, new_chunks, role, actor)
    select document.tenant_id, document.collection_id, document.key, _record_history.former_key,
           _record_history.action, document.revision, document.content_hash, counted.chunks, 0,
           session_user, nullif(current_setting('ragpg.actor', true), '')
      from ragpg.document
     cross join lateral (
               select count(*) as chunks from ragpg.chunk
                where chunk.tenant_id = document.tenant_id
                  and chunk.document_id = document.document_id
           ) as counted
     where document.tenant_id = _record_history.tenant_id
       and document.document_id = any (_record_history.document_ids)
     order by document.key
$$;
comment on function ragpg._record_history(integer, bigint[], text, text) is
    'Writes a row of document_history for each of these live documents: before a deletion, after a renaming.';

create or replace function ragpg.publish_documents(
    collection text, document_keys text[], claims uuid[]
) returns table (
    key text, document_id bigint, revision integer, chunks integer, kept_chunks integer, state text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- A statement knows its rows by key. Staging is emptied again and again, so that its statistics say
-- of hundreds of rows that there are none, and reading all of it for each of them seems cheap.
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(publish_documents.collection);
    numbers regclass := pg_get_serial_sequence('ragpg.chunk', 'chunk_id');
    held text[];
    ready text[];
    known bigint[];
    gone bigint[];
    added bigint[];
    refiled bigint[];
    misfit record;
begin
    perform ragpg._hold_collection(tenant, home, publish_documents.collection);
    -- In the order of their keys, so that two calls with common documents never wait in a circle.
    with locked as (
        select staged_document.key
          from ragpg.staged_document
          join unnest(document_keys, claims) as asked(key, claim)
            on asked.key = staged_document.key and asked.claim = staged_document.claim
         where staged_document.tenant_id = tenant and staged_document.collection_id = home
         order by staged_document.key
           for update of staged_document
    )
    select array_agg(locked.key order by locked.key) into held from locked;
    select array_agg(complete.document_key order by complete.document_key) into ready
      from (
               select staged_chunk.document_key
                 from ragpg.staged_chunk
                where staged_chunk.tenant_id = tenant and staged_chunk.collection_id = home
                  and staged_chunk.document_key = any (held)
                group by staged_chunk.document_key
               having bool_and(staged_chunk.embedding is not null)
           ) as complete;
    select staged_chunk.document_key, staged_chunk.position, collection.dimensions,
           public.vector_dims(staged_chunk.embedding) as given
      into misfit
      from ragpg.staged_chunk
      join ragpg.collection
        on collection.tenant_id = tenant and collection.collection_id = home
     where staged_chunk.tenant_id = tenant and staged_chunk.collection_id = home
       and staged_chunk.document_key = any (ready)
       and public.vector_dims(staged_chunk.embedding) <> collection.dimensions
     order by staged_chunk.document_key, staged_chunk.position
     limit 1;
    if found then
        raise exception using errcode = 'RG005',
            message = format('chunk %s of document %L has a vector of %s dimensions, the collection holds %s',
                             misfit.position, misfit.document_key, misfit.given, misfit.dimensions),
            hint = 'Embed it with the model of the collection''s recipe.';
    end if;

    insert into ragpg.document as known (
        tenant_id, collection_id, key, revision, text, content_hash, title, source, tags, metadata,
        modified_at, owner, review_by, expires_at, media_type, page_starts)
    select tenant, home, staged.key, 1, staged.text, staged.content_hash, staged.title,
           staged.source, staged.tags, staged.metadata, staged.modified_at, staged.owner,
           staged.review_by, staged.expires_at, staged.media_type, staged.page_starts
      from ragpg.staged_document as staged
     where staged.tenant_id = tenant and staged.collection_id = home
       and staged.key = any (ready)
     order by staged.key
        on conflict on constraint document_key_unique do update
       set revision = known.revision + 1, text = excluded.text,
           content_hash = excluded.content_hash, title = excluded.title, source = excluded.source,
           tags = excluded.tags, metadata = excluded.metadata, modified_at = excluded.modified_at,
           owner = excluded.owner, review_by = excluded.review_by,
           expires_at = excluded.expires_at, media_type = excluded.media_type,
           page_starts = excluded.page_starts, updated_at = now();
    known := array(
        select document.document_id from ragpg.document
         where document.tenant_id = tenant and document.collection_id = home
           and document.key = any (ready) and document.revision > 1);

    if known <> '{}' then
        -- The staged rows that keep a live chunk; a chunk that has gone meanwhile is made anew.
        update ragpg.staged_chunk set chunk_id = null
         where staged_chunk.tenant_id = tenant and staged_chunk.collection_id = home
           and staged_chunk.document_key = any (ready)
           and staged_chunk.chunk_id is not null
           and not exists (
                   select from ragpg.chunk
                     join ragpg.document using (tenant_id, document_id)
                    where chunk.tenant_id = tenant and chunk.chunk_id = staged_chunk.chunk_id
                      and document.collection_id = home
                      and document.key = staged_chunk.document_key
                      and chunk.text_hash = staged_chunk.text_hash
                      and chunk.context is not distinct from staged_chunk.context);
        gone := array(
            select chunk.chunk_id from ragpg.chunk
             where chunk.tenant_id = tenant and chunk.document_id = any (known)
               and not exists (
                       select from ragpg.staged_chunk
                        where staged_chunk.tenant_id = tenant
                          and staged_chunk.collection_id = home
                          and staged_chunk.document_key = any (ready)
                          and staged_chunk.chunk_id = chunk.chunk_id));
        perform ragpg.lexical_remove(tenant, home, gone);
        delete from ragpg.chunk where chunk.tenant_id = tenant and chunk.chunk_id = any (gone);

        set constraints ragpg.chunk_position_unique deferred;
        update ragpg.chunk
           set position = kept.position, start = kept.start, stop = kept.stop, page = kept.page,
               contextualized_at = kept.contextualized_at,
               context_error = kept.context_error, context_refused = kept.context_refused
          from ragpg.staged_chunk as kept
         where kept.tenant_id = tenant and kept.collection_id = home
           and kept.document_key = any (ready) and kept.chunk_id = chunk.chunk_id
           and chunk.tenant_id = tenant
           and (chunk.position, chunk.start, chunk.stop, chunk.page, chunk.contextualized_at,
                chunk.context_error, chunk.context_refused)
               is distinct from
               (kept.position, kept.start, kept.stop, kept.page, kept.contextualized_at,
                kept.context_error, kept.context_refused);
    else
        -- Of a new document no chunk is live; one that was has gone with the document.
        update ragpg.staged_chunk set chunk_id = null
         where staged_chunk.tenant_id = tenant and staged_chunk.collection_id = home
           and staged_chunk.document_key = any (ready) and staged_chunk.chunk_id is not null;
    end if;

    -- Numbers are drawn first, since finding the staged row of a number again took, under some plans,
    -- longer than all the rest.
    with filed as materialized (
        select document.document_id, document.key, document.source, document.tags,
               document.modified_at, document.expires_at,
               ragpg.attributes(document.metadata, document.key, document.source, document.tags,
                                document.modified_at)
               || jsonb_build_object('@collection', home) as attributes
          from ragpg.document
         where document.tenant_id = tenant and document.collection_id = home
           and document.key = any (ready)
    ), fresh as materialized (
        select nextval(numbers) as chunk_id, passage.*
          from (
                   select filed.*, staged_chunk.position, staged_chunk.start, staged_chunk.stop,
                          staged_chunk.page, staged_chunk.section_path, staged_chunk.table_header,
                          staged_chunk.text, staged_chunk.text_hash, staged_chunk.context,
                          staged_chunk.context_error, staged_chunk.contextualized_at,
                          staged_chunk.context_refused, staged_chunk.embedding
                     from filed
                     join ragpg.staged_chunk
                       on staged_chunk.tenant_id = tenant and staged_chunk.collection_id = home
                      and staged_chunk.document_key = filed.key and staged_chunk.chunk_id is null
                    order by filed.key, staged_chunk.position
               ) as passage
    ), made as (
        insert into ragpg.chunk (
            tenant_id, chunk_id, collection_id, document_id, position, start, stop, page,
            section_path, table_header, text, text_hash, context, context_error, contextualized_at,
            context_refused)
        overriding system value
        select tenant, fresh.chunk_id, home, fresh.document_id, fresh.position, fresh.start,
               fresh.stop, fresh.page, fresh.section_path, fresh.table_header, fresh.text,
               fresh.text_hash, fresh.context, fresh.context_error, fresh.contextualized_at,
               fresh.context_refused
          from fresh
    ), embedded as (
        insert into ragpg.embedding (
            tenant_id, chunk_id, collection_id, document_key, source, tags, modified_at,
            expires_at, attributes, embedding)
        select tenant, fresh.chunk_id, home, fresh.key, fresh.source, fresh.tags,
               fresh.modified_at, fresh.expires_at, fresh.attributes, fresh.embedding
          from fresh
    )
    select coalesce(array_agg(fresh.chunk_id), '{}') into added from fresh;

    if known <> '{}' then
        -- A kept chunk has a new vector only where chunks are embedded in sight of their neighbours.
        update ragpg.embedding
           set embedding = kept.embedding
          from ragpg.staged_chunk as kept
         where kept.tenant_id = tenant and kept.collection_id = home
           and kept.document_key = any (ready) and kept.chunk_id = embedding.chunk_id
           and embedding.tenant_id = tenant
           and embedding.embedding operator(public.<>) kept.embedding;

        with filed as materialized (
            select document.document_id, document.source, document.tags, document.modified_at,
                   document.expires_at,
                   ragpg.attributes(document.metadata, document.key, document.source,
                                    document.tags, document.modified_at)
                   || jsonb_build_object('@collection', home) as attributes
              from ragpg.document
             where document.tenant_id = tenant and document.document_id = any (known)
        ), changed as (
            update ragpg.embedding
               set source = filed.source, tags = filed.tags, modified_at = filed.modified_at,
                   expires_at = filed.expires_at, attributes = filed.attributes
              from filed
              join ragpg.chunk
                on chunk.tenant_id = tenant and chunk.document_id = filed.document_id
             where embedding.tenant_id = tenant and embedding.chunk_id = chunk.chunk_id
               and not chunk.chunk_id = any (added)
               and (embedding.attributes, embedding.expires_at)
                   is distinct from (filed.attributes, filed.expires_at)
            returning embedding.chunk_id, embedding.expires_at
        )
        -- The lexical index holds a copy of when a chunk expires, and nothing else of the document.
        select coalesce(array_agg(changed.chunk_id), '{}') into refiled
          from changed
          join ragpg.lexeme_vector
            on lexeme_vector.tenant_id = tenant and lexeme_vector.collection_id = home
           and lexeme_vector.chunk_id = changed.chunk_id
         where lexeme_vector.expires_at is distinct from changed.expires_at;
        perform ragpg.lexical_remove(tenant, home, refiled);
    end if;
    perform ragpg.lexical_add(tenant, home, added || refiled);

    return query
    with counted as (
        select staged_chunk.document_key, count(*)::integer as chunks,
               count(staged_chunk.chunk_id)::integer as kept_chunks
          from ragpg.staged_chunk
         where staged_chunk.tenant_id = tenant and staged_chunk.collection_id = home
           and staged_chunk.document_key = any (ready)
         group by staged_chunk.document_key
    ), recorded as (
        insert into ragpg.document_history (
            tenant_id, collection_id, document_key, action, revision, content_hash, kept_chunks,
            new_chunks, role, actor)
        select tenant, home, document.key, 'published', document.revision, document.content_hash,
               counted.kept_chunks, counted.chunks - counted.kept_chunks, session_user,
               nullif(current_setting('ragpg.actor', true), '')
          from ragpg.document
          join counted on counted.document_key = document.key
         where document.tenant_id = tenant and document.collection_id = home
           and document.key = any (ready)
         order by document.key
    )
    select asked.key, document.document_id, document.revision, counted.chunks, counted.kept_chunks,
           case when counted.document_key is not null then 'published'
                when asked.key = any (held) then 'incomplete'
                -- A newer ingest has the key in work, or has published it by now.
                when exists (select from ragpg.staged_document
                              where staged_document.tenant_id = tenant
                                and staged_document.collection_id = home
                                and staged_document.key = asked.key)
                     or exists (select from ragpg.document
                                 where document.tenant_id = tenant
                                   and document.collection_id = home
                                   and document.key = asked.key) then 'superseded'
                else 'deleted' end
      from unnest(document_keys) with ordinality as asked(key, place)
      left join counted on counted.document_key = asked.key
      left join ragpg.document
        on document.tenant_id = tenant and document.collection_id = home
       and document.key = counted.document_key
     order by asked.place;

    delete from ragpg.staged_document
     where staged_document.tenant_id = tenant and staged_document.collection_id = home
       and staged_document.key = any (ready);
end $$;
comment on function ragpg.publish_documents(text, text[], uuid[]) is
    'Makes staged documents live, each whole, all in this transaction; a row for each, in the given order. state: published, superseded (claimed by a newer ingest), deleted (deleted or renamed meanwhile) or incomplete (a chunk has no vector, or there is none); the last three are left as they are. Raises RG003 for a collection that was deleted meanwhile, RG005 for a vector of the wrong length.';

create or replace function ragpg.publish(collection text, document_key text, claim uuid)
returns table (document_id bigint, revision integer, chunks integer, kept_chunks integer)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    state text;
begin
    select published.document_id, published.revision, published.chunks, published.kept_chunks,
           published.state
      into publish.document_id, publish.revision, publish.chunks, publish.kept_chunks, state
      from ragpg.publish_documents(
               publish.collection, array[publish.document_key], array[publish.claim]) as published;
    if state = 'superseded' then
        raise exception using errcode = 'RG007',
            message = format('document %L was claimed by a newer ingest', publish.document_key),
            hint = 'Nothing to do: the newer ingest publishes it.';
    elsif state = 'deleted' then
        raise exception using errcode = 'RG010',
            message = format('document %L was deleted or renamed during its ingest', publish.document_key),
            hint = 'Ingest it again if it shall be there.';
    elsif state = 'incomplete' then
        raise exception using errcode = 'RG008',
            message = format('document %L is not complete: a chunk has no embedding, or there is none',
                             publish.document_key),
            hint = 'Ingest it again; finished chunks are kept.';
    end if;
    return next;
end $$;
comment on function ragpg.publish(text, text, uuid) is
    'Swaps a document''s whole live state for its staged one, in this transaction. Unchanged chunks keep their number. Raises RG007 when a newer ingest holds the document, RG008 when it is not complete, RG010 when it was deleted meanwhile.';

create or replace function ragpg._delete_documents(
    tenant_id integer, collection_id integer, document_ids bigint[], action text
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform ragpg._record_history(
        _delete_documents.tenant_id, _delete_documents.document_ids, _delete_documents.action);
    perform ragpg.lexical_remove(
        _delete_documents.tenant_id, _delete_documents.collection_id, array(
            select chunk.chunk_id from ragpg.chunk
             where chunk.tenant_id = _delete_documents.tenant_id
               and chunk.document_id = any (_delete_documents.document_ids)));
    delete from ragpg.document
     where document.tenant_id = _delete_documents.tenant_id
       and document.document_id = any (_delete_documents.document_ids);
end $$;
comment on function ragpg._delete_documents(integer, integer, bigint[], text) is
    'Deletes live documents, which the caller has locked, with their chunks; action is what document_history says of it.';

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
    perform ragpg._hold_collection(tenant, home, delete_document.collection);
    delete from ragpg.staged_document
     where staged_document.tenant_id = tenant and staged_document.collection_id = home
       and staged_document.key = delete_document.document_key;
    was_staged := found;
    select document.document_id into doomed
      from ragpg.document
     where document.tenant_id = tenant and document.collection_id = home
       and document.key = delete_document.document_key
       for update;
    delete from ragpg.synced_key
     where synced_key.tenant_id = tenant and synced_key.collection_id = home
       and synced_key.document_key = delete_document.document_key;
    if doomed is null then
        return was_staged;
    end if;
    perform ragpg._delete_documents(tenant, home, array[doomed], 'deleted');
    return true;
end $$;
comment on function ragpg.delete_document(text, text) is
    'Deletes a live document with its chunks, and a staged version of it. False when there was none.';
