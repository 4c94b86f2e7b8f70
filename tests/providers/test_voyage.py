from __future__ import annotations

import base64
import math
import struct
import time

import pytest

from ragpg.errors import (
    ConfigurationError,
    EmptyQueryError,
    InputError,
    InvalidProviderResponse,
    PartlyEmbedded,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
    TextsRejected,
)
from ragpg.providers.batches import batches
from ragpg.providers.voyage import VoyageContextEmbedder, VoyageEmbedder, VoyageReranker
from tests.providers.making import hit, hits
from tests.vendor_stub import Reply, Reset, VendorStub, bag_of_words, voyage_error

pytestmark = pytest.mark.anyio


def embedder(stub: VendorStub, **changes) -> VoyageEmbedder:
    given = {"api_key": "pa-test", "model": "voyage-4", "dimensions": 8}
    return VoyageEmbedder(**{**given, "base_url": stub.voyage_url, **changes})


async def embed(stub: VendorStub, texts: list[str], *, purpose="document", **changes):
    voyage = embedder(stub, **changes)
    try:
        return await voyage.embed(texts, purpose=purpose)
    finally:
        await voyage.aclose()


@pytest.mark.parametrize("purpose", ["document", "query"])
async def test_a_request_tells_documents_and_queries_apart_and_never_asks_to_cut(stub, purpose):
    await embed(stub, ["cats", "dogs"], purpose=purpose)
    assert [(call.path, call.body) for call in stub.log] == [
        (
            "/voyage/v1/embeddings",
            {
                "input": ["cats", "dogs"],
                "model": "voyage-4",
                "input_type": purpose,
                "truncation": False,
                "output_dtype": "float",
                "output_dimension": 8,
                "encoding_format": "base64",
            },
        )
    ]
    assert stub.log[0].headers["authorization"] == "Bearer pa-test"


async def test_vectors_come_back_in_order_with_the_tokens_and_their_price(stub):
    embedded = await embed(stub, ["cats purr", "dogs", "cats purr loudly"])
    assert embedded.vectors == [
        pytest.approx(bag_of_words(text, 8), abs=1e-6)
        for text in ("cats purr", "dogs", "cats purr loudly")
    ]
    (usage,) = embedded.usage
    assert (usage.provider, usage.model, usage.operation) == ("voyage", "voyage-4", "embed")
    assert usage.input_tokens == 6
    assert usage.cost_usd == pytest.approx(6 * 0.06 / 1_000_000)


async def test_int8_vectors_come_back_as_floats(stub):
    embedded = await embed(stub, ["cats purr"], dtype="int8")
    assert embedded.vectors == [[float(round(127 * each)) for each in bag_of_words("cats purr", 8)]]
    assert {type(each) for each in embedded.vectors[0]} == {float}


async def test_a_trailing_slash_of_the_base_address_is_dropped(stub):
    await embed(stub, ["cats"], base_url=f"{stub.voyage_url}/")
    assert [call.path for call in stub.log] == ["/voyage/v1/embeddings"]


async def test_1001_texts_go_out_as_two_requests_and_keep_their_order(stub):
    texts = [f"text number {i}" for i in range(1_001)]
    embedded = await embed(stub, texts)
    assert sorted(len(call.body["input"]) for call in stub.log) == [1, 1_000]
    assert embedded.vectors == [pytest.approx(bag_of_words(t, 8), abs=1e-6) for t in texts]
    assert sum(usage.input_tokens for usage in embedded.usage) == 3 * 1_001


async def test_128_texts_of_950_tokens_are_split_under_the_cap_before_the_vendor_complains(stub):
    texts = [f"word{i} " + "and " * 949 for i in range(128)]
    embedded = await embed(stub, texts, model="voyage-4-large", concurrency=1)
    assert {call.status for call in stub.log} == {200}
    assert [len(call.body["input"]) for call in stub.log] == [100, 28]
    assert len(embedded.vectors) == 128


async def test_texts_that_we_count_too_low_are_halved_on_a_400_and_keep_their_order(stub):
    stub.push(
        voyage_error(400, "The max allowed tokens per submitted batch is 120000."),
        voyage_error(400, "The max allowed tokens per submitted batch is 120000."),
    )
    texts = ["cats", "dogs", "birds", "fish"]
    embedded = await embed(stub, texts)
    assert [call.body["input"] for call in stub.log] == [
        texts,
        ["cats", "dogs"],
        ["cats"],
        ["dogs"],
        ["birds", "fish"],
    ]
    assert embedded.vectors == [pytest.approx(bag_of_words(t, 8), abs=1e-6) for t in texts]


async def test_one_text_far_too_long_is_named_and_its_15_neighbours_keep_their_vectors(stub):
    texts = [f"good text {i}" for i in range(15)]
    texts.insert(6, "x " * 40_000)
    with pytest.raises(TextsRejected) as caught:
        await embed(stub, texts)
    rejected = caught.value
    assert list(rejected.failed) == [6]
    assert "Input at 0 has 40000 tokens" in rejected.failed[6]
    assert "1 of 16 texts were refused, first text 6" in str(rejected)
    assert sorted(rejected.vectors) == [place for place in range(16) if place != 6]
    assert rejected.vectors[7] == pytest.approx(bag_of_words("good text 6", 8), abs=1e-6)
    assert sum(usage.input_tokens for usage in rejected.usage) == 15 * 3
    assert not rejected.retryable
    # 2 refusals per halving at most: 16, 8, 4, 2, 1.
    assert len([call for call in stub.log if call.status == 400]) <= 5


async def test_a_refusal_that_is_not_about_size_is_not_tried_again(stub):
    with pytest.raises(ProviderRejected, match="output_dimension 7 is not supported") as caught:
        await embed(stub, ["cats", "dogs"], dimensions=7)
    assert caught.value.status == 400
    assert len(stub.log) == 1


@pytest.mark.parametrize("blank", ["", "   ", "\n\n", "\u200b"])
async def test_a_blank_text_is_refused_by_its_place_before_any_call(stub, blank):
    with pytest.raises(InputError, match="text 1 of 3 is blank"):
        await embed(stub, ["ok", blank, "@"])
    assert stub.log == []


async def test_no_texts_are_no_call(stub):
    assert (await embed(stub, [])).vectors == []
    assert stub.log == []


async def test_the_vectors_of_a_shuffled_answer_return_to_their_texts(stub):
    stub.change = lambda _, body: {**body, "data": body["data"][::-1]}
    embedded = await embed(stub, ["cats", "dogs", "birds"], dimensions=256)
    assert embedded.vectors == [
        pytest.approx(bag_of_words(text, 256), abs=1e-6) for text in ("cats", "dogs", "birds")
    ]
    assert embedded.vectors[0] != embedded.vectors[2]


def encoded(*values: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def one_changed(**changes):
    def change(_, body):
        return {**body, "data": [{**body["data"][0], **changes}, *body["data"][1:]]}

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda _, body: {**body, "data": body["data"][:1]}, "returned 1 vectors for 3 texts"),
        (
            lambda _, body: {**body, "data": [*body["data"], body["data"][0]]},
            "returned 4 vectors for 3 texts",
        ),
        (one_changed(index=1), "an index twice among 3 vectors"),
        (one_changed(index=3), "index 3, which was not sent, among 3 vectors"),
        (
            one_changed(embedding=encoded(1, 2, 3)),
            "a vector of length 3 instead of 8 for text 0 of 3",
        ),
        (one_changed(embedding=[]), "a vector of length 0 instead of 8 for text 0 of 3"),
        (one_changed(embedding=encoded(*[0.0] * 8)), "a vector of only zeros for text 0 of 3"),
        (
            one_changed(embedding=encoded(math.nan, *[1.0] * 7)),
            "a vector of NaN or infinity for text 0 of 3",
        ),
        (
            one_changed(embedding=encoded(math.inf, *[1.0] * 7)),
            "a vector of NaN or infinity for text 0 of 3",
        ),
        (one_changed(embedding="AAA"), "an unreadable vector"),
    ],
)
async def test_an_answer_that_does_not_fit_is_refused_whole(stub, change, fault):
    stub.change = change
    with pytest.raises(InvalidProviderResponse, match=fault) as caught:
        await embed(stub, ["a", "b", "c"])
    assert not caught.value.retryable
    assert len(stub.log) == 1


async def test_a_refused_key_is_named_by_its_variable_and_never_quoted(stub):
    with pytest.raises(ProviderRejected) as caught:
        await embed(stub, ["cats"], api_key="wrong")
    assert str(caught.value) == (
        "voyage voyage-4 answered 401: Provided API key [key] is invalid; "
        "set VOYAGE_API_KEY to a valid key"
    )
    assert (caught.value.status, caught.value.retryable, len(stub.log)) == (401, False, 1)


def test_a_missing_key_is_named_before_any_work(stub):
    with pytest.raises(ConfigurationError, match="set VOYAGE_API_KEY"):
        embedder(stub, api_key="")


async def test_a_scripted_bad_hour_is_waited_out_and_retry_after_is_honoured(stub, caplog):
    stub.push(
        Reply(429, {"detail": "slow down"}, {"retry-after": "2"}),
        Reply(429, b"<html>proxy</html>", {"content-type": "text/html"}),
        Reply(529, {"detail": "overloaded"}),
        Reply(503, {"detail": "not ready"}),
        Reply(500, {"detail": "oops"}),
        Reset(),
    )
    embedded = await embed(stub, ["cats"])
    assert len(embedded.vectors) == 1
    assert len(stub.log) == 7
    waits = [record.wait_s for record in caplog.records if hasattr(record, "wait_s")]
    assert len(waits) == 6
    assert 2 <= waits[0] <= 3
    for wait, least in zip(waits[1:], [2, 4, 8, 16, 32], strict=True):
        assert least <= wait <= 1.25 * least
    assert sum(waits) > 60
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert "cats" not in caplog.text
    assert "pa-test" not in caplog.text


async def test_what_is_left_after_the_deadline_is_raised_with_its_wait(stub):
    stub.push(Reply(429, {"detail": "slow down"}, {"retry-after": "20"}))
    with pytest.raises(RateLimited) as caught:
        await embed(stub, ["cats"], deadline_s=10)
    assert (caught.value.retry_after_s, caught.value.retryable) == (20, True)
    assert len(stub.log) == 1


async def test_an_answer_later_than_the_timeout_is_a_timeout(stub):
    stub.latency_s = 0.4
    began = time.monotonic()
    with pytest.raises(ProviderTimeout, match=r"did not answer within 0\.1 s"):
        await embed(stub, ["cats"], timeout_s=0.1, deadline_s=0.2)
    assert time.monotonic() - began < 0.35


async def test_a_dead_address_is_unavailable(stub):
    with pytest.raises(ProviderUnavailable) as caught:
        await embed(stub, ["cats"], base_url="http://127.0.0.1:9/v1", deadline_s=0.5)
    assert caught.value.retryable


async def test_no_more_requests_are_in_flight_than_the_concurrency(stub):
    stub.gather = 3
    texts = [f"t{i} " + "and " * 900 for i in range(1_000)]
    await embed(stub, texts, model="voyage-4-large", concurrency=3)
    assert len(stub.log) == 10
    assert stub.in_flight_most == 3


async def test_calls_of_one_embedder_share_a_connection(stub):
    voyage = embedder(stub)
    ports = set()
    for _ in range(3):
        await voyage.embed(["cats"], purpose="query")
        ports.add(stub.log[-1].headers["x-stub-port"])
    await voyage.aclose()
    assert len(ports) == 1


def test_batches_are_cut_by_tokens_and_by_count():
    assert list(batches([4, 4, 4, 9, 20, 1], max_tokens=10)) == [
        range(2),
        range(2, 3),
        range(3, 4),
        range(4, 5),
        range(5, 6),
    ]
    assert list(batches([1] * 5, max_tokens=10, max_texts=2)) == [
        range(2),
        range(2, 4),
        range(4, 5),
    ]
    assert list(batches([], max_tokens=10)) == []


def contextual(stub: VendorStub, **changes) -> VoyageContextEmbedder:
    given = {"api_key": "pa-test", "model": "voyage-context-4", "dimensions": 8}
    return VoyageContextEmbedder(**{**given, "base_url": stub.voyage_url, **changes})


async def test_the_chunks_of_one_document_are_read_together(stub):
    voyage = contextual(stub)
    embedded = await voyage.embed_document(["cats purr", "dogs bark"])
    await voyage.aclose()
    assert [call.body for call in stub.log] == [
        {
            "inputs": [["cats purr", "dogs bark"]],
            "model": "voyage-context-4",
            "input_type": "document",
            "output_dtype": "float",
            "output_dimension": 8,
            "encoding_format": "base64",
        }
    ]
    assert embedded.vectors[0] != pytest.approx(bag_of_words("cats purr", 8), abs=1e-3)
    assert embedded.usage[0].cost_usd == pytest.approx(4 * 0.12 / 1_000_000)


async def test_queries_are_sent_each_alone(stub):
    voyage = contextual(stub)
    embedded = await voyage.embed(["cats", "dogs"], purpose="query")
    await voyage.aclose()
    assert (stub.log[0].body["inputs"], stub.log[0].body["input_type"]) == (
        [["cats"], ["dogs"]],
        "query",
    )
    assert len(embedded.vectors) == 2


async def test_a_document_over_the_window_is_read_in_windows_of_whole_chunks(stub):
    voyage = contextual(stub, concurrency=1)
    chunks = [f"chunk{i} " + "and " * 999 for i in range(60)]
    embedded = await voyage.embed_document(chunks)
    await voyage.aclose()
    assert {call.status for call in stub.log} == {200}
    sent = [call.body["inputs"] for call in stub.log]
    assert [len(inputs) for inputs in sent] == [1, 1, 1]
    assert [chunk for (inner,) in sent for chunk in inner] == chunks
    assert len(embedded.vectors) == 60


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda _, body: {**body, "data": []}, "returned 0 documents for 1 texts"),
        (
            lambda _, body: {
                **body,
                "data": [{**body["data"][0], "data": body["data"][0]["data"][:1]}],
            },
            "returned 1 vectors for 2 texts",
        ),
    ],
)
async def test_a_contextualized_answer_that_lacks_something_is_refused(stub, change, fault):
    stub.change = change
    voyage = contextual(stub)
    with pytest.raises(InvalidProviderResponse, match=fault):
        await voyage.embed_document(["cats", "dogs"])
    await voyage.aclose()


def reranker(stub: VendorStub, **changes) -> VoyageReranker:
    given = {"api_key": "pa-test", "model": "rerank-2.5", "base_url": stub.voyage_url}
    return VoyageReranker(**{**given, **changes})


async def test_a_reranker_reads_context_and_chunk_told_apart(stub):
    voyage = reranker(stub)
    found = hits(
        hit(1, "| 1 | 2 |\n", context="From the cost runbook.", table_header="| a | b |\n"),
        hit(2, "plain"),
    )
    reranked = await voyage.rerank("runbook cost", found)
    await voyage.aclose()
    assert stub.log[0].body == {
        "query": "runbook cost",
        "documents": ["From the cost runbook.\n\n| a | b |\n| 1 | 2 |\n", "plain"],
        "model": "rerank-2.5",
        "top_k": None,
        "truncation": True,
    }
    assert reranked.scores == (0.99, 0.01)
    assert reranked.usage[0].cost_usd == pytest.approx(
        reranked.usage[0].input_tokens * 0.05 / 1_000_000
    )


async def test_blank_and_equal_hits_keep_their_places(stub):
    voyage = reranker(stub)
    found = hits(hit(1, ""), hit(2, "same"), hit(3, " \u200b"), hit(4, "same"), hit(5, "answer"))
    reranked = await voyage.rerank("answer", found)
    await voyage.aclose()
    assert stub.log[0].body["documents"] == ["same", "same", "answer"]
    assert reranked.scores == (0.0, 0.01, 0.0, 0.01, 0.99)


@pytest.mark.parametrize(
    ("indices", "fault"),
    [
        ([0], "returned 1 scores for 2 texts"),
        ([0, 2], "returned index 2, which was not sent, among 2 scores"),
        ([0, -1], "returned index -1, which was not sent, among 2 scores"),
        ([1, 1], "returned an index twice among 2 scores"),
    ],
)
async def test_scores_that_are_no_permutation_of_what_was_sent_are_refused(stub, indices, fault):
    stub.change = lambda _, body: {
        **body,
        "data": [{"index": i, "relevance_score": 0.5} for i in indices],
    }
    voyage = reranker(stub)
    with pytest.raises(InvalidProviderResponse, match=fault):
        await voyage.rerank("answer", hits(hit(1, "a"), hit(2, "b")))
    await voyage.aclose()


async def test_1001_hits_are_reranked_in_two_requests(stub):
    voyage = reranker(stub)
    found = hits(*(hit(i, f"chunk {i}") for i in range(1_001)))
    reranked = await voyage.rerank("chunk 1000", found)
    await voyage.aclose()
    assert sorted(len(call.body["documents"]) for call in stub.log) == [1, 1_000]
    assert len(reranked.scores) == 1_001
    assert reranked.scores.index(max(reranked.scores)) == 1_000


async def test_a_blank_query_is_refused_before_any_call(stub):
    voyage = reranker(stub)
    with pytest.raises(EmptyQueryError):
        await voyage.rerank(" \u200b", hits(hit(1, "text")))
    await voyage.aclose()
    assert stub.log == []


async def test_an_error_after_answers_that_were_paid_for_hands_their_vectors_on(stub):
    def only_the_first(body) -> Reply:
        if len(body["input"]) == 1:
            return voyage_error(503, "overloaded")
        data = [
            {"object": "embedding", "index": i, "embedding": bag_of_words(text, 8)}
            for i, text in enumerate(body["input"])
        ]
        return Reply(200, {"data": data, "model": "voyage-4", "usage": {"total_tokens": 3_000}})

    stub.push(*[only_the_first] * 60)
    with pytest.raises(PartlyEmbedded, match="503") as caught:
        await embed(stub, [f"text number {i}" for i in range(1_001)], concurrency=1)
    partly = caught.value
    assert sorted(partly.vectors) == list(range(1_000))
    assert sum(usage.input_tokens for usage in partly.usage) == 3_000
    assert isinstance(partly.reason, ProviderUnavailable)
    assert (partly.status, partly.retryable) == (503, True)
