"""Stage 1 of 7: Document -> staged chunks, and at the end of stage 3 staged chunks -> live ones."""

from __future__ import annotations

import bisect
import datetime as dt
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio.to_thread
from psycopg.types.json import Jsonb

from ragpg.database import Connection, execute_each, fetch_all, fetch_rows, statements
from ragpg.errors import ConflictError, DocumentError
from ragpg.parse import can_be_stored
from ragpg.split import split, split_semantic
from ragpg.staging import Staged, StagedChunk, hold_collection
from ragpg.types import Document, Recipe, Span

STATEMENTS = statements("ingest")

Embed = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextsKept:
    """Whether live contexts may be kept; if not, those of a try of the same text `since` then.

    With `ask_refused` the contexts that were refused for good are asked for once more.
    """

    reuse: bool = True
    since: dt.datetime | None = None
    ask_refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitDocument:
    """A document with its spans; `claim` is the one under which it was taken from staging.

    `batched` leaves missing contexts to batches; `kept` says which contexts it may take over.
    """

    document: Document
    spans: Sequence[Span]
    claim: uuid.UUID | None = None
    batched: bool = False
    kept: ContextsKept = ContextsKept()


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What publishing did; `kept_chunks` were unchanged and kept their number.

    `state` is published, superseded (claimed by a newer ingest), deleted (or renamed, meanwhile) or
    incomplete (a chunk lacks a vector); the last three changed nothing, other fields are None.
    """

    key: str
    state: Literal["published", "superseded", "deleted", "incomplete"]
    document_id: int | None
    revision: int | None
    chunks: int | None
    kept_chunks: int | None


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
    conn: Connection,
    collection_id: int,
    documents: Sequence[Document],
    *,
    from_files: bool,
    ask_refused: bool = False,
) -> tuple[list[Document], dict[str, bytes]]:
    """The documents that differ from what is live, and the live hashes by key.

    A document of the caller's that was only modified at another time counts as changed; a file
    does not. So does one of which a context failed: what it lacks is written now; what was refused
    for good only with `ask_refused`. Staged versions of unchanged documents are forgotten.
    """
    keys = [document.key for document in documents]
    rows = await fetch_rows(
        conn,
        STATEMENTS["known_versions"],
        {"collection_id": collection_id, "keys": keys, "ask_refused": ask_refused},
    )
    live = {row["key"]: row for row in rows}
    different = [
        document
        for document in documents
        if document.key not in live
        or live[document.key]["gap"]
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


async def contexts_kept(
    conn: Connection,
    collection_id: int,
    document: Document,
    recipe: Recipe,
    *,
    recontextualize: bool,
) -> ContextsKept:
    """Which contexts this version may take over, by its recipe or because the caller says so.

    `recontextualize` writes those of a changed document anew, and of an unchanged one those alone
    that were refused.
    """
    named = {"collection_id": collection_id, "key": document.key, "text": document.text}
    if recipe.context_provider == "none":
        return ContextsKept()
    if recontextualize or recipe.context_reuse == "document":
        hashed = {"content_hash": content_hash(document)}
        rows = await fetch_rows(conn, STATEMENTS["text_is_live"], named | hashed)
        reuse = bool(rows[0]["unchanged" if recontextualize else "same"])
    else:
        reuse = True
    if reuse:
        return ContextsKept(ask_refused=recontextualize)
    rows = await fetch_rows(conn, STATEMENTS["staged_since"], named)
    return ContextsKept(
        reuse=False,
        since=rows[0]["created_at"] if rows else None,
        ask_refused=recontextualize,
    )


async def stage(
    conn: Connection,
    collection_id: int,
    document: Document,
    spans: Sequence[Span],
    *,
    claim: uuid.UUID | None = None,
    batched: bool = False,
) -> Staged:
    """`stage_documents` for one; raises ConflictError when the claim no longer holds."""
    cut = SplitDocument(document=document, spans=spans, claim=claim, batched=batched)
    staged = await stage_documents(conn, collection_id, [cut])
    if not staged:
        raise superseded(document.key)
    return staged[0]


async def stage_documents(
    conn: Connection, collection_id: int, documents: Sequence[SplitDocument]
) -> list[Staged]:
    """Write documents and their chunks to the staging tables and claim them; in the given order.

    A document with a claim is there, taken under this claim: only its chunks are written, and it is
    left out of the result where the claim no longer holds. Chunks whose text is live already, or
    was worked on in an earlier try, take over context and vector from there, as `kept` allows.
    """
    collection = {"collection_id": collection_id}
    await hold_collection(conn, collection_id)
    claims = {one.document.key: one.claim or uuid.uuid4() for one in documents}
    fresh = [one for one in documents if one.claim is None]
    if fresh:
        await execute_each(
            conn,
            STATEMENTS["stage_document"],
            [
                collection
                | {"key": one.document.key, "claim": claims[one.document.key]}
                | {"batched": one.batched}
                | columns(one.document)
                # In the order of their keys, so that two ingests never wait in a circle.
                for one in sorted(fresh, key=lambda one: one.document.key)
            ],
        )
    taken = {one.document.key: one.claim for one in documents if one.claim is not None}
    held = {one.document.key for one in fresh}
    if taken:
        rows = await fetch_rows(
            conn,
            STATEMENTS["hold_claims"],
            collection | {"keys": list(taken), "claims": list(taken.values())},
        )
        held |= {row["key"] for row in rows}
    documents = [one for one in documents if one.document.key in held]
    parameters: dict[str, Any] = collection | {"keys": [one.document.key for one in documents]}
    await conn.execute(STATEMENTS["set_aside_staged_chunks"], parameters)
    chunks = [row for one in documents for row in rows_of(one)]
    await conn.execute(
        STATEMENTS["stage_chunks"], parameters | {"chunks": Jsonb(chunks, dumps=_dumps)}
    )
    await conn.execute(STATEMENTS["drop_set_aside"], parameters)
    staged = [
        Staged(document=one.document, claim=claims[one.document.key], chunks=())
        for one in documents
    ]
    return await reload(conn, collection_id, staged)


async def live_keys(conn: Connection, collection_id: int, keys: Sequence[str]) -> set[str]:
    """Those of the keys that a live document has."""
    rows = await fetch_rows(
        conn,
        STATEMENTS["known_versions"],
        {"collection_id": collection_id, "keys": list(keys), "ask_refused": False},
    )
    return {row["key"] for row in rows}


async def batched_keys(conn: Connection, collection_id: int) -> dict[str, bool]:
    """The documents that batches were asked for, and whether no context is awaited any more."""
    rows = await fetch_rows(conn, STATEMENTS["batched_keys"], {"collection_id": collection_id})
    return {row["key"]: row["ready"] for row in rows}


async def claim_batched(conn: Connection, collection_id: int, key: str) -> Staged | None:
    """A document that batches were asked for, claimed anew; None when another has taken it."""
    claim = uuid.uuid4()
    rows = await fetch_rows(
        conn,
        STATEMENTS["claim_batched"],
        {"collection_id": collection_id, "key": key, "claim": claim},
    )
    if not rows:
        return None
    row = rows[0]
    row["tags"], row["page_starts"] = tuple(row["tags"]), tuple(row["page_starts"])
    document = Document(**row)
    staged = Staged(document=document, claim=claim, chunks=())
    return (await reload(conn, collection_id, [staged]))[0]


async def reload(conn: Connection, collection_id: int, staged: Sequence[Staged]) -> list[Staged]:
    """The same documents with their chunks as they are in the database now."""
    rows = await fetch_rows(
        conn,
        STATEMENTS["staged_chunks"],
        {"collection_id": collection_id, "keys": [one.document.key for one in staged]},
    )
    chunks: dict[str, list[StagedChunk]] = {one.document.key: [] for one in staged}
    for row in rows:
        chunks[row.pop("document_key")].append(StagedChunk(**row))
    return [replace(one, chunks=tuple(chunks[one.document.key])) for one in staged]


async def publish_documents(
    conn: Connection, collection: str, staged: Sequence[Staged]
) -> list[Published]:
    """Make staged documents live, each whole, in this transaction; in the given order.

    One that cannot be published holds up no other: its `state` says why.
    """
    return await fetch_all(
        conn,
        STATEMENTS["publish_documents"],
        {
            "collection": collection,
            "keys": [one.document.key for one in staged],
            "claims": [one.claim for one in staged],
        },
        row_type=Published,
    )


def superseded(key: str) -> ConflictError:
    """The error of a document that another ingest has claimed since."""
    return ConflictError(
        f"document {key!r} was claimed by a newer ingest; nothing to do: that one publishes it"
    )


async def stage_failure(
    conn: Connection,
    collection_id: int,
    key: str,
    *,
    status: str,
    message: str,
    claim: uuid.UUID | None,
) -> None:
    """Keep why a document is not live, where `ragpg.pending` shows it.

    A key under which no document can be stored is left out.
    """
    if not can_be_stored(key):
        return
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


def columns(document: Document) -> dict[str, Any]:
    """What a staged document's row holds of a document, by column."""
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


def rows_of(one: SplitDocument) -> list[dict[str, Any]]:
    """The passages as the statements that hash them read them, in order."""
    document = one.document
    since = None if one.kept.since is None else one.kept.since.isoformat()
    return [
        {
            "key": document.key,
            "position": position,
            "start": span.start,
            "stop": span.stop,
            "page": bisect.bisect_right(document.page_starts, span.start) or None,
            "section_path": list(span.section_path),
            "table_header": span.table_header,
            "text": document.text[span.start : span.stop],
            "reuse": one.kept.reuse,
            "since": since,
            "ask_refused": one.kept.ask_refused,
        }
        for position, span in enumerate(one.spans)
    ]


def _dumps(value: Any) -> str:
    return json.dumps(value, default=_json, ensure_ascii=False)


def _json(value: Any) -> str:
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    raise TypeError(f"metadata holds a {type(value).__name__}, which is no JSON value")
