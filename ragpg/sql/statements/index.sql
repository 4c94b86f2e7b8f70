-- Stage 3.

-- name: set_embeddings
-- Binary, since writing a vector as text takes 20 times as long as storing it. Only where the claim still holds: a newer ingest may have split the document otherwise.
update ragpg.staged_chunk
   set embedding = made.embedding, window_hash = %(window_hash)s
  from unnest(%(keys)s::text[], %(claims)s::uuid[], %(positions)s::integer[],
              %(embeddings)b::public.halfvec[]) as made(key, claim, position, embedding)
  join ragpg.staged_document
    on staged_document.tenant_id = (select ragpg.current_tenant())
   and staged_document.collection_id = %(collection_id)s
   and staged_document.key = made.key
   and staged_document.claim = made.claim
 where staged_chunk.tenant_id = staged_document.tenant_id
   and staged_chunk.collection_id = staged_document.collection_id
   and staged_chunk.document_key = made.key
   and staged_chunk.position = made.position;
