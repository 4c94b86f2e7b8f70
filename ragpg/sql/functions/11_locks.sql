-- 11_locks.sql: the order in which everything that writes takes its locks. Who keeps to it waits,
-- and is never the victim of a deadlock.
--
--   1  the advisory lock 'ragpg.rebuild_lexical' of the collection (writers share it; a deletion of
--      the collection and the exchange of its BM25 index have it alone)
--   2  the row of the tenant      (writers: key share; delete_tenant: update)
--   3  the row of the collection  (writers: key share; a deletion: update)
--   4  rows of staged_document, in the order of their keys; then their staged_chunk
--   5  rows of document, in the order of their keys
--   6  rows of synced_key, chunk, embedding, lexeme_vector and the others below a document
--   7  the advisory lock 'ragpg.lexeme_count' of the collection (writers only try; compact_lexical
--      and rebuild_lexical wait for it), then rows of lexeme_count
--   8  jobs
--
-- _hold_collection takes the first three. The first is there because key share locks pass whoever
-- waits for the row alone: beside steady ingestion a deletion would wait for ever. Rows that a
-- foreign key refers to are locked by an insert as if asked for, which is why 2 and 3 come first:
-- usage refers to the tenant; staged_document, document_history, search, lexeme_count and most
-- others to the collection. Whoever writes several rows of one step sorts them. _index_rows passes
-- over what is locked, so it may come at any step.

create or replace function ragpg._hold_collection(
    tenant_id integer, collection_id integer, called text default null
) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform ragpg._hold_off_rebuild(_hold_collection.collection_id);
    perform from ragpg.tenant
      where tenant.tenant_id = _hold_collection.tenant_id for key share;
    perform from ragpg.collection
      where collection.tenant_id = _hold_collection.tenant_id
        and collection.collection_id = _hold_collection.collection_id for key share;
    if not found and called is not null then
        raise exception using errcode = 'RG003',
            message = format('the collection %L was deleted meanwhile', called),
            hint = 'Create it again if it shall be there.';
    end if;
    return found;
end $$;
comment on function ragpg._hold_collection(integer, integer, text) is
    'Takes the first locks of the order in 11_locks.sql, for a writer, until the transaction ends. False when the collection was deleted meanwhile, or RG003 where it is called by a name.';

create or replace function ragpg.hold_collection(collection_id integer) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return ragpg._hold_collection(ragpg.current_tenant(), hold_collection.collection_id);
end $$;
comment on function ragpg.hold_collection(integer) is
    'Keeps a collection of the current tenant from being deleted until this transaction ends; false when it is gone. The first statement of a transaction that writes into it, see 11_locks.sql.';
