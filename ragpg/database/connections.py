"""Connections to Postgres as this package needs them: alive, in ISO dates, fit for a pooler."""

from __future__ import annotations

from typing import Any

import psycopg
from pgvector.psycopg.halfvec import register_halfvec_info
from pgvector.psycopg.sparsevec import register_sparsevec_info
from pgvector.psycopg.vector import register_vector_info
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
