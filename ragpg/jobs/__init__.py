"""The worker: takes one waiting document after the other and makes it live.

procrastinate says who works next, on the same database; what is done and what is not is in
ragpg.staged_document. A job carries the numbers of its tenant and collection and the document's
key, never a text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import Any

import anyio
import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.app import WorkerOptions
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import DeleteJobCondition, Job
from procrastinate.retry import BaseRetryStrategy, RetryDecision

from ragpg import retention
from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.database import fetch_rows
from ragpg.database.sqlstates import translated
from ragpg.dsn import connect_args
from ragpg.errors import (
    ConfigurationError,
    DatabaseError,
    DatabaseUnavailable,
    NotFoundError,
    RagpgError,
)
from ragpg.ingestion import Ingestion
from ragpg.ingestion.queued import STATEMENTS, Taken, release, take
from ragpg.ingestion.sources import given
from ragpg.jobs import batch_jobs, maintenance

QUEUE = "ragpg"
TASK = "ragpg.ingest"
_logger = logging.getLogger("ragpg")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """How much a worker does at once, how often it tries, and when it is taken for dead.

    A document is given up after `max_attempts`; the wait before a try doubles from `first_wait_s`
    to `longest_wait_s`. A worker whose heartbeat is older than `stalled_after_s` loses its jobs; a
    document that has waited for `lost_after_s` without a job gets one. A worker that is stopped
    ends its jobs within `stop_within_s` and puts back the others. A database that does not come
    back within `database_wait_s` ends it. It looks for work every `poll_s`, and deletes expired
    documents and the old log every `expire_every_s`.
    """

    concurrency: int = 4
    max_attempts: int = 10
    first_wait_s: float = 10.0
    longest_wait_s: float = 600.0
    heartbeat_s: float = 10.0
    stalled_after_s: float = 30.0
    lost_after_s: float = 600.0
    stop_within_s: float = 30.0
    poll_s: float = 1.0
    database_wait_s: float = 30.0
    expire_every_s: float = 600.0

    def wait_s(self, attempts: int) -> float:
        """The wait after so many tries."""
        return min(self.longest_wait_s, self.first_wait_s * 2.0 ** (attempts - 1))


class _TryAgain(Exception):
    """Ends a try whose error may pass; the reason is in staged_document.last_error."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"next try in {wait_s:.0f} s")
        self.wait_s = wait_s


class _Retry(BaseRetryStrategy):
    """When a job that ended with an exception runs again; the ceiling is that of `take`."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision:
        if isinstance(exception, _TryAgain):
            wait_s = exception.wait_s
        elif isinstance(exception, asyncio.CancelledError):
            wait_s = 0.0
        else:
            wait_s = self._limits.wait_s(job.attempts + 1)
        return RetryDecision(retry_in={"milliseconds": int(1000 * wait_s)})


async def work(
    client: AsyncClient,
    *,
    limits: WorkerLimits | None = None,
    drain: bool = False,
    batches: bool = True,
) -> None:
    """Work on waiting documents of all tenants until SIGTERM or SIGINT; several may run at once.

    It collects batches at the vendor too, unless `batches` is off. With `drain` it ends when
    nothing is left to begin now and what it began has ended. Raises DatabaseUnavailable when the
    database goes away, so that whoever started it starts it again; nothing is lost.
    """
    # One that drains may not be back within the hour for which a first chunk is cached.
    worker = _Worker(client, limits or WorkerLimits(), batches=batches, seed=not drain)
    task = asyncio.create_task(_work(worker, drain=drain))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        # A cancel scope cancels again at every wait, and would close the pool under the worker's
        # own tasks; so it is cancelled once, and ends in peace.
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        raise


async def _work(worker: _Worker, *, drain: bool) -> None:
    client, limits = worker.client, worker.limits
    async with client.transaction(None):
        pass  # Refuses a wrong role or schema before any work.
    await _check_queue(client.url)
    app = _app(worker)
    schedule = await maintenance.schedule(app, client.owner_url, client.settings)
    try:
        async with app.open_async():
            await _reclaim(worker)
            if drain:
                await _delete_overdue(worker)
            if schedule is not None:
                await schedule.defer(now=time.time())
            care = [asyncio.create_task(_take_care(worker, schedule))]
            if not drain:
                care.append(asyncio.create_task(_keep_deleting_overdue(worker)))
            options = _options(limits, drain=drain)
            options["queues"] = [
                QUEUE,
                *([batch_jobs.QUEUE] if worker.batches else []),
                *([maintenance.QUEUE] if schedule is not None else []),
            ]
            try:
                await app.run_worker_async(**options)
            finally:
                for task in care:
                    task.cancel()
                for task in care:
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
    except (ConnectorException, psycopg.OperationalError) as exc:
        reason = str(exc.__cause__ or exc).partition("\n")[0]
        raise DatabaseUnavailable(
            f"the worker lost the database ({reason}); check that the server runs and start the"
            " worker again",
            retryable=True,
        ) from exc


def _queue_args(url: str) -> dict[str, Any]:
    """How the queue is reached: its names have no schema, and its tries take no isolation else."""
    return {
        **connect_args(url),
        "application_name": "ragpg worker",
        "options": "-c search_path=ragpg_jobs -c default_transaction_isolation=read\\ committed"
        " -c datestyle=ISO",
    }


async def _check_queue(url: str) -> None:
    """Raise ConfigurationError where a pooler keeps the queue's settings from the server."""
    with translated():
        async with await psycopg.AsyncConnection.connect(**_queue_args(url)) as conn:
            row = await (await conn.execute("show search_path")).fetchone()
    if row != ("ragpg_jobs",):
        raise ConfigurationError(
            "a pooler stands before the database and leaves out what a worker sets for its session;"
            " give workers the address of the server itself in RAGPG_DATABASE_URL"
        )


def _options(limits: WorkerLimits, *, drain: bool) -> WorkerOptions:
    options = WorkerOptions(
        concurrency=limits.concurrency,
        wait=not drain,
        # What became of a document is in its own row.
        delete_jobs=DeleteJobCondition.ALWAYS,
        fetch_job_polling_interval=limits.poll_s,
        # Any login may NOTIFY: a worker that listens ends jobs when told to, and dies of a payload
        # that is no JSON.
        listen_notify=False,
        update_heartbeat_interval=limits.heartbeat_s,
        stalled_worker_timeout=limits.stalled_after_s,
    )
    if not drain:
        # A worker that does not wait for new jobs stops while its own are in work, and ends those.
        options["shutdown_graceful_timeout"] = limits.stop_within_s
    return options


def _app(worker: _Worker) -> App:
    app = App(
        connector=PsycopgConnector(
            kwargs=_queue_args(worker.client.url),
            min_size=1,
            timeout=worker.limits.database_wait_s,
        )
    )
    retry = _Retry(worker.limits)
    app.task(name=TASK, queue=QUEUE, retry=retry)(worker.run)
    app.task(name=batch_jobs.TASK, queue=batch_jobs.QUEUE, retry=retry)(worker.collect)
    return app


async def _reclaim(worker: _Worker) -> None:
    """Put back jobs of dead workers, and make those that are missing."""
    client, limits = worker.client, worker.limits
    async with client.transaction(None) as conn:
        rows = await fetch_rows(
            conn,
            STATEMENTS["reclaim"],
            {"stalled_after_s": limits.stalled_after_s, "lost_after_s": limits.lost_after_s},
        )
    if rows[0]["reclaimed"]:
        _logger.warning("%d jobs of dead workers were put back", rows[0]["reclaimed"])
    if worker.batches:
        await batch_jobs.defer_collect(client, lost_after_s=limits.lost_after_s)


async def _delete_overdue(worker: _Worker) -> None:
    days = worker.client.settings.search_log_days
    done = await retention.delete_overdue(worker.client.transaction, log_days=days or None)
    if done.documents:
        _logger.info("%d expired documents were deleted", done.documents)
    if done.searches:
        _logger.info("%d searches of %d days ago or earlier left the log", done.searches, days)


async def _keep_deleting_overdue(worker: _Worker) -> None:
    while True:
        try:
            await _delete_overdue(worker)
        except DatabaseError as exc:
            _logger.warning("deleting what is overdue failed and is tried again: %s", exc)
        await asyncio.sleep(worker.limits.expire_every_s)


async def _take_care(worker: _Worker, schedule: maintenance.Schedule | None) -> None:
    """Puts back jobs of dead workers and defers what is due, for ever."""
    while True:
        await asyncio.sleep(worker.limits.heartbeat_s)
        try:
            await _reclaim(worker)
            if schedule is not None:
                await schedule.defer(now=time.time())
        except DatabaseError as exc:
            _logger.warning("looking for jobs of dead workers failed and is tried again: %s", exc)


class _Worker:
    """Runs jobs; keeps a handle per collection, so that its recipe is read once."""

    def __init__(
        self, client: AsyncClient, limits: WorkerLimits, *, batches: bool, seed: bool
    ) -> None:
        self.client = client
        self.limits = limits
        self.batches = batches
        self._seed = seed
        self._collections: dict[tuple[int, int], AsyncCollection] = {}

    async def run(self, *, tenant_id: int, collection_id: int, key: str) -> None:
        """Make a document live, or keep why not; raises _TryAgain when that may pass."""
        collection = await self._collection(tenant_id, collection_id)
        if collection is None:
            return
        try:
            async with collection.transaction() as conn:
                taken = await take(conn, collection_id, key, max_attempts=self.limits.max_attempts)
        except NotFoundError:
            return  # The tenant or the collection was deleted, and the document with it.
        if taken is not None:
            await self._ingest(collection, collection_id, taken)

    async def collect(self, *, tenant_id: int, collection_id: int) -> None:
        """Look at a collection's batches, again and again by _TryAgain until nothing waits."""
        collection = await self._collection(tenant_id, collection_id)
        if collection is None:
            return
        try:
            waits = await batch_jobs.collect(collection, seed=self._seed)
        except NotFoundError:
            return
        except RagpgError as exc:
            _logger.warning("batches of %r were not collected: %s", collection.name, exc)
            raise _TryAgain(self.limits.longest_wait_s) from exc
        if waits:
            raise _TryAgain(self.client.settings.batch_poll_s)

    async def _ingest(self, collection: AsyncCollection, collection_id: int, taken: Taken) -> None:
        try:
            failure = await self._made_live(collection, collection_id, taken)
        except asyncio.CancelledError:
            async with collection.transaction() as conn:
                await release(
                    conn, collection_id, taken, status="queued", error=None, interrupted=True
                )
            raise
        except RagpgError as exc:
            failure = (str(exc), exc.retryable)
        if failure is None:
            return
        message, retryable = failure
        again = retryable and taken.attempts < self.limits.max_attempts
        _logger.warning(
            "document %r of collection %r of tenant %r, try %d of %d: %s (%s)",
            taken.document.key,
            collection.name,
            collection.tenant,
            taken.attempts,
            self.limits.max_attempts,
            message,
            "tried again" if again else "given up",
        )
        async with collection.transaction() as conn:
            await release(
                conn,
                collection_id,
                taken,
                status="queued" if again else "failed",
                error=message,
            )
        if again:
            raise _TryAgain(self.limits.wait_s(taken.attempts))

    async def _made_live(
        self, collection: AsyncCollection, collection_id: int, taken: Taken
    ) -> tuple[str, bool] | None:
        """None, or why the document is not live and whether that may pass."""
        recipe = await collection.recipe()
        providers = self.client.providers
        ingestion = Ingestion(
            transaction=collection.transaction,
            collection=collection.name,
            collection_id=collection_id,
            recipe=recipe,
            embedder=providers.embedder(recipe, collection.name),
            context_writer=providers.context_writer(recipe, collection.name),
            from_files=False,
            claims={taken.document.key: taken.claim},
        )
        report = await ingestion.run(given([taken.document]))
        if report.waiting:
            await batch_jobs.leave_to_batches(
                collection, collection_id, taken, collects=self.batches
            )
        if not report.failed:
            return None
        return report.failed[0].message, report.failed[0].retryable

    async def _collection(self, tenant_id: int, collection_id: int) -> AsyncCollection | None:
        numbers = (tenant_id, collection_id)
        if numbers not in self._collections:
            async with self.client.transaction(None) as conn:
                rows = await fetch_rows(
                    conn,
                    STATEMENTS["home"],
                    {"tenant_id": tenant_id, "collection_id": collection_id},
                )
            if not rows:
                return None
            self._collections[numbers] = self.client.collection(
                tenant=rows[0]["tenant"], name=rows[0]["collection"]
            )
        return self._collections[numbers]
