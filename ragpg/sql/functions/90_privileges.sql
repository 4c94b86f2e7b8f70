-- 90_privileges.sql: who may do what. Applied last, after every upgrade.

do $$
declare
    unsealed record;
    -- Asked once a statement: without select a nested loop asked once a row, 10 s for 20 rows of
    -- search_log. And asked twice: the planner compares the two answers before it reads anything, so
    -- that a statement without a tenant fails also where it would read no row.
    own constant text := 'tenant_id = (select ragpg.current_tenant())';
    own_as_stored constant text :=
        '(tenant_id = ( SELECT ragpg.current_tenant() AS current_tenant))';
begin
    -- Every table that has a tenant gets the one policy; a table of a later revision cannot be
    -- forgotten. The owner, as whom definer functions run, is not bound and checks by itself. One
    -- that has it is left alone: each of these statements would lock out all readers of the table.
    for unsealed in
        select class.oid::regclass as name
          from pg_class as class
         where class.relnamespace = 'ragpg'::regnamespace
           and class.relkind in ('r', 'p')
           and exists (select from pg_attribute
                        where attrelid = class.oid and attname = 'tenant_id' and not attisdropped)
           and not (class.relrowsecurity
                    and exists (
                        select from pg_policies
                         where pg_policies.schemaname = 'ragpg'
                           and pg_policies.tablename = class.relname
                           and pg_policies.policyname = 'current_tenant_only'
                           and pg_policies.cmd = 'ALL' and pg_policies.permissive = 'PERMISSIVE'
                           and pg_policies.roles = '{public}'
                           and pg_policies.qual
                               = format('(%s AND %1$s)', own_as_stored)
                           and pg_policies.with_check = own_as_stored))
    loop
        execute format('alter table %s enable row level security', unsealed.name);
        execute format('drop policy if exists current_tenant_only on %s', unsealed.name);
        execute format(
            'create policy current_tenant_only on %s using (%s and %2$s) with check (%2$s)',
            unsealed.name, own);
    end loop;
end $$;

-- Postgres lets everybody execute a new function; not one that the owner makes between upgrades.
alter default privileges revoke execute on functions from public;
revoke all on schema ragpg from public;
revoke all on all tables in schema ragpg from public, ragpg_app, ragpg_reader;
revoke all on all sequences in schema ragpg from public, ragpg_app, ragpg_reader;
revoke all on all functions in schema ragpg from public, ragpg_app, ragpg_reader;
grant usage on schema ragpg to ragpg_app, ragpg_reader;

-- Both may look, each at its tenant.
grant select on
    ragpg.tenant, ragpg.collection, ragpg.collection_alias, ragpg.document, ragpg.chunk,
    ragpg.staged_document, ragpg.staged_chunk, ragpg.search, ragpg.search_hit, ragpg.usage,
    ragpg.golden_query, ragpg.qrel,
    ragpg.collection_overview, ragpg.document_overview, ragpg.chunk_overview, ragpg.pending,
    ragpg.context_gap, ragpg.awaited_context, ragpg.open_context, ragpg.unasked_context,
    ragpg.spend, ragpg.search_log, ragpg.lexical_health
    to ragpg_app, ragpg_reader;
grant select on ragpg.alembic_version, ragpg.installation to ragpg_app, ragpg_reader;
-- Source and key have statistics, since searches are planned by them, and EXPLAIN would tell a reader
-- what they hold of other tenants. Document has the same without statistics (revision 0015).
grant select on ragpg.embedding to ragpg_app;
grant select (tenant_id, chunk_id, collection_id, modified_at, expires_at, embedding, sketch)
    on ragpg.embedding to ragpg_reader;

-- The service writes what is not live yet, the log and evaluation data; live rows only by publish.
grant insert, update, delete on
    ragpg.staged_document, ragpg.staged_chunk, ragpg.search, ragpg.search_hit, ragpg.golden_query,
    ragpg.qrel
    to ragpg_app;
grant insert on ragpg.usage to ragpg_app;
grant select on ragpg.document_history, ragpg.stale_document to ragpg_app, ragpg_reader;
grant select on ragpg.context_batch, ragpg.context_batch_item to ragpg_app, ragpg_reader;
grant insert, update on ragpg.context_batch, ragpg.context_batch_item to ragpg_app;
grant select on ragpg.synced_key to ragpg_app, ragpg_reader;
grant insert, update, delete on ragpg.synced_key to ragpg_app;

grant execute on function
    ragpg.current_tenant(), ragpg.use_tenant(text, boolean), ragpg.collection_number(text),
    ragpg.contextualized(text, text, text), ragpg.instant(text), ragpg.instants(jsonb),
    ragpg.attributes(jsonb, text, text, text[], timestamptz),
    ragpg.stale_documents(text, integer)
    to ragpg_app, ragpg_reader;
grant execute on function
    ragpg.create_tenant(text), ragpg.delete_tenant(text), ragpg.near_tenants(text),
    ragpg.create_collection(text, jsonb), ragpg.set_alias(text, text),
    ragpg.delete_collection(text), ragpg.publish(text, text, uuid),
    ragpg.publish_documents(text, text[], uuid[]), ragpg.delete_document(text, text),
    ragpg.delete_expired(text, integer), ragpg.rename_document(text, text, text),
    ragpg.set_whole_corpus_tokens(text, integer), ragpg.hold_collection(integer),
    ragpg.prune_log(integer, integer)
    to ragpg_app;

do $$
declare
    visible record;
begin
    -- Search and its explanations, whatever their signatures are.
    for visible in
        select proc.oid::regprocedure as name
          from pg_proc as proc
         where proc.pronamespace = 'ragpg'::regnamespace
           and proc.proname in ('tokenize', 'has_outdated_lexemes', 'search_lexical',
                                'explain_lexical', 'query_lexemes', 'search_dense', 'search_hybrid',
                                'explain_hybrid', 'expand', 'whole_corpus')
    loop
        execute format('grant execute on function %s to ragpg_app, ragpg_reader', visible.name);
    end loop;
end $$;

-- Both may look at the dense arm, each at its tenant.
grant select on
    ragpg.dense_setting, ragpg.dense_collection, ragpg.dense_recall, ragpg.index_health
    to ragpg_app, ragpg_reader;
grant execute on function
    ragpg.dense_mode(bigint, integer, boolean), ragpg.dense_index_state(boolean)
    to ragpg_app, ragpg_reader;

-- The service enqueues and works; a reader sees counts, never the queue.
grant select on ragpg.ingest_status to ragpg_app, ragpg_reader;
grant execute on function ragpg.enqueue(text, text[]) to ragpg_app;

revoke all on function
    ragpg_jobs.lock_of(integer, integer, text),
    ragpg_jobs.defer_ingest(integer, integer, text[]),
    ragpg_jobs.home(integer, integer),
    ragpg_jobs.reclaim(double precision, double precision),
    ragpg_jobs.defer_collect(double precision), ragpg_jobs.overdue(integer),
    ragpg_jobs.queue_health(double precision)
    from public;
grant execute on function
    ragpg_jobs.home(integer, integer), ragpg_jobs.reclaim(double precision, double precision),
    ragpg_jobs.defer_collect(double precision), ragpg_jobs.overdue(integer),
    ragpg_jobs.queue_health(double precision)
    to ragpg_app;

do $$
declare
    definer record;
begin
    -- debug_print_plan is anybody's to set and prints the plans of statements within a function too,
    -- to a client that wants messages of level log: with the rows that the planner expects from
    -- statistics over all tenants, of columns that a reader may not name.
    for definer in
        select proc.oid::regprocedure as name
          from pg_proc as proc
         where proc.pronamespace in ('ragpg'::regnamespace, 'ragpg_jobs'::regnamespace)
           and proc.prosecdef
           and not coalesce(proc.proconfig @> '{client_min_messages=warning}', false)
    loop
        execute format('alter routine %s set client_min_messages = warning', definer.name);
    end loop;
end $$;
