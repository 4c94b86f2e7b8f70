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

create or replace function ragpg.delete_expired(collection text) returns setof text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(delete_expired.collection);
    doomed bigint[];
    keys text[];
begin
    -- A document that a writer holds is being replaced; the next call sees what came of it.
    with locked as (
        select document.document_id, document.key
          from ragpg.document
         where document.tenant_id = tenant and document.collection_id = home
           and document.expires_at <= now()
         order by document.key
           for update skip locked
    )
    select array_agg(locked.document_id), array_agg(locked.key order by locked.key)
      into doomed, keys
      from locked;
    if doomed is not null then
        perform ragpg._delete_documents(tenant, home, doomed, 'expired');
    end if;
    return query select unnest(keys);
end $$;
comment on function ragpg.delete_expired(text) is
    'Deletes the documents of a collection whose expires_at has come, with all their chunks, and returns their keys. Searches left them out already.';
