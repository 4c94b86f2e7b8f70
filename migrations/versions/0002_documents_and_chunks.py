"""Live documents, chunks and embeddings, and the staging area in front of them."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Create what a document becomes."""
    op.execute(DOCUMENT)
    op.execute(CHUNK)
    op.execute(EMBEDDING)
    op.execute(STAGED)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


DOCUMENT = """
create table ragpg.document (
    tenant_id integer not null,
    document_id bigint generated always as identity,
    collection_id integer not null,
    key text not null
        constraint document_key_has_1_to_1000_characters
        check (key ~ '\\S' and length(key) <= 1000),
    revision integer not null constraint revision_positive check (revision > 0),
    text text not null,
    content_hash bytea not null,
    title text,
    source text,
    tags text[] not null,
    metadata jsonb not null constraint metadata_is_an_object check (jsonb_typeof(metadata) = 'object'),
    modified_at timestamptz,
    owner text,
    review_by date,
    expires_at timestamptz,
    media_type text not null,
    page_starts integer[] not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, document_id),
    constraint document_key_unique unique (tenant_id, collection_id, key),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
);
comment on table ragpg.document is
    'A live source text. A row here is complete: its chunks, vectors and lexemes are live with it.';
comment on column ragpg.document.tenant_id is 'The tenant that owns it.';
comment on column ragpg.document.document_id is 'The number used inside.';
comment on column ragpg.document.collection_id is 'The collection that holds it.';
comment on column ragpg.document.key is 'The caller''s name for it, unique within the collection.';
comment on column ragpg.document.revision is 'Counts the published versions, from 1.';
comment on column ragpg.document.text is
    'The extracted text; every offset of a chunk or a citation counts its characters.';
comment on column ragpg.document.content_hash is
    'sha256 over text and metadata; equal bytes are not ingested again.';
comment on column ragpg.document.title is 'Its title, if it has one.';
comment on column ragpg.document.source is 'Where it came from: a path, an address.';
comment on column ragpg.document.tags is 'Its tags.';
comment on column ragpg.document.metadata is 'The caller''s fields.';
comment on column ragpg.document.modified_at is 'When the source was last modified.';
comment on column ragpg.document.owner is 'Who answers for it.';
comment on column ragpg.document.review_by is 'The day by which somebody should review it.';
comment on column ragpg.document.expires_at is 'From then on it is not found any more.';
comment on column ragpg.document.media_type is 'markdown, text, html, pdf or docx.';
comment on column ragpg.document.page_starts is 'Offsets at which its pages begin; empty without pages.';
comment on column ragpg.document.created_at is 'When its first version was published.';
comment on column ragpg.document.updated_at is 'When its newest version was published.';
"""

CHUNK = """
create table ragpg.chunk (
    tenant_id integer not null,
    chunk_id bigint generated always as identity,
    collection_id integer not null,
    document_id bigint not null,
    position integer not null constraint position_from_0 check (position >= 0),
    start integer not null,
    stop integer not null constraint start_before_stop check (0 <= start and start < stop),
    page integer,
    section_path text[] not null,
    table_header text not null,
    text text not null constraint text_has_stop_minus_start_characters
        check (length(text) = stop - start),
    text_hash bytea not null,
    context text constraint context_not_blank check (context ~ '\\S'),
    context_error text,
    contextualized_at timestamptz,
    primary key (tenant_id, chunk_id),
    constraint chunk_position_unique unique (tenant_id, document_id, position)
        deferrable initially immediate,
    foreign key (tenant_id, document_id) references ragpg.document on delete cascade
);
comment on table ragpg.chunk is 'A live passage: text = document.text from start to stop, verbatim.';
comment on column ragpg.chunk.tenant_id is 'The tenant that owns it.';
comment on column ragpg.chunk.chunk_id is 'The number used inside; kept while the passage is unchanged.';
comment on column ragpg.chunk.collection_id is 'The collection that holds it.';
comment on column ragpg.chunk.document_id is 'The document that it is a passage of.';
comment on column ragpg.chunk.position is 'Counts the chunks of the document, from 0.';
comment on column ragpg.chunk.start is 'Offset of its first character in document.text, from 0.';
comment on column ragpg.chunk.stop is 'Offset after its last character.';
comment on column ragpg.chunk.page is 'Page on which it starts, from 1; null without pages.';
comment on column ragpg.chunk.section_path is 'The headings above it, outermost first.';
comment on column ragpg.chunk.table_header is
    'Header rows of the table that it continues; read by embedding and BM25, not part of text.';
comment on column ragpg.chunk.text is 'The passage itself.';
comment on column ragpg.chunk.text_hash is 'sha256 over section path, table header and text.';
comment on column ragpg.chunk.context is
    'What the context writer wrote to situate it in its document; null if there is none.';
comment on column ragpg.chunk.context_error is 'Why the context is missing, if writing it failed.';
comment on column ragpg.chunk.contextualized_at is 'When the context was written.';
"""

EMBEDDING = """
create table ragpg.embedding (
    tenant_id integer not null,
    chunk_id bigint not null,
    collection_id integer not null,
    document_key text not null,
    source text,
    tags text[] not null,
    modified_at timestamptz,
    expires_at timestamptz,
    attributes jsonb not null,
    embedding halfvec not null,
    sketch bit varying generated always as (binary_quantize(embedding)) stored,
    primary key (tenant_id, chunk_id),
    foreign key (tenant_id, chunk_id) references ragpg.chunk on delete cascade
) with (
    toast_tuple_target = 8160,
    autovacuum_vacuum_insert_scale_factor = 0.02,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);
-- In line, since a vector out of line costs 3 to 5 times the CPU of an exact scan; main, not plain,
-- so that a row of 4000 dimensions, which does not fit a page, is still accepted.
alter table ragpg.embedding alter column embedding set storage main;
alter table ragpg.embedding alter column sketch set storage main;
alter table ragpg.embedding alter column tags set statistics 1000;
create index embedding_sketch on ragpg.embedding (tenant_id, collection_id)
    include (chunk_id, sketch, source, modified_at, expires_at);
create index embedding_source on ragpg.embedding (tenant_id, collection_id, source);
create index embedding_modified_at on ragpg.embedding (tenant_id, collection_id, modified_at);
create index embedding_document_key
    on ragpg.embedding (tenant_id, collection_id, document_key text_pattern_ops);
create index embedding_tags on ragpg.embedding using gin (tags);
create index embedding_attributes on ragpg.embedding using gin (attributes jsonb_path_ops);
comment on table ragpg.embedding is
    'The vector of a live chunk, with the columns that filters read beside it.';
comment on column ragpg.embedding.tenant_id is 'The tenant that owns it.';
comment on column ragpg.embedding.chunk_id is 'The chunk that it embeds.';
comment on column ragpg.embedding.collection_id is 'The collection that holds the chunk.';
comment on column ragpg.embedding.document_key is 'Copy of document.key, for filters.';
comment on column ragpg.embedding.source is 'Copy of document.source, for filters.';
comment on column ragpg.embedding.tags is 'Copy of document.tags, for filters.';
comment on column ragpg.embedding.modified_at is 'Copy of document.modified_at, for filters.';
comment on column ragpg.embedding.expires_at is
    'Copy of document.expires_at; both arms leave out what has expired.';
comment on column ragpg.embedding.attributes is
    'What a filter''s jsonpath reads: attributes() of the document, and "@collection", the number of its collection.';
comment on column ragpg.embedding.embedding is
    'Vector of context, table header and text; as many dimensions as the collection''s recipe says.';
comment on column ragpg.embedding.sketch is 'One bit per dimension: its sign; scanned before exact rescoring.';
comment on index ragpg.embedding_sketch is
    'Covering: one collection''s sketches as neighbours, with the scalar filter columns.';
comment on index ragpg.embedding_source is 'Filter by source.';
comment on index ragpg.embedding_modified_at is 'Filter by time of modification.';
comment on index ragpg.embedding_document_key is 'Filter by prefix of the document key.';
comment on index ragpg.embedding_tags is 'Filter by tags.';
comment on index ragpg.embedding_attributes is 'Filter by equality in metadata.';
"""

STAGED = """
create table ragpg.staged_document (
    tenant_id integer not null,
    collection_id integer not null,
    key text not null
        constraint staged_key_has_1_to_1000_characters
        check (key ~ '\\S' and length(key) <= 1000),
    status text not null
        constraint status_is_known check (status in ('staged', 'failed', 'no_text')),
    attempts integer not null default 0,
    last_error text,
    claim uuid,
    text text not null,
    content_hash bytea not null,
    title text,
    source text,
    tags text[] not null,
    metadata jsonb not null
        constraint staged_metadata_is_an_object check (jsonb_typeof(metadata) = 'object'),
    modified_at timestamptz,
    owner text,
    review_by date,
    expires_at timestamptz,
    media_type text not null,
    page_starts integer[] not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, collection_id, key),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
);
comment on table ragpg.staged_document is
    'A version that is not live: being worked on, failed, or without text. Publishing moves it to document.';
comment on column ragpg.staged_document.tenant_id is 'The tenant that owns it.';
comment on column ragpg.staged_document.collection_id is 'The collection that it is for.';
comment on column ragpg.staged_document.key is 'The document''s key; a live version may exist beside it.';
comment on column ragpg.staged_document.status is 'staged, failed (see last_error) or no_text.';
comment on column ragpg.staged_document.attempts is 'How often it was tried.';
comment on column ragpg.staged_document.last_error is 'Why the last try failed.';
comment on column ragpg.staged_document.claim is
    'Fencing token of the newest ingest; an older one can no longer publish.';
comment on column ragpg.staged_document.text is 'The extracted text.';
comment on column ragpg.staged_document.content_hash is 'sha256 over text and metadata.';
comment on column ragpg.staged_document.title is 'As in document.';
comment on column ragpg.staged_document.source is 'As in document.';
comment on column ragpg.staged_document.tags is 'As in document.';
comment on column ragpg.staged_document.metadata is 'As in document.';
comment on column ragpg.staged_document.modified_at is 'As in document.';
comment on column ragpg.staged_document.owner is 'As in document.';
comment on column ragpg.staged_document.review_by is 'As in document.';
comment on column ragpg.staged_document.expires_at is 'As in document.';
comment on column ragpg.staged_document.media_type is 'As in document.';
comment on column ragpg.staged_document.page_starts is 'As in document.';
comment on column ragpg.staged_document.created_at is 'When this version was first staged.';
comment on column ragpg.staged_document.updated_at is 'When something last happened to it.';

create table ragpg.staged_chunk (
    tenant_id integer not null,
    collection_id integer not null,
    document_key text not null,
    position integer not null,
    start integer not null,
    stop integer not null,
    page integer,
    section_path text[] not null,
    table_header text not null,
    text text not null,
    text_hash bytea not null,
    context text constraint staged_context_not_blank check (context ~ '\\S'),
    context_error text,
    contextualized_at timestamptz,
    embedding halfvec,
    chunk_id bigint,
    primary key (tenant_id, collection_id, document_key, position),
    foreign key (tenant_id, collection_id, document_key)
        references ragpg.staged_document on delete cascade
);
alter table ragpg.staged_chunk alter column embedding set storage external;
comment on table ragpg.staged_chunk is
    'A chunk of a staged document. Context and vector are filled in as they are paid for.';
comment on column ragpg.staged_chunk.tenant_id is 'The tenant that owns it.';
comment on column ragpg.staged_chunk.collection_id is 'The collection that it is for.';
comment on column ragpg.staged_chunk.document_key is 'The staged document that it is a passage of.';
comment on column ragpg.staged_chunk.position is 'As in chunk.';
comment on column ragpg.staged_chunk.start is 'As in chunk.';
comment on column ragpg.staged_chunk.stop is 'As in chunk.';
comment on column ragpg.staged_chunk.page is 'As in chunk.';
comment on column ragpg.staged_chunk.section_path is 'As in chunk.';
comment on column ragpg.staged_chunk.table_header is 'As in chunk.';
comment on column ragpg.staged_chunk.text is 'As in chunk.';
comment on column ragpg.staged_chunk.text_hash is 'As in chunk.';
comment on column ragpg.staged_chunk.context is 'As in chunk; null while it is not written.';
comment on column ragpg.staged_chunk.context_error is 'Why writing the context failed, if it did.';
comment on column ragpg.staged_chunk.contextualized_at is 'When the context was written.';
comment on column ragpg.staged_chunk.embedding is 'Its vector; null while it is not embedded.';
comment on column ragpg.staged_chunk.chunk_id is
    'The live chunk of the same text, which will be kept; null for a new passage.';
"""
