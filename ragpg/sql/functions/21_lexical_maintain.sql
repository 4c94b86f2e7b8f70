-- 21_lexical_maintain.sql: the BM25 index, kept right inside the transaction that writes chunks.
--
-- Nothing that two writers share is ever updated: lexeme_vector has a row per chunk, and each write
-- appends what it changed to lexeme_count. The count of chunks per lexeme, the number of chunks and
-- the average length are sums over the rows that a snapshot sees, so they are exact under concurrent
-- writers, rollback, update and delete, for every reader.

create or replace function ragpg._entries(vector public.sparsevec)
returns table (number integer, value double precision)
language sql immutable strict parallel safe
begin atomic
    select split_part(entry, ':', 1)::integer, split_part(entry, ':', 2)::double precision
      from string_to_table(nullif(btrim(split_part(vector::text, '/', 1), '{}'), ''), ',') as entry;
end;
comment on function ragpg._entries(public.sparsevec) is 'The non-zero elements of a vector.';

create or replace function ragpg._unit(number integer) returns public.sparsevec
language sql immutable strict parallel safe
begin atomic
    select ('{' || number || ':1}/1000000000')::public.sparsevec;
end;
comment on function ragpg._unit(integer) is
    'The vector whose inner product with another reads one of its elements.';

create or replace function ragpg._write_counts(
    tenant_id integer, collection_id integer, level integer,
    chunks integer, total_length bigint, numbers integer[], counts bigint[]
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- 1,000 lexemes a row, about 8 kB: a search reads one such row per lexeme and run.
    insert into ragpg.lexeme_count (
        tenant_id, collection_id, slice, level, first_number, last_number, chunks, total_length,
        counts)
    select _write_counts.tenant_id, _write_counts.collection_id, part.slice, _write_counts.level,
           coalesce(min(entry.number), 0), coalesce(max(entry.number), 0),
           case part.slice when 0 then _write_counts.chunks else 0 end,
           case part.slice when 0 then _write_counts.total_length else 0 end,
           ('{' || coalesce(string_agg(entry.number || ':' || entry.change, ','), '')
                || '}/1000000000')::public.sparsevec
      from generate_series(0, greatest(cardinality(numbers) - 1, 0) / 1000) as part(slice)
      left join lateral (
               select change.number, change.change
                 from unnest(numbers[part.slice * 1000 + 1 : part.slice * 1000 + 1000],
                             counts[part.slice * 1000 + 1 : part.slice * 1000 + 1000])
                      as change(number, change)
           ) as entry on true
     group by part.slice;
end $$;
comment on function ragpg._write_counts(integer, integer, integer, integer, bigint, integer[], bigint[]) is
    'Appends one run of count changes; numbers ascending.';

create or replace function ragpg._merge_counts(
    tenant_id integer, collection_id integer, up_to_level integer, to_level integer
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    chunks integer;
    total_length bigint;
    numbers integer[];
    counts bigint[];
begin
    with taken as (
        delete from ragpg.lexeme_count as run
         where run.tenant_id = _merge_counts.tenant_id
           and run.collection_id = _merge_counts.collection_id
           and run.level <= _merge_counts.up_to_level
        returning run.chunks, run.total_length, run.counts
    ), summed as (
        select entry.number, sum(entry.value)::bigint as change
          from taken, ragpg._entries(taken.counts) as entry
         group by entry.number
        having sum(entry.value) <> 0
    )
    select (select sum(taken.chunks) from taken), (select sum(taken.total_length) from taken),
           array_agg(summed.number order by summed.number),
           array_agg(summed.change order by summed.number)
      into chunks, total_length, numbers, counts
      from summed;
    if chunks <> 0 or total_length <> 0 or numbers is not null then
        perform ragpg._write_counts(
            _merge_counts.tenant_id, _merge_counts.collection_id, _merge_counts.to_level, chunks,
            total_length, coalesce(numbers, '{}'), coalesce(counts, '{}'));
    end if;
end $$;
comment on function ragpg._merge_counts(integer, integer, integer, integer) is
    'Replaces the visible runs up to a level by their sum. The caller holds the merge lock.';

create or replace function ragpg._settle_counts(tenant_id integer, collection_id integer)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    due integer;
begin
    -- Under a stricter isolation a merge could fail the writer, so it is left to the next one.
    if current_setting('transaction_isolation') <> 'read committed' then
        return;
    end if;
    for due in
        select run.level from ragpg.lexeme_count as run
         where run.tenant_id = _settle_counts.tenant_id
           and run.collection_id = _settle_counts.collection_id
           and run.slice = 0
         group by run.level
        having count(*) >= 8
         order by run.level desc
         limit 1
    loop
        if pg_try_advisory_xact_lock(
               hashtextextended('ragpg.lexeme_count', _settle_counts.collection_id)) then
            perform ragpg._merge_counts(
                _settle_counts.tenant_id, _settle_counts.collection_id, due, due + 1);
        end if;
    end loop;
end $$;
comment on function ragpg._settle_counts(integer, integer) is
    'Merges runs when eight of one level have come together, unless another writer is merging.';

create or replace function ragpg._hold_off_rebuild(collection_id integer) returns void
language sql volatile
begin atomic
    -- Writers share it until they commit; a rebuild waits for those that hold it and those that come
    -- then wait for it. A shared lock of a row would let them pass, and a rebuild wait for ever.
    select pg_advisory_xact_lock_shared(
        hashtextextended('ragpg.rebuild_lexical', _hold_off_rebuild.collection_id));
end;
comment on function ragpg._hold_off_rebuild(integer) is
    'Keeps rebuild_lexical from exchanging the BM25 index of this collection until this transaction ends.';

create or replace function ragpg._scan_up_to() returns integer
language sql immutable parallel safe
begin atomic
    select 7000;
end;
comment on function ragpg._scan_up_to() is
    'Up to how many chunks a search scores all of a collection, faster than it would read an index.';

create or replace function ragpg._outgrows_scan(
    tenant_id integer, collection_id integer, added integer default 0
) returns boolean
language sql stable
begin atomic
    select coalesce(sum(run.chunks), 0) + _outgrows_scan.added > ragpg._scan_up_to()
      from ragpg.lexeme_count as run
     where run.tenant_id = _outgrows_scan.tenant_id
       and run.collection_id = _outgrows_scan.collection_id
       and run.slice = 0;
end;
comment on function ragpg._outgrows_scan(integer, integer, integer) is
    'Whether a collection, with so many chunks added, is too large to be scanned.';

create or replace function ragpg._index_rows(
    tenant_id integer, collection_id integer, most integer
) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    moved integer;
begin
    -- Under a stricter isolation a row that another writer moves could fail this one.
    if current_setting('transaction_isolation') <> 'read committed' then
        return 0;
    end if;
    -- An array, since a joined subquery could be run again for each row, and take others.
    with now_indexed as (
        update ragpg.lexeme_vector as vector
           set indexed = true
         where vector.tenant_id = _index_rows.tenant_id
           and vector.collection_id = _index_rows.collection_id
           and vector.chunk_id = any (array(
                   select waiting.chunk_id
                     from ragpg.lexeme_vector as waiting
                    where waiting.tenant_id = _index_rows.tenant_id
                      and waiting.collection_id = _index_rows.collection_id
                      and not waiting.indexed
                    limit _index_rows.most
                      for update skip locked))
        returning vector.chunk_id
    ), noted as (
        insert into ragpg.lexeme_waiting (tenant_id, collection_id, chunk_id)
        select _index_rows.tenant_id, _index_rows.collection_id, now_indexed.chunk_id
          from now_indexed
            on conflict do nothing
    )
    select count(*) into moved from now_indexed;
    return moved;
end $$;
comment on function ragpg._index_rows(integer, integer, integer) is
    'Puts some rows that searches read one by one into the index, and returns how many. A row is in one of both for every snapshot, so results do not change. Waits for nobody.';

create or replace function ragpg._block_rows() returns integer
language sql immutable parallel safe
begin atomic
    select 4000;
end;
comment on function ragpg._block_rows() is 'How many chunks a block of columns holds.';

create or replace function ragpg._fill_block(
    tenant_id integer, collection_id integer, fewest integer
) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set extra_float_digits = 1
as $$
#variable_conflict use_column
declare
    taken bigint[];
    filled bigint;
begin
    -- Under a stricter isolation a chunk that another writer takes out could fail this one.
    if current_setting('transaction_isolation') <> 'read committed'
       or (select count(*)
             from (
                      select from ragpg.lexeme_waiting as waiting
                       where waiting.tenant_id = _fill_block.tenant_id
                         and waiting.collection_id = _fill_block.collection_id
                       limit _fill_block.fewest
                  ) as enough) < _fill_block.fewest
    then
        return 0;
    end if;
    -- Who takes a chunk out of the index, or writes it anew, deletes its row here first: what is
    -- locked here still has the weights that are read below, or its new row waits anew.
    taken := array(
        select waiting.chunk_id
          from ragpg.lexeme_waiting as waiting
         where waiting.tenant_id = _fill_block.tenant_id
           and waiting.collection_id = _fill_block.collection_id
         order by waiting.chunk_id
         limit ragpg._block_rows()
           for update skip locked);
    if cardinality(taken) < fewest then
        return 0;
    end if;
    delete from ragpg.lexeme_waiting as waiting
     where waiting.tenant_id = _fill_block.tenant_id
       and waiting.collection_id = _fill_block.collection_id
       and waiting.chunk_id = any (taken);
    insert into ragpg.lexeme_block (tenant_id, collection_id, chunk_ids)
    values (_fill_block.tenant_id, _fill_block.collection_id, taken)
    returning block_id into filled;
    -- As _entries, but weights stay the text that they are: a fifth less than by way of numbers.
    insert into ragpg.lexeme_column (tenant_id, collection_id, number, block_id, weights)
    select _fill_block.tenant_id, _fill_block.collection_id,
           split_part(entry, ':', 1)::integer, filled,
           ('{' || string_agg(place.place || ':' || split_part(entry, ':', 2), ',') || '}/'
                || ragpg._block_rows())::public.sparsevec
      from unnest(taken) with ordinality as place(chunk_id, place)
      join ragpg.lexeme_vector as vector
        on vector.tenant_id = _fill_block.tenant_id
       and vector.collection_id = _fill_block.collection_id
       and vector.chunk_id = place.chunk_id
     cross join lateral string_to_table(
               nullif(btrim(split_part(vector.weights::text, '/', 1), '{}'), ''), ',') as entry
     group by split_part(entry, ':', 1)::integer
    having count(*) >= 0.005 * cardinality(taken);
    return cardinality(taken);
end $$;
comment on function ragpg._fill_block(integer, integer, integer) is
    'Puts waiting chunks into a new block, if at least so many wait that no other transaction holds, and returns how many. Results do not change. Waits for nobody.';

create or replace function ragpg._empty_blocks(
    tenant_id integer, collection_id integer, blocks bigint[]
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    with gone as (
        delete from ragpg.lexeme_block as block
         where block.tenant_id = _empty_blocks.tenant_id
           and block.collection_id = _empty_blocks.collection_id
           and block.block_id = any (blocks)
        returning block.chunk_ids
    )
    insert into ragpg.lexeme_waiting (tenant_id, collection_id, chunk_id)
    select _empty_blocks.tenant_id, _empty_blocks.collection_id, held.chunk_id
      from (
               select distinct chunk_id from gone cross join lateral unnest(gone.chunk_ids) as chunk_id
           ) as held
      join ragpg.lexeme_vector as vector
        on vector.tenant_id = _empty_blocks.tenant_id
       and vector.collection_id = _empty_blocks.collection_id
       and vector.chunk_id = held.chunk_id
     where vector.indexed
        on conflict do nothing;
    delete from ragpg.lexeme_column as held
     where held.tenant_id = _empty_blocks.tenant_id
       and held.collection_id = _empty_blocks.collection_id
       and held.block_id = any (blocks);
end $$;
comment on function ragpg._empty_blocks(integer, integer, bigint[]) is
    'Lets the chunks of these blocks wait for new ones.';

create or replace function ragpg._empty_sparse_blocks(tenant_id integer, collection_id integer)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform ragpg._empty_blocks(
        _empty_sparse_blocks.tenant_id, _empty_sparse_blocks.collection_id,
        array(
            select block.block_id
              from ragpg.lexeme_block as block
             where block.tenant_id = _empty_sparse_blocks.tenant_id
               and block.collection_id = _empty_sparse_blocks.collection_id
               and 2 * (select count(*) from unnest(block.chunk_ids) as held(chunk_id)
                          join ragpg.lexeme_vector as vector
                            on vector.tenant_id = block.tenant_id
                           and vector.collection_id = block.collection_id
                           and vector.chunk_id = held.chunk_id
                         where vector.indexed) < cardinality(block.chunk_ids)));
end $$;
comment on function ragpg._empty_sparse_blocks(integer, integer) is
    'Gives up blocks of which most chunks are gone, or are to be indexed anew. Results do not change.';

create or replace function ragpg._has_many_blocks(tenant_id integer, collection_id integer)
returns boolean
language sql stable
begin atomic
    -- A search reads a lexeme in each block, whether its chunks are live or gone.
    select (select count(*) from ragpg.lexeme_block as block
             where block.tenant_id = _has_many_blocks.tenant_id
               and block.collection_id = _has_many_blocks.collection_id)
           > 2 + 2 * (select count(*) from ragpg.lexeme_vector as vector
                       where vector.tenant_id = _has_many_blocks.tenant_id
                         and vector.collection_id = _has_many_blocks.collection_id
                         and vector.indexed) / ragpg._block_rows();
end;
comment on function ragpg._has_many_blocks(integer, integer) is
    'Whether there are more than twice the blocks that the indexed chunks would fill, and two.';

create or replace function ragpg._compact_blocks(tenant_id integer, collection_id integer)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if ragpg._has_many_blocks(_compact_blocks.tenant_id, _compact_blocks.collection_id) then
        -- All of them, since one that looks full may hold chunks that a later one holds as well.
        perform ragpg._empty_blocks(
            _compact_blocks.tenant_id, _compact_blocks.collection_id,
            array(
                select block.block_id from ragpg.lexeme_block as block
                 where block.tenant_id = _compact_blocks.tenant_id
                   and block.collection_id = _compact_blocks.collection_id));
    else
        perform ragpg._empty_sparse_blocks(
            _compact_blocks.tenant_id, _compact_blocks.collection_id);
    end if;
    loop
        exit when ragpg._fill_block(
            _compact_blocks.tenant_id, _compact_blocks.collection_id, ragpg._block_rows() / 8) = 0;
    end loop;
end $$;
comment on function ragpg._compact_blocks(integer, integer) is
    'Puts waiting chunks into blocks, all but the last few hundred, and those of sparse blocks too. Results do not change.';

create or replace function ragpg._numbered(lexemes tsvector)
returns table (number integer, frequency double precision)
language sql stable
begin atomic
    -- A sparsevec holds 16,000 elements; of more lexemes the first of the tsvector are kept.
    select ragpg.lexeme_number(lexeme.lexeme),
           sum(cardinality(lexeme.positions))::double precision
      from (
               select entry.lexeme, entry.positions
                 from unnest(_numbered.lexemes) as entry limit 16000
           ) as lexeme
     group by ragpg.lexeme_number(lexeme.lexeme);
end;
comment on function ragpg._numbered(tsvector) is
    'The lexemes of a chunk by their numbers, with how often each occurs.';

create or replace function ragpg._stored_weight(
    frequency double precision, length double precision, reference double precision
) returns real
language sql immutable parallel safe
begin atomic
    select (_stored_weight.frequency * 2.2::double precision
            / (_stored_weight.frequency
               + 1.2 * (0.25 + 0.75 * _stored_weight.length / _stored_weight.reference)))::real;
end;
comment on function ragpg._stored_weight(double precision, double precision, double precision) is
    'What an occurrence of a lexeme weighs in its chunk: BM25 without idf, by the reference length.';

create or replace function ragpg._weighed(
    lexemes tsvector, length double precision, reference double precision
)
returns table (numbers integer[], weights public.sparsevec)
language sql stable
begin atomic
    -- Together: as rows of their own the numbers of many chunks are hashed once more for the weights.
    -- The caller sets extra_float_digits, without which a function in FROM is planned with its query.
    select array_agg(entry.number),
           coalesce(
               '{' || string_agg(
                   entry.number || ':'
                   || ragpg._stored_weight(
                       entry.frequency, _weighed.length, _weighed.reference), ',')
               || '}/1000000000',
               '{}/1000000000')::public.sparsevec
      from ragpg._numbered(_weighed.lexemes) as entry;
end;
comment on function ragpg._weighed(tsvector, double precision, double precision) is
    'One row: the numbers of a chunk''s lexemes, null if it has none, and what each weighs in it.';

create or replace function ragpg.lexical_add(
    tenant_id integer, collection_id integer, chunk_ids bigint[]
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set extra_float_digits = 1
-- A session's first five calls would be planned for their arrays: of three chunks 14, 9, 8, 8 and 8 ms
-- of CPU instead of 7, 3, 3, 3 and 3, for the same plans.
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    language text;
    ids bigint[];
    texts tsvector[];
    lengths integer[];
    reference double precision;
    numbers integer[];
    counts bigint[];
    indexed boolean;
begin
    if coalesce(cardinality(chunk_ids), 0) = 0 then
        return;
    end if;
    select collection.language into language
      from ragpg.collection
     where collection.tenant_id = lexical_add.tenant_id
       and collection.collection_id = lexical_add.collection_id;
    select array_agg(read.chunk_id order by read.chunk_id),
           array_agg(read.lexemes order by read.chunk_id),
           array_agg(coalesce((select sum(cardinality(lexeme.positions))
                                 from unnest(read.lexemes) as lexeme), 0)
                     order by read.chunk_id)
      into ids, texts, lengths
      from (
               select chunk.chunk_id,
                      ragpg.tokenize(
                          ragpg.contextualized(chunk.context, chunk.table_header, chunk.text),
                          language) as lexemes
                 from ragpg.chunk
                where chunk.tenant_id = lexical_add.tenant_id
                  and chunk.collection_id = lexical_add.collection_id
                  and chunk.chunk_id = any (lexical_add.chunk_ids)
               offset 0
           ) as read;
    if ids is null then
        return;
    end if;
    reference := ragpg._reference_length(
        lexical_add.tenant_id, lexical_add.collection_id,
        (select avg(length) from unnest(lengths) as length));
    indexed := ragpg._outgrows_scan(
        lexical_add.tenant_id, lexical_add.collection_id, cardinality(ids));

    with weighted as materialized (
        select read.chunk_id, read.length, read.lexemes, weighed.numbers, weighed.weights
          from unnest(ids, texts, lengths) as read(chunk_id, lexemes, length),
               ragpg._weighed(read.lexemes, read.length, reference) as weighed
    ), stored as (
        insert into ragpg.lexeme_vector (
            tenant_id, collection_id, chunk_id, length, left_out, expires_at, weights, indexed)
        select lexical_add.tenant_id, lexical_add.collection_id, weighted.chunk_id,
               weighted.length, greatest(length(weighted.lexemes) - 16000, 0),
               embedding.expires_at, weighted.weights, indexed
          from weighted
          join ragpg.embedding
            on embedding.tenant_id = lexical_add.tenant_id
           and embedding.chunk_id = weighted.chunk_id
    ), noted as (
        insert into ragpg.lexeme_waiting (tenant_id, collection_id, chunk_id)
        select lexical_add.tenant_id, lexical_add.collection_id, chunk_id
          from unnest(ids) as chunk_id
         where indexed
            on conflict do nothing
    ), change as (
        select number, count(*) as chunks
          from weighted, unnest(weighted.numbers) as number
         group by number
    )
    select array_agg(change.number order by change.number),
           array_agg(change.chunks order by change.number)
      into numbers, counts
      from change;
    perform ragpg._write_counts(
        lexical_add.tenant_id, lexical_add.collection_id, 0, cardinality(ids),
        (select sum(length) from unnest(lengths) as length),
        coalesce(numbers, '{}'), coalesce(counts, '{}'));
    perform ragpg._settle_counts(lexical_add.tenant_id, lexical_add.collection_id);
    if indexed then
        perform ragpg._index_rows(
            lexical_add.tenant_id, lexical_add.collection_id, 4 * cardinality(ids));
        perform ragpg._fill_block(
            lexical_add.tenant_id, lexical_add.collection_id, ragpg._block_rows());
    end if;
end $$;
comment on function ragpg.lexical_add(integer, integer, bigint[]) is
    'Makes these live chunks findable by BM25, in this transaction. Called by publish only.';

create or replace function ragpg._reference_length(
    tenant_id integer, collection_id integer, proposed double precision
) returns double precision
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    known double precision;
begin
    perform ragpg._hold_off_rebuild(_reference_length.collection_id);
    select reference.average_length into known
      from ragpg.lexical_reference as reference
     where reference.tenant_id = _reference_length.tenant_id
       and reference.collection_id = _reference_length.collection_id;
    if known is not null then
        return known;
    end if;
    insert into ragpg.lexical_reference as reference (tenant_id, collection_id, average_length)
    values (_reference_length.tenant_id, _reference_length.collection_id,
            greatest(1, proposed))
        on conflict (tenant_id, collection_id)
        do update set average_length = reference.average_length
    returning reference.average_length into known;
    return known;
end $$;
comment on function ragpg._reference_length(integer, integer, double precision) is
    'The average length that the collection''s weights are computed with; the first writer fixes it.';

create or replace function ragpg.lexical_remove(
    tenant_id integer, collection_id integer, chunk_ids bigint[]
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    chunks integer;
    total_length bigint;
    numbers integer[];
    counts bigint[];
begin
    if coalesce(cardinality(chunk_ids), 0) = 0 then
        return;
    end if;
    perform ragpg._hold_off_rebuild(lexical_remove.collection_id);
    with gone as (
        delete from ragpg.lexeme_vector as vector
         where vector.tenant_id = lexical_remove.tenant_id
           and vector.collection_id = lexical_remove.collection_id
           and vector.chunk_id = any (lexical_remove.chunk_ids)
        returning vector.length, vector.weights
    ), no_more as (
        -- What is locked is being put into a block. If it is not after all, a row stays behind.
        delete from ragpg.lexeme_waiting as waiting
         where waiting.tenant_id = lexical_remove.tenant_id
           and waiting.collection_id = lexical_remove.collection_id
           and waiting.chunk_id = any (array(
                   select locked.chunk_id from ragpg.lexeme_waiting as locked
                    where locked.tenant_id = lexical_remove.tenant_id
                      and locked.collection_id = lexical_remove.collection_id
                      and locked.chunk_id = any (lexical_remove.chunk_ids)
                      for update skip locked))
    ), change as (
        select entry.number, -count(*) as chunks
          from gone, ragpg._entries(gone.weights) as entry
         group by entry.number
    )
    select (select count(*) from gone), (select sum(gone.length) from gone),
           array_agg(change.number order by change.number),
           array_agg(change.chunks order by change.number)
      into chunks, total_length, numbers, counts
      from change;
    if chunks > 0 then
        perform ragpg._write_counts(
            lexical_remove.tenant_id, lexical_remove.collection_id, 0, -chunks, -total_length,
            coalesce(numbers, '{}'), coalesce(counts, '{}'));
        perform ragpg._settle_counts(lexical_remove.tenant_id, lexical_remove.collection_id);
    end if;
end $$;
comment on function ragpg.lexical_remove(integer, integer, bigint[]) is
    'Takes these chunks out of the BM25 index, in this transaction. Called before they are deleted.';
