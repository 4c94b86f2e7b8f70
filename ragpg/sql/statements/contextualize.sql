-- Stage 2.

-- name: set_context
-- A context changes what is embedded, so the vector goes. Without a claim: of a document that waits
-- for a worker, whose context came from a batch. A refusal stands until somebody asks again.
update ragpg.staged_chunk
   set context = %(context)s, context_error = %(context_error)s,
       context_refused = %(context_refused)s,
       contextualized_at = case when %(context)s::text is null then null else now() end,
       embedding = case when %(context)s::text is null then staged_chunk.embedding end
 where staged_chunk.tenant_id = (select ragpg.current_tenant())
   and staged_chunk.collection_id = %(collection_id)s
   and staged_chunk.document_key = %(key)s
   and staged_chunk.position = %(position)s
   and exists (
           select from ragpg.staged_document
            where staged_document.tenant_id = staged_chunk.tenant_id
              and staged_document.collection_id = staged_chunk.collection_id
              and staged_document.key = staged_chunk.document_key
              and staged_document.claim is not distinct from %(claim)s::uuid);
