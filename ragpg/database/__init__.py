"""The door to Postgres: the pool, `transaction(tenant)`, named statements, and error translation.

Every statement runs inside `Database.transaction`, which sets the tenant and the planner's settings
for that transaction only; nothing else takes a connection from the pool.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar, cast
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import class_row, dict_row, tuple_row

from ragpg import errors
from ragpg.database import connections
from ragpg.database.sqlstates import translated
from ragpg.inputs import check_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sqlalchemy.ext.asyncio import AsyncEngine

Row = TypeVar("Row")
Connection = connections.Connection
SCHEMA_REVISION = "0020"


# psycopg warns of what follows from an error within a pipeline, which is raised and is enough.
_PIPELINES: WeakSet[psycopg.AsyncPipeline] = WeakSet()


def _is_news(record: logging.LogRecord) -> bool:
    return not (isinstance(record.args, tuple) and any(a in _PIPELINES for a in record.args))


logging.getLogger("psycopg").addFilter(_is_news)


@cache
def statements(name: str) -> dict[str, LiteralString]:
    """The statements of `sql/statements/<name>.sql` by their `-- name:` line.

    Statements run with parameters, so a literal percent in them is written twice. Raises ValueError
    on a duplicate or empty statement.
    """
    text = resources.files("ragpg").joinpath("sql", "statements", f"{name}.sql").read_text("utf-8")
    found: dict[str, LiteralString] = {}
    for block in re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]:
        title, _, body = block.partition("\n")
        key, body = title.strip(), body.strip()
        if key in found or not body:
            raise ValueError(f"statement {key!r} in {name}.sql is empty or defined twice")
        found[key] = cast("LiteralString", body)
    return found


class Database:
    """A pool of connections and the only way to use one. Close it with `aclose`.

    Give `url` for an own pool or `engine` to share the caller's; the caller then closes it.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        engine: AsyncEngine | None = None,
        pool_max_size: int = 10,
        statement_timeout_ms: int = 60_000,
        prepared_statements: bool | None = None,
        actor: str | None = None,
    ) -> None:
        if (url is None) == (engine is None):
            raise errors.InputError("give either a database url or an engine, not both or neither")
        self._owns_engine = engine is None
        self._engine = engine or connections.own_engine(str(url), pool_max_size)
        self._statement_timeout_ms = statement_timeout_ms
        self._prepared_statements = prepared_statements
        self._actor = actor
        self._checked = False
        self._process = os.getpid()
        # Of a caller's engine they may be there already, without pgvector's types.
        self._registered: WeakSet[Connection] = WeakSet()

    async def aclose(self) -> None:
        """Close the pool, if it is ours."""
        if self._owns_engine:
            # Of a parent's connections this process only lets go.
            await self._engine.dispose(close=self._process == os.getpid())

    @asynccontextmanager
    async def transaction(
        self, tenant: str | None, *, conn: Connection | None = None, pipelined: bool = False
    ) -> AsyncIterator[Connection]:
        """A psycopg connection inside a transaction for this tenant, committed at the end.

        `conn` is the caller's own connection: its transaction is used and is not committed here,
        and has its own tenant and settings again afterwards.
        `tenant` None is for statements that belong to no tenant. `pipelined` sends statements
        without waiting for their answers until a result is fetched, so that a transaction of one
        result waits for the server twice instead of once for each statement; what a statement
        raises is then raised at the next fetch or at the end. Raises TenantNotFound, SchemaError,
        DatabaseError.
        """
        check_process(self._process, "which would share its connections")
        with translated(tenant):
            if conn is not None:
                async with self._borrowed(conn, tenant):
                    yield conn
                return
            async with connections.checked_out(self._engine) as pg:
                await self._check(pg)
                if pg not in self._registered:
                    await self._first_use(pg)
                async with connections.pipeline(pg) as pipeline:
                    _PIPELINES.add(pipeline)
                    # Locks are waited for, and what comes after has to see what was waited for.
                    await pg.execute("begin isolation level read committed")
                    await self._enter(pg, tenant)
                    if pipelined:
                        yield pg
                        await pg.execute("commit")
                if not pipelined:
                    yield pg
                    await pg.execute("commit")

    async def _first_use(self, conn: Connection) -> None:
        await connections.make_ready(conn)
        if self._owns_engine:
            wanted = self._prepared_statements
            # A pooler's next transaction may meet another session with other statements prepared,
            # some under the same names: at best an error, at worst another statement's work.
            if wanted is False or (wanted is None and await connections.behind_pooler(conn)):
                conn.prepare_threshold = None
        self._registered.add(conn)

    @asynccontextmanager
    async def _borrowed(self, conn: Connection, tenant: str | None) -> AsyncIterator[None]:
        """This tenant in the caller's own transaction, whose settings are put back afterwards."""
        if not isinstance(conn, psycopg.AsyncConnection):
            raise errors.InputError(
                f"conn is a {type(conn).__name__}; give a psycopg.AsyncConnection"
            )
        if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
            raise errors.InputError(
                "conn is in autocommit mode and in no transaction, so no tenant could be set;"
                " call within `async with conn.transaction():`"
            )
        await self._check(conn)
        before = await _first_row(
            conn,
            "select current_setting('statement_timeout'), current_setting('jit'),"
            " current_setting('client_connection_check_interval'),"
            " coalesce(current_setting('ragpg.tenant_id', true), ''),"
            " coalesce(current_setting('ragpg.actor', true), '')",
        )
        await self._enter(conn, tenant)
        try:
            yield
        finally:
            # After an error of a statement nothing can be set, and only a rollback is left.
            if conn.info.transaction_status == TransactionStatus.INTRANS:
                await conn.execute(
                    "select set_config('statement_timeout', %s, true), set_config('jit', %s, true),"
                    " set_config('client_connection_check_interval', %s, true),"
                    " set_config('ragpg.tenant_id', %s, true), set_config('ragpg.actor', %s, true)",
                    before,
                )

    async def _check(self, conn: Connection) -> None:
        if not self._checked:
            await check_role(conn)
            await check_schema(conn)
            self._checked = True

    async def _enter(self, conn: Connection, tenant: str | None) -> None:
        # Whoever is cancelled again while psycopg cancels for him, as anyio does, just goes away,
        # and the server works on until it has something to send. On Windows it cannot look.
        await conn.execute(
            "select set_config('statement_timeout', %s, true), set_config('jit', 'off', true),"
            " case when current_setting('client_connection_check_interval') = '0'"
            " and version() !~* 'windows|mingw|visual c'"
            " then set_config('client_connection_check_interval', '1s', true) end,"
            " case when %s::text is null then set_config('ragpg.tenant_id', '', true)"
            " else ragpg.use_tenant(%s)::text end,"
            " case when %s::text is not null then set_config('ragpg.actor', %s, true) end",
            [str(self._statement_timeout_ms), tenant, tenant, self._actor, self._actor],
        )


async def _first_row(conn: Connection, statement: LiteralString) -> tuple[Any, ...]:
    """The first row as a tuple, whatever rows the connection is set to give."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement)
        row = await cursor.fetchone()
    return () if row is None else row


async def check_role(conn: Connection) -> None:
    """Refuse a role that row-level security does not bind, or that may not do a service's work.

    Raises ConfigurationError. Before the first migration there is no ragpg_app to belong to.
    """
    name, superuser, bypasses, owns, serves = await _first_row(
        conn,
        """
        select current_user, role.rolsuper, role.rolbypassrls,
               coalesce((select pg_has_role(current_user, home.nspowner, 'member')
                           from pg_namespace as home where home.nspname = 'ragpg'), false),
               coalesce((select pg_has_role(current_user, service.oid, 'usage')
                           from pg_roles as service where service.rolname = 'ragpg_app'), true)
          from pg_roles as role where role.rolname = current_user
        """,
    )
    why = (
        "a superuser"
        if superuser
        else "allowed to bypass row-level security"
        if bypasses
        else "an owner of the schema"
        if owns
        else None
    )
    if why is not None:
        raise errors.ConfigurationError(
            f"the service connects as {name!r}, which is {why}, so tenants would not be kept apart;"
            " connect as a login role that is a member of ragpg_app and nothing more"
            " (RAGPG_OWNER_DATABASE_URL is for `ragpg migrate` alone)"
        )
    if not serves:
        raise errors.ConfigurationError(
            f"the service connects as {name!r}, which is no member of ragpg_app; a role of"
            " ragpg_reader inspects with psql, a service needs a login role in ragpg_app"
            f" (`grant ragpg_app to {name}` by a superuser, or another RAGPG_DATABASE_URL)"
        )


async def check_schema(conn: Connection) -> None:
    """Refuse a schema that does not fit this code. Raises SchemaMissing, -Outdated, -TooNew."""
    found: tuple[Any, ...] = ()
    if await _first_row(
        conn, "select 1 from pg_class where oid = to_regclass('ragpg.alembic_version')"
    ):
        found = await _first_row(
            conn,
            "select version_num, functions_digest from ragpg.alembic_version, ragpg.installation",
        )
    if not found:
        raise errors.SchemaMissing(
            "the database holds no ragpg schema; run `ragpg migrate`", needed=SCHEMA_REVISION
        )
    judge_schema(str(found[0]), str(found[1]))


def judge_schema(revision: str, digest: str) -> None:
    """Raise SchemaOutdated or SchemaTooNew unless this revision and digest fit this code."""
    if revision > SCHEMA_REVISION:
        raise errors.SchemaTooNew(
            f"the database is at revision {revision}, this ragpg knows {SCHEMA_REVISION};"
            " install a newer ragpg (`pip install -U ragpg`)",
            found=revision,
            needed=SCHEMA_REVISION,
        )
    if revision < SCHEMA_REVISION or digest != functions_digest():
        raise errors.SchemaOutdated(
            f"the database is at revision {revision} with functions {digest[:8]}, this ragpg needs"
            f" {SCHEMA_REVISION} with {functions_digest()[:8]}; run `ragpg migrate`",
            found=revision,
            needed=SCHEMA_REVISION,
        )


@cache
def function_files() -> tuple[tuple[str, str], ...]:
    """Name and text of every function file, in the order in which they are applied."""
    folder = resources.files("ragpg").joinpath("sql", "functions")
    return tuple(
        (file.name, file.read_text("utf-8"))
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".sql")
    )


@cache
def functions_digest() -> str:
    """sha256 over the function files."""
    import hashlib

    return hashlib.sha256("\0".join(text for _, text in function_files()).encode()).hexdigest()


async def fetch_all(
    conn: Connection,
    statement: LiteralString,
    parameters: dict[str, Any] | None = None,
    *,
    row_type: type[Row],
) -> list[Row]:
    """Every row as a `row_type`, whose fields are the column names."""
    async with conn.cursor(row_factory=class_row(row_type)) as cursor:
        await cursor.execute(statement, parameters)
        return await cursor.fetchall()


async def execute_each(
    conn: Connection, statement: LiteralString, rows: Sequence[dict[str, Any]]
) -> None:
    """Run the statement once for each row, sent together.

    In a pipeline of ours: whoever is cancelled while psycopg's `executemany` enters one of its own
    gets an AssertionError in place of the cancellation.
    """
    async with connections.pipeline(conn), conn.cursor() as cursor:
        await cursor.executemany(statement, rows)


async def fetch_rows(
    conn: Connection, statement: LiteralString, parameters: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Every row as a dict by column name."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(statement, parameters)
        return await cursor.fetchall()
