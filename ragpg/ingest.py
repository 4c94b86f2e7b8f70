"""Stage 1 of 7: Document -> staged chunks, and at the end of stage 3 staged chunks -> live ones."""

from __future__ import annotations

import bisect
import datetime as dt
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio.to_thread
from psycopg.types.json import Jsonb

from ragpg.database import Connection, fetch_all, fetch_rows, statements
from ragpg.errors import DocumentError
from ragpg.split import split, split_semantic
from ragpg.staging import Staged, StagedChunk
from ragpg.types import Document, Recipe, Span

STATEMENTS = statements("ingest")

Embed = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What publishing did; `kept_chunks` were unchanged and kept their number."""

    document_id: int
    revision: int
    chunks: int
    kept_chunks: int


def content_hash(document: Document) -> bytes:
    """sha256 over everything that is stored of the document, except when it was modified.

    A file's time changes with every checkout while its bytes do not.
    """
    fields = {
        "text": document.text,
        "title": document.title,
        "source": document.source,
        "tags": document.tags,
        "metadata": dict(document.metadata),
        "owner": document.owner,
        "review_by": document.review_by,
        "expires_at": document.expires_at,
        "media_type": document.media_type,
        "page_starts": document.page_starts,
    }
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=_json).encode()).digest()


async def changed(
    conn: Connection, collection_id: int, documents: Sequence[Document], *, from_files: bool
) -> tuple[list[Document], dict[str, bytes]]:
    """The documents that differ from what is live, and the live hashes by key.

    A document of the caller's that was only modified at another time counts as changed; a file
    does not. Staged versions of unchanged documents are forgotten.
    """
    keys = [document.key for document in documents]
    rows = await fetch_rows(
        conn, STATEMENTS["known_versions"], {"collection_id": collection_id, "keys": keys}
    )
    live = {row["key"]: row for row in rows}
    different = [
        document
        for document in documents
        if document.key not in live
        or live[document.key]["content_hash"] != content_hash(document)
        or not (from_files or live[document.key]["modified_at"] == document.modified_at)
    ]
    same = set(keys) - {document.key for document in different}
    await conn.execute(
        STATEMENTS["forget_staged"], {"collection_id": collection_id, "keys": sorted(same)}
    )
    return different, {key: row["content_hash"] for key, row in live.items()}


async def split_document(document: Document, recipe: Recipe, *, embed: Embed) -> list[Span]:
    """The spans of a document under a recipe; raises DocumentError when there are none.

    Splitting is CPU work, so it runs in a thread; the semantic splitter calls `embed`.
    """
    if recipe.splitter == "semantic":
        spans = await split_semantic(document, max_tokens=recipe.max_tokens, embed=embed)
    else:
        splitter = recipe.splitter
        spans = await anyio.to_thread.run_sync(
            lambda: split(
                document,
                splitter=splitter,
                max_tokens=recipe.max_tokens,
                overlap_tokens=recipe.overlap_tokens,
            )
        )
    if not spans:
        raise DocumentError(
            f"document {document.key!r} holds no text that could be found; it was not stored",
            reason="no_text",
        )
    return spans


async def stage(
    conn: Connection, collection_id: int, document: Document, spans: Sequence[Span]
) -> Staged:
    """Write a document and its chunks to the staging tables and claim it.

    Chunks whose text is live already, or was worked on in an earlier try, take over context and
    vector from there.
    """
    claim = uuid.uuid4()
    parameters = {"collection_id": collection_id, "key": document.key}
    await conn.execute(
        STATEMENTS["stage_document"], parameters | {"claim": claim} | _columns(document)
    )
    await conn.execute(STATEMENTS["set_aside_staged_chunks"], parameters)
    await conn.execute(
        STATEMENTS["stage_chunks"], parameters | {"chunks": Jsonb(_rows(document, spans))}
    )
    await conn.execute(STATEMENTS["drop_set_aside"], parameters)
    return await reload(conn, collection_id, Staged(document=document, claim=claim, chunks=()))


async def reload(conn: Connection, collection_id: int, staged: Staged) -> Staged:
    """The same document with its chunks as they are in the database now."""
    chunks = await fetch_all(
        conn,
        STATEMENTS["staged_chunks"],
        {"collection_id": collection_id, "key": staged.document.key},
        row_type=StagedChunk,
    )
    return replace(staged, chunks=tuple(chunks))


async def publish(conn: Connection, collection: str, staged: Staged) -> Published:
    """Make a staged document live, whole, in this transaction.

    Raises ConflictError when a newer ingest has claimed the document or a vector is missing.
    """
    rows = await fetch_all(
        conn,
        STATEMENTS["publish"],
        {"collection": collection, "key": staged.document.key, "claim": staged.claim},
        row_type=Published,
    )
    return rows[0]


async def stage_failure(
    conn: Connection,
    collection_id: int,
    key: str,
    *,
    status: str,
    message: str,
    claim: uuid.UUID | None,
) -> None:
    """Keep why a document is not live, where `ragpg.pending` shows it."""
    await conn.execute(
        STATEMENTS["stage_failure"],
        {
            "collection_id": collection_id,
            "key": key,
            "status": status,
            "last_error": message,
            "claim": claim,
        },
    )


def _columns(document: Document) -> dict[str, Any]:
    return {
        "text": document.text,
        "content_hash": content_hash(document),
        "title": document.title,
        "source": document.source,
        "tags": list(document.tags),
        "metadata": Jsonb(dict(document.metadata), dumps=_dumps),
        "modified_at": document.modified_at,
        "owner": document.owner,
        "review_by": document.review_by,
        "expires_at": document.expires_at,
        "media_type": document.media_type,
        "page_starts": list(document.page_starts),
    }


def _rows(document: Document, spans: Sequence[Span]) -> list[dict[str, Any]]:
    return [
        {
            "position": position,
            "start": span.start,
            "stop": span.stop,
            "page": bisect.bisect_right(document.page_starts, span.start) or None,
            "section_path": list(span.section_path),
            "table_header": span.table_header,
            "text": document.text[span.start : span.stop],
        }
        for position, span in enumerate(spans)
    ]


def _dumps(value: Any) -> str:
    return json.dumps(value, default=_json)


def _json(value: Any) -> str:
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    raise TypeError(f"metadata holds a {type(value).__name__}, which is no JSON value")
