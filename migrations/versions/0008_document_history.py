"""Every change of a live document: what happened, by whom, and when."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Create the history and what finds documents that are due."""
    op.execute(HISTORY)
    op.execute(DUE)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


HISTORY = """
create table ragpg.document_history (
    tenant_id integer not null,
    history_id bigint generated always as identity,
    collection_id integer not null,
    document_key text not null,
    former_key text,
    action text not null
        constraint action_is_known
        check (action in ('published', 'deleted', 'renamed', 'expired')),
    revision integer not null,
    content_hash bytea not null,
    kept_chunks integer not null constraint kept_chunks_not_negative check (kept_chunks >= 0),
    new_chunks integer not null constraint new_chunks_not_negative check (new_chunks >= 0),
    role text not null,
    actor text,
    happened_at timestamptz not null default now(),
    primary key (tenant_id, history_id),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade,
    constraint only_a_renaming_has_a_former_key
        check ((former_key is not null) = (action = 'renamed'))
);
create index document_history_key
    on ragpg.document_history (tenant_id, collection_id, document_key, history_id);
comment on table ragpg.document_history is
    'A change of a live document, written in the transaction that made it. Outlives the document; goes with its collection.';
comment on column ragpg.document_history.tenant_id is 'The tenant that owns it.';
comment on column ragpg.document_history.history_id is 'The number used inside; ascends within a document.';
comment on column ragpg.document_history.collection_id is 'The collection of the document.';
comment on column ragpg.document_history.document_key is 'Its key, after the change.';
comment on column ragpg.document_history.former_key is 'Its key before it was renamed.';
comment on column ragpg.document_history.action is 'published, deleted, renamed or expired.';
comment on column ragpg.document_history.revision is
    'The version that was published, renamed or removed; counts from 1 again after a removal.';
comment on column ragpg.document_history.content_hash is 'sha256 over text and metadata of that version.';
comment on column ragpg.document_history.kept_chunks is
    'published: chunks that were live before. Otherwise the chunks that were renamed or removed.';
comment on column ragpg.document_history.new_chunks is 'published: chunks that are new.';
comment on column ragpg.document_history.role is 'The login role (session_user) that did it.';
comment on column ragpg.document_history.actor is
    'On whose behalf, as the setting ragpg.actor said; null where it was not set.';
comment on column ragpg.document_history.happened_at is 'When its transaction began.';
comment on index ragpg.document_history_key is 'The history of one document, oldest first.';
"""

DUE = """
create index document_expires_at on ragpg.document (tenant_id, collection_id, expires_at)
    where expires_at is not null;
create index document_review_by on ragpg.document (tenant_id, collection_id, review_by)
    where review_by is not null;
comment on index ragpg.document_expires_at is 'Documents that expire, soonest first.';
comment on index ragpg.document_review_by is 'Documents to review, soonest first.';
"""
