"""How often a call waits for the server, counted on the wire between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from ragpg import errors
from ragpg.database import Database
from ragpg.types import Document
from tests.conftest import SERVICE_PASSWORD, SERVICE_ROLE, TestDatabase, client_on

pytestmark = pytest.mark.anyio
# Answers are held back until the client has sent nothing for so long, which makes it one that
# waits: what it can send without an answer it sends at once.
SILENCE_S = 0.15


class Wire:
    """Forwards to the server and counts how often the client waits for an answer."""

    def __init__(self) -> None:
        self.waits = 0

    async def carry(
        self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:  # fmt: skip
        """Both directions of one connection until one side closes it."""
        clock = asyncio.get_running_loop().time
        last, asked = clock(), False

        async def requests() -> None:
            nonlocal last, asked
            while data := await client[0].read(1 << 20):
                last, asked = clock(), True
                server[1].write(data)
            server[1].close()

        async def answers() -> None:
            nonlocal asked
            while data := await server[0].read(1 << 20):
                while (rest := last + SILENCE_S - clock()) > 0:  # noqa: ASYNC110  a wait for silence
                    await asyncio.sleep(rest)
                self.waits += asked
                asked = False
                client[1].write(data)
            client[1].close()

        with suppress(ConnectionError):
            await asyncio.gather(requests(), answers())
        for _, writer in (client, server):
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def wired(database: TestDatabase) -> AsyncIterator[tuple[Wire, TestDatabase]]:
    """The wire, and the database as it is reached through it."""
    wire, connections = Wire(), set[asyncio.Task[None]]()
    at = conninfo_to_dict(database.service_url)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = str(at["host"]), at.get("port", 5432)
        up = (
            asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
            if host.startswith("/")
            else asyncio.open_connection(host, int(port or 5432))
        )
        this = asyncio.current_task()
        assert this is not None
        connections.add(this)
        await wire.carry((reader, writer), await up)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    url = (
        f"postgresql://{SERVICE_ROLE}:{SERVICE_PASSWORD}@127.0.0.1:{port}/{database.name}"
        "?sslmode=disable&gssencmode=disable"
    )
    try:
        yield wire, replace(database, service_url=url)
    finally:
        listening.close()
        await asyncio.gather(*connections)


async def test_a_search_waits_five_times_for_the_server_and_an_answer_seven_times(database):
    async with wired(database) as (wire, there), client_on(there) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.ingest([Document(key="leave.md", text="Everybody has 30 days of leave.")])
        waits = {}
        for name in ("retrieve", "search", "ask"):
            call: Any = getattr(handbook, name)
            await call("leave")
            before = wire.waits
            assert (await call("leave")).hits
            waits[name] = wire.waits - before
    assert waits == {"retrieve": 3, "search": 5, "ask": 7}


async def test_connections_that_the_server_closed_are_replaced_before_the_next_call(
    database, owner: psycopg.Connection
):
    async with client_on(database) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.ingest([Document(key="leave.md", text="Everybody has 30 days of leave.")])
        await asyncio.gather(*[handbook.retrieve("leave") for _ in range(8)])
        ended = owner.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
            " where datname = %s and pid <> pg_backend_pid()",
            [database.name],
        ).fetchall()
        assert len(ended) > 1
        found = await asyncio.gather(*[handbook.retrieve("leave") for _ in range(8)])
        assert [len(hits) for hits in found] == [1] * 8


async def test_a_pipelined_transaction_raises_what_its_first_wrong_statement_raised(
    database, caplog
):
    pool = Database(url=database.service_url, pool_max_size=1)
    with pytest.raises(errors.TenantNotFound):
        async with pool.transaction("nobody", pipelined=True) as conn:
            await (await conn.execute("select 1 / 0")).fetchall()
    with pytest.raises(errors.DatabaseError, match="22012"):
        async with pool.transaction(None, pipelined=True) as conn:
            await conn.execute("select 1 / 0")
    async with pool.transaction(None, pipelined=True) as conn:
        row = await (await conn.execute("select 42")).fetchone()
    assert row == (42,)

    async def ask_for_nobody() -> None:
        async with pool.transaction("nobody", pipelined=True) as conn:
            await conn.execute("select 1")
            await (await conn.execute("select 2")).fetchall()

    for _ in range(20):
        with pytest.raises(errors.TenantNotFound):
            await ask_for_nobody()
    assert caplog.records == []
    await pool.aclose()
