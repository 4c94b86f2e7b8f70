"""Contexts in batches over a real Postgres: nothing is lost or paid for twice, whatever restarts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
import psycopg
import pytest
from psycopg.types.json import Jsonb

from ragpg.batches import SubmitReport, submit_missing_contexts
from ragpg.batches.results import collect_contexts
from ragpg.context_batch import BatchResult, ContextRequest
from ragpg.database import Database, statements
from ragpg.errors import InvalidProviderResponse, ProviderRejected, ProviderUnavailable
from ragpg.ingest import stage
from ragpg.providers.claude_batch import ClaudeBatchContextWriter
from ragpg.types import Document, Span
from tests.providers.making import document
from tests.vendor_stub import Reply, Reset, VendorStub
from tests.vendor_stub_rules import claude_error

pytestmark = pytest.mark.anyio

RECIPE = {
    "embedding_provider": "testing",
    "embedding_model": "hash-256",
    "dimensions": 256,
    "embedding_dtype": "float",
    "context_provider": "claude",
    "context_model": "claude-haiku-5-5",
    "context_prompt_version": 1,
    "glossary": "",
    "splitter": "section",
    "max_tokens": 400,
    "overlap_tokens": 50,
    "language": "english",
}


class Killed(Exception):
    """The process ends here."""


class DiesAfterSubmitting(ClaudeBatchContextWriter):
    async def submit(self, requests: Mapping[str, ContextRequest]) -> str:
        await super().submit(requests)
        raise Killed


class DiesBeforeSubmitting(ClaudeBatchContextWriter):
    async def submit(self, requests: Mapping[str, ContextRequest]) -> str:
        raise Killed(len(requests))


class Blanking(ClaudeBatchContextWriter):
    """Writes NULs: nothing else for the first chunk, two of them in front of the other contexts."""

    async def results(self, vendor_id: str) -> AsyncGenerator[BatchResult, None]:
        async for result in super().results(vendor_id):
            is_first = result.custom_id.endswith("-0")
            yield replace(result, context="\0 " if is_first else f"\0\0{result.context}")


class SmallBatches(ClaudeBatchContextWriter):
    max_requests = 4


@dataclass
class Process:
    """What a process has: a pool and a writer of its own."""

    database: Database
    writer: ClaudeBatchContextWriter
    collection_id: int = 0

    def transaction(self):
        return self.database.transaction("acme")

    async def submit(self, *, seed: bool = False) -> SubmitReport:
        return await submit_missing_contexts(
            self.transaction, self.collection_id, self.writer, seed=seed
        )

    async def collect(self):
        return await collect_contexts(self.transaction, self.collection_id, self.writer)

    async def stage(self, source: Document, *, chunks: int) -> None:
        size = -(-len(source.text) // chunks)
        spans = [
            Span(start=start, stop=min(start + size, len(source.text)))
            for start in range(0, len(source.text), size)
        ]
        async with self.transaction() as conn:
            await stage(conn, self.collection_id, source, spans, batched=True)


@pytest.fixture
def start(database, stub):
    """`async with start() as process`: a new process on the same database and vendor."""

    @asynccontextmanager
    async def opened(kind=ClaudeBatchContextWriter) -> AsyncIterator[Process]:
        pool = Database(url=database.service_url)
        claude = kind(api_key="k", model="claude-haiku-5-5", base_url=stub.anthropic_url)
        process = Process(database=pool, writer=claude)
        try:
            async with pool.transaction(None) as conn:
                await conn.execute("select ragpg.create_tenant('acme')")
            async with process.transaction() as conn:
                cursor = await conn.execute("select collection_id from ragpg.collection")
                row = await cursor.fetchone()
                if row is None:
                    create = statements("client")["create_collection"]
                    cursor = await conn.execute(create, {"name": "c", "recipe": Jsonb(RECIPE)})
                    row = await cursor.fetchone()
                assert row is not None
                process.collection_id = row[0]
            yield process
        finally:
            await claude.aclose()
            await pool.aclose()

    return opened


def contexts(owner: psycopg.Connection, key: str = "guide") -> list[str | None]:
    rows = owner.execute(
        "select context from ragpg.staged_chunk where document_key = %s order by position", [key]
    )
    return [row[0] for row in rows]


def statuses(owner: psycopg.Connection, table: str = "context_batch_item") -> dict[str, int]:
    rows = owner.execute(f"select status, count(*) from ragpg.{table} group by 1")
    return dict(rows.fetchall())


def an_hour_later(owner: psycopg.Connection) -> None:
    owner.execute("update ragpg.context_batch set created_at = created_at - interval '1 hour'")


async def test_contexts_survive_a_restart_between_submitting_and_collecting(start, stub, owner):
    async with start() as first:
        await first.stage(document(lines=100), chunks=4)
        await first.stage(document(lines=100, key="other"), chunks=3)
        assert await first.submit() == SubmitReport(batches=1, requests=7)
        report = await first.collect()
        assert (report.written, report.waiting) == (0, 7)
    stub.batches.end()
    async with start() as second:
        report = await second.collect()
        assert (report.written, report.waiting, report.failed, report.again) == (7, 0, {}, 0)
        assert len(set(contexts(owner))) == 4
        assert contexts(owner)[0] == "From Field guide: on # Field guide Line 0 says."
        assert None not in contexts(owner, "other")
        used = owner.execute("select count(*), sum(cost_usd) from ragpg.usage").fetchone()
        assert used is not None
        assert used[0] == 7
        assert float(used[1]) == pytest.approx(report.cost_usd, abs=1e-6)
        again = await second.collect()
        assert (again.written, again.cost_usd) == (0, 0.0)
        assert await second.submit() == SubmitReport(batches=0, requests=0)
    assert len(stub.batches.batches) == 1
    assert statuses(owner, "context_batch") == {"collected": 1}


async def test_a_blank_context_is_a_gap_that_nobody_asks_again_and_nuls_are_counted(
    start, stub, owner
):
    async with start(Blanking) as process:
        await process.stage(document(lines=100), chunks=3)
        await process.submit()
        stub.batches.end()
        told: list[Any] = []
        report = await collect_contexts(
            process.transaction,
            process.collection_id,
            process.writer,
            settled=lambda keys, usage: told.append((list(keys), len(usage))),
        )
        assert (report.written, report.again, report.nul_characters) == (2, 0, 5)
        assert report.failed == {("guide", 0): "the vendor wrote a blank context"}
        assert told == [(["guide"], 1)] * 3
        assert await process.submit() == SubmitReport(batches=0, requests=0)
    assert contexts(owner)[0] is None
    assert contexts(owner)[1] == "From Field guide: on thing about number 33. Line 34."
    refused = "select position from ragpg.staged_chunk where context_refused"
    assert owner.execute(refused).fetchall() == [(0,)]


async def test_a_chunk_waits_in_one_batch_at_a_time_however_many_submit(start, stub, owner):
    async with start() as one, start() as two:
        await one.stage(document(lines=100), chunks=8)
        reports: list[SubmitReport] = []

        async def submit(process: Process) -> None:
            reports.append(await process.submit())

        async with anyio.create_task_group() as group:
            for process in (one, two, one, two):
                group.start_soon(submit, process)
    assert sum(report.requests for report in reports) == 8
    assert sum(len(batch.requests) for batch in stub.batches.batches.values()) == 8


async def test_what_passes_is_asked_again_and_what_is_refused_is_a_gap_with_its_reason(
    start, stub, owner
):
    async with start() as process:
        await process.stage(document(lines=100), chunks=5)
        await process.submit()
        stub.batches.end(
            {0: "invalid_request_error", 1: "overloaded_error", 2: "expired", 3: "canceled"}
        )
        report = await process.collect()
        assert (report.written, report.again) == (1, 3)
        assert list(report.failed) == [("guide", 0)]
        errors = owner.execute(
            "select position, context_error from ragpg.staged_chunk where context_error is not null"
        ).fetchall()
        assert errors == [
            (0, "claude-haiku-5-5 answered invalid_request_error in a batch: scripted")
        ]
        assert (await process.submit()).requests == 3
        stub.batches.end()
        assert (await process.collect()).written == 3
    assert [context is None for context in contexts(owner)] == [True, False, False, False, False]


async def test_views_say_which_contexts_are_open_which_a_batch_owes_and_which_nobody_was_asked_for(
    start, stub, owner
):
    def shown() -> dict[str, list[int]]:
        return {
            view: [
                position
                for (position,) in owner.execute(
                    f"select position from ragpg.{view} where document_key = 'guide' order by 1"
                )
            ]
            for view in ("open_context", "awaited_context", "unasked_context")
        }

    async with start() as process:
        await process.stage(document(lines=100), chunks=3)
        assert shown() == {
            "open_context": [0, 1, 2],
            "awaited_context": [],
            "unasked_context": [0, 1, 2],
        }
        await process.submit()
        assert shown() == {
            "open_context": [0, 1, 2],
            "awaited_context": [0, 1, 2],
            "unasked_context": [],
        }
        stub.batches.end({0: "invalid_request_error", 1: "overloaded_error"})
        await process.collect()
        assert shown() == {"open_context": [1], "awaited_context": [], "unasked_context": [1]}
    refused = "select position from ragpg.staged_chunk where context_refused"
    assert owner.execute(refused).fetchall() == [(0,)]


async def test_the_third_failure_of_a_request_is_the_last(start, stub, owner):
    async with start() as process:
        await process.stage(document(lines=100), chunks=2)
        outcomes = []
        for _ in range(4):
            requests = (await process.submit()).requests
            stub.batches.end({0: "overloaded_error", 1: "overloaded_error"})
            report = await process.collect()
            outcomes.append((requests, report.again, len(report.failed)))
    assert outcomes == [(2, 2, 0), (2, 2, 0), (2, 0, 2), (0, 0, 0)]
    assert contexts(owner) == [None, None]


async def test_a_batch_submitted_at_a_kill_is_found_and_not_paid_for_twice(start, stub, owner):
    async with start(DiesAfterSubmitting) as process:
        await process.stage(document(lines=100), chunks=4)
        with pytest.raises(Killed):
            await process.submit()
    async with start() as process:
        assert (await process.submit()).requests == 0
        # Another process may be about to write the id.
        assert (await process.collect()).waiting == 4
        assert stub.calls("/batches")[-1].method == "POST"
        an_hour_later(owner)
        # In the list is a batch of four that has not ended.
        assert (await process.collect()).waiting == 4
        stub.batches.end()
        report = await process.collect()
        assert (report.written, report.waiting, report.again) == (4, 0, 0)
    assert len(stub.batches.batches) == 1
    assert owner.execute("select count(*) from ragpg.usage").fetchone() == (4,)


async def test_a_batch_that_never_reached_the_vendor_is_asked_for_again(start, stub, owner):
    async with start(DiesBeforeSubmitting) as process:
        await process.stage(document(lines=100), chunks=4)
        with pytest.raises(Killed):
            await process.submit()
    an_hour_later(owner)
    async with start() as process:
        report = await process.collect()
        assert (report.again, report.waiting) == (4, 0)
        assert (await process.submit()).requests == 4
        stub.batches.end()
        assert (await process.collect()).written == 4
    assert len(stub.batches.batches) == 1
    assert statuses(owner) == {"dropped": 4, "written": 4}


async def test_a_submission_that_broke_off_is_kept_and_a_refused_one_is_dropped(start, stub, owner):
    async with start() as process:
        await process.stage(document(lines=100), chunks=4)
        stub.push(Reply(413, claude_error("request_too_large", "too large")))
        with pytest.raises(ProviderRejected):
            await process.submit()
        assert statuses(owner, "context_batch") == {"dropped": 1}
        stub.push(Reset())
        with pytest.raises(ProviderUnavailable):
            await process.submit()
        assert statuses(owner, "context_batch") == {"dropped": 1, "intended": 1}
        assert (await process.submit()).requests == 0
    errors = owner.execute("select last_error from ragpg.context_batch order by created_at")
    assert ["413" in errors_[0] or "may have been accepted" in errors_[0] for errors_ in errors]


async def test_results_that_break_off_are_kept_and_read_on_from_there(start, stub, owner):
    async with start() as process:
        await process.stage(document(lines=100), chunks=4)
        await process.submit()
        stub.batches.end()
        (batch,) = stub.batches.batches.values()
        whole, batch.lines = batch.lines, batch.lines[:3]
        shown = {**stub.batches._shown(batch), "request_counts": counts(succeeded=4)}
        stub.push(lambda _: Reply(200, shown))
        with pytest.raises(InvalidProviderResponse, match="3 of the 4 results"):
            await process.collect()
        assert sum(context is not None for context in contexts(owner)) == 3
    batch.lines = whole
    async with start() as process:
        assert (await process.collect()).written == 1
    assert owner.execute("select count(*) from ragpg.usage").fetchone() == (4,)


def counts(**given: int) -> dict[str, int]:
    zero = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    return {**zero, **given}


async def test_a_document_staged_anew_keeps_what_was_paid_for_and_still_fits(start, stub, owner):
    async with start() as process:
        source = document(lines=100)
        await process.stage(source, chunks=4)
        await process.submit()
        half = len(source.text) // 2
        changed = source.text[:half] + source.text[half:].replace("says", "said")
        await process.stage(Document(key="guide", text=changed), chunks=4)
        # The text of the third and fourth has changed as well, so nobody waits for it.
        stub.batches.end()
        report = await process.collect()
        assert (report.written, report.unused) == (2, 2)
        assert [context is None for context in contexts(owner)] == [False, False, True, True]
        assert (await process.submit()).requests == 2
    assert owner.execute("select count(*) from ragpg.usage").fetchone() == (4,)


async def test_batches_are_cut_at_their_limits_with_documents_kept_together(start, stub):
    async with start(SmallBatches) as process:
        await process.stage(document(lines=50, key="a"), chunks=3)
        await process.stage(document(lines=50, key="b"), chunks=3)
        await process.stage(document(lines=90, key="c"), chunks=9)
        assert await process.submit() == SubmitReport(batches=5, requests=15)
        sent = [len(batch.requests) for batch in stub.batches.batches.values()]
        assert sent == [3, 3, 4, 4, 1]
        stub.batches.end()
        assert (await process.collect()).written == 15


async def test_a_batch_that_the_vendor_no_longer_has_is_asked_for_again(start, stub, owner):
    async with start() as process:
        await process.stage(document(lines=100), chunks=4)
        await process.submit()
        stub.batches.batches.clear()
        assert (await process.collect()).again == 4
        assert (await process.submit()).requests == 4
    assert statuses(owner, "context_batch") == {"collected": 1, "submitted": 1}


async def test_no_transaction_is_open_while_the_vendor_works(start, stub, owner):
    idle: list[tuple[str, int]] = []

    def look(call: Any, body: Any) -> Any:
        with psycopg.connect(owner.info.dsn, password=owner.info.password) as conn:
            row = conn.execute(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and state like 'idle in transaction%' and application_name = 'ragpg'"
            ).fetchone()
        assert row is not None
        idle.append((call.path, row[0]))
        return body

    stub.change = look
    async with start() as process:
        await process.stage(document(lines=100), chunks=4)
        await process.submit()
        stub.batches.end()
        await process.collect()
    assert len(idle) == 4
    assert [count for _, count in idle] == [0, 0, 0, 0]


async def test_batches_of_one_tenant_are_not_seen_by_another(start, stub):
    async with start() as process:
        await process.stage(document(lines=100), chunks=4)
        await process.submit()
        async with process.database.transaction(None) as conn:
            await conn.execute("select ragpg.create_tenant('other')")
        other = partial(process.database.transaction, "other")
        report = await collect_contexts(other, process.collection_id, process.writer)
        assert report.waiting == 0


def sent(stub: VendorStub) -> list[list[tuple[str, int, int]]]:
    """Of each batch, the requests' cache mark, tokens written and tokens read, in order."""
    nothing = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    batches = []
    for batch in stub.batches.batches.values():
        used = {
            line["custom_id"]: line["result"]["message"]["usage"]
            for line in batch.lines
            if line["result"]["type"] == "succeeded"
        }
        batches.append(
            [
                (
                    request["params"]["messages"][0]["content"][0]
                    .get("cache_control", {"ttl": "none"})
                    .get("ttl"),
                    used.get(request["custom_id"], nothing)["cache_creation_input_tokens"],
                    used.get(request["custom_id"], nothing)["cache_read_input_tokens"],
                )
                for request in batch.requests
            ]
        )
    return batches


async def test_the_first_chunk_goes_ahead_and_all_others_read_what_it_wrote(start, stub, owner):
    async with start() as process:
        await process.stage(document(lines=100), chunks=6)
        await process.stage(
            Document(key="short", text="A short note. And a second line."), chunks=2
        )
        # A short text has no cache mark, so all of it goes at once.
        assert await process.submit(seed=True) == SubmitReport(batches=1, requests=3, held=5)
        # While the first is at the vendor, nobody sends the others, however often they look.
        assert await process.submit(seed=True) == SubmitReport(batches=0, requests=0, held=5)
        assert await process.submit(seed=False) == SubmitReport(batches=0, requests=0, held=5)
        stub.batches.end()
        assert (await process.collect()).written == 3
        assert await process.submit(seed=True) == SubmitReport(batches=1, requests=5)
        stub.batches.end()
        assert (await process.collect()).written == 5
    assert None not in contexts(owner)
    (ahead, others) = sent(stub)
    (written,) = [wrote for ttl, wrote, _ in ahead if ttl == "1h"]
    assert sorted(ttl for ttl, _, _ in ahead) == ["1h", "none", "none"]
    assert written > 512
    assert others == [("1h", 0, written)] * 5


async def test_without_going_ahead_all_are_sent_at_once_with_marks_of_five_minutes(start, stub):
    async with start() as process:
        await process.stage(document(lines=100), chunks=6)
        assert await process.submit() == SubmitReport(batches=1, requests=6)
        stub.batches.end()
    (batch,) = sent(stub)
    assert [ttl for ttl, _, _ in batch] == ["5m"] * 6


async def test_what_went_ahead_too_long_ago_is_not_waited_for_a_second_time(start, stub, owner):
    async with start() as process:
        await process.stage(document(lines=100), chunks=6)
        await process.submit(seed=True)
        stub.batches.end()
        await process.collect()
        owner.execute(
            "update ragpg.context_batch set finished_at = finished_at - interval '61 minutes',"
            " submitted_at = submitted_at - interval '61 minutes'"
        )
        assert await process.submit(seed=True) == SubmitReport(batches=1, requests=5)
        stub.batches.end()
    assert [ttl for ttl, _, _ in sent(stub)[1]] == ["5m"] * 5


@pytest.mark.parametrize("outcome", ["invalid_request_error", "overloaded_error", "expired"])
async def test_a_first_chunk_that_fails_holds_up_no_other(start, stub, outcome):
    async with start() as process:
        await process.stage(document(lines=100), chunks=6)
        await process.submit(seed=True)
        stub.batches.end({0: outcome})
        report = await process.collect()
        lost = 0 if outcome == "invalid_request_error" else 1
        assert (report.again, len(report.failed)) == (lost, 1 - lost)
        submitted = await process.submit(seed=True)
        assert (submitted.requests, submitted.held) == (5 + lost, 0)
        stub.batches.end()
    assert {ttl for ttl, _, _ in sent(stub)[1]} == {"5m"}


async def test_an_edit_does_not_wait_for_what_its_former_text_sent_ahead(start, stub, owner):
    async with start() as process:
        await process.stage(document(lines=100), chunks=6)
        await process.submit(seed=True)
        edited = document(lines=100)
        changed = Document(key=edited.key, title=edited.title, text="New. " + edited.text)
        await process.stage(changed, chunks=6)
        submitted = await process.submit(seed=False)
        assert (submitted.requests, submitted.held) == (6, 0)
