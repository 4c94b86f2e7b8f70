-- 31_dense_index.sql: which HNSW indexes there should be, which there are, and how well they do.

create or replace function ragpg.dense_count() returns bigint
language sql volatile
set search_path = pg_catalog, pg_temp
begin atomic
    delete from ragpg.dense_collection as counted
     where not exists (
               select from ragpg.embedding
                where embedding.tenant_id = counted.tenant_id
                  and embedding.collection_id = counted.collection_id);
    insert into ragpg.dense_collection (tenant_id, collection_id, rows)
    select embedding.tenant_id, embedding.collection_id, count(*)
      from ragpg.embedding
     group by embedding.tenant_id, embedding.collection_id
        on conflict (tenant_id, collection_id) do update
       set rows = excluded.rows, counted_at = now();
    select count(*) from ragpg.dense_collection;
end;
comment on function ragpg.dense_count() is
    'Counts the vectors of every collection into dense_collection and returns how many collections have any. Reads the whole covering index. For the owner.';

create or replace function ragpg.dense_index_state(is_valid boolean) returns text
language sql stable
set search_path = pg_catalog, pg_temp
begin atomic
    select case when is_valid then 'valid'
                -- The lock of `ragpg index apply`, 0x7261676978, held by another session.
                when exists (
                    select from pg_locks
                      join pg_database on pg_database.oid = pg_locks.database
                     where pg_locks.locktype = 'advisory' and pg_locks.granted
                       and pg_database.datname = current_database()
                       and pg_locks.classid = x'72'::integer::oid
                       and pg_locks.objid = x'61676978'::integer::oid and pg_locks.objsubid = 1
                       and pg_locks.pid <> pg_backend_pid()
                ) then 'building'
                when not is_valid then 'invalid' end;
end;
comment on function ragpg.dense_index_state(boolean) is
    'valid, building, or invalid (left by a build that failed); null for no index.';

create or replace view ragpg.dense_index with (security_invoker = true) as
select (named.parts[1])::integer as tenant_id, (named.parts[2])::integer as collection_id,
       class.relname::text as index_name,
       ragpg.dense_index_state(pg_index.indisvalid) as state,
       pg_relation_size(class.oid) as bytes
  from pg_index
  join pg_class as class on class.oid = pg_index.indexrelid
 cross join lateral regexp_match(class.relname, '^embedding_ann_(\d+)_(\d+)$') as named(parts)
 where pg_index.indrelid = 'ragpg.embedding'::regclass
   and named.parts is not null;
comment on view ragpg.dense_index is
    'One row per HNSW index of a collection, of every tenant, and of collections that are gone. For the owner.';

create or replace function ragpg.dense_index_plan()
returns table (
    action text,
    tenant_id integer,
    collection_id integer,
    tenant text,
    collection text,
    dimensions integer,
    rows bigint,
    index_name text
)
language sql stable
set search_path = pg_catalog, pg_temp
begin atomic
    select case when judged.state = 'invalid' and judged.wanted then 'rebuild'
                when judged.state = 'invalid' or not judged.wanted then 'drop'
                else 'create' end,
           judged.tenant_id, judged.collection_id, judged.tenant, judged.collection,
           judged.dimensions, judged.rows, judged.index_name
      from (
               select coalesce(counted.tenant_id, dense_index.tenant_id) as tenant_id,
                      coalesce(counted.collection_id, dense_index.collection_id) as collection_id,
                      tenant.key as tenant, collection.name as collection, collection.dimensions,
                      coalesce(counted.rows, 0) as rows,
                      coalesce(dense_index.index_name,
                               format('embedding_ann_%s_%s', counted.tenant_id,
                                      counted.collection_id)) as index_name,
                      dense_index.state,
                      -- Two thresholds, so that a collection near one is not rebuilt each night.
                      coalesce(counted.rows, 0) >= case when dense_index.state is null
                                                        then dense_setting.index_above
                                                        else dense_setting.unindex_below end
                      as wanted
                 from ragpg.dense_collection as counted
                 full join ragpg.dense_index using (tenant_id, collection_id)
                 left join ragpg.collection using (tenant_id, collection_id)
                 left join ragpg.tenant using (tenant_id)
                cross join ragpg.dense_setting
           ) as judged
     where judged.state is distinct from 'building'
       and (judged.state = 'invalid' or judged.wanted <> (judged.state is not null))
     order by judged.rows desc, judged.index_name;
end;
comment on function ragpg.dense_index_plan() is
    'What `ragpg index apply` would do, largest collection first: create, rebuild (mend an invalid one) or drop an HNSW index. Counts are those of dense_count. For the owner.';

create or replace view ragpg.index_health with (security_invoker = true) as
select collection.tenant_id, collection.collection_id, collection.name as collection,
       collection.dimensions, counted.rows, counted.counted_at,
       ragpg.dense_mode(counted.rows, collection.dimensions, coalesce(own.is_valid, false))
       as unfiltered_mode,
       own.index_name, ragpg.dense_index_state(own.is_valid) as index_state,
       own.bytes as index_bytes,
       checked.mean_recall, checked.lowest_recall, checked.queries as recall_queries,
       checked.query_source as recall_query_source, checked.measured_at as recall_measured_at
  from ragpg.collection
  left join ragpg.dense_collection as counted using (tenant_id, collection_id)
  left join lateral (
           select class.relname::text as index_name, pg_index.indisvalid as is_valid,
                  pg_relation_size(class.oid) as bytes
             from pg_index
             join pg_class as class on class.oid = pg_index.indexrelid
            where class.oid = to_regclass(format('ragpg.embedding_ann_%s_%s', collection.tenant_id,
                                                 collection.collection_id))
       ) as own on true
  left join lateral (
           select dense_recall.*
             from ragpg.dense_recall
            where dense_recall.tenant_id = collection.tenant_id
              and dense_recall.collection_id = collection.collection_id
            order by dense_recall.recall_id desc
            limit 1
       ) as checked on true;
comment on view ragpg.index_health is
    'One row per collection: its vectors when counted last, the plan of a search without a filter, its HNSW index, and the last recall check.';

-- Here and not where the table is made, since the rule is in _dense_arm.
comment on column ragpg.dense_setting.prefilter_max is
    'Up to so many expected matches, rows are filtered first and then compared exactly. With an HNSW index: up to this times the root of the collection''s rows by 200,000.';
