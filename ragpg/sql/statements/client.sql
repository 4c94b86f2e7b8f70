-- Tenants, collections and usage.

-- name: create_tenant
select ragpg.create_tenant(%(key)s) as tenant_id;

-- name: near_tenants
select near.near_key from ragpg.near_tenants(%(key)s) as near;

-- name: delete_tenant
select ragpg.delete_tenant(%(key)s);

-- name: without_time_limit
-- A deletion of much takes as long as it takes.
select set_config('statement_timeout', '0', true);

-- name: collection
select collection.collection_id, collection.name,
       collection.embedding_provider, collection.embedding_model, collection.dimensions,
       collection.embedding_dtype, collection.context_provider, collection.context_model,
       collection.context_prompt_version, collection.glossary, collection.splitter,
       collection.max_tokens, collection.overlap_tokens, collection.language,
       collection.context_reuse, collection.failed_contexts, collection.whole_corpus_tokens
  from ragpg.collection
 where collection.tenant_id = ragpg.current_tenant()
   and collection.collection_id = ragpg.collection_number(%(collection)s);

-- name: create_collection
select ragpg.create_collection(%(name)s, %(recipe)s) as collection_id;

-- name: set_whole_corpus_tokens
select ragpg.set_whole_corpus_tokens(%(collection)s, %(tokens)s);

-- name: set_alias
select ragpg.set_alias(%(alias)s, %(collection)s);

-- name: delete_collection
select ragpg.delete_collection(%(collection)s);

-- name: collections
select collection_overview.name, coalesce(collection_overview.aliases, '{}') as aliases,
       collection_overview.documents, collection_overview.chunks
  from ragpg.collection_overview
 order by collection_overview.name;

-- name: hold_collection
-- The order of locks is in sql/functions/11_locks.sql.
select ragpg.hold_collection(%(collection_id)s) as held;

-- name: insert_usage
-- Locks the tenant's row: after hold_collection, or before all else.
insert into ragpg.usage (
    tenant_id, collection_id, provider, model, operation, input_tokens, output_tokens,
    cache_write_tokens, cache_read_tokens, cost_usd, duration_ms, request_id)
select (select ragpg.current_tenant()), %(collection_id)s, call.provider, call.model, call.operation,
       call.input_tokens, call.output_tokens, call.cache_write_tokens, call.cache_read_tokens,
       call.cost_usd, call.duration_ms, call.request_id
  from jsonb_to_recordset(%(calls)s) as call(
           provider text, model text, operation text, input_tokens bigint, output_tokens bigint,
           cache_write_tokens bigint, cache_read_tokens bigint, cost_usd numeric,
           duration_ms double precision, request_id text);
