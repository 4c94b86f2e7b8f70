"""Documents that wait for a worker: given in the caller's transaction, taken under a claim."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from ragpg import parse
from ragpg.database import Connection, execute_each, fetch_rows, statements
from ragpg.errors import RagpgError
from ragpg.ingest import changed, columns, stage_failure
from ragpg.ingestion.failures import failure
from ragpg.staging import Transaction, hold_collection
from ragpg.types import Document, DocumentFailure, Enqueued

STATEMENTS = statements("jobs")
# The text of a group is held at once, and its rows are written in one go.
GROUP_DOCUMENTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A document that this worker has claimed; `attempts` counts this try."""

    document: Document
    claim: uuid.UUID
    attempts: int


@dataclass(slots=True)
class _Tally:
    queued: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: list[DocumentFailure] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


async def enqueue(
    transaction: Transaction,
    collection: str,
    collection_id: int,
    documents: AsyncIterator[Document | DocumentFailure],
    *,
    from_files: bool,
) -> Enqueued:
    """Stage the documents that differ from what is live, and make a job for each.

    A document and its job are written in one transaction, a group of documents at a time: that of
    the caller, when `transaction` gives that.
    """
    tally = _Tally()
    group: dict[str, Document] = {}

    async def flush() -> None:
        tally.notices += [notice for one in group.values() for notice in parse.notices(one)]
        async with transaction() as conn:
            await _enqueue_group(
                conn, collection, collection_id, group, tally, from_files=from_files
            )
        group.clear()

    async for item in documents:
        failed = item if isinstance(item, DocumentFailure) else _taken_in(item, group)
        if failed is not None:
            tally.failed.append(failed)
            async with transaction() as conn:
                await _remember(conn, collection_id, failed)
        if len(group) >= GROUP_DOCUMENTS:
            await flush()
    if group:
        await flush()
    return Enqueued(
        queued=tuple(tally.queued),
        unchanged=tuple(tally.unchanged),
        failed=tuple(tally.failed),
        notices=tuple(tally.notices),
    )


def _taken_in(document: Document, group: dict[str, Document]) -> DocumentFailure | None:
    """Put the cleaned document into the group; of two with one key the later one counts."""
    try:
        group[document.key], _ = parse.clean(document)
    except RagpgError as exc:
        return failure(str(document.key), exc)
    return None


async def _remember(conn: Connection, collection_id: int, failed: DocumentFailure) -> None:
    await stage_failure(
        conn,
        collection_id,
        failed.key,
        status="no_text" if failed.reason == "no_text" else "failed",
        message=failed.message,
        claim=None,
    )


async def _enqueue_group(
    conn: Connection,
    collection: str,
    collection_id: int,
    group: dict[str, Document],
    tally: _Tally,
    *,
    from_files: bool,
) -> None:
    await hold_collection(conn, collection_id)
    different, _ = await changed(conn, collection_id, list(group.values()), from_files=from_files)
    keys = [document.key for document in different]
    await execute_each(
        conn,
        STATEMENTS["queue_document"],
        [
            {"collection_id": collection_id, "key": document.key} | columns(document)
            # In the order of their keys, so that two enqueuers never wait in a circle.
            for document in sorted(different, key=lambda document: document.key)
        ],
    )
    if keys:
        await requeue(conn, collection, keys)
    tally.queued += keys
    tally.unchanged += sorted(set(group) - set(keys))


async def requeue(conn: Connection, collection: str, keys: Sequence[str] | None) -> int:
    """How many staged documents wait now, their tries anew; without keys, all that failed."""
    rows = await fetch_rows(
        conn,
        STATEMENTS["enqueue"],
        {"collection": collection, "keys": None if keys is None else list(keys)},
    )
    return int(rows[0]["queued"])


async def take(
    conn: Connection, collection_id: int, key: str, *, max_attempts: int
) -> Taken | None:
    """Claim a waiting document; None when there is nothing left to do for it.

    The try is counted before it begins, so one that kills its workers ends as failed.
    """
    claim = uuid.uuid4()
    parameters = {"collection_id": collection_id, "key": key, "max_attempts": max_attempts}
    rows = await fetch_rows(conn, STATEMENTS["take"], parameters | {"claim": claim})
    if not rows:
        await conn.execute(STATEMENTS["bury"], parameters)
        return None
    row = rows[0]
    attempts = row.pop("attempts")
    row["tags"], row["page_starts"] = tuple(row["tags"]), tuple(row["page_starts"])
    return Taken(document=Document(**row), claim=claim, attempts=attempts)


async def release(
    conn: Connection,
    collection_id: int,
    taken: Taken,
    *,
    status: str,
    error: str | None,
    interrupted: bool = False,
) -> None:
    """Let go of a document that was not published; an interrupted try does not count."""
    await conn.execute(
        STATEMENTS["release"],
        {
            "collection_id": collection_id,
            "key": taken.document.key,
            "claim": taken.claim,
            "status": status,
            "last_error": error,
            "interrupted": interrupted,
        },
    )
