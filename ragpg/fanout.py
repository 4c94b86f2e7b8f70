"""Several calls at once, never more in flight than a limiter allows; none begins after an error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

import anyio

from ragpg.errors import RagpgError

T = TypeVar("T")


async def fan_out(
    calls: Sequence[Callable[[], Awaitable[T]]], limiter: anyio.CapacityLimiter
) -> list[T]:
    """The calls' results in their order; after a RagpgError none begins, and it is raised.

    Calls in flight by then run to their end: a vendor is paid for an answer that nobody waits for,
    so what they store is stored.
    """
    results: list[T | None] = [None] * len(calls)
    failures: list[RagpgError] = []

    async def run(place: int) -> None:
        try:
            async with limiter:
                if not failures:
                    results[place] = await calls[place]()
        except RagpgError as error:
            # A task group would wrap it in an ExceptionGroup, which no caller expects.
            failures.append(error)

    async with anyio.create_task_group() as group:
        for place in range(len(calls)):
            group.start_soon(run, place)
    if failures:
        raise failures[0]
    return cast("list[T]", results)
