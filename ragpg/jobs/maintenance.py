"""Indexes and their recall by schedule, as jobs of those workers that may act as the owner.

The jobs have a queue of their own, so that a worker without the right never takes one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial

import anyio.to_thread
from procrastinate import App
from procrastinate.exceptions import ConnectorException
from procrastinate.periodic import PeriodicDeferrer, PeriodicRegistry

from ragpg import upkeep
from ragpg.errors import ConflictError, DatabaseUnavailable, RagpgError, SchemaError
from ragpg.settings import Settings
from ragpg.upkeep import dense_index, dense_recall

QUEUE = "ragpg.maintenance"
INDEX_TASK = "ragpg.index"
RECALL_TASK = "ragpg.recall"
# Jobs of one lock never run at once: a recall check during a build would measure neither.
LOCK = "ragpg.maintenance"
# A tick that no worker was there for is made up for by the first worker within a day.
LATEST_S = 86_400.0
_logger = logging.getLogger("ragpg")


async def why_not(owner_url: str | None) -> str | None:
    """Why a worker with this url cannot maintain indexes, with what to do, or None."""
    by_yourself = "or run `ragpg index apply` by yourself"
    if owner_url is None:
        return (
            "RAGPG_OWNER_DATABASE_URL is not set; set it to the address of a role that may act as"
            f" ragpg_owner, {by_yourself}"
        )
    try:
        await anyio.to_thread.run_sync(dense_index.check_owner, owner_url)
    except (SchemaError, DatabaseUnavailable) as exc:
        return str(exc)
    except RagpgError as exc:
        return f"RAGPG_OWNER_DATABASE_URL does not serve: {exc}, {by_yourself}"
    return None


async def schedule(app: App, owner_url: str | None, settings: Settings) -> Schedule | None:
    """What a worker does by schedule, or None where it may not; then the log says why, once."""
    reason = await why_not(owner_url)
    if reason is None:
        return Schedule(app, str(owner_url), settings)
    _logger.warning("this worker maintains no indexes: %s", reason)
    return None


class Schedule:
    """What of the maintenance is due, in the database; a tick becomes one job, whoever is first."""

    def __init__(self, app: App, url: str, settings: Settings) -> None:
        registry = PeriodicRegistry()  # type: ignore[no-untyped-call]
        jobs = (
            (INDEX_TASK, settings.index_cron, partial(_apply, url)),
            (RECALL_TASK, settings.recall_cron, partial(_recall, url)),
        )
        for name, cron, run in jobs:
            if cron:
                task = app.task(name=name, queue=QUEUE, lock=LOCK, queueing_lock=name)(_job(run))
                registry.register_task(task, cron, "", {})
        self._deferrer = PeriodicDeferrer(registry, max_delay=LATEST_S)

    async def defer(self, *, now: float) -> None:
        """Make a job of each tick since the last call that no worker has made one of."""
        try:
            await self._deferrer.defer_jobs(self._deferrer.get_previous_tasks(at=now))
        except ConnectorException as exc:
            # The next tick is tried again; a database that stays away ends the worker elsewhere.
            _logger.warning("no maintenance was scheduled: %s", exc.__cause__ or exc)


def _job(run: Callable[[threading.Event], None]) -> Callable[..., object]:
    """A task that runs blocking work in a thread, which a stopping worker asks to end."""

    async def job(timestamp: int) -> None:  # noqa: ARG001  procrastinate says for which tick
        stop = threading.Event()
        work = asyncio.create_task(asyncio.to_thread(run, stop))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([work])
            raise

    return job


def _apply(url: str, stop: threading.Event) -> None:
    try:
        done = upkeep.apply(url, stop=stop)
    except ConflictError as exc:
        _logger.info("index maintenance: %s", exc)
        return
    except RagpgError as exc:
        _logger.warning("index maintenance failed and is tried at its next time: %s", exc)
        return
    for one in done.lexical:
        _logger.info(
            "index maintenance: %s BM25 of collection %s of tenant %s: %s",
            one.action,
            one.collection_id,
            one.tenant_id,
            one.reason,
        )
    for change in done.changes:
        _logger.info("index maintenance: %s %s", change.action, change.index_name)


def _recall(url: str, stop: threading.Event) -> None:
    try:
        with closing(dense_recall.recall(url)) as checks:
            for check in checks:
                if check.advice is not None:
                    _logger.warning("%s", check.advice)
                if stop.is_set():
                    return
    except RagpgError as exc:
        _logger.warning("recall was not measured and is tried at its next time: %s", exc)
