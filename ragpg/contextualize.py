"""Stage 2 of 7: staged chunks without a context -> contexts, each stored as soon as it is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ragpg.database import statements
from ragpg.protocols import ContextWriter
from ragpg.staging import Staged, Transaction, record_usage
from ragpg.types import Usage, WrittenContext

SET_CONTEXTS = statements("contextualize")["set_contexts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReport:
    """How many contexts were written and how many failed, by chunk position, and what they used."""

    written: int
    failed: dict[int, str]
    usage: tuple[Usage, ...]


async def contextualize(
    transaction: Transaction, collection_id: int, staged: Staged, writer: ContextWriter
) -> ContextReport:
    """Write the missing contexts of one document; no transaction is open while the writer works.

    A chunk whose context failed stays without one and keeps the reason, never an empty text; one
    that waits in a batch is left to it, since it is paid for there, and one that was refused for
    good is left alone. Raises ProviderError when no context can be written at all.
    """
    missing = [
        chunk.chunk()
        for chunk in staged.chunks
        if chunk.context is None and not (chunk.waiting or chunk.context_refused)
    ]
    failed: dict[int, str] = {}
    usage: list[Usage] = []
    written = 0
    free: list[WrittenContext] = []
    if missing:
        async for result in writer.write(staged.document, missing):
            usage += result.usage
            if result.context is None:
                failed[result.position] = result.error or "the context writer gave no reason"
            else:
                written += 1
            if result.usage:
                await _store(transaction, collection_id, staged, [result])
            else:
                free.append(result)
        # What cost nothing costs nothing when a crash loses it, and one transaction is faster.
        await _store(transaction, collection_id, staged, free)
    return ContextReport(written=written, failed=failed, usage=tuple(usage))


async def _store(
    transaction: Transaction,
    collection_id: int,
    staged: Staged,
    results: Sequence[WrittenContext],
) -> None:
    if not results:
        return
    async with transaction() as conn:
        for result in results:
            await record_usage(conn, collection_id, result.usage)
        await conn.execute(
            SET_CONTEXTS,
            {
                "collection_id": collection_id,
                "key": staged.document.key,
                "claim": staged.claim,
                "positions": [result.position for result in results],
                **_outcomes(results),
            },
        )


def _outcomes(results: Sequence[WrittenContext]) -> dict[str, list[Any]]:
    """What the statement set_contexts takes of these: a text, or why there is none."""
    return {
        "contexts": [
            None if result.context is None else result.context.replace("\0", "")
            for result in results
        ],
        "context_errors": [result.error if result.context is None else None for result in results],
        "context_refused": [result.context is None and result.refused for result in results],
    }
