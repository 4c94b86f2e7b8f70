-- Stage 2.

-- name: set_contexts
-- Of chunks of one document. A context changes what is embedded, so the vector goes. Without a claim: of a document that waits
-- for a worker, whose context came from a batch. A refusal stands until somebody asks again.
update ragpg.staged_chunk
   set context = made.context, context_error = made.context_error,
       context_refused = made.context_refused,
       contextualized_at = case when made.context is null then null else now() end,
       embedding = case when made.context is null then staged_chunk.embedding end
  from unnest(%(positions)s::integer[], %(contexts)s::text[], %(context_errors)s::text[],
              %(context_refused)s::boolean[]) as made(position, context, context_error,
                                                      context_refused)
 where staged_chunk.tenant_id = (select ragpg.current_tenant())
   and staged_chunk.collection_id = %(collection_id)s
   and staged_chunk.document_key = %(key)s
   and staged_chunk.position = made.position
   and exists (
           select from ragpg.staged_document
            where staged_document.tenant_id = staged_chunk.tenant_id
              and staged_document.collection_id = staged_chunk.collection_id
              and staged_document.key = staged_chunk.document_key
              and staged_document.claim is not distinct from %(claim)s::uuid);
