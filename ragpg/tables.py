"""SQLAlchemy Core tables of what a service may join to its own; checked against the database.

    select(invoice, document.c.title).join(document, document.c.key == invoice.c.contract)

They are not the source of the schema, the revisions in `migrations/` are. Row-level security holds
for them as for everything else: select inside `client.transaction(tenant)`, or after
`select ragpg.use_tenant(..)` in your own transaction.
"""

from __future__ import annotations

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

metadata = MetaData(schema="ragpg")
_MOMENT = DateTime(timezone=True)

collection = Table(
    "collection",
    metadata,
    Column("tenant_id", Integer, primary_key=True),
    Column("collection_id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("embedding_provider", Text, nullable=False),
    Column("embedding_model", Text, nullable=False),
    Column("dimensions", Integer, nullable=False),
    Column("embedding_dtype", Text, nullable=False),
    Column("context_provider", Text, nullable=False),
    Column("context_model", Text, nullable=False),
    Column("context_prompt_version", Integer, nullable=False),
    Column("glossary", Text, nullable=False),
    Column("splitter", Text, nullable=False),
    Column("max_tokens", Integer, nullable=False),
    Column("overlap_tokens", Integer, nullable=False),
    Column("language", Text, nullable=False),
    Column("created_at", _MOMENT, nullable=False),
    Column("context_reuse", Text, nullable=False),
    Column("failed_contexts", Text, nullable=False),
    Column("whole_corpus_tokens", Integer, nullable=False),
)

document = Table(
    "document",
    metadata,
    Column("tenant_id", Integer, primary_key=True),
    Column("document_id", BigInteger, primary_key=True),
    Column("collection_id", Integer, nullable=False),
    Column("key", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("content_hash", LargeBinary, nullable=False),
    Column("title", Text),
    Column("source", Text),
    Column("tags", ARRAY(Text), nullable=False),
    Column("metadata", JSONB, nullable=False),
    Column("modified_at", _MOMENT),
    Column("owner", Text),
    Column("review_by", Date),
    Column("expires_at", _MOMENT),
    Column("media_type", Text, nullable=False),
    Column("page_starts", ARRAY(Integer), nullable=False),
    Column("created_at", _MOMENT, nullable=False),
    Column("updated_at", _MOMENT, nullable=False),
)

chunk = Table(
    "chunk",
    metadata,
    Column("tenant_id", Integer, primary_key=True),
    Column("chunk_id", BigInteger, primary_key=True),
    Column("collection_id", Integer, nullable=False),
    Column("document_id", BigInteger, nullable=False),
    Column("position", Integer, nullable=False),
    Column("start", Integer, nullable=False),
    Column("stop", Integer, nullable=False),
    Column("page", Integer),
    Column("section_path", ARRAY(Text), nullable=False),
    Column("table_header", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("text_hash", LargeBinary, nullable=False),
    Column("context", Text),
    Column("context_error", Text),
    Column("contextualized_at", _MOMENT),
    Column("context_refused", Boolean, nullable=False),
)

embedding = Table(
    "embedding",
    metadata,
    Column("tenant_id", Integer, primary_key=True),
    Column("chunk_id", BigInteger, primary_key=True),
    Column("collection_id", Integer, nullable=False),
    Column("document_key", Text, nullable=False),
    Column("source", Text),
    Column("tags", ARRAY(Text), nullable=False),
    Column("modified_at", _MOMENT),
    Column("expires_at", _MOMENT),
    Column("attributes", JSONB, nullable=False),
    Column("embedding", HALFVEC, nullable=False),
)

search = Table(
    "search",
    metadata,
    Column("tenant_id", Integer, primary_key=True),
    Column("search_id", BigInteger, primary_key=True),
    Column("collection_id", Integer, nullable=False),
    Column("query", Text, nullable=False),
    Column("query_embedding", HALFVEC),
    Column("filter", JSONB),
    Column("k", Integer, nullable=False),
    Column("dense_mode", Text),
    Column("lexical_mode", Text),
    Column("reranker", Text),
    Column("notices", ARRAY(Text), nullable=False),
    Column("degraded", ARRAY(Text), nullable=False),
    Column("timings_ms", JSONB, nullable=False),
    Column("searched_at", _MOMENT, nullable=False),
    Column("mode", Text, nullable=False),
)

search_hit = Table(
    "search_hit",
    metadata,
    Column("tenant_id", Integer, primary_key=True),
    Column("search_id", BigInteger, primary_key=True),
    Column("chunk_id", BigInteger, primary_key=True),
    Column("dense_rank", Integer),
    Column("dense_score", Double),
    Column("lexical_rank", Integer),
    Column("lexical_score", Double),
    Column("fused_rank", Integer, nullable=False),
    Column("fused_score", Double, nullable=False),
    Column("rerank_rank", Integer),
    Column("rerank_score", Double),
    Column("shown", Boolean, nullable=False),
    Column("cited", Boolean, nullable=False),
    Column("document_key", Text),
    Column("start", Integer),
    Column("stop", Integer),
)
