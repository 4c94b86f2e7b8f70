"""The BM25 index: one weight vector per chunk, and counts of chunks per lexeme."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Create the tables of the lexical arm, and its index with the function that it hangs on."""
    op.execute(VECTOR)
    # Past SQLAlchemy, which would read the colons of the expression as parameters.
    op.get_bind().exec_driver_sql(KEYS)
    op.execute(COUNTS)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


VECTOR = """
create table ragpg.lexeme_vector (
    tenant_id integer not null,
    collection_id integer not null,
    chunk_id bigint not null,
    length integer not null,
    left_out integer not null,
    expires_at timestamptz,
    weights sparsevec not null,
    primary key (tenant_id, collection_id, chunk_id),
    foreign key (tenant_id, chunk_id) references ragpg.chunk on delete cascade
) with (
    toast_tuple_target = 8160,
    autovacuum_vacuum_insert_scale_factor = 0.02,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);
-- In line up to a page: a fetch out of line for each candidate would cost more than its score.
alter table ragpg.lexeme_vector alter column weights set storage main;
comment on table ragpg.lexeme_vector is
    'The lexemes of a live chunk with their BM25 weights. Written by lexical_add and lexical_remove only.';
comment on column ragpg.lexeme_vector.tenant_id is 'The tenant that owns it.';
comment on column ragpg.lexeme_vector.collection_id is 'The collection that holds the chunk.';
comment on column ragpg.lexeme_vector.chunk_id is 'The chunk.';
comment on column ragpg.lexeme_vector.length is 'Its length: occurrences of lexemes.';
comment on column ragpg.lexeme_vector.left_out is
    'How many of its different lexemes are beyond the 16,000 that weights holds; 0 for any normal chunk. What tokenize left out of a huge text is not counted.';
comment on column ragpg.lexeme_vector.expires_at is 'Copy of document.expires_at.';
comment on column ragpg.lexeme_vector.weights is
    'By lexeme_number(lexeme): tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / reference)), see lexical_reference.';

create table ragpg.lexical_reference (
    tenant_id integer not null,
    collection_id integer not null,
    average_length double precision not null
        constraint reference_length_at_least_1 check (average_length >= 1),
    primary key (tenant_id, collection_id),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
);
comment on table ragpg.lexical_reference is
    'The average length with which the stored weights of a collection were computed.';
comment on column ragpg.lexical_reference.tenant_id is 'The tenant that owns it.';
comment on column ragpg.lexical_reference.collection_id is 'The collection.';
comment on column ragpg.lexical_reference.average_length is
    'Fixed by the first chunks, moved by rebuild_lexical. Scores use the average of now; this one only bounds them.';
"""

# The index stores what this function returned, so its body may not change without a reindex: it is
# state, and stands here rather than among the functions. It reads a vector's text with replace and one
# regular expression, since taking 60 elements apart in SQL costs five times as much.
KEYS = r"""
create function ragpg.lexeme_keys(collection_id integer, weights sparsevec) returns tsvector
language sql immutable parallel safe
begin atomic
    select (to_hex(collection_id) || '.' || replace(replace(replace(
                regexp_replace(btrim(split_part(weights::text, '/', 1), '{}'),
                               '([0-9]+):(?:1\.[2-4]|(1)\.[5-9]|(2))', '\1,+\1,\2\3+\1:1', 'g'),
                '.', ''), 'e-', ''), ',', ' ' || to_hex(collection_id) || '.'))::tsvector;
end;
comment on function ragpg.lexeme_keys(integer, sparsevec) is
    'The keys of a chunk in the index, for each lexeme number n in collection c (in hex): c.n; c.+n where its weight is 1.2 or more; c.1+n from 1.5 to 2; c.2+n from 2.';
create index lexeme_vector_keys on ragpg.lexeme_vector
    using gin (ragpg.lexeme_keys(collection_id, weights)) with (fastupdate = off);
-- Statistics of the keys would cost 100 microseconds a row of the sample, and nothing reads them.
alter index ragpg.lexeme_vector_keys alter column 1 set statistics 0;
comment on index ragpg.lexeme_vector_keys is
    'Which chunks hold a lexeme, and which hold it with a high weight.';
"""

COUNTS = """
create table ragpg.lexeme_count (
    tenant_id integer not null,
    collection_id integer not null,
    run_id bigint generated always as identity,
    slice integer not null,
    level integer not null,
    first_number integer not null,
    last_number integer not null,
    chunks integer not null,
    total_length bigint not null,
    counts sparsevec not null,
    primary key (tenant_id, collection_id, run_id),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
comment on table ragpg.lexeme_count is
    'Changes of the number of chunks per lexeme. A writer only appends, so writers never wait for each other; the sum of all visible rows is the count. Merged now and then, see level.';
comment on column ragpg.lexeme_count.tenant_id is 'The tenant that owns it.';
comment on column ragpg.lexeme_count.collection_id is 'The collection that is counted.';
comment on column ragpg.lexeme_count.run_id is 'Tells the rows apart.';
comment on column ragpg.lexeme_count.slice is
    'Counts the rows that were written together, from 0; each holds a range of lexeme numbers.';
comment on column ragpg.lexeme_count.level is
    '0 as written by one publish; eight of one level are merged into one of the next.';
comment on column ragpg.lexeme_count.first_number is 'The smallest lexeme number in counts.';
comment on column ragpg.lexeme_count.last_number is 'The largest lexeme number in counts.';
comment on column ragpg.lexeme_count.chunks is 'Chunks added less chunks removed; on slice 0 only.';
comment on column ragpg.lexeme_count.total_length is 'Change of their summed length; on slice 0 only.';
comment on column ragpg.lexeme_count.counts is
    'By lexeme number: chunks that hold it, added less removed; exact up to 16,777,216.';
"""
