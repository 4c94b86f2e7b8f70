"""Connections to Postgres as this package needs them: alive, in ISO dates, fit for a pooler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import psycopg
from pgvector.psycopg.halfvec import register_halfvec_info
from pgvector.psycopg.sparsevec import register_sparsevec_info
from pgvector.psycopg.vector import register_vector_info
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.types import TypeInfo
from sqlalchemy import event
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ragpg.dsn import connect_args
from ragpg.vectors import HalfVectors, HalfVectorsDumper

Connection = psycopg.AsyncConnection[Any]

# The address is given to the driver itself, which knows more forms of it than SQLAlchemy.
SQLALCHEMY_DRIVER = "postgresql+psycopg://"


def own_engine(url: str, pool_max_size: int) -> AsyncEngine:
    """A pool that never hands out a connection which the server has closed."""
    engine = create_async_engine(
        SQLALCHEMY_DRIVER,
        pool_size=pool_max_size,
        max_overflow=0,
        connect_args={**connect_args(url), "application_name": "ragpg"},
    )

    @event.listens_for(engine.sync_engine, "checkout")
    def refuse_closed(dbapi_connection: Any, _record: Any, _proxy: Any) -> None:
        if not _is_open(dbapi_connection.driver_connection):
            raise InvalidatePoolError

    return engine


@asynccontextmanager
async def checked_out(engine: AsyncEngine) -> AsyncIterator[Connection]:
    """A connection of the pool in autocommit mode, given back to it whatever happens meanwhile.

    Transactions are begun and committed by who uses it: the driver's own BEGIN would be waited for.
    A task may be cancelled at each of its awaits, and by anyio's scopes, as of Starlette, again and
    again until it has ended.
    """
    async with engine.connect() as sa_connection:
        raw = await sa_connection.get_raw_connection()
        pg = cast("Connection", raw.driver_connection)
        try:
            # Here and not as an option of the engine, which SQLAlchemy sets before the connection
            # is in anybody's hands: psycopg yields to a busy loop there, and who is cancelled then
            # leaves the connection to the garbage collector, and the pool one smaller.
            await sa_connection.execution_options(isolation_level="AUTOCOMMIT")
            yield pg
        finally:
            # psycopg closes what is cancelled while it cancels. Else the pool rolls back in a task
            # of its own; what it cannot roll back it would say as an error, in place of the cause.
            # Who is cancelled while psycopg enters a pipeline leaves the connection in that mode.
            if (
                pg.closed
                or pg.info.transaction_status is TransactionStatus.ACTIVE
                or pg.pgconn.pipeline_status != PipelineStatus.OFF
            ):
                await sa_connection.invalidate()


@asynccontextmanager
async def pipeline(conn: Connection) -> AsyncIterator[psycopg.AsyncPipeline]:
    """The connection in pipeline mode, left in peace by who cancels again and again.

    Where psycopg is cancelled twice while it leaves the mode, Python prints an exception that it
    ignored, once for each client of a service that hangs up.
    """
    entered = conn.pipeline()
    inside = await entered.__aenter__()
    try:
        yield inside
    except BaseException as exc:
        await _cancelled_once(entered.__aexit__(type(exc), exc, exc.__traceback__))
        raise
    await _cancelled_once(entered.__aexit__(None, None, None))


async def _cancelled_once(work: Coroutine[Any, Any, bool | None]) -> None:
    """Do it in a task that is cancelled once, however often the caller is, who waits for its end.

    Raises what it raises, or that the caller was cancelled.
    """
    begun = told = False

    async def run() -> None:
        nonlocal begun
        begun = True
        await work

    task = asyncio.create_task(run())
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            cancelled = exc
            # Before its first step the work would never be done.
            if begun and not told:
                told = task.cancel()
    if cancelled is None:
        task.result()
        return
    if not task.cancelled():
        # Said to be known, or the loop would complain of an error that nobody asked for.
        task.exception()
    raise cancelled


async def make_ready(conn: Connection) -> None:
    """Teach a new connection pgvector's types, wherever its role looks for names, and ISO dates."""
    for name, register in (
        ("vector", register_vector_info),
        ("halfvec", register_halfvec_info),
        ("sparsevec", register_sparsevec_info),
    ):
        info = await TypeInfo.fetch(conn, f"public.{name}")
        if info is not None:
            register(conn, info)
    conn.adapters.register_dumper(HalfVectors, HalfVectorsDumper)
    # The driver reads no other style, which an administrator may have set for the role.
    if not (conn.info.parameter_status("DateStyle") or "ISO").startswith("ISO"):
        await conn.execute("set datestyle = 'ISO'")


async def behind_pooler(conn: Connection) -> bool:
    """Whether something in between opened another session for this one.

    PgBouncer and its like answer at connecting with a process number of their own.
    """
    cursor = await conn.execute("select pg_backend_pid()")
    return await cursor.fetchone() != (conn.info.backend_pid,)


def pooler_warnings(conn: psycopg.Connection[Any]) -> tuple[str, ...]:
    """What to mend where work under a lock of the session does not go to the server itself."""
    row = conn.execute("select pg_backend_pid()").fetchone()
    if row is not None and row[0] == conn.info.backend_pid:
        return ()
    return (
        (
            "a pooler stands before the database; where it gives each transaction another"
            " connection, the lock that keeps a second run away stays with one of those and holds"
            " up later runs, so set RAGPG_OWNER_DATABASE_URL to the address of the server itself"
        ),
    )


def is_read_only(conn: Connection) -> bool:
    """Whether the server takes no writes in this session, as far as it has said; asks it nothing.

    A standby says so, and so does a session whose role or database is read-only by default.
    """
    said = map(conn.info.parameter_status, ("in_hot_standby", "default_transaction_read_only"))
    return conn.read_only is True or "on" in said


def _is_open(conn: Connection) -> bool:
    """Whether the server has closed a pooled connection, by what it has sent; asks it nothing.

    A server that is stopped, restarted or ends a session says so and closes the connection, which
    is read here. Twice: the first read may end with its last words, before the end itself.
    """
    try:
        conn.pgconn.consume_input()
        conn.pgconn.consume_input()
    except psycopg.OperationalError:
        return False
    return not conn.closed
