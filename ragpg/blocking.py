"""An event loop in a thread of its own, which blocking callers wait for."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial, wraps
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from anyio.from_thread import start_blocking_portal

from ragpg.errors import ClientClosed
from ragpg.inputs import check_process

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
_END = object()


class LoopThread:
    """A running loop; `call` waits for a coroutine function in it. End it with `close`."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal(name="ragpg"))
        self._thread = self._portal.call(threading.get_ident)

    def call(self, function: Callable[..., Awaitable[Result]], *arguments: object) -> Result:
        """What the coroutine returns or raises.

        Where the wait is interrupted, by Ctrl-C say, the coroutine is cancelled and its end waited
        for, so that nothing goes on behind the caller's back. Raises InputError after a fork, in
        whose child the thread does not run.
        """
        begun, ended = threading.Event(), threading.Event()

        async def run() -> Result:
            begun.set()
            try:
                return await function(*arguments)
            finally:
                ended.set()

        future = self._start(run)
        try:
            return future.result()
        finally:
            self._end(future, begun, ended)

    def iterate(self, items: AsyncIterator[Result]) -> Iterator[Result]:
        """The items as they come; all are made in one task, to which a limiter's place belongs.

        They do not wait for the caller. Who ends early, or is interrupted, cancels the task and
        waits for its end. Raises what making them raises, and as `call` does.
        """
        made: SimpleQueue[Any] = SimpleQueue()
        begun, ended = threading.Event(), threading.Event()

        async def run() -> None:
            begun.set()
            try:
                async for item in items:
                    made.put(item)
            finally:
                made.put(_END)
                ended.set()

        future = self._start(run)
        try:
            while (item := made.get()) is not _END:
                yield item
            future.result()
        finally:
            self._end(future, begun, ended)

    def _end(self, future: Future[Any], begun: threading.Event, ended: threading.Event) -> None:
        """Cancel what is not done, and wait until it has ended; not in the loop's own thread."""
        if future.done():
            return
        future.cancel()
        if threading.get_ident() == self._thread:
            # The collector closes there a generator that nobody holds any more.
            return
        # Whatever was to begin before this has begun, or never will.
        self._portal.call(_nothing)
        if begun.is_set():
            ended.wait()

    def _start(self, function: Callable[[], Awaitable[Result]]) -> Future[Result]:
        check_process(self._process, "where its thread does not run")
        try:
            return self._portal.start_task_soon(function)
        except RuntimeError as exc:
            raise ClientClosed("the client was closed meanwhile; open a new one") from exc

    def close(self) -> None:
        """End the loop after the calls in it."""
        if self._process == os.getpid():
            self._stack.close()


async def _nothing() -> None:
    return


class Twin(Protocol):
    """A blocking object: the async one that does the work, and the thread of its loop."""

    @property
    def inner(self) -> Any:
        """The async object."""

    @property
    def portal(self) -> LoopThread:
        """The thread."""


def blocking(
    method: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """The method of a `Twin` that waits for this one of its async object.

    It has the parameters, the result and the documentation of the original, for type checkers,
    editors and `help` too.
    """

    @wraps(method)
    def wait(self: Twin, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return self.portal.call(partial(method, self.inner, *args, **kwargs))

    return wait
