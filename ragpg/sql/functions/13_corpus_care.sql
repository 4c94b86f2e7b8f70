-- 13_corpus_care.sql: documents that nobody looked after, and documents whose time is over.

create or replace function ragpg.stale_documents(
    collection text default null, unmodified_days integer default null
) returns table (
    collection_name text, document_key text, title text, owner text, review_by date,
    overdue_days integer, modified_at timestamptz, age_days integer, expires_at timestamptz)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    tenant integer := ragpg.current_tenant();
begin
    return query
    select collection.name, document.key, document.title, document.owner, document.review_by,
           case when document.review_by < current_date
                then current_date - document.review_by end,
           document.modified_at,
           extract(day from now() - document.modified_at)::integer,
           document.expires_at
      from ragpg.document
      join ragpg.collection using (tenant_id, collection_id)
     where document.tenant_id = tenant
       and (stale_documents.collection is null
            or document.collection_id = ragpg.collection_number(stale_documents.collection))
       and (document.expires_at is null or document.expires_at > now())
       and (document.review_by < current_date
            or document.modified_at
               <= now() - make_interval(days => stale_documents.unmodified_days))
     order by document.review_by, document.modified_at, document.key;
end $$;
comment on function ragpg.stale_documents(text, integer) is
    'Live documents whose review_by has passed or, if unmodified_days is given, that were last modified so many days ago or earlier; longest overdue first. collection null means all of the tenant.';

create or replace view ragpg.stale_document with (security_invoker = true) as
select document.tenant_id, collection.name as collection, document.key, document.title,
       document.owner, document.review_by, current_date - document.review_by as overdue_days,
       document.modified_at, document.expires_at
  from ragpg.document
  join ragpg.collection using (tenant_id, collection_id)
 where document.review_by < current_date
   and (document.expires_at is null or document.expires_at > now());
comment on view ragpg.stale_document is
    'One row per live document whose review_by has passed. stale_documents() adds those that were not modified for long.';

-- What there was before deleted all in one transaction.
drop function if exists ragpg.delete_expired(text);
create or replace function ragpg.delete_expired(collection text, most_chunks integer default null)
returns setof text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(delete_expired.collection);
    doomed bigint[];
    keys text[];
begin
    perform ragpg._hold_collection(tenant, home, delete_expired.collection);
    -- A document that a writer holds is being replaced; the next call sees what came of it.
    with locked as (
        select document.document_id, document.key
          from ragpg.document
         where document.tenant_id = tenant and document.collection_id = home
           and document.expires_at <= now()
         order by document.key
         -- A document has a chunk at least.
         limit delete_expired.most_chunks
           for update skip locked
    ), counted as (
        select locked.document_id, locked.key,
               sum(size.chunks) over (order by locked.key) - size.chunks as chunks_before
          from locked
         cross join lateral (
                   select count(*) as chunks from ragpg.chunk
                    where chunk.tenant_id = tenant and chunk.document_id = locked.document_id
               ) as size
    )
    select array_agg(counted.document_id), array_agg(counted.key order by counted.key)
      into doomed, keys
      from counted
     where delete_expired.most_chunks is null
        or counted.chunks_before < delete_expired.most_chunks;
    if doomed is not null then
        perform ragpg._delete_documents(tenant, home, doomed, 'expired');
    end if;
    return query select unnest(keys);
end $$;
comment on function ragpg.delete_expired(text, integer) is
    'Deletes the documents of a collection whose expires_at has come, with all their chunks, and returns their keys; with most_chunks only so many that their chunks come to that, one document at least, to be called again until none is returned. Searches left them out already.';

create or replace function ragpg.prune_log(older_than_days integer, most integer default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenant integer := ragpg.current_tenant();
    home integer;
    pruned bigint := 0;
    found_rows bigint;
begin
    if older_than_days is null or older_than_days < 0 then
        raise exception using errcode = 'RG009',
            message = format('older_than_days is %s', coalesce(older_than_days::text, 'null')),
            hint = 'Give a number of days, 0 for the whole log.';
    end if;
    -- By collection, as the index of the log is.
    for home in
        select collection.collection_id from ragpg.collection
         where collection.tenant_id = tenant order by collection.collection_id
    loop
        -- An array, since a joined subquery could be run again for each row, and take others.
        delete from ragpg.search
         where search.tenant_id = tenant
           and search.search_id = any (array(
                   select old.search_id from ragpg.search as old
                    where old.tenant_id = tenant and old.collection_id = home
                      and old.searched_at <= now() - make_interval(days => older_than_days)
                    order by old.searched_at
                    limit most - pruned
                      for update skip locked));
        get diagnostics found_rows = row_count;
        pruned := pruned + found_rows;
        exit when pruned >= most;
    end loop;
    return pruned;
end $$;
comment on function ragpg.prune_log(integer, integer) is
    'Deletes searches of the current tenant that were logged so many days ago or earlier, with their hits, and returns how many; with most no more than that, oldest first within a collection, to be called again until none is left.';
