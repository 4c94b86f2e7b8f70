"""Contexts that a model refused for good, and the windows that vectors were made in."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Add the columns; what failed before is asked for once more, since nobody knows why."""
    op.execute(REFUSED)
    op.execute(WINDOW)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


REFUSED = """
alter table ragpg.chunk add column context_refused boolean not null default false;
comment on column ragpg.chunk.context_refused is
    'Whether context_error stands for good: the model refused this text, so it is asked again only if somebody says so.';
alter table ragpg.staged_chunk add column context_refused boolean not null default false;
comment on column ragpg.staged_chunk.context_refused is 'As in chunk.';
create index chunk_context_gap on ragpg.chunk (tenant_id, document_id)
    include (collection_id, context_refused)
    where context_error is not null;
comment on index ragpg.chunk_context_gap is 'The few chunks of which a context failed.';
"""

WINDOW = """
alter table ragpg.staged_chunk add column window_hash bytea;
comment on column ragpg.staged_chunk.window_hash is
    'sha256 of the texts in sight of which the vector was made, where chunks are embedded together; null for a vector made alone or taken from a live chunk.';
"""
