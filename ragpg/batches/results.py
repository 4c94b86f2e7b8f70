"""Stage 2 of 7, the cheap way: batches at the vendor -> contexts of staged chunks, in rows.

Each context is stored as soon as it is read, with what it cost, so a restart reads on.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from ragpg.batches import STATEMENTS, finish, mark_submitted
from ragpg.context_batch import BatchContextWriter, BatchResult
from ragpg.database import Connection, fetch_all, fetch_rows, statements
from ragpg.errors import InvalidProviderResponse, ProviderError
from ragpg.staging import (
    Settled,
    Transaction,
    hold_collection,
    record_usage,
    storable_context,
)
from ragpg.storable_text import storable_text

SET_CONTEXTS = statements("contextualize")["set_contexts"]

# A chunk whose request passes away as often as this is a visible gap and is not asked for again.
MAX_ATTEMPTS = 3
# A submission is given up after ten minutes; then its row says that nobody works on it any more.
GRACE = dt.timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectReport:
    """What has come of the batches of a collection so far; only what this call has read is counted.

    `waiting` contexts are in batches that have not ended, or whose submission was interrupted and
    that may yet turn up. `failed` are gaps that stay, by document key and position, and why;
    `again` are free to be submitted again. `unused` were paid for, but no staged chunk needs them.
    `nul_characters` were left out of contexts.
    """

    written: int
    unused: int
    failed: dict[tuple[str, int], str]
    again: int
    waiting: int
    cost_usd: float
    nul_characters: int = 0


@dataclass(slots=True)
class _Collected:
    written: int = 0
    unused: int = 0
    failed: dict[tuple[str, int], str] = field(default_factory=dict)
    again: int = 0
    waiting: int = 0
    cost_usd: float = 0.0
    nul_characters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """A row of context_batch that is not finished."""

    batch_id: uuid.UUID
    vendor_id: str | None
    requests: int
    created_at: dt.datetime
    overdue: bool


async def collect_contexts(
    transaction: Transaction,
    collection_id: int,
    writer: BatchContextWriter,
    *,
    settled: Settled | None = None,
) -> CollectReport:
    """Look at every open batch of the collection once and store what has come of it.

    `settled` is told of each result once it is stored. Call this again, from any process, until
    nothing is `waiting`; what a call has stored, the next one leaves alone. Raises ProviderError
    when the vendor cannot be asked.
    """
    async with transaction() as conn:
        batches = await fetch_all(
            conn,
            STATEMENTS["open_batches"],
            {
                "collection_id": collection_id,
                "provider": writer.provider,
                "model": writer.model,
                "grace": GRACE,
            },
            row_type=_Open,
        )
    tally = _Collected()
    for batch in batches:
        found = batch
        if batch.vendor_id is None:
            found = replace(batch, vendor_id=await _find(transaction, writer, batch, tally))
        if found.vendor_id is not None:
            await _collect(transaction, collection_id, writer, found, tally, settled=settled)
    return CollectReport(
        written=tally.written,
        unused=tally.unused,
        failed=tally.failed,
        again=tally.again,
        waiting=tally.waiting,
        cost_usd=tally.cost_usd,
        nul_characters=tally.nul_characters,
    )


async def _find(
    transaction: Transaction, writer: BatchContextWriter, batch: _Open, tally: _Collected
) -> str | None:
    """The vendor's id of a batch whose submission was interrupted, once that is certain.

    Without one it is dropped, or it waits: while it may still be submitted, and while the vendor
    works on a batch that may be this one.
    """
    if not batch.overdue:
        tally.waiting += batch.requests
        return None
    async with transaction() as conn:
        rows = await fetch_rows(conn, STATEMENTS["vendor_ids"])
    search = await writer.find(
        f"{batch.batch_id.hex}-",
        requests=batch.requests,
        since=batch.created_at,
        known={row["vendor_id"] for row in rows},
    )
    if search.undecided:
        tally.waiting += batch.requests
        return None
    async with transaction() as conn:
        if search.vendor_id is None:
            tally.again += await finish(
                conn, batch.batch_id, "dropped", "it never reached the vendor"
            )
        else:
            await mark_submitted(conn, batch.batch_id, search.vendor_id)
    return search.vendor_id


async def _collect(
    transaction: Transaction,
    collection_id: int,
    writer: BatchContextWriter,
    batch: _Open,
    tally: _Collected,
    *,
    settled: Settled | None,
) -> None:
    vendor_id = str(batch.vendor_id)
    try:
        status = await writer.status(vendor_id)
    except ProviderError as error:
        if error.status != 404:  # noqa: PLR2004
            raise
        # Deleted there, or older than the vendor keeps results.
        async with transaction() as conn:
            tally.again += await finish(conn, batch.batch_id, "collected", str(error))
        return
    if not status.ended:
        tally.waiting += batch.requests
        return
    lines = 0
    async with aclosing(writer.results(vendor_id)) as results:
        async for result in results:
            lines += 1
            async with transaction() as conn:
                keys = await _store(conn, collection_id, batch.batch_id, result, tally)
            if keys is not None and settled is not None:
                settled(keys, result.usage)
    if lines < status.requests:
        raise InvalidProviderResponse(
            f"{writer.provider} {writer.model} returned {lines} of the {status.requests} results of"
            f" batch {vendor_id}; those are stored, collect again",
            provider=writer.provider,
            model=writer.model,
            retryable=True,
        )
    async with transaction() as conn:
        tally.again += await finish(conn, batch.batch_id, "collected", None)


async def _store(
    conn: Connection,
    collection_id: int,
    batch_id: uuid.UUID,
    result: BatchResult,
    tally: _Collected,
) -> Sequence[str] | None:
    """Settle one request, in the transaction that stores its context and what it cost.

    Returns the key of the document that is a context or a gap further, if one is, and None where
    the request was settled before.
    """
    prefix, _, number = result.custom_id.rpartition("-")
    if prefix != batch_id.hex or not number.isdecimal():
        return None
    context, removed = storable_context(result.context)
    result = replace(result, error=result.error and storable_text(result.error))
    if context is None and result.context is not None:
        # Paid for, as a refusal is: the same request again would cost the same.
        result = replace(result, error="the vendor wrote a blank context", refused=True)
    tally.nul_characters += removed
    await hold_collection(conn, collection_id)
    item: dict[str, Any] = {"batch_id": batch_id, "number": int(number)}
    settled = {"status": "failed" if context is None else "written", "error": result.error}
    rows = await fetch_rows(conn, STATEMENTS["settle_item"], item | settled)
    if not rows:
        return None
    await record_usage(conn, collection_id, result.usage)
    tally.cost_usd += sum(usage.cost_usd or 0.0 for usage in result.usage)
    chunk = {"collection_id": collection_id, **rows[0]}
    key = str(chunk["document_key"])
    places = await fetch_rows(conn, STATEMENTS["place_of_item"], chunk)
    if not places:
        if context is not None:
            tally.unused += 1
            await conn.execute(STATEMENTS["set_item_unused"], item)
        return ()
    place = places[0]
    if context is None and result.retryable and place["failures"] < MAX_ATTEMPTS:
        tally.again += 1
        return ()
    await conn.execute(
        SET_CONTEXTS,
        {
            "collection_id": collection_id,
            "key": key,
            "claim": place["claim"],
            "positions": [place["position"]],
            "contexts": [context],
            "context_errors": [result.error if context is None else None],
            "context_refused": [context is None and result.refused],
        },
    )
    if context is None:
        why = result.error or "the vendor gave no reason"
        tally.failed[key, place["position"]] = why
    else:
        tally.written += 1
    return [key]
