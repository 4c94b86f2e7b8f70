"""Upkeep of both arms: what `ragpg index plan | apply` and the workers' schedule show and do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ragpg.upkeep import dense_index, lexical_index
from ragpg.upkeep.dense_index import IndexChange, IndexProgress
from ragpg.upkeep.lexical_index import LexicalChange, LexicalProgress

Progress = IndexProgress | LexicalProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepPlan:
    """What there is to do, and sentences that somebody should read first.

    `lexical` is about BM25 indexes, `changes` about vector indexes, largest collection first.
    `memory_bytes` is the most that one of their builds needs, `maintenance_bytes` what it would
    get.
    """

    lexical: tuple[LexicalChange, ...]
    changes: tuple[IndexChange, ...]
    warnings: tuple[str, ...]
    memory_bytes: int
    maintenance_bytes: int


def plan(url: str, *, memory_mb: int | None = None) -> UpkeepPlan:
    """What `apply` would do. Counts every collection and reads 20 chunks of each.

    `url` is that of a role that may act as ragpg_owner, `memory_mb` the maintenance_work_mem that
    `apply` would get; default: the server's setting.
    """
    with dense_index.acting_as_owner(url, memory_mb) as conn:
        return _joined(lexical_index.planned(conn), dense_index.planned(conn))


def apply(
    url: str,
    *,
    memory_mb: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> UpkeepPlan:
    """Carry out what `plan` says, BM25 first since it mends what is not found, and return it.

    Searches are not blocked; who ingests into a collection that is rebuilt waits for its end, as
    long as its `writers_wait_s` says. Raises ConflictError when another apply runs or `stop` is
    set meanwhile, DatabaseError when something fails; what was done stays, and the next apply goes
    on.
    """
    with dense_index.acting_as_owner(url, memory_mb) as conn, dense_index.only_apply(conn):
        lexical = lexical_index.planned(conn)
        lexical_index.carry_out(lexical, conn, progress=progress, stop=stop)
        dense = dense_index.planned(conn)
        dense_index.carry_out(dense, conn, url, progress=progress, stop=stop)
    return _joined(lexical, dense)


def _joined(lexical: tuple[LexicalChange, ...], dense: dense_index.IndexPlan) -> UpkeepPlan:
    return UpkeepPlan(
        lexical=lexical,
        changes=dense.changes,
        warnings=dense.warnings,
        memory_bytes=dense.memory_bytes,
        maintenance_bytes=dense.maintenance_bytes,
    )
