-- 23_lexical_admin.sql: upkeep of the BM25 index. Nothing here is needed for right results.

create or replace function ragpg.compact_lexical(tenant_id integer, collection_id integer)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if not ragpg._hold_collection(compact_lexical.tenant_id, compact_lexical.collection_id) then
        return;
    end if;
    perform pg_advisory_xact_lock(
        hashtextextended('ragpg.lexeme_count', compact_lexical.collection_id));
    perform ragpg._merge_counts(
        compact_lexical.tenant_id, compact_lexical.collection_id, 100, 10);
    if ragpg._outgrows_scan(compact_lexical.tenant_id, compact_lexical.collection_id) then
        perform ragpg._index_rows(
            compact_lexical.tenant_id, compact_lexical.collection_id, 1000000);
        perform ragpg._compact_blocks(
            compact_lexical.tenant_id, compact_lexical.collection_id);
    end if;
end $$;
comment on function ragpg.compact_lexical(integer, integer) is
    'Merges all counts of a collection into one run, drops lexemes that no chunk holds any more, and of a large collection puts the rows that are not indexed yet into the index. Writers do not wait; searches get a little faster.';

create or replace function ragpg._begin_rebuild(tenant_id integer, collection_id integer)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    now_read text := (select md5(installation.functions_digest || current_setting('server_version_num'))
                        from ragpg.installation);
    found_average double precision;
begin
    if exists (select from ragpg.lexical_rebuild as begun
                where begun.tenant_id = _begin_rebuild.tenant_id
                  and begun.collection_id = _begin_rebuild.collection_id
                  and begun.reading = now_read) then
        return;
    end if;
    delete from ragpg.lexical_rebuild as begun
     where begun.tenant_id = _begin_rebuild.tenant_id
       and begun.collection_id = _begin_rebuild.collection_id;
    select sum(run.total_length)::double precision / nullif(sum(run.chunks), 0) into found_average
      from ragpg.lexeme_count as run
     where run.tenant_id = _begin_rebuild.tenant_id
       and run.collection_id = _begin_rebuild.collection_id;
    if coalesce(found_average, 0) < 1 then
        -- Nothing is counted, so it is read; any value gives the same scores.
        select avg(sample.length) into found_average
          from (
                   select (select sum(cardinality(lexeme.positions))
                             from unnest(ragpg.tokenize(
                                      ragpg.contextualized(
                                          chunk.context, chunk.table_header, chunk.text),
                                      collection.language)) as lexeme) as length
                     from ragpg.chunk
                     join ragpg.collection using (tenant_id, collection_id)
                    where chunk.tenant_id = _begin_rebuild.tenant_id
                      and chunk.collection_id = _begin_rebuild.collection_id
                    order by chunk.chunk_id
                    limit 200
               ) as sample;
    end if;
    insert into ragpg.lexical_rebuild (tenant_id, collection_id, reading, average_length)
    values (_begin_rebuild.tenant_id, _begin_rebuild.collection_id, now_read,
            greatest(1, coalesce(found_average, 1)));
end $$;
comment on function ragpg._begin_rebuild(integer, integer) is
    'Makes the row of a rebuild, unless one is under way that read texts as they are read now.';

create or replace function ragpg._read_anew(
    tenant_id integer, collection_id integer, chunk_ids bigint[]
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set extra_float_digits = 1
as $$
#variable_conflict use_column
declare
    language text;
    reference double precision;
begin
    select collection.language, begun.average_length into language, reference
      from ragpg.collection
      join ragpg.lexical_rebuild as begun using (tenant_id, collection_id)
     where collection.tenant_id = _read_anew.tenant_id
       and collection.collection_id = _read_anew.collection_id;
    with read as materialized (
        select taken.chunk_id, hashtextextended(taken.text, 0) as text_hash, words.lexemes,
               coalesce((select sum(cardinality(lexeme.positions))
                           from unnest(words.lexemes) as lexeme), 0) as length
          from (
                   select chunk.chunk_id,
                          ragpg.contextualized(chunk.context, chunk.table_header, chunk.text) as text
                     from ragpg.chunk
                    where chunk.tenant_id = _read_anew.tenant_id
                      and chunk.collection_id = _read_anew.collection_id
                      and chunk.chunk_id = any (_read_anew.chunk_ids)
                   offset 0
               ) as taken
         cross join lateral (select ragpg.tokenize(taken.text, language) as lexemes offset 0) as words
    ), weighted as materialized (
        select read.*, weighed.numbers, weighed.weights
          from read, ragpg._weighed(read.lexemes, read.length, reference) as weighed
    ), stored as (
        insert into ragpg.lexeme_rebuild (
            tenant_id, collection_id, chunk_id, text_hash, length, left_out, weights)
        select _read_anew.tenant_id, _read_anew.collection_id, weighted.chunk_id,
               weighted.text_hash, weighted.length, greatest(length(weighted.lexemes) - 16000, 0),
               weighted.weights
          from weighted
    )
    insert into ragpg.lexeme_rebuild_count (tenant_id, collection_id, numbers, changes)
    select _read_anew.tenant_id, _read_anew.collection_id, array_agg(change.number),
           array_agg(change.chunks)
      from (
               select number, count(*)::integer as chunks
                 from weighted, unnest(weighted.numbers) as number
                group by number
           ) as change
    having count(*) > 0;
end $$;
comment on function ragpg._read_anew(integer, integer, bigint[]) is
    'Computes what the BM25 index will hold of these chunks, beside the live one.';

create or replace function ragpg.rebuild_lexical_step(
    tenant_id integer, collection_id integer, most integer default 500
) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    last_id bigint;
    slice bigint[];
begin
    if not ragpg._hold_collection(
            rebuild_lexical_step.tenant_id, rebuild_lexical_step.collection_id) then
        return 0;
    end if;
    -- A deletion of the collection waits for this, or has been.
    perform ragpg._hold_off_rebuild(rebuild_lexical_step.collection_id);
    if not exists (select from ragpg.collection
                    where collection.tenant_id = rebuild_lexical_step.tenant_id
                      and collection.collection_id = rebuild_lexical_step.collection_id) then
        return 0;
    end if;
    perform ragpg._begin_rebuild(
        rebuild_lexical_step.tenant_id, rebuild_lexical_step.collection_id);
    select max(anew.chunk_id) into last_id
      from ragpg.lexeme_rebuild as anew
     where anew.tenant_id = rebuild_lexical_step.tenant_id
       and anew.collection_id = rebuild_lexical_step.collection_id;
    slice := array(
        select chunk.chunk_id from ragpg.chunk
         where chunk.tenant_id = rebuild_lexical_step.tenant_id
           and chunk.collection_id = rebuild_lexical_step.collection_id
           and chunk.chunk_id > coalesce(last_id, -9223372036854775808)
         order by chunk.chunk_id
         limit rebuild_lexical_step.most);
    perform ragpg._read_anew(
        rebuild_lexical_step.tenant_id, rebuild_lexical_step.collection_id, slice);
    return cardinality(slice);
end $$;
comment on function ragpg.rebuild_lexical_step(integer, integer, integer) is
    'Reads the next chunks of a collection for its new BM25 index, beside the one in use, and returns how many: fewer than asked for when rebuild_lexical, which exchanges them, has little left to do. Each call a transaction of its own; nobody waits for it.';

create or replace function ragpg._catch_up_rebuild(tenant_id integer, collection_id integer)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    slice bigint[];
begin
    with gone as (
        delete from ragpg.lexeme_rebuild as anew
         where anew.tenant_id = _catch_up_rebuild.tenant_id
           and anew.collection_id = _catch_up_rebuild.collection_id
           and not exists (
                   select from ragpg.chunk
                    where chunk.tenant_id = anew.tenant_id
                      and chunk.chunk_id = anew.chunk_id
                      and hashtextextended(
                              ragpg.contextualized(chunk.context, chunk.table_header, chunk.text), 0)
                          = anew.text_hash)
        returning anew.weights
    )
    insert into ragpg.lexeme_rebuild_count (tenant_id, collection_id, numbers, changes)
    select _catch_up_rebuild.tenant_id, _catch_up_rebuild.collection_id,
           array_agg(change.number), array_agg(change.chunks)
      from (
               select entry.number, -count(*)::integer as chunks
                 from gone, ragpg._entries(gone.weights) as entry
                group by entry.number
           ) as change
    having count(*) > 0;
    loop
        slice := array(
            select chunk.chunk_id from ragpg.chunk
             where chunk.tenant_id = _catch_up_rebuild.tenant_id
               and chunk.collection_id = _catch_up_rebuild.collection_id
               and not exists (
                       select from ragpg.lexeme_rebuild as anew
                        where anew.tenant_id = chunk.tenant_id
                          and anew.collection_id = chunk.collection_id
                          and anew.chunk_id = chunk.chunk_id)
             limit 500);
        perform ragpg._read_anew(
            _catch_up_rebuild.tenant_id, _catch_up_rebuild.collection_id, slice);
        exit when cardinality(slice) < 500;
    end loop;
end $$;
comment on function ragpg._catch_up_rebuild(integer, integer) is
    'Takes chunks that have changed or gone since out of a rebuild, and those that lack into it. The caller holds off writers.';

create or replace function ragpg._exchange_lexemes(tenant_id integer, collection_id integer)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    rebuilt integer;
    total_length bigint;
    numbers integer[];
    counts bigint[];
begin
    select count(*), coalesce(sum(anew.length), 0) into rebuilt, total_length
      from ragpg.lexeme_rebuild as anew
     where anew.tenant_id = _exchange_lexemes.tenant_id
       and anew.collection_id = _exchange_lexemes.collection_id;
    delete from ragpg.lexeme_vector as vector
     where vector.tenant_id = _exchange_lexemes.tenant_id
       and vector.collection_id = _exchange_lexemes.collection_id
       and not exists (
               select from ragpg.lexeme_rebuild as anew
                where anew.tenant_id = vector.tenant_id
                  and anew.collection_id = vector.collection_id
                  and anew.chunk_id = vector.chunk_id);
    -- Into the index of lexemes a row takes 20 times as long, and writers wait here: later, in steps.
    update ragpg.lexeme_vector as vector
       set length = anew.length, left_out = anew.left_out, weights = anew.weights, indexed = false
      from ragpg.lexeme_rebuild as anew
     where anew.tenant_id = _exchange_lexemes.tenant_id
       and anew.collection_id = _exchange_lexemes.collection_id
       and vector.tenant_id = anew.tenant_id
       and vector.collection_id = anew.collection_id
       and vector.chunk_id = anew.chunk_id
       and (vector.weights operator(public.<>) anew.weights or vector.length <> anew.length
            or vector.left_out <> anew.left_out);
    insert into ragpg.lexeme_vector (
        tenant_id, collection_id, chunk_id, length, left_out, expires_at, weights, indexed)
    select anew.tenant_id, anew.collection_id, anew.chunk_id, anew.length, anew.left_out,
           embedding.expires_at, anew.weights, false
      from ragpg.lexeme_rebuild as anew
      join ragpg.embedding
        on embedding.tenant_id = anew.tenant_id and embedding.chunk_id = anew.chunk_id
     where anew.tenant_id = _exchange_lexemes.tenant_id
       and anew.collection_id = _exchange_lexemes.collection_id
        on conflict (tenant_id, collection_id, chunk_id) do nothing;
    update ragpg.lexical_reference as reference
       set average_length = begun.average_length
      from ragpg.lexical_rebuild as begun
     where begun.tenant_id = _exchange_lexemes.tenant_id
       and begun.collection_id = _exchange_lexemes.collection_id
       and reference.tenant_id = begun.tenant_id
       and reference.collection_id = begun.collection_id;
    delete from ragpg.lexeme_count as run
     where run.tenant_id = _exchange_lexemes.tenant_id
       and run.collection_id = _exchange_lexemes.collection_id;
    select array_agg(summed.number order by summed.number),
           array_agg(summed.change order by summed.number)
      into numbers, counts
      from (
               select change.number, sum(change.change) as change
                 from ragpg.lexeme_rebuild_count as step,
                      unnest(step.numbers, step.changes) as change(number, change)
                where step.tenant_id = _exchange_lexemes.tenant_id
                  and step.collection_id = _exchange_lexemes.collection_id
                group by change.number
               having sum(change.change) <> 0
           ) as summed;
    if rebuilt > 0 then
        perform ragpg._write_counts(
            _exchange_lexemes.tenant_id, _exchange_lexemes.collection_id, 10, rebuilt, total_length,
            coalesce(numbers, '{}'), coalesce(counts, '{}'));
    end if;
    perform ragpg._empty_sparse_blocks(
        _exchange_lexemes.tenant_id, _exchange_lexemes.collection_id);
    return rebuilt;
end $$;
comment on function ragpg._exchange_lexemes(integer, integer) is
    'Puts what a rebuild has computed in the place of the live rows and counts. The caller holds off writers.';

create or replace function ragpg.rebuild_lexical(tenant_id integer, collection_id integer)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    rebuilt bigint;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using errcode = 'RG009',
            message = format('rebuild_lexical runs under %s, in which it would not see what writers add meanwhile',
                             current_setting('transaction_isolation')),
            hint = 'Run it under read committed.';
    end if;
    -- One at a time: it shares the next lock with writers and then wants it alone, which two could
    -- wait for from each other.
    perform pg_advisory_xact_lock(
        hashtextextended('ragpg.one_rebuild', rebuild_lexical.collection_id));
    if not ragpg._hold_collection(rebuild_lexical.tenant_id, rebuild_lexical.collection_id) then
        return 0;
    end if;
    -- In the order of 11_locks.sql: writers share the first until they commit, compact_lexical holds
    -- the second.
    perform pg_advisory_xact_lock(
        hashtextextended('ragpg.rebuild_lexical', rebuild_lexical.collection_id));
    loop
        exit when ragpg.rebuild_lexical_step(
            rebuild_lexical.tenant_id, rebuild_lexical.collection_id, 2000) < 2000;
    end loop;
    perform ragpg._catch_up_rebuild(rebuild_lexical.tenant_id, rebuild_lexical.collection_id);
    perform pg_advisory_xact_lock(
        hashtextextended('ragpg.lexeme_count', rebuild_lexical.collection_id));
    rebuilt := ragpg._exchange_lexemes(rebuild_lexical.tenant_id, rebuild_lexical.collection_id);
    delete from ragpg.lexical_rebuild as begun
     where begun.tenant_id = rebuild_lexical.tenant_id
       and begun.collection_id = rebuild_lexical.collection_id;
    return rebuilt;
end $$;
comment on function ragpg.rebuild_lexical(integer, integer) is
    'Computes the BM25 index of a collection anew from its chunks, with the average length of now, and exchanges it for the old one at once. What rebuild_lexical_step has read before is used, so call that first: writers of this collection wait for the rest, readers do not. Searches read the new rows of a large collection one by one until index_lexical_step, compact_lexical or an ingest has put them into the index. Returns the number of chunks. Raises RG009 under a stricter isolation than read committed.';

create or replace function ragpg.index_lexical_step(
    tenant_id integer, collection_id integer, most integer default 1000
) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    moved integer;
begin
    if not ragpg._hold_collection(index_lexical_step.tenant_id, index_lexical_step.collection_id)
       or not ragpg._outgrows_scan(index_lexical_step.tenant_id, index_lexical_step.collection_id)
    then
        return 0;
    end if;
    moved := ragpg._index_rows(
        index_lexical_step.tenant_id, index_lexical_step.collection_id, index_lexical_step.most);
    if moved = 0 then
        moved := ragpg._fill_block(
            index_lexical_step.tenant_id, index_lexical_step.collection_id, ragpg._block_rows());
    end if;
    return moved;
end $$;
comment on function ragpg.index_lexical_step(integer, integer, integer) is
    'Puts some rows of a large collection that are not indexed yet into the index, and returns how many: 0 when none is left, or the collection is small and scanned anyway. Each call a transaction of its own.';

create or replace function ragpg.has_outdated_lexemes(collection_id integer) returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
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
               -- An empty collection has no length that could have moved.
               when stored.chunks > 0
                    and size.average_length / reference.average_length not between 0.8 and 1.25
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

create or replace function ragpg.lexical_plan()
returns table (
    action text,
    tenant_id integer,
    collection_id integer,
    tenant text,
    collection text,
    chunks bigint,
    done bigint,
    reason text
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    home record;
    before text := coalesce(current_setting('ragpg.tenant_id', true), '');
begin
    for home in select known.tenant_id, known.key from ragpg.tenant as known order by known.tenant_id
    loop
        -- The view answers for one tenant at a time.
        perform set_config('ragpg.tenant_id', home.tenant_id::text, true);
        return query
        select case when judged.begun or health.advice like 'rebuild:%' then 'rebuild'
                    else 'compact' end,
               home.tenant_id, health.collection_id, home.key, health.collection,
               case when judged.begun or health.advice like 'rebuild:%' then health.stored_chunks
                    else waiting.rows end,
               judged.read,
               case when health.advice <> 'good' then split_part(health.advice, ': ', 2)
                    when judged.begun then 'a rebuild was begun and is not finished'
                    when judged.many_blocks then 'many blocks of columns, most of whose chunks are gone'
                    else waiting.rows || ' chunks of a large collection are not in its index yet' end
          from ragpg.lexical_health as health
         cross join lateral (
                   select (select count(*) from ragpg.lexeme_vector as vector
                            where vector.tenant_id = home.tenant_id
                              and vector.collection_id = health.collection_id
                              and not vector.indexed
                              and health.chunks > ragpg._scan_up_to())
                          -- So many that searches do without the blocks.
                          + (select case when count(*) > greatest(ragpg._scan_up_to(), ragpg._block_rows())
                                       then count(*) else 0 end
                               from ragpg.lexeme_waiting as unblocked
                              where unblocked.tenant_id = home.tenant_id
                                and unblocked.collection_id = health.collection_id) as rows
               ) as waiting
         cross join lateral (
                   select exists (
                              select from ragpg.lexical_rebuild as rebuild
                               where rebuild.tenant_id = home.tenant_id
                                 and rebuild.collection_id = health.collection_id) as begun,
                          (select count(*) from ragpg.lexeme_rebuild as anew
                            where anew.tenant_id = home.tenant_id
                              and anew.collection_id = health.collection_id) as read,
                          -- Below, blocks are not used, and not compacted.
                          health.chunks > ragpg._scan_up_to()
                          and ragpg._has_many_blocks(
                              home.tenant_id, health.collection_id) as many_blocks
               ) as judged
         where health.advice <> 'good' or judged.begun or judged.many_blocks
               or waiting.rows > 0;
    end loop;
    perform set_config('ragpg.tenant_id', before, true);
end $$;
comment on function ragpg.lexical_plan() is
    'What `ragpg index apply` would do to the BM25 indexes of all tenants, and why: rebuild (chunks in all, and how many are done by a rebuild that was begun), or compact (rows that are not indexed yet). For the owner.';
