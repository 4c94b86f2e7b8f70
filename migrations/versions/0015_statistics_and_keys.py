"""No statistics of texts for other tenants to read, keys that deletions find, and vacuum settings."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Change the settings of the tables; the key of chunk is the one index that takes time."""
    op.execute(NO_STATISTICS)
    op.execute(FORGOTTEN)
    op.execute(CHUNK_KEY)
    op.execute(INDEXES)
    op.execute(VACUUM)
    op.execute(COMMENTS)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


# Operators on text are leakproof, so the planner compares a reader's constant with the most frequent
# values of all tenants, and EXPLAIN tells how many rows it expects. What is left out: words of ragpg
# itself, and the two columns by which searches are planned, which a reader may not name.
NO_STATISTICS = """
do $$
declare
    kept constant text[] := array[
        'embedding.source', 'embedding.document_key', 'staged_document.status',
        'context_batch.status', 'context_batch_item.status', 'usage.provider', 'usage.model',
        'usage.operation'];
    known record;
begin
    for known in
        select class.oid::regclass as name, attribute.attname
          from pg_class as class
          join pg_attribute as attribute on attribute.attrelid = class.oid
         where class.relnamespace = 'ragpg'::regnamespace and class.relkind = 'r'
           and attribute.attnum > 0 and not attribute.attisdropped
           and attribute.atttypid in ('text'::regtype, 'bytea'::regtype)
           and class.relname || '.' || attribute.attname <> all (kept)
           and exists (select from pg_attribute as tenant
                        where tenant.attrelid = class.oid and tenant.attname = 'tenant_id')
         order by class.relname, attribute.attnum
    loop
        execute format('alter table %s alter column %I set statistics 0',
                       known.name, known.attname);
    end loop;
end $$;
"""

# ANALYZE passes such a column over and keeps what it knew before.
FORGOTTEN = """
do $$
declare
    known record;
begin
    for known in
        select class.oid, class.relname, attribute.attname, attribute.attnum
          from pg_class as class
          join pg_attribute as attribute on attribute.attrelid = class.oid
         where class.relnamespace = 'ragpg'::regnamespace and class.relkind = 'r'
           and attribute.attnum > 0 and attribute.attstattarget = 0
    loop
        if current_setting('server_version_num')::integer >= 180000 then
            execute 'select pg_catalog.pg_clear_attribute_stats(''ragpg'', $1, $2, false)'
              using known.relname::text, known.attname::text;
        elsif (select rolsuper from pg_roles where rolname = session_user) then
            set local role none;
            delete from pg_statistic
             where starelid = known.oid and staattnum = known.attnum;
            set local role ragpg_owner;
        elsif (select reltuples > 0 from pg_class where oid = known.oid) then
            raise warning 'statistics of ragpg.%.% remain: as a superuser, delete from pg_statistic where starelid = ''ragpg.%''::regclass and staattnum = %',
                known.relname, known.attname, known.relname, known.attnum;
        end if;
    end loop;
end $$;
"""

# One key for two purposes: deleting a collection reads its chunks, and deleting a chunk finds its row
# of lexeme_vector, whose primary key begins with these columns; by tenant and chunk it was looked for
# among all of the tenant before PostgreSQL 18, 2.5 s for a document of 2,000 chunks.
CHUNK_KEY = """
alter table ragpg.chunk
    add constraint chunk_of_collection unique (tenant_id, collection_id, chunk_id);
comment on index ragpg.chunk_of_collection is
    'The chunks of a collection, and what lexeme_vector refers to.';
alter table ragpg.lexeme_vector
    drop constraint lexeme_vector_tenant_id_chunk_id_fkey,
    add foreign key (tenant_id, collection_id, chunk_id)
        references ragpg.chunk (tenant_id, collection_id, chunk_id) on delete cascade;
"""

INDEXES = """
create index collection_alias_of_collection
    on ragpg.collection_alias (tenant_id, collection_id);
comment on index ragpg.collection_alias_of_collection is 'The aliases of a collection.';
create index context_batch_of_collection on ragpg.context_batch (tenant_id, collection_id);
comment on index ragpg.context_batch_of_collection is
    'The batches of a collection, for deleting it.';
create index reader_tenant_of_tenant on ragpg.reader_tenant (tenant_id);
comment on index ragpg.reader_tenant_of_tenant is 'The readers of a tenant.';
create index qrel_document_key on ragpg.qrel (tenant_id, document_key);
comment on index ragpg.qrel_document_key is 'The judgements of a document, for renaming it.';
"""

# As on embedding and lexeme_vector; staged rows live for seconds and are updated twice, so a vacuum at
# a fifth of the table leaves several times what is in it.
VACUUM = """
alter table ragpg.document set (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
alter table ragpg.chunk set (
    autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02);
alter table ragpg.staged_document set (
    autovacuum_vacuum_scale_factor = 0.02, fillfactor = 70);
alter table ragpg.staged_chunk set (
    autovacuum_vacuum_scale_factor = 0.02, fillfactor = 70);
"""

COMMENTS = """
comment on table ragpg.alembic_version is 'One row: the revision of this schema.';
comment on column ragpg.alembic_version.version_num is 'The newest revision that was applied.';
"""
