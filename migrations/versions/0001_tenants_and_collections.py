"""Tenants, bound readers, collections with their recipe, and aliases."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Create the tables that everything else hangs on."""
    op.execute(TENANT)
    op.execute(COLLECTION)
    op.execute(INSTALLATION)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


TENANT = """
create table ragpg.tenant (
    tenant_id integer generated always as identity primary key,
    key text not null
        constraint tenant_key_unique unique
        constraint tenant_key_has_1_to_200_characters check (key ~ '\\S' and length(key) <= 200),
    created_at timestamptz not null default now()
);
comment on table ragpg.tenant is
    'An isolation boundary. No row of one tenant is ever shown to another.';
comment on column ragpg.tenant.tenant_id is
    'The number used inside; first column of every key.';
comment on column ragpg.tenant.key is 'The caller''s name for the tenant.';
comment on column ragpg.tenant.created_at is 'When the tenant was made.';

create table ragpg.reader_tenant (
    role regrole primary key,
    tenant_id integer not null references ragpg.tenant on delete cascade
);
comment on table ragpg.reader_tenant is
    'Binds a database role to one tenant: whatever it sets, it sees that tenant only.';
comment on column ragpg.reader_tenant.role is
    'A role that is a member of ragpg_reader: a login, or a group of logins. Follows a rename.';
comment on column ragpg.reader_tenant.tenant_id is 'The one tenant that the role may see.';
"""

COLLECTION = """
create table ragpg.collection (
    tenant_id integer not null references ragpg.tenant on delete cascade,
    collection_id integer generated always as identity,
    name text not null
        constraint collection_name_has_1_to_200_characters
        check (name ~ '\\S' and length(name) <= 200),
    embedding_provider text not null,
    embedding_model text not null,
    dimensions integer not null
        constraint dimensions_between_1_and_4000 check (dimensions between 1 and 4000),
    embedding_dtype text not null
        constraint embedding_dtype_is_known check (embedding_dtype in ('float', 'int8')),
    context_provider text not null,
    context_model text not null,
    context_prompt_version integer not null,
    glossary text not null,
    splitter text not null
        constraint splitter_is_known
        check (splitter in ('section', 'fixed', 'semantic', 'whole')),
    max_tokens integer not null constraint max_tokens_positive check (max_tokens > 0),
    overlap_tokens integer not null
        constraint overlap_smaller_than_chunk
        check (overlap_tokens >= 0 and overlap_tokens < max_tokens),
    language text not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, collection_id),
    constraint collection_name_unique unique (tenant_id, name)
);
comment on table ragpg.collection is
    'Documents of one tenant under one recipe for life; a changed recipe is a new collection and an alias swap.';
comment on column ragpg.collection.tenant_id is 'The tenant that owns it.';
comment on column ragpg.collection.collection_id is 'The number used inside.';
comment on column ragpg.collection.name is 'The caller''s name for it, unique within the tenant.';
comment on column ragpg.collection.embedding_provider is 'Recipe: who embeds (local, voyage, ..).';
comment on column ragpg.collection.embedding_model is 'Recipe: the embedding model.';
comment on column ragpg.collection.dimensions is 'Recipe: length of every vector, 1 to 4000.';
comment on column ragpg.collection.embedding_dtype is 'Recipe: what the vendor sends, float or int8.';
comment on column ragpg.collection.context_provider is
    'Recipe: who writes contexts (rule, claude, none, ..).';
comment on column ragpg.collection.context_model is 'Recipe: the model that writes contexts.';
comment on column ragpg.collection.context_prompt_version is 'Recipe: version of the context prompt.';
comment on column ragpg.collection.glossary is
    'Recipe: terms that the context writer is told about; may be empty.';
comment on column ragpg.collection.splitter is 'Recipe: section, fixed, semantic or whole.';
comment on column ragpg.collection.max_tokens is 'Recipe: largest chunk, in estimated tokens.';
comment on column ragpg.collection.overlap_tokens is
    'Recipe: overlap of neighbours in text without structure, in estimated tokens.';
comment on column ragpg.collection.language is 'Recipe: text search configuration for BM25.';
comment on column ragpg.collection.created_at is 'When the collection was made.';

create table ragpg.collection_alias (
    tenant_id integer not null,
    alias text not null
        constraint alias_has_1_to_200_characters check (alias ~ '\\S' and length(alias) <= 200),
    collection_id integer not null,
    primary key (tenant_id, alias),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
);
comment on table ragpg.collection_alias is
    'A second name for a collection; swapping it moves readers to a new recipe at once.';
comment on column ragpg.collection_alias.tenant_id is 'The tenant that owns it.';
comment on column ragpg.collection_alias.alias is 'The name that callers use.';
comment on column ragpg.collection_alias.collection_id is 'The collection that it means now.';
"""

INSTALLATION = """
create table ragpg.installation (
    only_row boolean primary key default true constraint one_row check (only_row),
    functions_digest text not null,
    migrated_at timestamptz not null default now()
);
comment on table ragpg.installation is 'One row: what was applied here, and when.';
comment on column ragpg.installation.only_row is 'Always true: keeps the table at one row.';
comment on column ragpg.installation.functions_digest is
    'sha256 of the function files that were applied last.';
comment on column ragpg.installation.migrated_at is 'When they were applied.';
"""
