"""How large a collection may be to be read whole, and which searches read one so."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Add the columns; the defaults hold for every collection and search that is there."""
    op.execute(LIMIT)
    op.execute(MODE)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


LIMIT = """
alter table ragpg.collection
    add column whole_corpus_tokens integer not null default 20000
        constraint whole_corpus_tokens_not_negative check (whole_corpus_tokens >= 0);
comment on column ragpg.collection.whole_corpus_tokens is
    'Recipe: up to so many estimated tokens an answer reads the whole collection instead of hits; 0 means never. The one part of a recipe that may change, see set_whole_corpus_tokens.';
"""

MODE = """
alter table ragpg.search
    add column mode text not null default 'retrieved'
        constraint mode_is_known check (mode in ('retrieved', 'whole_corpus'));
comment on column ragpg.search.mode is
    'retrieved, or whole_corpus: nothing was searched, the answer read all that the filter let through.';
"""
