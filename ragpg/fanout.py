"""Several calls at once, never more in flight than allowed; none begins after an error."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
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


async def work_ahead(
    items: AsyncIterable[T], work: Callable[[T], Awaitable[None]], at_once: int
) -> None:
    """Work on items as they come, `at_once` at a time; the next is taken while those are in work.

    After a RagpgError none is taken, and it is raised; what `items` raises comes through as it is.
    Before either, work in flight runs to its end, as in `fan_out`.
    """
    failures: list[RagpgError] = []
    free = anyio.Semaphore(at_once)

    async def run(item: T) -> None:
        try:
            await work(item)
        except RagpgError as error:
            failures.append(error)
        finally:
            free.release()

    try:
        async with anyio.create_task_group() as group:
            try:
                async for item in items:
                    await free.acquire()
                    if failures:
                        free.release()
                        break
                    group.start_soon(run, item)
            finally:
                # Leaving by an exception cancels what is in flight, so its end is awaited here.
                for _ in range(at_once):
                    await free.acquire()
    except BaseExceptionGroup as several:
        if len(several.exceptions) == 1:
            raise several.exceptions[0] from None
        raise
    if failures:
        raise failures[0]
