"""Waits for another migration and for tables in use, not for ever, and says who is in the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ragpg.errors import ConflictError

# Any number that no other program on the server uses; "ragpg" in ASCII.
MIGRATION_LOCK = 0x7261677067
# Other migrations of the same release take seconds; one that builds an index anew takes minutes.
MIGRATION_WAIT_S = 300
# Whoever comes to a table after the migration waits behind it, so it lets them pass after a second.
TABLE_WAIT_S = 1
TABLE_TRIES = 30
PAUSE_S = 1
# What every reader and writer asks for first, by its tenant. Who has this alone finds the other
# tables free, and nobody who holds one of them waits for it.
FIRST_TABLE = "lock table ragpg.tenant in access exclusive mode"
OTHER_TABLES = """
select format('%I.%I', nspname, relname)
  from pg_class join pg_namespace as home on home.oid = relnamespace
 where nspname in ('ragpg', 'ragpg_jobs') and relkind in ('r', 'p') order by 1
"""

HOLDERS = """
select distinct activity.pid, activity.usename::text, activity.state, activity.xact_start
  from pg_locks
  join pg_stat_activity as activity on activity.pid = pg_locks.pid
 where pg_locks.granted and pg_locks.pid <> pg_backend_pid()
   and pg_locks.database = (select oid from pg_database where datname = current_database())
   and {which}
 order by activity.xact_start, activity.pid
 limit 3
"""
OF_MIGRATION = HOLDERS.format(
    which="pg_locks.locktype = 'advisory' and pg_locks.objsubid = 1"
    " and pg_locks.classid::bigint << 32 | pg_locks.objid::bigint = :lock"
)
OF_TABLES = HOLDERS.format(
    which="pg_locks.relation in (select pg_class.oid from pg_class join pg_namespace as home"
    " on home.oid = relnamespace where nspname in ('ragpg', 'ragpg_jobs'))"
)


@contextmanager
def only_migration(connection: Connection) -> Iterator[None]:
    """Hold the lock of migrations; raises ConflictError, which names its holder, after 300 s."""
    try:
        connection.execute(text(f"set local lock_timeout = '{MIGRATION_WAIT_S}s'"))
        connection.execute(text("select pg_advisory_lock(:lock)"), {"lock": MIGRATION_LOCK})
        connection.commit()
    except DBAPIError as exc:
        if not isinstance(exc.orig, psycopg.errors.LockNotAvailable):
            raise
        connection.rollback()
        raise ConflictError(
            f"another session has held the lock of migrations for {MIGRATION_WAIT_S} s:"
            f" {_holders(connection, OF_MIGRATION)}; if that is no migration, end it with `select"
            " pg_terminate_backend(<process>)`, then run `ragpg migrate` again"
        ) from exc
    try:
        yield
    finally:
        connection.rollback()
        connection.execute(text("select pg_advisory_unlock(:lock)"), {"lock": MIGRATION_LOCK})
        connection.commit()


def take_tables(connection: Connection) -> None:
    """Lock all tables until the transaction ends, waiting for the first of them alone.

    Who waits while it holds a table can be waited for by a reader that holds another, and the
    server ends one of the two, mostly the reader. A table that is in use after all, or that
    autovacuum works on, is waited for by itself: raises _InUse with its name.
    """
    if not connection.scalar(text("select to_regclass('ragpg.tenant') is not null")):
        return
    connection.execute(text(FIRST_TABLE))
    for name in connection.scalars(text(OTHER_TABLES)).all():
        try:
            connection.execute(text(f"lock table {name} in access exclusive mode nowait"))
        except DBAPIError as exc:
            if isinstance(exc.orig, psycopg.errors.LockNotAvailable):
                raise _InUse(name) from exc
            raise


class _InUse(Exception):
    """A table could not be had at once."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table


def _wait_for(connection: Connection, table: str) -> None:
    """Until the table is free, for a second and a half, without holding another.

    After one second (`deadlock_timeout`) the server ends an autovacuum that is in the way.
    """
    with suppress(DBAPIError), connection.begin():
        connection.execute(text(f"set local lock_timeout = '{1500 * TABLE_WAIT_S}ms'"))
        connection.execute(text(f"lock table {table} in access exclusive mode"))


def patiently(connection: Connection, work: Callable[[], None]) -> None:
    """Do `work` in a transaction, anew when a table is in use; raises ConflictError after 60 s."""
    for attempt in range(1, TABLE_TRIES + 1):
        try:
            with connection.begin():
                connection.execute(text(f"set local lock_timeout = '{TABLE_WAIT_S}s'"))
                work()
        except (psycopg.errors.LockNotAvailable, DBAPIError, _InUse) as exc:
            if isinstance(exc, _InUse):
                _wait_for(connection, exc.table)
            elif not isinstance(getattr(exc, "orig", exc), psycopg.errors.LockNotAvailable):
                raise
            if attempt == TABLE_TRIES:
                raise ConflictError(
                    f"tables that the migration changes were in use in {TABLE_TRIES} tries, so"
                    f" nothing was changed: {_holders(connection, OF_TABLES)}; stop the service and"
                    " its workers, or end such a session with `select"
                    " pg_terminate_backend(<process>)`, then run `ragpg migrate` again"
                ) from exc
        else:
            return
        time.sleep(PAUSE_S)


def _holders(connection: Connection, statement: str) -> str:
    """The sessions in the way, the oldest first, as words."""
    rows = connection.execute(text(statement), {"lock": MIGRATION_LOCK}).all()
    connection.rollback()
    said = [
        f"process {row[0]} ({row[1]}, {row[2] or 'state unknown'}"
        + ("" if row[3] is None else f", in a transaction since {row[3]:%Y-%m-%d %H:%M:%S%z}")
        + ")"
        for row in rows
    ]
    return ", ".join(said) or "whoever it was has gone"
