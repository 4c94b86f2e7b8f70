"""Stages 2 and 3 in batch mode: ask for missing contexts, collect them, publish what is complete.

Everything that it needs is in rows, so any process goes on where another has stopped.
"""

from __future__ import annotations

import anyio

from ragpg.batches import submit_missing_contexts
from ragpg.batches.results import collect_contexts
from ragpg.context_batch import BatchContextWriter
from ragpg.ingestion import Ingestion


async def run_batches(
    ingestion: Ingestion, writer: BatchContextWriter, *, wait: bool, seed: bool, poll_s: float
) -> None:
    """Submit, collect and publish; look again every `poll_s` seconds until nothing is waiting.

    Without `wait` once: what was submitted stays with the vendor, for this function to collect
    later, in any process. With `seed` first chunks go ahead: for who looks again soon, since the
    others must follow within the hour. Raises ProviderError; what was stored by then is kept.
    """
    while True:
        collected = await collect_contexts(
            ingestion.transaction,
            ingestion.collection_id,
            writer,
            settled=ingestion.context_settled,
        )
        submitted = await submit_missing_contexts(
            ingestion.transaction, ingestion.collection_id, writer, seed=seed
        )
        waiting = collected.waiting + submitted.requests + submitted.held
        ingestion.collected(nul_characters=collected.nul_characters, waiting_contexts=waiting)
        await ingestion.publish_batched()
        if not wait or waiting == 0:
            return
        await anyio.sleep(poll_s)
