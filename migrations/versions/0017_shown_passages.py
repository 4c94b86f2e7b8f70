"""What a logged search showed, by document, and no metadata in the place of a document's own field."""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Add the columns, and mend the attributes of documents whose metadata named them "@"."""
    op.execute(SHOWN)
    op.execute(FORGED)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


# Of searches before this revision they stay null: the chunk alone says which document it was.
SHOWN = """
alter table ragpg.search_hit
    add column document_key text, add column start integer, add column stop integer;
-- As revision 0015 says of text that a reader may see.
alter table ragpg.search_hit alter column document_key set statistics 0;
comment on column ragpg.search_hit.document_key is
    'The document of the chunk at that time; stays when the chunk is gone.';
comment on column ragpg.search_hit.start is
    'Where the chunk began in the text of the document at that time, in characters.';
comment on column ragpg.search_hit.stop is
    'Where the chunk ended in the text of the document at that time, in characters.';
"""

# What the document has, it had written over such metadata; what it has not, stood as it was given. A
# metadata object that is its own instants would have to hold itself, so one that stands is no real one.
FORGED = """
update ragpg.embedding
   set attributes = embedding.attributes - array[
           case when document.source is null then '@source' end,
           case when document.modified_at is null then '@modified_at' end,
           case when embedding.attributes -> '@instants' = document.metadata -> '@instants'
                then '@instants' end]
  from ragpg.chunk
  join ragpg.document on document.tenant_id = chunk.tenant_id
                     and document.document_id = chunk.document_id
 where chunk.tenant_id = embedding.tenant_id and chunk.chunk_id = embedding.chunk_id
   and document.metadata ?| '{@source,@modified_at,@instants}';
"""
