"""Batch mode end to end: staged, asked for at the vendor, collected by any process, published."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import anyio
import psycopg
import pytest
import stamina
from pydantic import SecretStr

from ragpg import errors, testing
from ragpg.client import AsyncClient
from ragpg.settings import Settings
from ragpg.types import Document, Recipe
from tests.conftest import TestDatabase, client_on
from tests.vendor_stub import Reply, VendorStub
from tests.vendor_stub_rules import claude_error

pytestmark = pytest.mark.anyio

RECIPE = Recipe(
    embedding_provider="testing",
    embedding_model="hash-256",
    dimensions=256,
    context_provider="claude",
    context_model="claude-haiku-5-5",
    max_tokens=20,
    overlap_tokens=5,
)
GUIDE = """# Pumps

The pump moves water through the plant.

## Starting

Open the inlet valve before the pump is started.

## Stopping

Close the outlet valve after the pump has stopped.
"""


@pytest.fixture
def stub() -> Iterator[VendorStub]:
    with VendorStub() as server, stamina.set_testing(True, attempts=60, cap=True):
        yield server


def process(database: TestDatabase, stub: VendorStub) -> AsyncClient:
    """A client of its own, as another process would have."""
    settings = Settings(
        database_url=SecretStr(database.service_url),
        anthropic_api_key=SecretStr("key"),
        anthropic_base_url=stub.anthropic_url,
        batch_poll_s=0.05,
    )
    return AsyncClient(
        settings,
        embedder=testing.HashEmbedder(),
        reranker=testing.OverlapReranker(),
        generator=testing.QuotingGenerator(),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "docs"
    root.mkdir()
    (root / "pump.md").write_text(GUIDE)
    (root / "note.md").write_text("A note about valves.\n")
    return root


def live(owner: psycopg.Connection) -> list[str]:
    return [key for (key,) in owner.execute("select key from ragpg.document order by key")]


def batched_requests(stub: VendorStub) -> int:
    return sum(len(batch.requests) for batch in stub.batches.batches.values())


async def test_a_batch_outlives_its_process_and_any_other_publishes_what_it_wrote(
    database, stub, folder, owner
):
    async with process(database, stub) as first:
        docs = first.collection(tenant="acme", name="docs")
        await docs.create(RECIPE)
        synced = await docs.sync(folder, batch=True, wait=False)
        assert synced.ingested.created == ()
        assert synced.ingested.waiting == ("note.md", "pump.md")
        assert batched_requests(stub) == 4
    assert live(owner) == []
    async with process(database, stub) as second:
        docs = second.collection(tenant="acme", name="docs")
        assert (await docs.resume(wait=False)).waiting == ("note.md", "pump.md")
        stub.batches.end()
        report = await docs.resume()
        assert (report.created, report.waiting, report.chunks) == (("note.md", "pump.md"), (), 4)
        assert len(report.usage) > 4
        # The keys are the sync's, though a resume published them.
        again = await docs.sync(folder, batch=True)
        assert again.ingested.unchanged == ("note.md", "pump.md")
        (folder / "note.md").unlink()
        assert (await docs.sync(folder, allow_removals=True)).removed == ("note.md",)
    assert batched_requests(stub) == 4
    assert stub.calls("/v1/messages") == []
    contexts = owner.execute("select context from ragpg.chunk").fetchall()
    assert all(context for (context,) in contexts)


async def test_the_same_command_again_goes_on_with_the_batch_of_the_first(
    database, stub, folder, owner
):
    async with process(database, stub) as first:
        docs = first.collection(tenant="acme", name="docs")
        await docs.create(RECIPE)
        await docs.ingest_files([folder], batch=True, wait=False)
    stub.batches.end()
    async with process(database, stub) as second:
        docs = second.collection(tenant="acme", name="docs")
        report = await docs.ingest_files([folder], batch=True)
        assert sorted(report.created) == ["note.md", "pump.md"]
    assert batched_requests(stub) == 4


async def test_what_was_staged_before_an_interruption_is_submitted_by_a_resume(
    database, stub, folder, owner
):
    async with process(database, stub) as first:
        docs = first.collection(tenant="acme", name="docs")
        await docs.create(RECIPE)
        stub.push(Reply(413, claude_error("request_too_large", "too large")))
        with pytest.raises(errors.ProviderRejected):
            await docs.ingest_files([folder], batch=True)
    assert batched_requests(stub) == 0
    async with process(database, stub) as second:
        docs = second.collection(tenant="acme", name="docs")
        assert (await docs.resume(wait=False)).waiting == ("note.md", "pump.md")
        assert batched_requests(stub) == 4
        stub.batches.end()
        assert (await docs.resume()).created == ("note.md", "pump.md")


async def test_a_normal_ingest_leaves_what_waits_in_a_batch_to_the_batch(
    database, stub, folder, owner
):
    async with process(database, stub) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.create(RECIPE)
        await docs.ingest_files([folder], batch=True, wait=False)
        # What is at the vendor is paid for already.
        assert [one.operation for one in (await docs.plan_files([folder])).usage] == ["embed"]
        report = await docs.ingest_files([folder])
        assert (report.created, report.waiting) == ((), ("note.md", "pump.md"))
        assert stub.calls("/v1/messages") == []
        # An edit is paid for at once, the other two chunks are not paid for twice.
        (folder / "pump.md").write_text(GUIDE.replace("inlet valve", "inlet valve slowly"))
        report = await docs.ingest_files([folder])
        assert report.waiting == ("note.md", "pump.md")
        assert len(stub.calls("/v1/messages")) == 1
        stub.batches.end()
        report = await docs.resume()
        assert report.created == ("note.md", "pump.md")
    assert (
        "slowly"
        in (owner.execute("select string_agg(text, '') from ragpg.chunk").fetchone() or ("",))[0]
    )
    unused = owner.execute(
        "select count(*) from ragpg.context_batch_item where status = 'unused'"
    ).fetchone()
    assert unused == (1,)
    assert batched_requests(stub) == 4


async def test_waiting_polls_asks_again_for_what_passed_and_tells_how_much_is_left(
    database, stub, folder, owner
):
    told: list[int] = []
    async with process(database, stub) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.create(RECIPE)

        async def vendor() -> None:
            while batched_requests(stub) < 4:  # noqa: ASYNC110  the stub is another thread
                await anyio.sleep(0.02)
            stub.batches.end({0: "overloaded_error"})
            while batched_requests(stub) < 5:  # noqa: ASYNC110
                await anyio.sleep(0.02)
            stub.batches.end()

        def progress(now) -> None:
            if now.outcome == "waiting":
                told.append(now.waiting_contexts)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(vendor)
            report = await docs.sync(folder, batch=True, progress=progress)
    assert sorted(report.ingested.created) == ["note.md", "pump.md"]
    assert told[0] == 4
    assert 1 in told
    assert told[-1] == 0
    assert owner.execute("select count(*) from ragpg.chunk where context is null").fetchone() == (
        0,
    )


async def test_a_context_that_a_batch_was_refused_is_a_gap_or_holds_its_document_back(
    database, stub, folder, owner
):
    async with process(database, stub) as client:
        open_ = client.collection(tenant="acme", name="open")
        await open_.create(RECIPE)
        await open_.ingest([Document(key="pump.md", text=GUIDE)], batch=True, wait=False)
        stub.batches.end({0: "invalid_request_error"})
        report = await open_.resume()
        assert (report.created, report.contexts_failed) == (("pump.md",), 1)
        strict = client.collection(tenant="acme", name="strict")
        await strict.create(dataclasses.replace(RECIPE, failed_contexts="hold"))
        await strict.ingest([Document(key="pump.md", text=GUIDE)], batch=True, wait=False)
        stub.batches.end({0: "invalid_request_error"})
        report = await strict.resume()
        assert report.created == ()
        assert [(failure.key, failure.reason) for failure in report.failed] == [
            ("pump.md", "context")
        ]
        assert "invalid_request_error" in report.failed[0].message


async def test_a_plan_of_claude_contexts_costs_half_in_a_batch_and_calls_nobody(
    database, stub, folder
):
    (folder / "long.md").write_text("# Long\n\n" + "A line about pumps and valves.\n" * 400)
    async with process(database, stub) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.create(RECIPE)
        at_once, batched = await docs.plan(folder), await docs.plan(folder, batch=True)
        for plan in (at_once, batched):
            assert [(one.provider, one.model) for one in plan.usage] == [
                ("claude", "claude-haiku-5-5"),
                ("testing", "hash-256"),
            ]
        one, half = at_once.usage[0], batched.usage[0]
        assert one.cache_read_tokens > 10 * one.cache_write_tokens > 0
        assert (one.input_tokens, one.output_tokens) == (half.input_tokens, half.output_tokens)
        assert one.cost_usd is not None
        assert half.cost_usd == pytest.approx(one.cost_usd / 2, rel=1e-9)
        assert (at_once.at_once_usd, at_once.notes[:-1]) == (None, ())
        assert batched.at_once_usd == pytest.approx(one.cost_usd)
        assert batched.notes[-1].startswith(
            f"the contexts cost about {half.cost_usd:.4f} US dollars in batches and"
            f" {one.cost_usd:.4f} at once, so batches save 50%; with --no-wait less"
        )
        assert stub.log == []


async def test_only_claude_writes_batches(database):
    async with client_on(database) as client:
        docs = client.collection(tenant="acme", name="docs")
        with pytest.raises(errors.InputError, match=r"'testing', which writes no batches"):
            await docs.ingest([Document(key="a.md", text="A text.")], batch=True)
        with pytest.raises(errors.InputError, match="only 'claude' does"):
            await docs.resume()


async def test_pending_names_the_batch_that_a_document_waits_for_and_since_when(
    database, stub, folder, owner
):
    shown = (
        "select key, pending.status, waiting_contexts, vendor_batch_id, batch_since = created_at"
        " from ragpg.pending left join ragpg.context_batch as batch using (tenant_id, batch_id)"
        " order by key"
    )
    counted = "select in_work, batched, batched_since is not null from ragpg.ingest_status"
    async with process(database, stub) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.create(RECIPE)
        await docs.ingest_files([folder], batch=True, wait=False)
        (batch,) = stub.batches.batches
        assert owner.execute(shown).fetchall() == [
            ("note.md", "batched", 1, batch, True),
            ("pump.md", "batched", 3, batch, True),
        ]
        assert owner.execute(counted).fetchall() == [(0, 2, True)]
        (status,) = await client.status(tenant="acme")
        assert (status["in_work"], status["batched"]) == (0, 2)
        stub.batches.end()
        await docs.resume()
    assert owner.execute(shown).fetchall() == []
    assert owner.execute(counted).fetchall() == [(0, 0, False)]


async def test_pending_shows_a_document_whose_batch_was_never_submitted_as_batched_without_one(
    database, stub, folder, owner
):
    async with process(database, stub) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.create(RECIPE)
        stub.push(Reply(413, claude_error("request_too_large", "too large")))
        with pytest.raises(errors.ProviderRejected):
            await docs.ingest_files([folder], batch=True)
    assert owner.execute(
        "select key, status, waiting_contexts, vendor_batch_id from ragpg.pending order by key"
    ).fetchall() == [("note.md", "batched", 0, None), ("pump.md", "batched", 0, None)]


async def test_who_waits_sends_first_chunks_ahead_and_publishes_when_the_others_have_followed(
    database, stub, folder, owner
):
    (folder / "long.md").write_text(
        "# Long\n\n" + "".join(f"## Part {n}\n\n" + "About valves. " * 60 for n in range(8))
    )
    told: list[int] = []
    recipe = dataclasses.replace(RECIPE, max_tokens=200)
    async with process(database, stub) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.create(recipe)

        async def vendor() -> None:
            for batches in (1, 2):
                while len(stub.batches.batches) < batches:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
                stub.batches.end()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(vendor)
            report = await docs.sync(
                folder,
                batch=True,
                progress=lambda now: told.append(now.waiting_contexts) if not now.key else None,
            )
    assert sorted(report.ingested.created) == ["long.md", "note.md", "pump.md"]
    ahead, others = (len(batch.requests) for batch in stub.batches.batches.values())
    assert (ahead < others, ahead + others) == (True, told[0])
    read = owner.execute(
        "select count(*) filter (where cache_read_tokens > 0),"
        " count(*) filter (where cache_write_tokens > 0) from ragpg.usage"
    ).fetchone()
    assert read == (others, 1)
