"""What a sync owns, what waits for a batch, and how a recipe treats contexts."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Create and add them; the defaults hold for every collection and document that is there."""
    op.execute(SYNCED_KEY)
    op.execute(RECIPE)
    op.execute(BATCHED)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


SYNCED_KEY = """
create table ragpg.synced_key (
    tenant_id integer not null,
    collection_id integer not null,
    document_key text not null,
    root text not null constraint root_not_blank check (root ~ '\\S'),
    synced_at timestamptz not null default now(),
    primary key (tenant_id, collection_id, document_key),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
);
comment on table ragpg.synced_key is
    'The document keys that a sync of a folder has made: only these may another sync remove.';
comment on column ragpg.synced_key.tenant_id is 'The tenant that owns it.';
comment on column ragpg.synced_key.collection_id is 'The collection of the document.';
comment on column ragpg.synced_key.document_key is
    'The document''s key; written before the document is live.';
comment on column ragpg.synced_key.root is 'The folder that it was synced from, as an absolute path.';
comment on column ragpg.synced_key.synced_at is 'When that folder first gave it.';
"""

RECIPE = """
alter table ragpg.collection
    add column context_reuse text not null default 'chunk'
        constraint context_reuse_is_known check (context_reuse in ('chunk', 'document')),
    add column failed_contexts text not null default 'publish'
        constraint failed_contexts_is_known check (failed_contexts in ('publish', 'hold'));
comment on column ragpg.collection.context_reuse is
    'Recipe: a context is kept while its chunk''s text is the same (chunk), or its whole document''s (document).';
comment on column ragpg.collection.failed_contexts is
    'Recipe: a document of which a context failed is published with the gap (publish) or not (hold).';
"""

BATCHED = """
alter table ragpg.staged_document add column batched boolean not null default false;
comment on column ragpg.staged_document.batched is
    'Its contexts are asked for in batches; whoever collects them publishes it.';
"""
