"""Background ingestion on a real Postgres: enqueue, work, fail, try again, stop, be killed."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from ragpg import errors, testing
from ragpg.errors import ProviderRejected, ProviderUnavailable
from ragpg.jobs import WorkerLimits, work
from ragpg.types import Chunk, Document, Embedded, Purpose, WrittenContext
from tests.conftest import client_on

pytestmark = pytest.mark.anyio

FAST = WorkerLimits(
    concurrency=4,
    max_attempts=3,
    first_wait_s=0.05,
    longest_wait_s=0.1,
    heartbeat_s=0.1,
    stalled_after_s=0.6,
    lost_after_s=0.6,
    stop_within_s=0.3,
    poll_s=0.05,
)


def page(key: str, text: str = "Everybody has thirty days of leave.", **fields) -> Document:
    return Document(key=key, text=f"# {key}\n\n{text}\n", **fields)


def jobs(owner: psycopg.Connection) -> list[tuple[Any, ...]]:
    return owner.execute(
        "select status::text, args from ragpg_jobs.procrastinate_jobs order by id"
    ).fetchall()


def staged(owner: psycopg.Connection) -> list[tuple[Any, ...]]:
    return owner.execute(
        "select key, status, attempts, last_error from ragpg.staged_document order by key"
    ).fetchall()


def live(owner: psycopg.Connection) -> list[tuple[Any, ...]]:
    return owner.execute("select key, revision from ragpg.document order by key").fetchall()


async def until(check, seconds: float = 30.0) -> None:
    """Return when `check` holds; fail, not hang, when it never does."""
    with anyio.fail_after(seconds):
        while not check():  # noqa: ASYNC110 - what is waited for happens in the database
            await anyio.sleep(0.02)


@pytest.fixture
async def handbook(client):
    handbook = client.collection(tenant="acme", name="handbook")
    await handbook.create()
    return handbook


async def test_documents_that_are_enqueued_become_live_through_a_worker(client, handbook, owner):
    done = await handbook.enqueue([page("a"), page("b"), page("c", text="")])
    assert (done.queued, done.unchanged) == (("a", "b"), ())
    assert [(f.key, f.reason) for f in done.failed] == [("c", "no_text")]
    assert live(owner) == []
    assert jobs(owner) == [
        ("todo", {"tenant_id": 1, "collection_id": 1, "key": "a"}),
        ("todo", {"tenant_id": 1, "collection_id": 1, "key": "b"}),
    ]
    await work(client, limits=FAST, drain=True)
    assert live(owner) == [("a", 1), ("b", 1)]
    assert jobs(owner) == []
    assert [
        (row["live"], row["queued"], row["no_text"]) for row in await client.status(tenant="acme")
    ] == [(2, 0, 1)]
    again = await handbook.enqueue([page("a"), page("b", text="Everybody has ten.")])
    assert (again.queued, again.unchanged) == (("b",), ("a",))
    await work(client, limits=FAST, drain=True)
    assert live(owner) == [("a", 1), ("b", 2)]


async def test_documents_and_jobs_follow_the_callers_transaction(handbook, owner, database):
    async with await psycopg.AsyncConnection.connect(database.service_url) as conn:
        await handbook.enqueue([page("a")], conn=conn)
        await conn.rollback()
        assert (staged(owner), jobs(owner)) == ([], [])
        await handbook.enqueue([page("a"), page("b")], conn=conn)
        assert (staged(owner), jobs(owner)) == ([], [])
        await conn.commit()
    assert [row[:2] for row in staged(owner)] == [("a", "queued"), ("b", "queued")]
    assert len(jobs(owner)) == 2


async def test_a_newer_version_takes_the_place_of_a_waiting_one_and_needs_no_second_job(
    client, handbook, owner
):
    await handbook.enqueue([page("a", text="First.")])
    await handbook.enqueue([page("a", text="Second.")])
    assert len(jobs(owner)) == 1
    await work(client, limits=FAST, drain=True)
    assert live(owner) == [("a", 1)]
    assert (await handbook.document("a")).text == "# a\n\nSecond.\n"


class GatedEmbedder(testing.HashEmbedder):
    """Waits at each call until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        self.asked += texts
        await self.gate.wait()
        return await super().embed(texts, purpose=purpose)


async def test_a_version_that_is_enqueued_while_an_older_one_is_in_work_wins(database, owner):
    embedder = GatedEmbedder()
    async with client_on(database, embedder=embedder) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.enqueue([page("a", text="First.")])
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: work(client, limits=FAST, drain=True))
            await until(lambda: embedder.asked)
            await handbook.enqueue([page("a", text="Second.")])
            embedder.gate.set()
        await work(client, limits=FAST, drain=True)
        assert live(owner) == [("a", 1)]
        assert (await handbook.document("a")).text == "# a\n\nSecond.\n"
        assert staged(owner) == []


class FailingEmbedder(testing.HashEmbedder):
    """Raises these errors first, one at each call, or the last of them for ever."""

    def __init__(self, *failures: Exception, forever: bool = False) -> None:
        super().__init__()
        self.failures = list(failures)
        self.forever = forever
        self.calls = 0

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        self.calls += 1
        if self.failures:
            raise self.failures[0] if self.forever else self.failures.pop(0)
        return await super().embed(texts, purpose=purpose)


def down() -> ProviderUnavailable:
    return ProviderUnavailable("testing is down", provider="testing", model="hash", retryable=True)


def refused() -> ProviderRejected:
    return ProviderRejected("the text is refused", provider="testing", model="hash", status=400)


async def test_an_error_that_may_pass_is_kept_and_tried_again_until_it_does(database, owner):
    embedder = FailingEmbedder(down(), down())
    async with client_on(database, embedder=embedder) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.enqueue([page("a")])
        await work(client, limits=FAST, drain=True)
        assert staged(owner) == [("a", "queued", 1, "testing is down")]
        (row,) = await client.status(tenant="acme")
        assert (row["live"], row["queued"], row["retrying"]) == (0, 0, 1)
        (waiting,) = owner.execute(
            "select scheduled_at > now() - interval '1 s' from ragpg_jobs.procrastinate_jobs"
        ).fetchall()
        assert waiting == (True,)
        while staged(owner):
            await anyio.sleep(0.1)
            await work(client, limits=FAST, drain=True)
        assert live(owner) == [("a", 1)]
        assert embedder.calls == 3


async def test_an_error_that_does_not_pass_ends_after_the_last_try_with_its_reason(database, owner):
    embedder = FailingEmbedder(down(), forever=True)
    async with client_on(database, embedder=embedder) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.enqueue([page("a")])
        while jobs(owner):
            # A machine at work may hold up the heartbeat for more than FAST's 0.6 s.
            await work(client, limits=replace(FAST, stalled_after_s=30), drain=True)
            await anyio.sleep(0.05)
        assert staged(owner) == [("a", "failed", 3, "testing is down")]
        assert embedder.calls == 3
        (row,) = await client.status(tenant="acme")
        assert (row["live"], row["failed"]) == (0, 1)
        # A retry request is really queued, and the reason stays until it succeeds.
        embedder.failures.clear()
        assert await handbook.retry() == 1
        assert staged(owner) == [("a", "queued", 0, "testing is down")]
        assert len(jobs(owner)) == 1
        await work(client, limits=FAST, drain=True)
        assert (live(owner), staged(owner)) == ([("a", 1)], [])


async def test_an_error_that_cannot_pass_is_not_tried_again_and_its_neighbour_goes_on(
    database, owner, caplog
):
    embedder = FailingEmbedder(refused())
    async with client_on(database, embedder=embedder) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.enqueue([page("a"), page("b")])
        await work(client, limits=WorkerLimits(concurrency=1), drain=True)
        (row,) = staged(owner)
        assert row[:3] == ("a", "failed", 1)
        assert "chunk 0 of document 'a'" in row[3]
        assert (live(owner), jobs(owner), embedder.calls) == ([("b", 1)], [], 2)
    (line,) = [line for line in caplog.messages if line.startswith("document ")]
    assert line.startswith("document 'a' of collection 'handbook' of tenant 'acme', try 1 of 10: ")
    assert line.endswith("(given up)")


async def test_one_document_is_never_in_work_twice_and_others_are_at_the_same_time(database, owner):
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    together = 0
    both = anyio.Event()

    class Watching(testing.FirstSentenceContextWriter):
        async def write(
            self, document: Document, chunks: Sequence[Chunk]
        ) -> AsyncIterator[WrittenContext]:
            nonlocal together
            running[document.key] = running.get(document.key, 0) + 1
            most[document.key] = max(most.get(document.key, 0), running[document.key])
            together = max(together, sum(running.values()))
            if together == 2:
                both.set()
            # On a busy machine the other worker takes a while to come.
            with anyio.move_on_after(2):
                await both.wait()
            await anyio.sleep(0.05)
            running[document.key] -= 1
            async for written in super().write(document, chunks):
                yield written

    async with client_on(database, context_writer=Watching()) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(lambda: work(client, limits=FAST, drain=False))
            for version in range(5):
                await handbook.enqueue(
                    [page(key, text=f"Version {version}.") for key in ("a", "b", "c")]
                )
                await anyio.sleep(0.04)
            await until(lambda: len(live(owner)) == 3 and not staged(owner))
            group.cancel_scope.cancel()
    assert set(most.values()) == {1}
    assert together >= 2
    texts = owner.execute("select distinct split_part(text, E'\\n', 3) from ragpg.document")
    assert texts.fetchall() == [("Version 4.",)]


def robbed(owner: psycopg.Connection, heartbeat_age: str) -> None:
    """A job in work by a worker that was killed, with this age of its last sign of life."""
    owner.execute(
        "with worker as (insert into ragpg_jobs.procrastinate_workers (last_heartbeat)"
        "                values (now() - %s::interval) returning id)"
        " update ragpg_jobs.procrastinate_jobs set status = 'doing', worker_id = worker.id"
        "   from worker",
        [heartbeat_age],
    )
    owner.execute("update ragpg.staged_document set status = 'staged', attempts = attempts + 1")


async def test_a_killed_workers_job_is_put_back_and_a_slow_live_ones_is_not(
    client, handbook, owner
):
    await handbook.enqueue([page("a")])
    robbed(owner, "20 s")
    await work(client, drain=True)
    assert live(owner) == []
    robbed(owner, "40 s")
    await work(client, drain=True)
    assert live(owner) == [("a", 1)]


async def test_a_document_that_kills_its_workers_ends_as_failed(client, handbook, owner):
    await handbook.enqueue([page("a")])
    for _ in range(3):
        robbed(owner, "1 hour")
    await work(client, limits=FAST, drain=True)
    (row,) = staged(owner)
    assert row[:3] == ("a", "failed", 3)
    assert row[3].startswith("each of 3 workers was killed or crashed over this document")
    assert jobs(owner) == []


async def test_a_document_whose_job_was_lost_gets_another(client, handbook, owner):
    await handbook.enqueue([page("a")])
    owner.execute("delete from ragpg_jobs.procrastinate_jobs")
    await work(client, limits=replace(FAST, lost_after_s=30.0), drain=True)
    assert live(owner) == []
    owner.execute("update ragpg.staged_document set updated_at = now() - interval '1 minute'")
    await work(client, limits=FAST, drain=True)
    assert live(owner) == [("a", 1)]


async def test_a_worker_that_was_robbed_cannot_publish_its_late_result(database, owner):
    embedder = GatedEmbedder()
    async with client_on(database, embedder=embedder) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.enqueue([page("a", text="Slow.")])
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: work(client, limits=FAST, drain=True))
            await until(lambda: embedder.asked)
            # Another process ingests a newer version in the meantime.
            async with client_on(database) as other:
                await other.collection(tenant="acme", name="handbook").ingest(
                    [page("a", text="Fast.")]
                )
            embedder.gate.set()
        assert (await handbook.document("a")).text == "# a\n\nFast.\n"
        assert (staged(owner), jobs(owner)) == ([], [])


async def test_a_stopped_worker_ends_what_it_can_and_puts_back_the_rest_uncounted(database, owner):
    embedder = GatedEmbedder()
    async with client_on(database, embedder=embedder) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.enqueue([page("a")])
        worker = asyncio.create_task(work(client, limits=FAST))
        await until(lambda: embedder.asked)
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        assert staged(owner) == [("a", "queued", 0, None)]
        assert [status for status, _ in jobs(owner)] == ["todo"]
        embedder.gate.set()
        await work(client, limits=FAST, drain=True)
        assert live(owner) == [("a", 1)]


async def test_a_deleted_collection_or_document_leaves_jobs_that_do_nothing(
    client, handbook, owner
):
    await handbook.enqueue([page("a"), page("b")])
    await handbook.delete("a")
    await work(client, limits=FAST, drain=True)
    assert (live(owner), jobs(owner)) == ([("b", 1)], [])
    await handbook.enqueue([page("c")])
    await handbook.drop()
    await work(client, limits=FAST, drain=True)
    assert (live(owner), jobs(owner)) == ([], [])


async def test_a_worker_deletes_what_has_expired_of_every_tenant(client, owner):
    for tenant in ("acme", "globex"):
        pages = client.collection(tenant=tenant, name="pages")
        await pages.ingest(
            [
                page("old", expires_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
                page("new", expires_at=dt.datetime(2999, 1, 1, tzinfo=dt.UTC)),
            ]
        )
    await work(client, limits=FAST, drain=True)
    assert live(owner) == [("new", 1), ("new", 1)]


async def test_the_service_cannot_browse_the_queue_and_a_reader_sees_nothing_of_it(
    handbook, owner, database
):
    await handbook.enqueue([page("secret-plans")])
    for url, tables in (
        (database.service_url, ("args", "lock", "*")),
        (database.reader_url, ("id", "args", "*")),
    ):
        with psycopg.connect(url, autocommit=True) as conn:
            for column in tables:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(f"select {column} from ragpg_jobs.procrastinate_jobs")
    with psycopg.connect(database.reader_url, autocommit=True) as conn:
        for call in ("procrastinate_fetch_job_v2(null, 1)", "home(1, 1)", "reclaim(1, 1)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(f"select ragpg_jobs.{call}")
        conn.execute("select ragpg.use_tenant('acme', true)")
        assert conn.execute("select queued from ragpg.ingest_status").fetchall() == [(1,)]


def test_the_queues_functions_are_not_for_everybody_and_pin_their_search_path(owner):
    rows = owner.execute(
        """
        select proname, has_function_privilege('public', oid, 'execute'),
               has_function_privilege('ragpg_reader', oid, 'execute'),
               prosecdef and not coalesce(array_to_string(proconfig, ' ') like '%search_path=%', false)
          from pg_proc where pronamespace = 'ragpg_jobs'::regnamespace
        """
    ).fetchall()
    assert len(rows) > 15
    assert [row for row in rows if any(row[1:])] == []


async def test_a_document_that_failed_in_process_can_be_handed_to_the_workers(database, owner):
    async with client_on(database, embedder=FailingEmbedder(refused())) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        report = await handbook.ingest([page("a")])
        assert [failure.key for failure in report.failed] == ["a"]
        assert await handbook.retry(["a", "unknown"]) == 1
        await work(client, limits=FAST, drain=True)
        assert live(owner) == [("a", 1)]


async def test_a_queue_from_sql_alone_works_as_well(client, handbook, owner, database):
    async with client_on(database, embedder=FailingEmbedder(refused())) as failing:
        await failing.collection(tenant="acme", name="handbook").ingest([page("a")])
    async with client.transaction("acme") as conn:
        await conn.execute("select ragpg.enqueue('handbook', array(select key from ragpg.pending))")
    await work(client, limits=FAST, drain=True)
    assert live(owner) == [("a", 1)]


def test_two_worker_processes_share_the_work_and_stop_at_sigterm(database, owner):
    environment = os.environ | {"RAGPG_DATABASE_URL": database.service_url}

    def ragpg(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "ragpg", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with psycopg.connect(database.service_url, autocommit=True) as conn:
        conn.execute("select ragpg.create_tenant('default')")
    workers = [ragpg("worker", "--concurrency", "2") for _ in range(2)]
    try:
        examples = Path(__file__).parents[2] / "examples"
        done, _ = ragpg("enqueue", str(examples)).communicate(timeout=120)
        assert "3 queued, 0 unchanged, 0 failed" in done
        ending = time.monotonic() + 120
        while len(live(owner)) < 3 and time.monotonic() < ending:
            time.sleep(0.1)
        assert len(live(owner)) == 3
        shown, _ = ragpg("status", "--json").communicate(timeout=120)
        assert '"live": 3' in shown
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            output, _ = worker.communicate(timeout=60)
            assert worker.returncode == 0, output
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


async def test_a_worker_needs_a_url_of_its_own(database, owner):
    from sqlalchemy.ext.asyncio import create_async_engine

    from ragpg.client import AsyncClient
    from ragpg.settings import Settings

    engine = create_async_engine(database.service_url.replace("://", "+psycopg://", 1))
    async with AsyncClient(Settings(), engine=engine) as client:
        with pytest.raises(errors.InputError, match="has no url of its own"):
            await work(client, drain=True)
    await engine.dispose()
