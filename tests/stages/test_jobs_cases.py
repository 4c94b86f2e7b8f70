"""Bad days of background ingestion: a poison text, an outage, two versions at once."""

from __future__ import annotations

from dataclasses import replace

import anyio
import psycopg
import pytest
from pydantic import SecretStr

from ragpg.client import AsyncClient
from ragpg.errors import ProviderUnavailable
from ragpg.jobs import WorkerLimits, work
from ragpg.settings import Settings
from ragpg.types import Document, Recipe
from tests.conftest import client_on
from tests.stages.test_jobs import FAST, FailingEmbedder, down, live, staged
from tests.vendor_stub import VendorStub

pytestmark = pytest.mark.anyio

VOYAGE = Recipe(
    embedding_provider="voyage",
    embedding_model="voyage-4",
    dimensions=256,
    context_provider="none",
    context_model="none",
    splitter="whole",
)


async def test_one_text_far_too_long_fails_with_its_reason_and_15_neighbours_become_live(
    database, owner
):
    notes = [Document(key=f"note-{n:02}", text=f"Normal note {n} on the pump.") for n in range(15)]
    poison = Document(key="poison", text="drum " * 40_000)
    with VendorStub() as stub:
        settings = Settings(
            database_url=SecretStr(database.service_url),
            voyage_api_key=SecretStr("key"),
            voyage_base_url=stub.voyage_url,
        )
        async with AsyncClient(settings) as client:
            for name in ("queued", "at-once"):
                await client.collection(tenant="acme", name=name).create(VOYAGE)
            queued = client.collection(tenant="acme", name="queued")
            await queued.enqueue([*notes[:7], poison, *notes[7:]])
            # Reading 40,000 tokens may hold up the heartbeat for more than FAST's 0.6 s.
            await work(client, limits=replace(FAST, stalled_after_s=30), drain=True)
            # One call each, and the poison is not sent again and again.
            assert len(stub.calls("/embeddings")) == 16
            report = await client.collection(tenant="acme", name="at-once").ingest(
                [*notes[:7], poison, *notes[7:]]
            )
    assert [failure.key for failure in report.failed] == ["poison"]
    assert len(report.created) == 15
    (row, _) = staged(owner)
    assert row[:3] == ("poison", "failed", 1)
    assert "40000 tokens" in row[3]
    counted = owner.execute(
        "select collection, live, failed from ragpg.ingest_status order by 1"
    ).fetchall()
    assert counted == [("at-once", 15, 1), ("queued", 15, 1)]


async def test_after_an_outage_unchanged_sources_are_tried_again(database, owner):
    embedder = FailingEmbedder(down())
    pages = [Document(key=f"{n}.md", text=f"# Page {n}\n\nThe pump.\n") for n in range(3)]
    async with client_on(database, embedder=embedder) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        with pytest.raises(ProviderUnavailable):
            await handbook.ingest(pages)
        (row,) = await client.status(tenant="acme")
        assert (row["live"], row["in_work"], row["failed"]) == (0, 0, 3)
        report = await handbook.ingest(pages)
        assert len(report.created) == 3
        (row,) = await client.status(tenant="acme")
        assert (row["live"], row["in_work"], row["failed"]) == (3, 0, 0)


async def test_two_versions_ingested_at_the_same_time_20_times_end_as_exactly_one(
    database, owner: psycopg.Connection
):
    long = Document(
        key="pump.md", text="".join(f"# P{n}\n\nThe long pump {n}.\n\n" for n in range(9))
    )
    short = Document(key="pump.md", text="# P\n\nThe short pump.\n")
    async with client_on(database) as client, client_on(database) as other:
        first = client.collection(tenant="acme", name="handbook")
        second = other.collection(tenant="acme", name="handbook")
        await first.create()
        for _ in range(20):
            async with anyio.create_task_group() as group:
                group.start_soon(first.ingest, [long])
                group.start_soon(second.ingest, [short])
            text = (await first.document("pump.md")).text
            assert text in {long.text, short.text}
            chunks = owner.execute(
                "select string_agg(text, '' order by position), count(*), count(embedding.chunk_id)"
                "  from ragpg.chunk left join ragpg.embedding using (tenant_id, chunk_id)"
            ).fetchone()
            assert chunks is not None
            assert chunks[0] == text
            assert chunks[1] == chunks[2]
    assert [key for key, _ in live(owner)] == ["pump.md"]


async def test_a_worker_and_an_ingest_of_the_caller_never_publish_the_older_version_last(
    database, owner
):
    limits = WorkerLimits(concurrency=2, first_wait_s=0.05, heartbeat_s=0.1, poll_s=0.05)
    async with client_on(database) as client, client_on(database) as other:
        handbook = client.collection(tenant="acme", name="handbook")
        for number in range(10):
            old = Document(key="pump.md", text=f"# Pump\n\nOld {number}.\n")
            new = Document(key="pump.md", text=f"# Pump\n\nNew {number}.\n")
            await handbook.enqueue([old])
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: work(client, limits=limits, drain=True))
                await anyio.sleep(0.01 * number)
                await other.collection(tenant="acme", name="handbook").ingest([new])
            assert (await handbook.document("pump.md")).text == new.text
            assert staged(owner) == []
