"""Collections and vectors for tests of the dense arm, written straight into its table."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg


@dataclass(frozen=True, kw_only=True)
class Row:
    chunk_id: int
    vector: str
    key: str = "doc"
    source: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    modified_at: dt.datetime | None = None
    expires_at: dt.datetime | None = None


def make_collection(
    owner: psycopg.Connection, *, tenant: str, name: str = "docs", dimensions: int = 2
) -> tuple[int, int]:
    """The numbers of a tenant and of its new collection."""
    made = owner.execute(
        """
        insert into ragpg.collection (
            tenant_id, name, embedding_provider, embedding_model, dimensions, embedding_dtype,
            context_provider, context_model, context_prompt_version, glossary, splitter, max_tokens,
            overlap_tokens, language)
        values (ragpg.create_tenant(%s), %s, 'local', 'model', %s, 'float', 'none', 'none', 1, '', 'section', 400, 50,
                'english')
        returning tenant_id, collection_id
        """,
        [tenant, name, dimensions],
    ).fetchone()
    if made is None:
        raise LookupError(name)
    return made[0], made[1]


def insert_rows(owner: psycopg.Connection, home: tuple[int, int], rows: Iterable[Row]) -> None:
    """The dense arm reads no chunk, so none is made: foreign keys are off for these rows."""
    with owner.transaction():
        owner.execute("set local session_replication_role = replica")
        with owner.cursor() as cursor:
            cursor.executemany(
                """
                insert into ragpg.embedding (
                    tenant_id, collection_id, chunk_id, document_key, source, tags, modified_at,
                    expires_at, attributes, embedding)
                select %(tenant)s, %(collection)s, %(chunk_id)s, %(key)s, %(source)s::text,
                       %(tags)s::text[], %(modified_at)s::timestamptz, %(expires_at)s::timestamptz,
                       ragpg.attributes(%(metadata)s::jsonb, %(key)s, %(source)s::text,
                                        %(tags)s::text[], %(modified_at)s::timestamptz)
                       || jsonb_build_object('@collection', %(collection)s::integer),
                       %(vector)s::halfvec
                """,
                [
                    {
                        "tenant": home[0],
                        "collection": home[1],
                        "chunk_id": row.chunk_id,
                        "key": row.key,
                        "source": row.source,
                        "tags": list(row.tags),
                        "metadata": json.dumps(row.metadata),
                        "modified_at": row.modified_at,
                        "expires_at": row.expires_at,
                        "vector": row.vector,
                    }
                    for row in rows
                ],
            )


def search(
    conn: psycopg.Connection, tenant: str, collection: str, vector: str, **arguments: Any
) -> list[tuple[int, int, float, str]]:
    """Rows of ragpg.search_dense, as one transaction of that tenant."""
    types = {
        "k": "integer",
        "sources": "text[]",
        "tags_all": "text[]",
        "tags_any": "text[]",
        "modified_from": "timestamptz",
        "modified_before": "timestamptz",
        "key_prefix": "text",
        "filter": "jsonpath",
    }
    named = "".join(f", {name} => %({name})s::{types[name]}" for name in arguments)
    with conn.transaction():
        conn.execute("select ragpg.use_tenant(%s)", [tenant])
        return conn.execute(
            "select chunk_id, rank, score, mode"
            f"  from ragpg.search_dense(%(collection)s, %(vector)s::halfvec{named}) order by rank",
            {"collection": collection, "vector": vector, **arguments},
        ).fetchall()
