"""The next user of a pooled connection has no tenant, however the one before it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from ragpg import errors
from ragpg.database import Database
from tests.sql.tenancy_seed import CANARY, make_world

pytestmark = pytest.mark.anyio
SETTING = "select current_setting('ragpg.tenant_id', true)"


@pytest.fixture
async def pool(owner: psycopg.Connection, database) -> AsyncIterator[Database]:
    """A pool of one connection, on a database with two tenants."""
    make_world(owner, database)
    opened = Database(url=database.service_url, pool_max_size=1)
    yield opened
    await opened.aclose()


async def first_of_next(pool: Database) -> int:
    """The process of the pool's connection, after checks that no tenant is set on it."""
    async with pool.transaction(None) as conn:
        row = await (await conn.execute(SETTING)).fetchone()
        assert row == ("",)
        pid = conn.info.backend_pid
    with pytest.raises(errors.TenantNotSetError):
        async with pool.transaction(None) as conn:
            await conn.execute("select * from ragpg.chunk")
    with pytest.raises(errors.TenantNotSetError):
        async with pool.transaction(None) as conn:
            await conn.execute("select * from ragpg.search_lexical('docs', 'leave')")
    return int(pid)


async def test_no_tenant_is_left_after_commit_rollback_and_error(pool):
    before = await first_of_next(pool)
    async with pool.transaction("globex") as conn:
        rows = await (await conn.execute("select text from ragpg.chunk")).fetchall()
        assert CANARY in repr(rows)
    assert await first_of_next(pool) == before
    with pytest.raises(KeyError):
        async with pool.transaction("globex"):
            raise KeyError
    assert await first_of_next(pool) == before
    with pytest.raises(errors.DatabaseError, match="22012"):
        async with pool.transaction("globex") as conn:
            await conn.execute("select 1 / 0")
    assert await first_of_next(pool) == before
    with pytest.raises(errors.TenantNotFound):
        async with pool.transaction("nobody"):
            pass
    assert await first_of_next(pool) == before


async def test_no_tenant_is_left_after_a_pipelined_commit_rollback_or_error(pool):
    before = await first_of_next(pool)
    async with pool.transaction("globex", pipelined=True) as conn:
        rows = await (await conn.execute("select text from ragpg.chunk")).fetchall()
        assert CANARY in repr(rows)
    assert await first_of_next(pool) == before
    with pytest.raises(KeyError):
        async with pool.transaction("globex", pipelined=True):
            raise KeyError
    assert await first_of_next(pool) == before
    with pytest.raises(errors.DatabaseError, match="22012"):
        async with pool.transaction("globex", pipelined=True) as conn:
            await conn.execute("select 1 / 0")
    assert await first_of_next(pool) == before


@pytest.mark.parametrize("pipelined", [False, True])
async def test_no_tenant_is_left_after_cancellation(pool, pipelined):
    started = asyncio.Event()

    async def slow() -> None:
        async with pool.transaction("globex", pipelined=pipelined) as conn:
            started.set()
            await (await conn.execute("select pg_sleep(30)")).fetchall()

    running = asyncio.create_task(slow())
    await started.wait()
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await first_of_next(pool)


async def test_no_tenant_is_left_after_a_statement_timeout(owner, database):
    make_world(owner, database)
    pool = Database(url=database.service_url, pool_max_size=1, statement_timeout_ms=300)
    with pytest.raises(errors.DatabaseError, match="57014"):
        async with pool.transaction("globex") as conn:
            await conn.execute("select pg_sleep(30)")
    await first_of_next(pool)
    await pool.aclose()


async def test_a_tenant_set_for_the_session_by_hand_does_not_reach_the_next_user(pool):
    async with pool.transaction(None) as conn:
        await conn.execute("select ragpg.use_tenant('globex', session => true)")
    await first_of_next(pool)
    async with pool.transaction("acme") as conn:
        rows = await (await conn.execute("select text from ragpg.chunk")).fetchall()
    assert len(rows) == 2
    assert CANARY not in repr(rows)
    await first_of_next(pool)


async def test_a_hundred_users_of_two_connections_see_their_own_tenant_each(owner, database):
    make_world(owner, database)
    pool = Database(url=database.service_url, pool_max_size=2)

    async def texts(tenant: str) -> tuple[str, str]:
        async with pool.transaction(tenant) as conn:
            rows = await (await conn.execute("select text from ragpg.chunk")).fetchall()
        return tenant, repr(rows)

    for tenant, seen in await asyncio.gather(*[texts(t) for t in ["acme", "globex"] * 50]):
        assert (CANARY in seen) == (tenant == "globex")
        assert ("of acme" in seen) == (tenant == "acme")
    await pool.aclose()
