"""Calls that are cancelled at each of their awaits: by asyncio once, by anyio until they end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Generator
from typing import Any, cast

import anyio
import psycopg
import pytest
from sqlalchemy.pool import QueuePool

import ragpg
from ragpg import testing
from ragpg.collection import AsyncCollection
from ragpg.database.connections import own_engine
from tests.conftest import TestDatabase, client_on

pytestmark = pytest.mark.anyio
TEXT = "# Leave\n\nEverybody has 30 days of leave.\n\n# Pay\n\nPay is on the 25th."
# A task is cancelled at the n-th await, and at so many after it; anyio's scopes do not end.
ONCE, TWICE, UNTIL_IT_ENDS = 0, 1, 1000
Call = Callable[[ragpg.AsyncClient, AsyncCollection, int], Awaitable[object]]


class CancelledAt:
    """A coroutine whose task is cancelled while it waits for the n-th time, and `again` times."""

    def __init__(self, coroutine: Any, n: int, again: int) -> None:
        self.coroutine, self.waits, self.n, self.again = coroutine, 0, n, again

    def __await__(self) -> Generator[Any, Any, Any]:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        error: BaseException | None = None
        while True:
            try:
                waited = self.coroutine.throw(error) if error else self.coroutine.send(None)
            except StopIteration as end:
                return end.value
            self.waits += 1
            if self.n <= self.waits <= self.n + self.again:
                loop.call_soon(task.cancel)
            error = None
            try:
                yield waited
            except BaseException as exc:  # noqa: BLE001  thrown into the coroutine
                error = exc


async def ask_in_parts(docs: AsyncCollection) -> None:
    async for _ in docs.stream("leave", await docs.ground("leave")):
        pass


async def own_statements(client: ragpg.AsyncClient) -> None:
    async with client.transaction("acme") as conn:
        await conn.execute("select pg_sleep(0.001)")
        await conn.execute("select count(*) from ragpg.document")


def document(number: int) -> ragpg.Document:
    return ragpg.Document(key=f"{number}.md", text=f"{TEXT}\n\nNumber {number}.")


CALLS: dict[str, Call] = {
    "transaction": lambda client, _docs, _n: own_statements(client),
    "create_tenant": lambda client, _docs, n: client.create_tenant(f"tenant {n}"),
    "collections": lambda client, _docs, _n: client.collections(tenant="acme"),
    "status": lambda client, _docs, _n: client.status(tenant="acme"),
    "search_log": lambda client, _docs, _n: client.search_log(tenant="acme"),
    "prune_log": lambda client, _docs, _n: client.prune_log(tenant="acme", older_than_days=1),
    "create": lambda _client, docs, _n: docs.create(),
    "retrieve": lambda _client, docs, _n: docs.retrieve("leave"),
    "search": lambda _client, docs, _n: docs.search("leave", expand="neighbours"),
    "ask": lambda _client, docs, _n: docs.ask("leave"),
    "stream": lambda _client, docs, _n: ask_in_parts(docs),
    "ingest": lambda _client, docs, n: docs.ingest([document(n)]),
    "enqueue": lambda _client, docs, n: docs.enqueue([document(n)]),
    "retry": lambda _client, docs, _n: docs.retry(),
    "document": lambda _client, docs, _n: docs.document("0.md"),
    "documents": lambda _client, docs, _n: docs.documents(),
    "delete": lambda _client, docs, n: docs.delete(f"{n - 1}.md"),
    "stale": lambda _client, docs, _n: docs.stale(),
    "expire": lambda _client, docs, _n: docs.expire(),
    "set_alias": lambda _client, docs, n: docs.set_alias(f"alias {n}"),
}


async def ended(work: CancelledAt) -> bool:
    """Whether it came to its end; False if it was cancelled. Another error is raised."""

    async def run() -> None:
        await work

    task = asyncio.create_task(run())
    await asyncio.wait({task}, timeout=30)
    assert task.done(), f"hangs after being cancelled at its await {work.n}"
    if task.cancelled():
        return False
    task.result()
    return True


async def unfinished(owner: psycopg.Connection) -> list[Any]:
    """What the service has open in the server, which needs a moment to see that one has gone."""
    found: list[Any] = []
    for _ in range(100):
        found = owner.execute(
            "select state, left(query, 60) from pg_stat_activity where state <> 'idle'"
            " and datname = current_database() and pid <> pg_backend_pid()"
        ).fetchall()
        if not found:
            break
        await asyncio.sleep(0.05)
    return found


@pytest.mark.parametrize("again", [ONCE, TWICE, UNTIL_IT_ENDS], ids=["once", "twice", "to_the_end"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_cancelled_at_any_await_leaves_its_connection_in_the_pool(
    database: TestDatabase,
    owner: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    again: int,
):
    # Else psycopg yields to the loop only after the loop was busy, which is chance in a test.
    monkeypatch.setattr("psycopg.waiting.MAX_BUSY_TIME", 0.0)
    engine = own_engine(database.service_url, 2)
    async with ragpg.AsyncClient(
        client_on(database).settings,
        engine=engine,
        embedder=testing.HashEmbedder(),
        generator=testing.QuotingGenerator(),
    ) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.ingest([document(0)])
        n = 0
        finished = False
        while not finished:
            n += 1
            if again == TWICE:
                # Such a call connects first.
                await engine.dispose()
            work = CancelledAt(CALLS[name](client, docs, n), n, again)
            done = await ended(work)
            assert cast("QueuePool", engine.pool).checkedout() == 0, f"cancelled at await {n}"
            assert await unfinished(owner) == [], f"cancelled at await {n}"
            finished = done and work.waits < n
        assert n > 3
        async with client.transaction(None) as conn:
            cursor = await conn.execute("select current_setting('ragpg.tenant_id')")
            assert await cursor.fetchone() == ("",)
        # What was left to the collector it would complain of here.
        gc.collect()
    await engine.dispose()


async def test_the_server_stops_work_for_a_request_whose_scope_was_cancelled(
    client: ragpg.AsyncClient, owner: psycopg.Connection
):
    """A scope cancels until it has ended, so psycopg cannot cancel the statement itself."""
    await client.create_tenant("acme")
    with anyio.move_on_after(0.3) as scope:
        async with client.transaction("acme") as conn:
            await conn.execute("select pg_sleep(50)")
    assert scope.cancelled_caught
    assert await unfinished(owner) == []


async def test_a_timeout_comes_as_such_and_not_as_an_error_of_the_database(
    client: ragpg.AsyncClient,
):
    await client.create_tenant("acme")
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), client.transaction("acme") as conn:
                await conn.execute("select pg_sleep(50)")
