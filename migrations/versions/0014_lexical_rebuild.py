"""Where a BM25 index is computed anew beside the one that is in use, and which readers were bound."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Create the tables; a trigger of the function files keeps the names of readers."""
    op.execute(REBUILD)
    op.execute(READERS)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


# Unlogged: a crash costs the work that was done, and the live index is not touched by it.
REBUILD = """
create unlogged table ragpg.lexical_rebuild (
    tenant_id integer not null,
    collection_id integer not null,
    reading text not null,
    average_length double precision not null
        constraint rebuild_length_at_least_1 check (average_length >= 1),
    started_at timestamptz not null default now(),
    primary key (tenant_id, collection_id),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
);
comment on table ragpg.lexical_rebuild is
    'A collection whose BM25 index is being computed anew; searches use the old one until it is whole.';
comment on column ragpg.lexical_rebuild.tenant_id is 'The tenant that owns it.';
comment on column ragpg.lexical_rebuild.collection_id is 'The collection.';
comment on column ragpg.lexical_rebuild.reading is
    'Release and server that read the texts; under another one the rebuild begins anew.';
comment on column ragpg.lexical_rebuild.average_length is
    'What lexical_reference will hold: the weights are computed with it.';
comment on column ragpg.lexical_rebuild.started_at is 'When it was begun.';

create unlogged table ragpg.lexeme_rebuild (
    tenant_id integer not null,
    collection_id integer not null,
    chunk_id bigint not null,
    text_hash bigint not null,
    length integer not null,
    left_out integer not null,
    weights sparsevec not null,
    primary key (tenant_id, collection_id, chunk_id),
    foreign key (tenant_id, collection_id) references ragpg.lexical_rebuild on delete cascade
);
comment on table ragpg.lexeme_rebuild is
    'What lexeme_vector will hold of a chunk when the rebuild of its collection is whole.';
comment on column ragpg.lexeme_rebuild.tenant_id is 'The tenant that owns it.';
comment on column ragpg.lexeme_rebuild.collection_id is 'The collection that holds the chunk.';
comment on column ragpg.lexeme_rebuild.chunk_id is 'The chunk; it may be gone by now.';
comment on column ragpg.lexeme_rebuild.text_hash is
    'hashtextextended of what was read, to tell a chunk that has changed since.';
comment on column ragpg.lexeme_rebuild.length is 'As in lexeme_vector.';
comment on column ragpg.lexeme_rebuild.left_out is 'As in lexeme_vector.';
comment on column ragpg.lexeme_rebuild.weights is 'As in lexeme_vector.';

create unlogged table ragpg.lexeme_rebuild_count (
    tenant_id integer not null,
    collection_id integer not null,
    step_id bigint generated always as identity,
    numbers integer[] not null,
    changes integer[] not null,
    primary key (tenant_id, collection_id, step_id),
    foreign key (tenant_id, collection_id) references ragpg.lexical_rebuild on delete cascade
);
comment on table ragpg.lexeme_rebuild_count is
    'What each step of a rebuild changed in the number of chunks per lexeme.';
comment on column ragpg.lexeme_rebuild_count.tenant_id is 'The tenant that owns it.';
comment on column ragpg.lexeme_rebuild_count.collection_id is 'The collection that is counted.';
comment on column ragpg.lexeme_rebuild_count.step_id is 'Tells the steps apart.';
comment on column ragpg.lexeme_rebuild_count.numbers is 'Lexeme numbers.';
comment on column ragpg.lexeme_rebuild_count.changes is
    'For each of them: chunks that hold it, added less removed.';
"""

READERS = """
create table ragpg.reader_name (
    tenant_id integer not null references ragpg.tenant on delete cascade,
    role_name text not null,
    role_number oid not null,
    primary key (tenant_id, role_name)
);
comment on table ragpg.reader_name is
    'The names of the roles in reader_tenant: a dump keeps them also on a server without these roles, where reader_tenant stays empty.';
comment on column ragpg.reader_name.tenant_id is 'The tenant to which the role was bound.';
comment on column ragpg.reader_name.role_name is 'What the role was called when it was bound.';
comment on column ragpg.reader_name.role_number is
    'Its number on the server where it was bound; tells it after it was renamed.';
insert into ragpg.reader_name (tenant_id, role_name, role_number)
select reader_tenant.tenant_id, pg_roles.rolname, pg_roles.oid
  from ragpg.reader_tenant
  join pg_roles on pg_roles.oid = reader_tenant.role;
"""
