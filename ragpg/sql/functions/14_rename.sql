-- 14_rename.sql: a live document under another key, at no vendor's cost.

create or replace function ragpg.rename_document(collection text, from_key text, to_key text)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(rename_document.collection);
    live ragpg.document;
begin
    perform ragpg._hold_collection(tenant, home, rename_document.collection);
    -- What is staged under either key belongs to a version that this document is not.
    perform from ragpg.staged_document
      where staged_document.tenant_id = tenant and staged_document.collection_id = home
        and staged_document.key in (rename_document.from_key, rename_document.to_key)
      order by staged_document.key
        for update;
    delete from ragpg.staged_document
     where staged_document.tenant_id = tenant and staged_document.collection_id = home
       and staged_document.key in (rename_document.from_key, rename_document.to_key);
    select document.* into live
      from ragpg.document
     where document.tenant_id = tenant and document.collection_id = home
       and document.key = rename_document.from_key
       for update;
    if not found then
        raise exception using errcode = 'RG010',
            message = format('the collection has no document %L', rename_document.from_key),
            hint = 'It was renamed or deleted meanwhile; look again.';
    end if;
    if exists (
        select from ragpg.document
         where document.tenant_id = tenant and document.collection_id = home
           and document.key = rename_document.to_key
    ) then
        raise exception using errcode = 'RG011',
            message = format('the collection has a document %L already', rename_document.to_key),
            hint = 'Delete it first, or choose another key.';
    end if;
    update ragpg.document
       set key = rename_document.to_key, updated_at = now()
     where document.tenant_id = tenant and document.document_id = live.document_id;
    update ragpg.embedding
       set document_key = rename_document.to_key,
           attributes = ragpg.attributes(live.metadata, rename_document.to_key, live.source,
                                         live.tags, live.modified_at)
                        || jsonb_build_object('@collection', home)
      from ragpg.chunk
     where chunk.tenant_id = tenant and chunk.document_id = live.document_id
       and embedding.tenant_id = tenant and embedding.chunk_id = chunk.chunk_id;
    delete from ragpg.synced_key
     where synced_key.tenant_id = tenant and synced_key.collection_id = home
       and synced_key.document_key = rename_document.to_key;
    update ragpg.synced_key set document_key = rename_document.to_key
     where synced_key.tenant_id = tenant and synced_key.collection_id = home
       and synced_key.document_key = rename_document.from_key;
    -- Judgements name a document by its key, whatever collection holds it: they follow, and stay
    -- where another collection of the tenant has a document of the old key. Of two the better holds.
    insert into ragpg.qrel (tenant_id, query_id, document_key, relevance)
    select qrel.tenant_id, qrel.query_id, rename_document.to_key, qrel.relevance
      from ragpg.qrel
     where qrel.tenant_id = tenant and qrel.document_key = rename_document.from_key
     order by qrel.query_id
        on conflict (tenant_id, query_id, document_key) do update
       set relevance = greatest(qrel.relevance, excluded.relevance);
    delete from ragpg.qrel
     where qrel.tenant_id = tenant and qrel.document_key = rename_document.from_key
       and not exists (
               select from ragpg.document
                where document.tenant_id = tenant and document.key = rename_document.from_key);
    perform ragpg._record_history(tenant, array[live.document_id], 'renamed',
                                  rename_document.from_key);
    return live.document_id;
exception when unique_violation then
    raise exception using errcode = 'RG011',
        message = format('the collection has a document %L already', rename_document.to_key),
        hint = 'It became live meanwhile; look again.';
end $$;
comment on function ragpg.rename_document(text, text, text) is
    'Gives a live document another key; its number, revision, chunks, contexts and vectors stay, and judgements of the old key follow. Returns the number. Raises RG010 when there is none, RG011 when the key is taken.';
