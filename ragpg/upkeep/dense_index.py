"""HNSW indexes of large collections: what should change, and changing it.

`ragpg.upkeep` calls these with a connection that acts as ragpg_owner. An index belongs to one
(tenant, collection), whose numbers are in its name; what exists is read from the catalogue, so one
that somebody dropped costs speed and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from ragpg.database import SCHEMA_REVISION, judge_schema
from ragpg.database.connections import pooler_warnings
from ragpg.database.server_checks import pgvector_warnings
from ragpg.database.sqlstates import translated
from ragpg.dsn import libpq_dsn
from ragpg.errors import ConfigurationError, ConflictError, SchemaMissing

# Any number that no other program on the server uses; "ragix" in ASCII.
INDEX_LOCK = 0x7261676978
# Measured with pgvector 0.8.5: 64 MB hold 45,239 rows of 384 dimensions, 24,278 of 1024. Beyond
# maintenance_work_mem a build goes on through the buffers, row by row.
BYTES_PER_ROW = 730
BYTES_PER_DIMENSION = 2
# Measured on 2 CPUs, m = 16, ef_construction = 64: 100,000 rows of 384 dimensions in 30 s, 50,000
# of 1024 in 26 s.
MICROSECONDS_PER_ROW = 170
MICROSECONDS_PER_DIMENSION = 0.35
DEFAULT_EF_CONSTRUCTION = 64
LARGE_ROWS = 200_000
POLL_S = 0.5
DISK_FULL = "53100"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChange:
    """One index to create, rebuild or drop; a rebuild mends what a failed build left.

    `tenant` and `collection` are None for an index whose collection is gone. The estimates are for
    two workers and no other load, and 0 for a drop.
    """

    action: Literal["create", "rebuild", "drop"]
    tenant_id: int
    collection_id: int
    tenant: str | None
    collection: str | None
    dimensions: int | None
    rows: int
    index_name: str

    @property
    def memory_bytes(self) -> int:
        """maintenance_work_mem within which the build stays fast."""
        if self.action == "drop":
            return 0
        return self.rows * (BYTES_PER_ROW + BYTES_PER_DIMENSION * (self.dimensions or 0))

    @property
    def ef_construction(self) -> int:
        """How broadly each row's neighbours are sought: pgvector's default, or more in a large one.

        Of 500,000 rows of 384 dimensions a search of breadth 1,000 finds .975 of the nearest 150
        in an index built with 64, and .990 with 160; the time of the build grows with it.
        """
        return 160 if self.rows > LARGE_ROWS else DEFAULT_EF_CONSTRUCTION

    @property
    def seconds(self) -> float:
        """Expected duration of the build."""
        if self.action == "drop":
            return 0.0
        cost = MICROSECONDS_PER_ROW + MICROSECONDS_PER_DIMENSION * (self.dimensions or 0)
        return self.rows * cost / 1e6 * self.ef_construction / DEFAULT_EF_CONSTRUCTION


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlan:
    """What there is to do, largest collection first, and sentences that somebody should read first.

    `memory_bytes` is the most that one of the builds needs, `maintenance_bytes` what it would get.
    """

    changes: tuple[IndexChange, ...]
    warnings: tuple[str, ...]
    memory_bytes: int
    maintenance_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexProgress:
    """Where a build is; `done` of `total` counts blocks or rows by phase, 0 of 0 at first."""

    change: IndexChange
    phase: str
    done: int
    total: int
    notice: str | None = None

    @property
    def doing(self) -> str:
        """What to show a person."""
        return self.notice or self.phase


def plan(url: str, *, memory_mb: int | None = None) -> IndexPlan:
    """What `apply` would do. Counts every collection, which reads the covering index once.

    `memory_mb` is the maintenance_work_mem that `apply` would get; default: the server's setting.
    """
    with acting_as_owner(url, memory_mb) as conn:
        return planned(conn)


def apply(
    url: str,
    *,
    memory_mb: int | None = None,
    progress: Callable[[IndexProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> IndexPlan:
    """Carry out what `plan` says and return it; readers and writers are not blocked.

    A build whose shared memory does not suffice is tried again without parallel workers. Raises
    ConflictError when another apply runs or `stop` is set meanwhile, DatabaseError when a build
    fails; what was done stays, and the next apply goes on.
    """
    with acting_as_owner(url, memory_mb) as conn, only_apply(conn):
        found = planned(conn)
        carry_out(found, conn, url, progress=progress, stop=stop)
    return found


def carry_out(
    found: IndexPlan,
    conn: psycopg.Connection[Any],
    url: str,
    *,
    progress: Callable[[IndexProgress], None] | None,
    stop: threading.Event | None,
) -> None:
    """Build and drop what the plan says, on a connection that only_apply holds."""
    with _watcher(url) as watcher:
        work = _Work(
            conn=conn,
            watcher=watcher,
            report=progress or (lambda _progress: None),
            stop=stop or threading.Event(),
        )
        for change in found.changes:
            if change.action != "create":
                _watched(work, change, _drop(change))
            if change.action != "drop":
                _build(work, change)


@contextmanager
def only_apply(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Hold the lock of `ragpg index apply`. Raises ConflictError when another session has it."""
    locked = conn.execute("select pg_try_advisory_lock(%s)", [INDEX_LOCK]).fetchone()
    if locked != (True,):
        raise ConflictError("another `ragpg index apply` is at work here; wait until it is done")
    try:
        yield
    finally:
        if not conn.broken:
            conn.execute("select pg_advisory_unlock(%s)", [INDEX_LOCK])


def check_owner(url: str) -> None:
    """Raise ConfigurationError or SchemaError unless this role may act as ragpg_owner here."""
    with acting_as_owner(url, None):
        pass


@contextmanager
def acting_as_owner(url: str, memory_mb: int | None) -> Iterator[psycopg.Connection[Any]]:
    """A connection in autocommit, since a concurrent build wants no transaction around it."""
    dsn = libpq_dsn(url)
    with translated(), psycopg.connect(dsn, autocommit=True, connect_timeout=10) as conn:
        _become_owner(conn)
        conn.execute("set statement_timeout = 0")
        # A new average and new counts must see what writers add meanwhile, see rebuild_lexical.
        conn.execute("set default_transaction_isolation = 'read committed'")
        # The locks of a concurrent build are short, but behind a long transaction it waits for it.
        conn.execute("set lock_timeout = 0")
        if memory_mb is not None:
            conn.execute("select set_config('maintenance_work_mem', %s, false)", [f"{memory_mb}MB"])
        yield conn


def _become_owner(conn: psycopg.Connection[Any]) -> None:
    """Act as ragpg_owner, on a schema that fits. Raises ConfigurationError, SchemaError."""
    # The catalogue, which a role without rights on the schema may read too.
    row = conn.execute(
        "select current_user::text, exists (select from pg_class"
        " where relnamespace = to_regnamespace('ragpg') and relname = 'installation')"
    ).fetchone()
    login, installed = row or ("", False)
    found = None
    if installed:
        try:
            conn.execute("set role ragpg_owner")
        except psycopg.errors.InsufficientPrivilege as exc:
            raise ConfigurationError(
                f"{login!r} may not act as ragpg_owner ({exc.diag.message_primary}); set"
                " RAGPG_OWNER_DATABASE_URL to the address of a login role that is a member of it"
            ) from exc
        found = conn.execute(
            "select version_num, functions_digest from ragpg.alembic_version, ragpg.installation"
        ).fetchone()
    if found is None:
        raise SchemaMissing(
            "the database holds no ragpg schema; run `ragpg migrate`", needed=SCHEMA_REVISION
        )
    judge_schema(str(found[0]), str(found[1]))


@contextmanager
def _watcher(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection as the login role itself: progress is shown to the role that builds only."""
    with translated(), psycopg.connect(libpq_dsn(url), autocommit=True) as conn:
        yield conn


def planned(conn: psycopg.Connection[Any]) -> IndexPlan:
    """What there is to do; counts every collection first."""
    conn.execute("select ragpg.dense_count()")
    with conn.cursor(row_factory=class_row(IndexChange)) as cursor:
        changes = tuple(cursor.execute("select * from ragpg.dense_index_plan()").fetchall())
    row = conn.execute(
        "select pg_size_bytes(current_setting('maintenance_work_mem')),"
        " (select extversion from pg_extension where extname = 'vector')"
    ).fetchone()
    maintenance, version = row or (0, "0")
    needed = max((change.memory_bytes for change in changes), default=0)
    return IndexPlan(
        changes=changes,
        warnings=(
            *pooler_warnings(conn),
            *pgvector_warnings(version),
            *_memory_warnings(needed, maintenance),
        ),
        memory_bytes=needed,
        maintenance_bytes=maintenance,
    )


def _memory_warnings(needed: int, maintenance: int) -> tuple[str, ...]:
    if needed <= maintenance:
        return ()
    warning = (
        f"the largest build needs about {_mb(needed)} MB and maintenance_work_mem is"
        f" {_mb(maintenance)} MB, so it will be several times slower; if the server has the memory,"
        f" pass --memory-mb {_mb(needed)}"
    )
    return (warning,)


def _mb(size: int) -> int:
    return -(-size // 1024**2)


def _drop(change: IndexChange) -> sql.Composed:
    return sql.SQL("drop index concurrently if exists ragpg.{}").format(
        sql.Identifier(change.index_name)
    )


def _create(change: IndexChange) -> sql.Composed:
    return sql.SQL(
        "create index concurrently {name} on ragpg.embedding"
        " using hnsw ((embedding::halfvec({dimensions})) halfvec_cosine_ops)"
        " with (ef_construction = {breadth})"
        " where tenant_id = {tenant} and collection_id = {collection}"
    ).format(
        name=sql.Identifier(change.index_name),
        dimensions=sql.Literal(change.dimensions),
        breadth=sql.Literal(change.ef_construction),
        tenant=sql.Literal(change.tenant_id),
        collection=sql.Literal(change.collection_id),
    )


def _run(conn: psycopg.Connection[Any], statement: sql.Composed) -> None:
    conn.execute(statement)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One apply: who builds, who looks on, who is told, and what ends it early."""

    conn: psycopg.Connection[Any]
    watcher: psycopg.Connection[Any]
    report: Callable[[IndexProgress], None]
    stop: threading.Event


def _build(work: _Work, change: IndexChange) -> None:
    try:
        _watched(work, change, _create(change))
    except psycopg.OperationalError as exc:
        if exc.sqlstate != DISK_FULL:
            raise
        why = f"{exc.diag.message_primary}: building without parallel workers"
        work.report(_notice(change, why))
        _run(work.conn, _drop(change))
        work.conn.execute("set max_parallel_maintenance_workers = 0")
        _watched(work, change, _create(change))
        work.conn.execute("reset max_parallel_maintenance_workers")


def _notice(change: IndexChange, text: str) -> IndexProgress:
    return IndexProgress(change=change, phase="notice", done=0, total=0, notice=text)


def _watched(work: _Work, change: IndexChange, statement: sql.Composed) -> None:
    """Run in a thread, and say twice a second where it is, and what the server says of it.

    When it is to stop it is cancelled; what that leaves is invalid, and mended by the next apply.
    """

    def tell(diagnostic: psycopg.errors.Diagnostic) -> None:
        work.report(_notice(change, diagnostic.message_primary or ""))

    _check_stopped(work, change)
    work.conn.add_notice_handler(tell)
    with ThreadPoolExecutor(max_workers=1) as pool:
        build = pool.submit(_run, work.conn, statement)
        while not _done(build):
            if work.stop.is_set():
                work.conn.cancel_safe()
            _tell_progress(work, change)
        work.conn.remove_notice_handler(tell)
    try:
        build.result()
    except psycopg.errors.QueryCanceled:
        _check_stopped(work, change)
        raise


def _tell_progress(work: _Work, change: IndexChange) -> None:
    row = work.watcher.execute(
        "select phase, greatest(tuples_done, blocks_done), greatest(tuples_total, blocks_total)"
        " from pg_stat_progress_create_index where pid = %s",
        [work.conn.info.backend_pid],
    ).fetchone()
    if row is not None:
        work.report(IndexProgress(change=change, phase=row[0], done=row[1], total=row[2]))


def _check_stopped(work: _Work, change: IndexChange) -> None:
    if work.stop.is_set():
        raise ConflictError(
            f"the {change.action} of {change.index_name} was stopped with its worker; the next"
            " `ragpg index apply` goes on"
        )


def _done(build: Future[None]) -> bool:
    try:
        build.exception(timeout=POLL_S)
    except StillRunning:
        return False
    return True
