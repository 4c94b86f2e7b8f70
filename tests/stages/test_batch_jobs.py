"""A worker and documents that wait in a Message Batch: it collects, resumes, and pays nothing twice."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import anyio
import pytest

from ragpg.errors import ProviderRejected
from ragpg.jobs import work
from ragpg.types import Document
from tests.stages.test_jobs import FAST, jobs, live, staged, until
from tests.stages.test_sync_batches import (
    GUIDE,
    RECIPE,
    batched_requests,
    folder,
    process,
    stub,
)
from tests.vendor_stub import Reply, VendorStub
from tests.vendor_stub_rules import claude_error

__all__ = ["folder", "stub"]
# A busy machine must not make a live worker look dead: that is another test's subject.
STEADY = dataclasses.replace(FAST, stalled_after_s=30.0, lost_after_s=600.0)
pytestmark = pytest.mark.anyio


def paid(stub: VendorStub) -> tuple[int, int]:
    """Contexts asked for in batches, and at once."""
    return batched_requests(stub), len(stub.calls("/v1/messages"))


async def batched(client, folder: Path):
    docs = client.collection(tenant="acme", name="docs")
    await docs.create(RECIPE)
    await docs.ingest_files([folder], batch=True, wait=False)
    return docs


async def enqueued(docs, folder: Path) -> None:
    done = await docs.enqueue_files([folder])
    assert done.queued == ("note.md", "pump.md")


async def test_a_worker_collects_the_batches_of_all_and_publishes_without_anybody_resuming(
    database, stub, folder, owner
):
    async with process(database, stub) as client:
        await batched(client, folder)
        await work(client, limits=STEADY, drain=True)
        assert live(owner) == []
        assert jobs(owner) == [("todo", {"tenant_id": 1, "collection_id": 1})]
        stub.batches.end()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: work(client, limits=STEADY))
            await until(lambda: len(live(owner)) == 2)
            await until(lambda: jobs(owner) == [])
            group.cancel_scope.cancel()
    assert paid(stub) == (4, 0)


async def test_a_document_taken_while_it_waits_in_a_batch_is_left_to_it_and_paid_once(
    database, stub, folder, owner
):
    async with process(database, stub) as client:
        docs = await batched(client, folder)
        await enqueued(docs, folder)
        await work(client, limits=STEADY, drain=True)
        assert (live(owner), paid(stub)) == ([], (4, 0))
        # A try that found it at the vendor is none, however often that happens.
        for _ in range(FAST.max_attempts + 1):
            await docs.enqueue_files([folder])
            await work(client, limits=STEADY, drain=True)
        assert [row[:2] for row in staged(owner)] == [("note.md", "staged"), ("pump.md", "staged")]
        assert owner.execute("select distinct status from ragpg.pending").fetchall() == [
            ("batched",)
        ]
        stub.batches.end()
        await anyio.sleep(0.1)
        await work(client, limits=STEADY, drain=True)
    assert [key for key, _ in live(owner)] == ["note.md", "pump.md"]
    assert (paid(stub), jobs(owner), staged(owner)) == ((4, 0), [], [])


async def test_contexts_that_come_while_the_document_waits_for_a_worker_are_kept(
    database, stub, folder, owner
):
    async with process(database, stub) as client:
        docs = await batched(client, folder)
        await enqueued(docs, folder)
        stub.batches.end()
        await docs.resume(wait=False)
        assert owner.execute(
            "select count(*), count(context) from ragpg.staged_chunk"
        ).fetchone() == (4, 4)
        await work(client, limits=STEADY, drain=True)
    assert [key for key, _ in live(owner)] == ["note.md", "pump.md"]
    assert paid(stub) == (4, 0)


async def test_a_worker_asks_again_for_what_a_batch_dropped_in_a_batch(
    database, stub, folder, owner
):
    async with process(database, stub) as client:
        docs = await batched(client, folder)
        await enqueued(docs, folder)
        await work(client, limits=STEADY, drain=True)
        stub.batches.end({0: "overloaded_error"})
        await anyio.sleep(0.1)
        await work(client, limits=STEADY, drain=True)
        assert paid(stub) == (5, 0)
        stub.batches.end()
        await anyio.sleep(0.1)
        await work(client, limits=STEADY, drain=True)
    assert [key for key, _ in live(owner)] == ["note.md", "pump.md"]
    assert paid(stub) == (5, 0)


async def test_an_edit_that_is_enqueued_pays_for_what_changed_and_waits_for_the_rest(
    database, stub, folder, owner
):
    async with process(database, stub) as client:
        docs = await batched(client, folder)
        edited = GUIDE.replace("inlet valve", "inlet valve slowly")
        await docs.enqueue([Document(key="pump.md", text=edited)])
        await work(client, limits=STEADY, drain=True)
        assert (live(owner), paid(stub)) == ([], (4, 1))
        stub.batches.end()
        await anyio.sleep(0.1)
        await work(client, limits=STEADY, drain=True)
        assert "slowly" in (await docs.document("pump.md")).text
    assert paid(stub) == (4, 1)


async def test_a_worker_without_batches_says_what_a_document_waits_for_and_leaves_it(
    database, stub, folder, owner, caplog
):
    async with process(database, stub) as client:
        docs = await batched(client, folder)
        (batch,) = stub.batches.batches
        await enqueued(docs, folder)
        stub.batches.end()
        await work(client, limits=STEADY, drain=True, batches=False)
        assert (live(owner), jobs(owner), paid(stub)) == ([], [], (4, 0))
        said = sorted(line for line in caplog.messages if "--no-batch" in line)
        assert len(said) == 2
        assert f"'note.md' waits for 1 contexts of batch {batch}, asked for at 20" in said[0]
        assert "`ragpg ingest --resume --tenant acme --collection docs`" in said[0]
        report = await docs.resume(wait=False)
    assert report.created == ("note.md", "pump.md")
    assert paid(stub) == (4, 0)


async def test_two_workers_look_at_the_batches_of_a_collection_by_one_job(
    database, stub, folder, owner
):
    async with process(database, stub) as first, process(database, stub) as second:
        await batched(first, folder)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: work(first, limits=STEADY))
            group.start_soon(lambda: work(second, limits=STEADY))
            await until(lambda: len(jobs(owner)) == 1)
            await anyio.sleep(0.5)
            assert len(jobs(owner)) == 1
            stub.batches.end()
            await until(lambda: len(live(owner)) == 2)
            group.cancel_scope.cancel()
    usage = owner.execute("select count(*) from ragpg.usage where operation = 'context'")
    assert usage.fetchone() == (4,)


async def test_a_vendor_that_refuses_is_told_and_asked_again_later(
    database, stub, folder, owner, caplog
):
    async with process(database, stub) as client:
        await batched(client, folder)
        stub.push(Reply(401, claude_error("authentication_error", "invalid x-api-key")))
        await work(client, limits=STEADY, drain=True)
        assert any("batches of 'docs' were not collected" in line for line in caplog.messages)
        stub.batches.end()
        await anyio.sleep(0.2)
        await work(client, limits=STEADY, drain=True)
    assert len(live(owner)) == 2


async def test_documents_staged_for_a_batch_that_nobody_submitted_are_submitted_by_a_worker(
    database, stub, folder, owner
):
    async with process(database, stub) as client:
        await batched(client, folder)
        # As if the process had ended between staging and submitting.
        owner.execute("delete from ragpg.context_batch")
        stub.batches.batches.clear()
        await work(client, limits=STEADY, drain=True)
        assert paid(stub) == (0, 0)
        owner.execute("update ragpg.staged_document set updated_at = now() - interval '1 hour'")
        await work(client, limits=STEADY, drain=True)
        assert paid(stub) == (4, 0)


def spent(owner, name: str) -> float:
    row = owner.execute(
        "select sum(cost_usd) from ragpg.usage join ragpg.collection using (collection_id)"
        " where operation = 'context' and collection.name = %s",
        [name],
    ).fetchone()
    return float(row[0])


async def test_a_worker_sends_first_chunks_ahead_and_pays_less_than_one_that_sends_all_at_once(
    database, stub, owner
):
    text = "# Long\n\n" + "".join(f"## Part {n}\n\n" + "About valves. " * 60 for n in range(8))
    recipe = dataclasses.replace(RECIPE, max_tokens=200)
    async with process(database, stub) as client:
        for name in ("ahead", "at once"):
            docs = client.collection(tenant="acme", name=name)
            await docs.create(recipe)
            # As if the process had ended between staging and submitting.
            stub.push(Reply(413, claude_error("request_too_large", "too large")))
            with pytest.raises(ProviderRejected):
                await docs.ingest([Document(key="long.md", text=text)], batch=True)
            owner.execute("update ragpg.staged_document set updated_at = now() - interval '1 hour'")
            if name == "ahead":
                async with anyio.create_task_group() as group:
                    group.start_soon(lambda: work(client, limits=STEADY))
                    await until(lambda: batched_requests(stub) == 1)
                    stub.batches.end()
                    await until(lambda: len(stub.batches.batches) == 2)
                    stub.batches.end()
                    await until(lambda: len(live(owner)) == 1)
                    group.cancel_scope.cancel()
            else:
                stub.claude.clock_s += 7_200
                # One that drains may not be back before the cache has expired.
                await work(client, limits=STEADY, drain=True)
                assert len(stub.batches.batches) == 3
                stub.batches.end()
                await anyio.sleep(0.1)
                await work(client, limits=STEADY, drain=True)
                assert len(live(owner)) == 2
    read = (
        "select count(*) filter (where cache_read_tokens > 0),"
        " count(*) filter (where cache_write_tokens > 0)"
        " from ragpg.usage join ragpg.collection using (collection_id) where name = 'ahead'"
    )
    chunks = len(stub.batches.batches["msgbatch_002"].requests)
    assert owner.execute(read).fetchone() == (chunks, 1)
    assert spent(owner, "ahead") < 0.9 * spent(owner, "at once")
