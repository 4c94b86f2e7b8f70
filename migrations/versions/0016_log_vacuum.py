"""Vacuum of the log, from which workers delete what is old."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Change the settings of the two tables; nothing is read or written."""
    op.execute(VACUUM)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


# Of a log of 90 days a ninetieth goes each day; a vacuum at a fifth of it would come every 18 days.
VACUUM = """
alter table ragpg.search set (autovacuum_vacuum_scale_factor = 0.01);
alter table ragpg.search_hit set (autovacuum_vacuum_scale_factor = 0.01);
"""
