"""Documents of several chunks for tests of the fused search, indexed for both arms."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.sql.lexical_corpus import RECIPE, Home

COLUMNS = {
    "k": "integer",
    "depth": "integer",
    "sources": "text[]",
    "tags_all": "text[]",
    "tags_any": "text[]",
    "modified_from": "timestamptz",
    "modified_before": "timestamptz",
    "key_prefix": "text",
    "filter": "jsonpath",
    "dense_weight": "double precision",
    "lexical_weight": "double precision",
    "rrf_k": "integer",
    "exclude": "bigint[]",
    "after": "bigint",
    "deduplicate": "boolean",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A chunk: its text, its vector of three dimensions and where it stands."""

    text: str
    vector: str = "[1,0,0]"
    section: tuple[str, ...] = ()
    table_header: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A document of these passages, in order."""

    passages: Sequence[Passage]
    key: str
    source: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    modified_at: dt.datetime | None = None
    expires_at: dt.datetime | None = None


def make_home(conn: psycopg.Connection, tenant: str, name: str = "docs") -> Home:
    """A tenant's new collection; the connection's session is set to the tenant."""
    number = conn.execute("select ragpg.create_tenant(%s)", [tenant]).fetchone()
    use_tenant(conn, tenant)
    made = conn.execute(
        "select ragpg.create_collection(%s, %s)", [name, json.dumps(RECIPE)]
    ).fetchone()
    assert number
    assert made
    return Home(tenant=number[0], collection=made[0], name=name)


def use_tenant(conn: psycopg.Connection, tenant: str) -> None:
    conn.execute("select ragpg.use_tenant(%s, true)", [tenant])


def add(conn: psycopg.Connection, home: Home, *documents: Source) -> list[int]:
    """The chunk ids of these documents' passages, in order."""
    ids: list[int] = []
    with conn.transaction():
        for document in documents:
            ids += _add(conn, home, document)
        conn.execute("select ragpg.lexical_add(%s, %s, %s)", [home.tenant, home.collection, ids])
    return ids


def _add(conn: psycopg.Connection, home: Home, document: Source) -> list[int]:
    given: dict[str, Any] = {
        "tenant": home.tenant,
        "collection": home.collection,
        "key": document.key,
        "source": document.source,
        "tags": list(document.tags),
        "metadata": json.dumps(document.metadata),
        "modified_at": document.modified_at,
        "expires_at": document.expires_at,
    }
    made = conn.execute(
        "insert into ragpg.document (tenant_id, collection_id, key, revision, text, content_hash,"
        " source, tags, metadata, modified_at, expires_at, media_type, page_starts)"
        " values (%(tenant)s, %(collection)s, %(key)s, 1, %(text)s, '', %(source)s, %(tags)s,"
        " %(metadata)s, %(modified_at)s, %(expires_at)s, 'text', '{}') returning document_id",
        given | {"text": "".join(passage.text for passage in document.passages)},
    ).fetchone()
    assert made
    ids, start = [], 0
    for position, passage in enumerate(document.passages):
        row = conn.execute(
            "with passage as (insert into ragpg.chunk (tenant_id, collection_id, document_id,"
            " position, start, stop, section_path, table_header, text, text_hash)"
            " values (%(tenant)s, %(collection)s, %(document)s, %(position)s, %(start)s, %(stop)s,"
            " %(section)s, %(table_header)s, %(text)s, '') returning chunk_id)"
            " insert into ragpg.embedding (tenant_id, chunk_id, collection_id, document_key,"
            " source, tags, modified_at, expires_at, attributes, embedding)"
            " select %(tenant)s, chunk_id, %(collection)s, %(key)s, %(source)s, %(tags)s,"
            " %(modified_at)s, %(expires_at)s, ragpg.attributes(%(metadata)s, %(key)s, %(source)s,"
            " %(tags)s, %(modified_at)s)"
            " || jsonb_build_object('@collection', %(collection)s::integer), %(vector)s::halfvec"
            " from passage returning chunk_id",
            given
            | {
                "document": made[0],
                "position": position,
                "start": start,
                "stop": start + len(passage.text),
                "section": list(passage.section),
                "table_header": passage.table_header,
                "text": passage.text,
                "vector": passage.vector,
            },
        ).fetchone()
        assert row
        ids.append(row[0])
        start += len(passage.text)
    return ids


def single(key: str, text: str, vector: str = "[1,0,0]", **fields: Any) -> Source:
    """A document of one chunk."""
    return Source(key=key, passages=[Passage(text=text, vector=vector)], **fields)


def hybrid(
    conn: psycopg.Connection,
    query: str | None,
    vector: str | None,
    columns: str = "chunk_id",
    collection: str = "docs",
    **arguments: Any,
) -> list[Any]:
    """Rows of ragpg.search_hybrid by rank; a single column comes as plain values."""
    named = "".join(f", {name} => %({name})s::{COLUMNS[name]}" for name in arguments)
    rows = conn.execute(
        f"select {columns} from ragpg.search_hybrid(%(collection)s, %(query)s,"
        f" %(vector)s::halfvec{named}) order by rank",
        {"collection": collection, "query": query, "vector": vector, **arguments},
    ).fetchall()
    return [row[0] for row in rows] if "," not in columns else rows
