"""Several calls at once, never more in flight than a limiter allows; one error ends them all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

import anyio

from ragpg.errors import RagpgError

T = TypeVar("T")


async def fan_out(
    calls: Sequence[Callable[[], Awaitable[T]]], limiter: anyio.CapacityLimiter
) -> list[T]:
    """The calls' results in their order; the first RagpgError cancels the others and is raised."""
    results: list[T | None] = [None] * len(calls)
    failures: list[RagpgError] = []

    async def run(place: int, scope: anyio.CancelScope) -> None:
        try:
            async with limiter:
                results[place] = await calls[place]()
        except RagpgError as error:
            # A task group would wrap it in an ExceptionGroup, which no caller expects.
            failures.append(error)
            scope.cancel()

    async with anyio.create_task_group() as group:
        for place in range(len(calls)):
            group.start_soon(run, place, group.cancel_scope)
    if failures:
        raise failures[0]
    return cast("list[T]", results)
