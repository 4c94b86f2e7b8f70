"""Keys of new chunks go into the index of lexemes a hundred chunks at a time."""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Let the index keep a list of new keys. What is in it stays, so nothing is built anew."""
    op.execute(PENDING)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


# In kB, some 115 chunks of 90 words. A search reads the list from end to end, 1.6 microseconds a chunk;
# decision 0015 has the figures for longer ones.
PENDING = """
alter index ragpg.lexeme_vector_keys set (fastupdate = on, gin_pending_list_limit = 256);
"""
