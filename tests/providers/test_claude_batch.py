"""Contexts through Message Batches: what is sent, what comes back, and what may be sent again."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from typing import Any

import anthropic
import pytest

from ragpg.context_batch import BatchResult, Sharing, was_refused
from ragpg.errors import ProviderError, ProviderRejected, ProviderUnavailable, RateLimited
from ragpg.providers.claude_batch import ClaudeBatchContextWriter
from ragpg.tokens import count_tokens
from ragpg.types import Chunk, Document
from tests.providers.making import cut, document
from tests.vendor_stub import Call, Reply, Reset, Stall, VendorStub
from tests.vendor_stub_rules import claude_error

pytestmark = pytest.mark.anyio

NOON = dt.datetime(2026, 11, 30, 12, 0, tzinfo=dt.UTC)


@pytest.fixture
async def writer(stub: VendorStub):
    claude = ClaudeBatchContextWriter(
        api_key="sk-ant-test", model="claude-haiku-5-5", base_url=stub.anthropic_url
    )
    yield claude
    await claude.aclose()


def asked(
    writer: ClaudeBatchContextWriter,
    *,
    chunks: int = 4,
    prefix: str = "b",
    sharing: Sharing = "at once",
):
    """Requests for the chunks of one document by custom id `b-0`, `b-1`, .."""
    source = document(lines=200)
    requests = writer.requests(source, cut(source, into=chunks), sharing=sharing)
    return {f"{prefix}-{place}": request for place, request in enumerate(requests)}


async def results(writer: ClaudeBatchContextWriter, vendor_id: str) -> list[BatchResult]:
    return [result async for result in writer.results(vendor_id)]


def created(stub: VendorStub) -> list[Call]:
    return [call for call in stub.calls("/batches") if call.method == "POST"]


@pytest.mark.parametrize(("sharing", "ttl"), [("at once", "5m"), ("seed", "1h"), ("warm", "1h")])
async def test_a_batch_holds_each_chunk_with_the_same_document_marked_for_as_long_as_it_must(
    stub, writer, sharing, ttl
):
    await writer.submit(asked(writer, chunks=3, sharing=sharing))
    (call,) = created(stub)
    items = call.body["requests"]
    assert [item["custom_id"] for item in items] == ["b-0", "b-1", "b-2"]
    for item in items:
        assert sorted(item["params"]) == [
            "max_tokens",
            "messages",
            "model",
            "output_config",
            "system",
        ]
        assert item["params"]["max_tokens"] == 1_024
    first = [item["params"]["messages"][0]["content"][0] for item in items]
    assert first[0] == first[1] == first[2]
    assert first[0]["cache_control"] == {"type": "ephemeral", "ttl": ttl}
    assert call.headers["x-stainless-retry-count"] == "0"


async def test_results_come_in_any_order_and_are_told_apart_by_custom_id(stub, writer):
    requests = asked(writer, chunks=12)
    vendor_id = await writer.submit(requests)
    stub.batches.end()
    found = await results(writer, vendor_id)
    assert [result.custom_id for result in found] != list(requests)
    assert sorted(result.custom_id for result in found) == sorted(requests)
    for result in found:
        chunk = requests[result.custom_id].params["messages"][0]["content"][-1]["text"]
        words = re.findall(r"on (.*)\.$", str(result.context))[0]
        assert words in " ".join(chunk.split())


@pytest.mark.parametrize(("sharing", "write"), [("at once", 1.25), ("warm", 2.0)])
async def test_every_counter_costs_half(stub, writer, sharing, write):
    vendor_id = await writer.submit(asked(writer, chunks=8, sharing=sharing))
    stub.batches.end()
    usages = [usage for result in await results(writer, vendor_id) for usage in result.usage]
    assert len(usages) == 8
    assert sum(usage.cache_read_tokens for usage in usages) > 0
    for usage in usages:
        full = (
            0.10 * usage.input_tokens
            + 0.10 * write * usage.cache_write_tokens
            + 0.01 * usage.cache_read_tokens
            + 0.50 * usage.output_tokens
        ) / 1_000_000
        assert usage.cost_usd == pytest.approx(full / 2)


async def test_counts_say_nothing_before_the_whole_batch_has_ended(stub, writer):
    vendor_id = await writer.submit(asked(writer))
    before = await writer.status(vendor_id)
    assert (before.ended, before.processing, before.succeeded, before.requests) == (False, 4, 0, 4)
    with pytest.raises(ProviderError, match="Has it finished processing"):
        await results(writer, vendor_id)
    stub.batches.end({1: "expired"})
    after = await writer.status(vendor_id)
    assert (after.ended, after.processing, after.succeeded, after.expired) == (True, 0, 3, 1)


async def test_each_kind_of_result_says_what_happened_and_whether_to_ask_again(stub, writer):
    vendor_id = await writer.submit(asked(writer, chunks=6))
    stub.batches.end(
        {
            0: "invalid_request_error",
            1: "overloaded_error",
            2: "expired",
            3: "canceled",
            4: "permission_error",
        }
    )
    found = {result.custom_id: result for result in await results(writer, vendor_id)}
    assert [found[f"b-{n}"].retryable for n in range(6)] == [False, True, True, True, False, False]
    assert found["b-0"].error == (
        "claude-haiku-5-5 answered invalid_request_error in a batch: scripted"
    )
    assert "before the batch was over (expired)" in str(found["b-2"].error)
    assert [found[f"b-{n}"].context is None for n in range(6)] == [True] * 5 + [False]
    assert [found[f"b-{n}"].usage for n in range(5)] == [()] * 5


async def test_a_bad_item_is_accepted_and_refused_late_while_its_neighbours_succeed(stub, writer):
    requests = asked(writer)
    broken = {**requests["b-1"].params, "temperature": 0}
    requests["b-1"] = requests["b-0"].__class__(position=1, params=broken, size=0)
    vendor_id = await writer.submit(requests)
    stub.batches.end()
    found = {result.custom_id: result for result in await results(writer, vendor_id)}
    assert "temperature" in str(found["b-1"].error)
    assert [found[f"b-{n}"].context is not None for n in range(4)] == [True, False, True, True]


async def test_a_refusal_is_paid_for_and_leaves_no_context(stub, writer):
    vendor_id = await writer.submit(asked(writer, chunks=2))
    stub.batches.end()
    message = stub.batches.batches[vendor_id].lines[0]["result"]["message"]
    message.update(stop_reason="refusal", content=[])
    refused = (await results(writer, vendor_id))[0]
    assert refused.context is None
    assert "refused to write the context" in str(refused.error)
    assert not refused.retryable
    assert len(refused.usage) == 1


@pytest.mark.parametrize("broken", [Reset(), Reply(500, claude_error("api_error", "oops"))])
async def test_a_submission_that_may_have_been_accepted_is_not_sent_again(stub, writer, broken):
    stub.push(broken)
    with pytest.raises(ProviderUnavailable, match="the batch may have been accepted") as caught:
        await writer.submit(asked(writer))
    assert len(created(stub)) == 1
    assert caught.value.retryable
    assert not was_refused(caught.value)


async def test_a_submission_that_was_refused_in_passing_is_sent_again(stub, writer):
    stub.push(
        Reply(429, claude_error("rate_limit_error", "slow"), {"retry-after": "1"}),
        Reply(529, claude_error("overloaded_error", "Overloaded")),
    )
    assert await writer.submit(asked(writer)) == "msgbatch_001"
    assert [call.status for call in created(stub)] == [429, 529, 200]


async def test_batches_have_a_rate_limit_of_their_own(stub, writer, limiters):
    stub.push(Reply(429, claude_error("rate_limit_error", "queue full"), {"retry-after": "1"}))
    await writer.submit(asked(writer))
    limits = {name[1]: made.limits.requests for name, made in limiters._made.items()}
    assert limits == {"message batches": 500}


async def test_a_refused_submission_leaves_nothing_behind(stub, writer):
    with pytest.raises(ProviderRejected, match="custom_id") as caught:
        await writer.submit(asked(writer, prefix="no/slashes"))
    assert was_refused(caught.value)
    assert was_refused(RateLimited("slow", provider="claude", model="m", retry_after_s=None))
    assert stub.batches.batches == {}


async def test_a_batch_that_is_not_there_is_a_404(writer):
    with pytest.raises(ProviderRejected) as caught:
        await writer.status("msgbatch_unknown")
    assert caught.value.status == 404


async def test_results_are_read_as_a_stream_and_a_break_comes_after_what_was_read(stub, writer):
    vendor_id = await writer.submit(asked(writer))
    stub.batches.end()
    batch = stub.batches.batches[vendor_id]
    # The SDK hands a body on in pieces of 64 KB.
    lines = (json.dumps(batch.lines[0]).encode() + b"\n") * 200
    assert len(lines) > 100_000
    stub.push(lambda _: Reply(200, stub.batches._shown(batch)), Stall(lines, seconds=1.0))
    began = time.monotonic()
    stream = writer.results(vendor_id)
    first = await anext(stream)
    assert time.monotonic() - began < 0.9
    assert first.custom_id == batch.lines[0]["custom_id"]
    with pytest.raises(ProviderUnavailable):
        assert [each.custom_id async for each in stream] == []


async def test_a_batch_is_found_by_its_custom_ids_once_it_has_ended(stub, writer):
    since = dt.datetime.now(dt.UTC)
    other = await writer.submit(asked(writer, prefix="other"))
    ours = await writer.submit(asked(writer, prefix="ours"))
    await writer.submit(asked(writer, prefix="longer", chunks=5))

    async def find(requests: int = 4, **changes):
        given = {"since": since, "known": (), **changes}
        return await writer.find("ours-", requests=requests, **given)

    waiting = await find()
    assert (waiting.vendor_id, waiting.undecided) == (None, True)
    # Of another length, or known as another: certainly not it.
    assert not (await find(requests=9)).undecided
    assert not (await find(known={other, ours})).undecided
    stub.batches.end()
    found = await find()
    assert (found.vendor_id, found.undecided) == (ours, False)
    assert (await find(since=since + dt.timedelta(hours=1))).vendor_id is None


async def test_all_pages_of_the_list_are_searched(stub, writer):
    oldest = await writer.submit(asked(writer, chunks=2, prefix="ours"))
    stub.batches.end()
    for n in range(130):
        stub.batches.batches[f"msgbatch_later_{n}"] = stub.batches.batches[oldest].__class__(
            id=f"msgbatch_later_{n}", requests=[{}], headers={}, created=time.time(), ended=1.0
        )
    since = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)
    found = await writer.find("ours-", requests=2, since=since, known=())
    assert found.vendor_id == oldest
    assert len([call for call in stub.log if "limit=100" in call.query]) == 2


def test_a_document_above_the_price_step_is_windowed_in_a_batch_too():
    claude = ClaudeBatchContextWriter(api_key="k", model="claude-haiku-5-5")
    source = document(lines=12_000)
    requests = claude.requests(source, cut(source, into=30))
    assert sorted(request.position for request in requests) == list(range(30))
    prefixes = {r.params["messages"][0]["content"][0]["text"] for r in requests}
    assert len(prefixes) > 1
    assert max(count_tokens(prefix) for prefix in prefixes) * 1.3 < 100_000


@pytest.mark.parametrize(
    ("chunks", "sharing", "marked"),
    [
        (2, "at once", 0),
        (3, "at once", 3),
        (2, "seed", 0),
        (3, "seed", 3),
        (1, "warm", 1),
    ],
)
async def test_a_mark_is_set_where_enough_chunks_read_what_it_costs_to_write(
    writer, chunks, sharing, marked
):
    requests = asked(writer, chunks=chunks, sharing=sharing).values()
    assert [request.prefix for request in requests] == [0 if marked else None] * chunks
    assert sum("cache_control" in json.dumps(dict(r.params)) for r in requests) == marked


def test_a_blank_chunk_is_not_asked_for_and_a_short_document_has_no_mark():
    claude = ClaudeBatchContextWriter(api_key="k", model="claude-haiku-5-5")
    chunks = [
        Chunk(position=0, start=0, stop=5, text="Hello"),
        Chunk(position=1, start=5, stop=7, text=" \n"),
        Chunk(position=2, start=7, stop=10, text="you"),
    ]
    requests = claude.requests(Document(key="k", text="Hello \nyou"), chunks)
    assert [request.position for request in requests] == [0, 2]
    assert all("cache_control" not in json.dumps(dict(r.params)) for r in requests)


async def test_the_size_of_a_request_is_its_share_of_the_body(stub, writer):
    source = Document(key="k", text='Zürich 東京 "quoted"\n' * 200)
    requests = writer.requests(source, cut(source, into=5))
    await writer.submit({str(n): request for n, request in enumerate(requests)})
    (call,) = created(stub)
    total = sum(request.size for request in requests)
    assert abs(int(call.headers["content-length"]) - total) < 100 * len(requests)


# The stub, by the SDK itself.


def batch_of(*ids: str) -> list[Any]:
    message = {"role": "user", "content": "hi"}
    params = {"model": "claude-haiku-5-5", "max_tokens": 9, "messages": [message]}
    return [{"custom_id": name, "params": params} for name in ids]


async def test_the_stub_lists_cancels_deletes_and_expires_as_the_api_does(stub):
    async with anthropic.AsyncAnthropic(
        api_key="k", base_url=stub.anthropic_url, max_retries=0
    ) as client:
        batches = client.messages.batches
        names = [(await batches.create(requests=batch_of("a", "b"))).id for _ in range(3)]
        page = await batches.list(limit=2)
        assert [each.id for each in page.data] == names[:0:-1]
        assert [each.id async for each in page] == names[::-1]
        with pytest.raises(anthropic.BadRequestError):
            await batches.delete(names[0])
        assert (await batches.cancel(names[0])).processing_status == "canceling"
        stub.batches.end()
        lines = [line async for line in await batches.results(names[0])]
        assert [line.result.type for line in lines] == ["canceled", "canceled"]
        await batches.delete(names[0])
        late = await batches.create(requests=batch_of("a"))
        stub.claude.clock_s = 25 * 3_600
        ended = await batches.retrieve(late.id)
        assert (ended.request_counts.expired, ended.processing_status) == (1, "ended")
        assert ended.results_url == f"{stub.url}/v1/messages/batches/{late.id}/results"
        for wrong in (batch_of("a", "a"), batch_of("a b"), batch_of("x" * 65), []):
            with pytest.raises(anthropic.BadRequestError):
                await batches.create(requests=wrong)
