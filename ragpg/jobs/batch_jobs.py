"""Batches at the vendor, seen from a worker: it collects them as jobs, or leaves them to others.

A document whose contexts wait in a batch is paid for there, so a worker that takes it pays nothing:
it leaves the document to the batch, and whoever collects that publishes it.
"""

from __future__ import annotations

import logging

from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.database import fetch_rows
from ragpg.ingestion.queued import STATEMENTS, Taken

QUEUE = "ragpg.batches"
TASK = "ragpg.collect"
_logger = logging.getLogger("ragpg")


async def defer_collect(client: AsyncClient, *, lost_after_s: float) -> None:
    """Make the jobs that collect open batches, of all tenants, one for each collection."""
    async with client.transaction(None) as conn:
        await fetch_rows(conn, STATEMENTS["defer_collect"], {"lost_after_s": lost_after_s})


async def collect(collection: AsyncCollection, *, seed: bool) -> bool:
    """Ask the vendor once, store and publish what has come; whether something waits still.

    `seed` is that of `AsyncCollection.resume`. Raises what that raises; what was stored by then is
    kept.
    """
    report = await collection.resume(wait=False, seed=seed)
    for failure in report.failed:
        _logger.warning("collected from a batch, not live: %s", failure.message)
    return bool(report.waiting)


async def leave_to_batches(
    collection: AsyncCollection, collection_id: int, taken: Taken, *, collects: bool
) -> None:
    """Let go of a document that waits in a batch; a worker that collects none says who will."""
    key = taken.document.key
    async with collection.transaction() as conn:
        await conn.execute(
            STATEMENTS["leave_to_batches"],
            {"collection_id": collection_id, "key": key, "claim": taken.claim},
        )
        rows = await fetch_rows(
            conn, STATEMENTS["awaited_batches"], {"collection": collection.name, "key": key}
        )
    if collects or not rows:
        return
    _logger.warning(
        "document %r waits for %d contexts of batch %s, asked for at %s; this worker collects none"
        " (--no-batch): run `ragpg ingest --resume --tenant %s --collection %s`, or a worker"
        " without it",
        *(key, rows[0]["waiting_contexts"], rows[0]["vendor_batch_id"], rows[0]["batch_since"]),
        *(collection.tenant, collection.name),
    )
