"""Vector indexes and recall by schedule: one job a tick, by a worker that may, and it can stop."""

from __future__ import annotations

import dataclasses
import logging
import time

import anyio
import psycopg
import pytest
from pydantic import SecretStr

from ragpg import doctor, errors, testing, upkeep
from ragpg.client import AsyncClient
from ragpg.jobs import maintenance, work
from ragpg.settings import Settings
from ragpg.types import Document
from ragpg.upkeep import dense_index
from tests.conftest import TestDatabase
from tests.stages.test_jobs import FAST, jobs, until

pytestmark = pytest.mark.anyio

# A busy machine must not make a live worker look dead: that is another test's subject.
STEADY = dataclasses.replace(FAST, stalled_after_s=30.0)
# Once an hour, ten minutes ago: one tick is due, and the next is far.
DUE = time.strftime("%M", time.gmtime(time.time() - 600)) + " * * * *"
EACH_SECOND = "* * * * * *"


def worker(
    database: TestDatabase, owner_url: str | None, *, index_cron: str = DUE, recall_cron: str = ""
) -> AsyncClient:
    return AsyncClient(
        Settings(
            database_url=SecretStr(database.service_url),
            owner_database_url=None if owner_url is None else SecretStr(owner_url),
            index_cron=index_cron,
            recall_cron=recall_cron,
        ),
        embedder=testing.HashEmbedder(),
        context_writer=testing.FirstSentenceContextWriter(),
    )


@pytest.fixture
async def corpus(client, owner):
    """A collection of 60 chunks; an index is wanted from 50 on."""
    owner.execute("update ragpg.dense_setting set index_above = 50, unindex_below = 20")
    docs = client.collection(tenant="acme", name="docs")
    await docs.ingest([Document(key=f"{n}.md", text=f"About valve {n}.") for n in range(60)])
    return docs


def indexes(owner: psycopg.Connection) -> list[tuple[str, str]]:
    return owner.execute("select index_name, state from ragpg.dense_index").fetchall()


def ticks(owner: psycopg.Connection) -> list[str]:
    rows = owner.execute(
        "select task_name from ragpg_jobs.procrastinate_periodic_defers order by task_name"
    )
    return [name for (name,) in rows]


async def test_a_worker_builds_the_index_of_a_collection_that_has_grown(
    database, corpus, owner, caplog
):
    caplog.set_level(logging.INFO, "ragpg")
    async with worker(database, database.owner_url) as client:
        await work(client, limits=STEADY, drain=True)
    assert indexes(owner) == [("embedding_ann_1_1", "valid")]
    assert "index maintenance: create embedding_ann_1_1" in caplog.messages
    assert (ticks(owner), jobs(owner)) == ([maintenance.INDEX_TASK], [])


async def test_a_worker_rebuilds_a_bm25_index_whose_texts_are_read_otherwise_now(
    database, corpus, owner, caplog
):
    caplog.set_level(logging.INFO, "ragpg")
    # As if this release, or this server, had another stem for one lexeme of each text.
    owner.execute(
        "update ragpg.lexeme_vector set weights = overlay(weights::text placing '{7:1,'"
        " from 1 for 1)::sparsevec"
    )
    assert len(upkeep.plan(database.owner_url).lexical) == 1
    async with worker(database, database.owner_url) as client:
        await work(client, limits=STEADY, drain=True)
    assert upkeep.plan(database.owner_url).lexical == ()
    assert (
        "index maintenance: rebuild BM25 of collection 1 of tenant 1: texts are read otherwise now,"
        " by a new release or another PostgreSQL"
    ) in caplog.messages
    assert indexes(owner) == [("embedding_ann_1_1", "valid")]


async def test_a_tick_is_one_job_however_many_workers_see_it(database, corpus, owner, caplog):
    caplog.set_level(logging.INFO, "ragpg")
    for _ in range(3):
        async with worker(database, database.owner_url) as client:
            await work(client, limits=STEADY, drain=True)
        owner.execute("drop index if exists ragpg.embedding_ann_1_1")
    assert caplog.messages.count("index maintenance: create embedding_ann_1_1") == 1
    assert indexes(owner) == []


async def test_a_worker_that_waits_for_jobs_maintains_at_the_next_tick(database, corpus, owner):
    async with (
        worker(database, database.owner_url, index_cron=EACH_SECOND) as client,
        anyio.create_task_group() as group,
    ):
        group.start_soon(lambda: work(client, limits=STEADY))
        for _ in range(2):
            await until(lambda: indexes(owner) == [("embedding_ann_1_1", "valid")])
            owner.execute("drop index ragpg.embedding_ann_1_1")
        group.cancel_scope.cancel()


async def test_recall_is_measured_by_schedule_and_kept(database, corpus, owner):
    async with worker(database, database.owner_url, index_cron="", recall_cron=DUE) as client:
        await work(client, limits=STEADY, drain=True)
    assert owner.execute(
        "select query_source, queries, mean_recall from ragpg.dense_recall"
    ).fetchall() == [("stored", 50, 1.0)]
    assert indexes(owner) == []


async def test_without_a_schedule_nothing_is_maintained_and_no_job_is_made(database, corpus, owner):
    async with worker(database, database.owner_url, index_cron="") as client:
        await work(client, limits=STEADY, drain=True)
    assert (indexes(owner), ticks(owner), jobs(owner)) == ([], [], [])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("none", "RAGPG_OWNER_DATABASE_URL is not set"),
        ("service", 'permission denied to set role "ragpg_owner"'),
    ],
)
async def test_a_worker_without_the_right_says_so_once_and_goes_on_with_its_documents(
    database, corpus, owner, caplog, given, reason
):
    owner_url = {"none": None, "service": database.service_url}[given]
    async with worker(database, owner_url) as client:
        await client.collection(tenant="acme", name="docs").enqueue(
            [Document(key="new.md", text="About a pump.")]
        )
        await work(client, limits=STEADY, drain=True)
        findings = {one.name: one for one in await doctor.examine(client.settings)}
    said = [line for line in caplog.messages if "maintains no indexes" in line]
    assert len(said) == 1
    assert reason in said[0]
    assert "run `ragpg index apply`" in said[0]
    assert (indexes(owner), ticks(owner), jobs(owner)) == ([], [], [])
    assert owner.execute("select 1 from ragpg.document where key = 'new.md'").fetchone() == (1,)
    finding = findings["index maintenance"]
    assert finding.state == "warning"
    assert reason in finding.message


async def test_the_doctor_says_that_workers_build_indexes(database):
    async with worker(database, database.owner_url) as client:
        findings = {one.name: one for one in await doctor.examine(client.settings)}
    assert findings["index maintenance"].state == "ok"


async def test_a_job_of_a_worker_with_the_right_is_not_taken_by_one_without(
    database, corpus, owner
):
    owner.execute(
        "select ragpg_jobs.procrastinate_defer_periodic_job_v2("
        "%s, %s, %s, %s, 0, '', 1, '{\"timestamp\": 1}')",
        [
            maintenance.QUEUE,
            maintenance.LOCK,
            maintenance.INDEX_TASK,
            maintenance.INDEX_TASK,
        ],
    )
    async with worker(database, None) as client:
        await work(client, limits=STEADY, drain=True)
    assert jobs(owner) == [("todo", {"timestamp": 1})]
    async with worker(database, database.owner_url, index_cron="0 0 1 1 *") as client:
        await work(client, limits=STEADY, drain=True)
    assert jobs(owner) == []
    assert indexes(owner) == [("embedding_ann_1_1", "valid")]


async def test_a_build_ends_with_its_worker_and_the_next_one_mends_what_it_left(
    database, corpus, owner
):
    limits = dataclasses.replace(STEADY, stop_within_s=0.1)
    async with worker(database, database.owner_url) as client:
        # An open transaction that has seen the table holds a concurrent build in its first phase.
        with psycopg.connect(database.owner_url) as blocker:
            blocker.execute("lock table ragpg.embedding in row exclusive mode")
            with anyio.fail_after(30):
                async with anyio.create_task_group() as group:
                    group.start_soon(lambda: work(client, limits=limits))
                    await until(lambda: indexes(owner) == [("embedding_ann_1_1", "building")])
                    group.cancel_scope.cancel()
        assert indexes(owner) == [("embedding_ann_1_1", "invalid")]
        done = dense_index.apply(database.owner_url)
        assert [change.action for change in done.changes] == ["rebuild"]
    assert indexes(owner) == [("embedding_ann_1_1", "valid")]


async def test_an_apply_by_hand_at_the_same_time_is_left_to_it(database, corpus, owner, caplog):
    caplog.set_level(logging.INFO, "ragpg")
    owner.execute("select pg_advisory_lock(%s)", [dense_index.INDEX_LOCK])
    async with worker(database, database.owner_url) as client:
        await work(client, limits=STEADY, drain=True)
    assert any("another `ragpg index apply` is at work" in line for line in caplog.messages)
    assert jobs(owner) == []


def test_a_cron_line_that_is_none_is_refused_by_its_variable(monkeypatch):
    monkeypatch.setenv("RAGPG_INDEX_CRON", "hourly, please")
    with pytest.raises(errors.ConfigurationError, match=r"RAGPG_INDEX_CRON is wrong: .*five"):
        Settings.from_env()
