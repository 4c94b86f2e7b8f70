"""An index of tags in which a search meets the chunks of its own collection only."""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Build the index anew, a key for each pair of collection and tag: 1 s for 100,000 chunks."""
    op.execute(KEYS)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


# The index stores what this function returned, so its body may not change without a reindex: it is
# state, and stands here rather than among the functions. A cost that says how long it takes (500) would be
# counted for every row of a scan of the index too, which computes no key.
KEYS = """
create function ragpg.tag_keys(collection_id integer, tags text[]) returns text[]
-- Not in SQL, which takes 1.7 microseconds instead of 1.1, and in which PostgreSQL before 18 plans the
-- body once a statement.
language plpgsql immutable parallel safe
cost 10
set search_path = pg_catalog, pg_temp
as $$
declare
    tag text;
    keys text[] := '{}';
begin
    foreach tag in array tags loop
        keys := keys || (collection_id || '.' || tag);
    end loop;
    return keys;
end $$;
comment on function ragpg.tag_keys(integer, text[]) is
    'The keys of a chunk in the index of tags: c.t for each tag t in collection c. Equal for two chunks only if they have both in common.';

drop index ragpg.embedding_tags;
create index embedding_tags on ragpg.embedding using gin (ragpg.tag_keys(collection_id, tags));
-- Searches are planned by the statistics of the column; to read those of the keys, of which there are
-- many more, would cost each search with tags 0.1 ms.
alter index ragpg.embedding_tags alter column 1 set statistics 0;
comment on index ragpg.embedding_tags is
    'Filter by tags, each collection''s apart: a scan meets no chunk of another.';
"""
