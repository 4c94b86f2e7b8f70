"""Stage 2 of 7: staged chunks without a context -> contexts, each stored as soon as it is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ragpg.database import statements
from ragpg.faults import faults_named
from ragpg.protocols import ContextWriter
from ragpg.staging import Settled, Staged, Transaction, record_usage, storable_context
from ragpg.storable_text import storable_text
from ragpg.types import WrittenContext

SET_CONTEXTS = statements("contextualize")["set_contexts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReport:
    """How many contexts were written, which failed, by position, and the NULs left out of them."""

    written: int
    failed: dict[int, str]
    nul_characters: int


async def contextualize(
    transaction: Transaction,
    collection_id: int,
    staged: Staged,
    writer: ContextWriter,
    *,
    settled: Settled,
) -> ContextReport:
    """Write the missing contexts of one document; no transaction is open while the writer works.

    `settled` is told of each paid context once it is stored, and of the free ones together.

    A chunk whose context failed stays without one and keeps the reason, never an empty text; one
    that waits in a batch is left to it, since it is paid for there, and one that was refused for
    good is left alone. Raises InvalidProviderResponse when the writer breaks on this document, and
    another ProviderError when no context can be written at all; what was paid by then is stored.
    """
    missing = [
        chunk.chunk()
        for chunk in staged.chunks
        if chunk.context is None and not (chunk.waiting or chunk.context_refused)
    ]
    failed: dict[int, str] = {}
    written = nul_characters = 0
    free: list[WrittenContext] = []

    async def store(results: Sequence[WrittenContext]) -> None:
        if results:
            await _store(transaction, collection_id, staged, results)
            used = [call for result in results for call in result.usage]
            settled([staged.document.key] * len(results), used)

    if missing:
        with faults_named(writer):
            answers = aiter(writer.write(staged.document, missing))
        while (answer := await _next(answers, writer)) is not None:
            result, removed = _storable(answer, writer)
            nul_characters += removed
            if result.context is None:
                failed[result.position] = result.error or "the context writer gave no reason"
            else:
                written += 1
            if result.usage:
                await store([result])
            else:
                free.append(result)
        # What cost nothing costs nothing when a crash loses it, and one transaction is faster.
        await store(free)
    return ContextReport(written=written, failed=failed, nul_characters=nul_characters)


async def _next(
    answers: AsyncIterator[WrittenContext], writer: ContextWriter
) -> WrittenContext | None:
    # Not around the loop, where a fault of what stores a context would count as the writer's.
    with faults_named(writer):
        return await anext(answers, None)


def _storable(result: WrittenContext, writer: ContextWriter) -> tuple[WrittenContext, int]:
    """The result as Postgres can hold it, and how many NULs were left out; blank is an error.

    A blank context that was paid for is refused, as Claude's is: the same again costs the same.
    """
    context, removed = storable_context(result.context)
    error = result.error and storable_text(result.error)
    if result.context is None or context is not None:
        return replace(result, context=context, error=error), removed
    error = f"{writer.provider} {writer.model} wrote a blank context for chunk {result.position}"
    return replace(result, context=None, error=error, refused=bool(result.usage)), removed


async def _store(
    transaction: Transaction,
    collection_id: int,
    staged: Staged,
    results: Sequence[WrittenContext],
) -> None:
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
        "contexts": [result.context for result in results],
        "context_errors": [result.error if result.context is None else None for result in results],
        "context_refused": [result.context is None and result.refused for result in results],
    }
