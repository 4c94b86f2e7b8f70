"""Small collections without an index of lexemes: they are scanned, so it would only cost."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Build the index anew over the rows that are in it; those that are there stay in it."""
    op.execute(INDEXED)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


INDEXED = """
alter table ragpg.lexeme_vector add column indexed boolean not null default true;
alter table ragpg.lexeme_vector alter column indexed drop default;
comment on column ragpg.lexeme_vector.indexed is
    'Whether lexeme_vector_keys holds it. A search reads every row of its collection that is not indexed; lexical_add indexes from 7,000 chunks on.';

drop index ragpg.lexeme_vector_keys;
create index lexeme_vector_keys on ragpg.lexeme_vector
    using gin (ragpg.lexeme_keys(collection_id, weights)) with (fastupdate = off)
    where indexed;
-- Statistics of the keys would cost 100 microseconds a row of the sample, and nothing reads them.
alter index ragpg.lexeme_vector_keys alter column 1 set statistics 0;
comment on index ragpg.lexeme_vector_keys is
    'Which chunks hold a lexeme, and which hold it with a high weight.';
create index lexeme_vector_not_indexed on ragpg.lexeme_vector (tenant_id, collection_id)
    where not indexed;
comment on index ragpg.lexeme_vector_not_indexed is 'The rows that a search reads one by one.';
"""
