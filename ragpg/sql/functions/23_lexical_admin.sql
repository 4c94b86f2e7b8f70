-- 23_lexical_admin.sql: upkeep of the BM25 index. Nothing here is needed for right results.

create or replace function ragpg.compact_lexical(tenant_id integer, collection_id integer)
returns void
language plpgsql volatile
set search_path = pg_catalog, public, pg_temp
as $$
begin
    perform pg_advisory_xact_lock(
        hashtextextended('ragpg.lexeme_count', compact_lexical.collection_id));
    perform ragpg._merge_counts(
        compact_lexical.tenant_id, compact_lexical.collection_id, 100, 10);
    if ragpg._outgrows_scan(compact_lexical.tenant_id, compact_lexical.collection_id) then
        perform ragpg._index_rows(
            compact_lexical.tenant_id, compact_lexical.collection_id, 1000000);
    end if;
end $$;
comment on function ragpg.compact_lexical(integer, integer) is
    'Merges all counts of a collection into one run, drops lexemes that no chunk holds any more, and of a large collection puts the rows that are not indexed yet into the index. Writers do not wait; searches get a little faster.';

create or replace function ragpg.rebuild_lexical(tenant_id integer, collection_id integer)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    last_id bigint := -9223372036854775808;
    slice bigint[];
    rebuilt bigint := 0;
begin
    perform from ragpg.lexical_reference as reference
      where reference.tenant_id = rebuild_lexical.tenant_id
        and reference.collection_id = rebuild_lexical.collection_id
        for update;
    delete from ragpg.lexeme_vector as vector
     where vector.tenant_id = rebuild_lexical.tenant_id
       and vector.collection_id = rebuild_lexical.collection_id;
    delete from ragpg.lexeme_count as run
     where run.tenant_id = rebuild_lexical.tenant_id
       and run.collection_id = rebuild_lexical.collection_id;
    update ragpg.lexical_reference as reference
       set average_length = greatest(1, coalesce((
               select avg(read.length)
                 from (
                          select (select sum(cardinality(lexeme.positions))
                                    from unnest(ragpg.tokenize(
                                             ragpg.contextualized(sample.context, sample.table_header, sample.text),
                                             sample.language)) as lexeme) as length
                            from (
                                     select chunk.context, chunk.table_header, chunk.text,
                                            collection.language
                                       from ragpg.chunk
                                       join ragpg.collection using (tenant_id, collection_id)
                                      where chunk.tenant_id = rebuild_lexical.tenant_id
                                        and chunk.collection_id = rebuild_lexical.collection_id
                                      order by hashint8extended(chunk.chunk_id, 0)
                                      limit 2000
                                 ) as sample
                      ) as read), 1))
     where reference.tenant_id = rebuild_lexical.tenant_id
       and reference.collection_id = rebuild_lexical.collection_id;
    loop
        slice := array(
            select chunk.chunk_id from ragpg.chunk
             where chunk.tenant_id = rebuild_lexical.tenant_id
               and chunk.collection_id = rebuild_lexical.collection_id
               and chunk.chunk_id > last_id
             order by chunk.chunk_id
             limit 2000);
        exit when cardinality(slice) = 0;
        perform ragpg.lexical_add(
            rebuild_lexical.tenant_id, rebuild_lexical.collection_id, slice);
        last_id := slice[cardinality(slice)];
        rebuilt := rebuilt + cardinality(slice);
    end loop;
    perform ragpg.compact_lexical(rebuild_lexical.tenant_id, rebuild_lexical.collection_id);
    return rebuilt;
end $$;
comment on function ragpg.rebuild_lexical(integer, integer) is
    'Computes the BM25 index of a collection anew from its chunks, with the average length of a sample of now. Writers of this collection wait, readers do not. Returns the number of chunks.';

create or replace function ragpg.has_outdated_lexemes(collection_id integer) returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    tenant integer := ragpg.current_tenant();
begin
    -- The oldest chunks are the first to be out of date; 20 take some 10 ms.
    return (
        select coalesce(bool_or(sample.now <> sample.stored), false)
          from (
                   select array(select distinct ragpg.lexeme_number(lexeme.lexeme)
                                  from unnest(ragpg.tokenize(
                                           ragpg.contextualized(
                                               chunk.context, chunk.table_header, chunk.text),
                                           collection.language)) as lexeme
                                 order by 1) as now,
                          array(select entry.number
                                  from ragpg._entries(vector.weights) as entry
                                 order by entry.number) as stored
                     from ragpg.collection
                     join ragpg.lexeme_vector as vector
                       on vector.tenant_id = collection.tenant_id
                      and vector.collection_id = collection.collection_id
                     join ragpg.chunk
                       on chunk.tenant_id = vector.tenant_id
                      and chunk.chunk_id = vector.chunk_id
                    where collection.tenant_id = tenant
                      and collection.collection_id = has_outdated_lexemes.collection_id
                      and vector.left_out = 0
                    order by vector.chunk_id
                    limit 20
               ) as sample);
end $$;
comment on function ragpg.has_outdated_lexemes(integer) is
    'Whether tokenize reads the oldest 20 chunks of a collection of this tenant otherwise than when they were stored. Raises RG001.';

-- A barrier, or a function in the caller's condition could be asked before the tenant is.
create or replace view ragpg.lexical_health with (security_barrier = true) as
    select collection.tenant_id, collection.collection_id, collection.name as collection,
           coalesce(size.chunks, 0) as chunks,
           size.average_length,
           reference.average_length as reference_length,
           size.average_length / reference.average_length as drift,
           coalesce(size.runs, 0) as runs,
           stored.chunks as stored_chunks,
           coalesce(stored.left_out, 0) as left_out,
           case
               when coalesce(size.chunks, 0) <> stored.chunks then 'rebuild: counts differ from the stored chunks'
               when ragpg.has_outdated_lexemes(collection.collection_id)
                   then 'rebuild: texts are read otherwise now, by a new release or another PostgreSQL'
               when size.average_length / reference.average_length not between 0.8 and 1.25
                   then 'rebuild: the average length has moved, searches score more chunks than needed'
               when size.runs > 24 then 'compact: many runs of counts'
               else 'good'
           end as advice
      from ragpg.collection
      left join ragpg.lexical_reference as reference
        on reference.tenant_id = collection.tenant_id
       and reference.collection_id = collection.collection_id
     cross join lateral (
               select sum(run.chunks) as chunks, count(*) filter (where run.slice = 0) as runs,
                      greatest(sum(run.total_length)::double precision
                               / nullif(sum(run.chunks), 0), 1) as average_length
                 from ragpg.lexeme_count as run
                where run.tenant_id = collection.tenant_id
                  and run.collection_id = collection.collection_id
           ) as size
     cross join lateral (
               select count(*) as chunks, sum(vector.left_out) as left_out
                 from ragpg.lexeme_vector as vector
                where vector.tenant_id = collection.tenant_id
                  and vector.collection_id = collection.collection_id
           ) as stored
     where collection.tenant_id = ragpg.current_tenant();
comment on view ragpg.lexical_health is
    'State of the BM25 index of each collection of the current tenant, with what to do about it.';
