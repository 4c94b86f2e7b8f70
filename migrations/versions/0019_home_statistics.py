"""The planner learns that a collection of lexemes and of chunks has one tenant."""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Name the dependency and read it at once: a sample of the two columns, a second at most."""
    op.execute(STATISTICS)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


# Without it the shares of tenant and collection are multiplied: one row of 100,000 for each of a
# thousand tenants, so that a change of three chunks read all of its collection along the key.
STATISTICS = """
create statistics ragpg.lexeme_vector_home (dependencies) on tenant_id, collection_id
  from ragpg.lexeme_vector;
comment on statistics ragpg.lexeme_vector_home is 'A collection belongs to one tenant.';
create statistics ragpg.chunk_home (dependencies) on tenant_id, collection_id
  from ragpg.chunk;
comment on statistics ragpg.chunk_home is 'A collection belongs to one tenant.';
analyze ragpg.lexeme_vector (tenant_id, collection_id);
analyze ragpg.chunk (tenant_id, collection_id);
"""
