"""Columns of weights, a lexeme's in 4,000 chunks each: what queries of common words are read from."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Create the tables. All that is indexed waits for a block; until then searches do without."""
    op.execute(BLOCKS)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


BLOCKS = """
create table ragpg.lexeme_waiting (
    tenant_id integer not null,
    collection_id integer not null,
    chunk_id bigint not null,
    primary key (tenant_id, collection_id, chunk_id),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
) with (
    autovacuum_vacuum_threshold = 4000,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05
);
comment on table ragpg.lexeme_waiting is
    'The indexed chunks that are in no block with the weights they have now. A search scores them all. A chunk that is gone may stay here for a while.';
comment on column ragpg.lexeme_waiting.tenant_id is 'The tenant that owns it.';
comment on column ragpg.lexeme_waiting.collection_id is 'The collection that holds the chunk.';
comment on column ragpg.lexeme_waiting.chunk_id is 'The chunk.';

create table ragpg.lexeme_block (
    tenant_id integer not null,
    collection_id integer not null,
    block_id bigint generated always as identity,
    chunk_ids bigint[] not null,
    primary key (tenant_id, collection_id, block_id),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
);
-- Compressed it would take a third of the space and of every search 40 microseconds a block.
alter table ragpg.lexeme_block alter column chunk_ids set storage external;
comment on table ragpg.lexeme_block is
    'Up to 4,000 chunks whose weights are also kept lexeme by lexeme, see lexeme_column. Never changed: what is written anew waits for another block, and what is gone is found out when it is read.';
comment on column ragpg.lexeme_block.tenant_id is 'The tenant that owns it.';
comment on column ragpg.lexeme_block.collection_id is 'The collection that holds the chunks.';
comment on column ragpg.lexeme_block.block_id is 'Tells the blocks apart.';
comment on column ragpg.lexeme_block.chunk_ids is 'The chunks, by their places in the block.';

create table ragpg.lexeme_column (
    tenant_id integer not null,
    collection_id integer not null,
    number integer not null,
    block_id bigint not null,
    weights sparsevec not null,
    primary key (tenant_id, collection_id, number, block_id),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
) with (toast_tuple_target = 8160);
alter table ragpg.lexeme_column alter column weights set storage external;
comment on table ragpg.lexeme_column is
    'The weights of a lexeme in the chunks of a block, of those lexemes that 0.5 % of them hold.';
comment on column ragpg.lexeme_column.tenant_id is 'The tenant that owns it.';
comment on column ragpg.lexeme_column.collection_id is 'The collection that holds the chunks.';
comment on column ragpg.lexeme_column.number is 'lexeme_number(lexeme).';
comment on column ragpg.lexeme_column.block_id is 'The block.';
comment on column ragpg.lexeme_column.weights is
    'By place in the block: what lexeme_vector.weights held of this lexeme.';

insert into ragpg.lexeme_waiting (tenant_id, collection_id, chunk_id)
select vector.tenant_id, vector.collection_id, vector.chunk_id
  from ragpg.lexeme_vector as vector
 where vector.indexed;
"""
