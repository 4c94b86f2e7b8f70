"""Batches of contexts that a vendor writes within a day, so that a restart finds them again."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Create the batches and what each of their requests means."""
    op.execute(BATCH)
    op.execute(ITEM)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


BATCH = """
create table ragpg.context_batch (
    tenant_id integer not null,
    batch_id uuid not null,
    collection_id integer not null,
    provider text not null,
    model text not null,
    status text not null
        constraint context_batch_status_is_known
        check (status in ('intended', 'submitted', 'collected', 'dropped')),
    vendor_id text,
    requests integer not null constraint requests_not_negative check (requests >= 0),
    last_error text,
    created_at timestamptz not null default now(),
    submitted_at timestamptz,
    finished_at timestamptz,
    primary key (tenant_id, batch_id),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade,
    constraint submitted_has_a_vendor_id
        check (vendor_id is not null or status in ('intended', 'dropped'))
);
create index context_batch_open on ragpg.context_batch (tenant_id, collection_id, created_at)
    where status in ('intended', 'submitted');
comment on table ragpg.context_batch is
    'Chunks whose contexts were asked for together. The row is written before the vendor is called.';
comment on column ragpg.context_batch.tenant_id is 'The tenant that owns it.';
comment on column ragpg.context_batch.batch_id is
    'Its own number; each custom id at the vendor begins with it.';
comment on column ragpg.context_batch.collection_id is 'The collection that it is for.';
comment on column ragpg.context_batch.provider is 'Who was asked.';
comment on column ragpg.context_batch.model is 'The model that was asked.';
comment on column ragpg.context_batch.status is
    'intended (the vendor may or may not have it), submitted, collected, or dropped (never reached it).';
comment on column ragpg.context_batch.vendor_id is 'The vendor''s id; null while it is not known.';
comment on column ragpg.context_batch.requests is 'How many contexts it asks for.';
comment on column ragpg.context_batch.last_error is 'What went wrong with it, if something did.';
comment on column ragpg.context_batch.created_at is 'When it was intended.';
comment on column ragpg.context_batch.submitted_at is 'When the vendor''s id was written.';
comment on column ragpg.context_batch.finished_at is 'When it was collected or dropped.';
comment on index ragpg.context_batch_open is 'What is still to be collected.';
"""

ITEM = """
create table ragpg.context_batch_item (
    tenant_id integer not null,
    batch_id uuid not null,
    number integer not null constraint number_from_0 check (number >= 0),
    collection_id integer not null,
    document_key text not null,
    position integer not null,
    text_hash bytea not null,
    status text not null default 'waiting'
        constraint context_batch_item_status_is_known
        check (status in ('waiting', 'written', 'unused', 'failed', 'dropped')),
    error text,
    primary key (tenant_id, batch_id, number),
    foreign key (tenant_id, batch_id) references ragpg.context_batch on delete cascade
);
create unique index context_batch_item_waiting
    on ragpg.context_batch_item (tenant_id, collection_id, document_key, text_hash, position)
    where status = 'waiting';
create index context_batch_item_chunk
    on ragpg.context_batch_item (tenant_id, collection_id, document_key, text_hash);
comment on table ragpg.context_batch_item is
    'One request of a batch: the staged chunk that its context is for, known by its text.';
comment on column ragpg.context_batch_item.tenant_id is 'The tenant that owns it.';
comment on column ragpg.context_batch_item.batch_id is 'The batch that holds it.';
comment on column ragpg.context_batch_item.number is
    'Counts the batch''s requests from 0; the end of the custom id.';
comment on column ragpg.context_batch_item.collection_id is 'Copy of context_batch.collection_id.';
comment on column ragpg.context_batch_item.document_key is 'The document of the chunk.';
comment on column ragpg.context_batch_item.position is 'Where the chunk stood when it was asked for.';
comment on column ragpg.context_batch_item.text_hash is
    'As in staged_chunk: finds the chunk again when the document was staged anew.';
comment on column ragpg.context_batch_item.status is
    'waiting, written, unused (paid for, but no chunk needs it any more), failed, or dropped (no answer).';
comment on column ragpg.context_batch_item.error is 'Why there is no context, if there is none.';
comment on index ragpg.context_batch_item_waiting is
    'A chunk waits in one batch at a time: two submitters cannot pay for it twice.';
comment on index ragpg.context_batch_item_chunk is 'Earlier tries of a chunk.';
"""
