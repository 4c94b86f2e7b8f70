"""BM25 indexes: which want a rebuild or a compaction, and doing it in short transactions.

A rebuild is computed beside the index that is in use and exchanged for it at once, so a search
reads the old one or the new one, never a part. What was computed stays when it is interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row

from ragpg.errors import ConflictError

# Half a second each, for as long as vacuum is held back and a writer may wait for a row.
REBUILD_CHUNKS = 500
COMPACT_CHUNKS = 500
POLL_S = 0.5
# CPU, measured with PostgreSQL 18 on 20,000 chunks of 170 words; see docs/upkeep.md.
MICROSECONDS_READ = 450
MICROSECONDS_EXCHANGED = 50
MICROSECONDS_INDEXED = 450
# As ragpg._scan_up_to(): the rows of smaller collections are not indexed.
SCANNED = 7000


@dataclass(frozen=True, slots=True, kw_only=True)
class LexicalChange:
    """One BM25 index to rebuild or compact, and why.

    `chunks` of it are concerned, `done` of them by a rebuild that was begun before.
    """

    action: Literal["rebuild", "compact"]
    tenant_id: int
    collection_id: int
    tenant: str
    collection: str
    chunks: int
    done: int
    reason: str

    @property
    def seconds(self) -> float:
        """Expected duration, without other load."""
        indexed = self.chunks if self.action == "compact" or self.chunks > SCANNED else 0
        seconds = indexed * MICROSECONDS_INDEXED / 1e6
        if self.action == "rebuild":
            unread = max(0, self.chunks - self.done)
            seconds += unread * MICROSECONDS_READ / 1e6 + self.writers_wait_s
        return seconds

    @property
    def writers_wait_s(self) -> float:
        """How long an ingest into this collection waits at the exchange; searches never do."""
        if self.action == "compact":
            return 0.0
        return self.chunks * MICROSECONDS_EXCHANGED / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class LexicalProgress:
    """Where a rebuild or compaction is; `done` of `total` chunks."""

    change: LexicalChange
    phase: Literal["reading texts", "exchanging", "indexing", "merging counts"]
    done: int
    total: int

    @property
    def doing(self) -> str:
        """What to show a person."""
        return self.phase


def planned(conn: psycopg.Connection[Any]) -> tuple[LexicalChange, ...]:
    """What there is to do, by tenant and collection; on a connection that acts as ragpg_owner.

    Reads 20 chunks of each collection, some 10 ms, and counts the rows of all.
    """
    with conn.cursor(row_factory=class_row(LexicalChange)) as cursor:
        return tuple(cursor.execute("select * from ragpg.lexical_plan()").fetchall())


def carry_out(
    changes: Sequence[LexicalChange],
    conn: psycopg.Connection[Any],
    *,
    progress: Callable[[LexicalProgress], None] | None,
    stop: threading.Event | None,
) -> None:
    """Do it, one short transaction after another, on a connection in autocommit.

    Raises ConflictError when `stop` is set meanwhile; the next apply goes on.
    """
    report = progress or (lambda _progress: None)
    stopped = stop or threading.Event()
    for change in changes:
        _check_stopped(change, stopped)
        with _ended_by(stopped, conn, change):
            if change.action == "rebuild":
                _rebuild(conn, change, report)
            else:
                _compact(conn, change, report)


@contextmanager
def _ended_by(
    stop: threading.Event, conn: psycopg.Connection[Any], change: LexicalChange
) -> Iterator[None]:
    """Cancel what runs when `stop` is set, as often as it takes."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_S):
            if stop.is_set():
                conn.cancel_safe()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except psycopg.errors.QueryCanceled:
        _check_stopped(change, stop)
        raise
    finally:
        over.set()
        watcher.join()


def _rebuild(
    conn: psycopg.Connection[Any],
    change: LexicalChange,
    report: Callable[[LexicalProgress], None],
) -> None:
    done = change.done
    step = "select ragpg.rebuild_lexical_step(%s, %s, %s)"
    while True:
        total = max(change.chunks, done)
        report(LexicalProgress(change=change, phase="reading texts", done=done, total=total))
        read = _number(conn, step, change, REBUILD_CHUNKS)
        done += read
        # Not until none is left: beside writers there would always be another.
        if read < REBUILD_CHUNKS:
            break
    report(LexicalProgress(change=change, phase="exchanging", done=done, total=done))
    _number(conn, "select ragpg.rebuild_lexical(%s, %s)", change)
    _index(conn, change, report, total=done)


def _compact(
    conn: psycopg.Connection[Any],
    change: LexicalChange,
    report: Callable[[LexicalProgress], None],
) -> None:
    _index(conn, change, report, total=change.chunks)
    report(LexicalProgress(change=change, phase="merging counts", done=0, total=0))
    conn.execute("select ragpg.compact_lexical(%s, %s)", [change.tenant_id, change.collection_id])


def _index(
    conn: psycopg.Connection[Any],
    change: LexicalChange,
    report: Callable[[LexicalProgress], None],
    *,
    total: int,
) -> None:
    done = 0
    while moved := _number(
        conn, "select ragpg.index_lexical_step(%s, %s, %s)", change, COMPACT_CHUNKS
    ):
        done += moved
        report(LexicalProgress(change=change, phase="indexing", done=done, total=max(total, done)))


def _number(
    conn: psycopg.Connection[Any], statement: str, change: LexicalChange, *most: int
) -> int:
    row = conn.execute(statement, [change.tenant_id, change.collection_id, *most]).fetchone()
    return 0 if row is None else int(row[0])


def _check_stopped(change: LexicalChange, stop: threading.Event) -> None:
    if stop.is_set():
        raise ConflictError(
            f"the {change.action} of the BM25 index of {change.collection!r} of tenant"
            f" {change.tenant!r} was stopped with its worker; the next `ragpg index apply` goes on"
        )
