from __future__ import annotations

import pytest

from ragpg.errors import (
    ConfigurationError,
    EmptyQueryError,
    InvalidProviderResponse,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
)
from ragpg.providers.cohere import CohereReranker
from tests.providers.making import hit, hits
from tests.vendor_stub import Reply, Reset

pytestmark = pytest.mark.anyio


async def rerank(stub, query, found, **changes):
    given = {"api_key": "co-test", "model": "rerank-v4.0-fast", "base_url": stub.cohere_url}
    cohere = CohereReranker(**{**given, "deadline_s": 300.0, **changes})
    try:
        return await cohere.rerank(query, found)
    finally:
        await cohere.aclose()


async def test_a_request_holds_context_and_chunk_told_apart(stub):
    reranked = await rerank(
        stub, "runbook cost", hits(hit(1, "rows", context="From the cost runbook."), hit(2, "x"))
    )
    assert [(call.path, call.body) for call in stub.log] == [
        (
            "/cohere/v2/rerank",
            {
                "model": "rerank-v4.0-fast",
                "query": "runbook cost",
                "documents": ["From the cost runbook.\n\nrows", "x"],
                "max_tokens_per_doc": 4096,
            },
        )
    ]
    assert stub.log[0].headers["authorization"] == "Bearer co-test"
    assert reranked.scores == (0.99, 0.01)
    (usage,) = reranked.usage
    assert (usage.provider, usage.model, usage.operation) == (
        "cohere",
        "rerank-v4.0-fast",
        "rerank",
    )
    assert (usage.cost_usd, usage.request_id) == (None, "07734bd2-stub")


async def test_two_chunks_with_the_same_text_are_both_sent_and_keep_their_scores(stub):
    found = hits(hit(1, "same text"), hit(2, "same text"), hit(3, "the answer is 42"))
    reranked = await rerank(stub, "answer 42", found)
    assert stub.log[0].body["documents"] == ["same text", "same text", "the answer is 42"]
    assert reranked.scores == (0.01, 0.01, 0.99)


async def test_blank_hits_are_not_sent_and_positions_still_line_up(stub):
    found = hits(hit(1, ""), hit(2, "ok"), hit(3, " \u200b"), hit(4, "answer ok"))
    reranked = await rerank(stub, "answer", found)
    assert stub.log[0].body["documents"] == ["ok", "answer ok"]
    assert reranked.scores == (0.0, 0.01, 0.0, 0.99)


async def test_no_hits_are_no_call(stub):
    assert (await rerank(stub, "answer", hits())).scores == ()
    assert (await rerank(stub, "answer", hits(hit(1, " ")))).scores == (0.0,)
    assert stub.log == []


async def test_a_blank_query_is_refused_before_any_call(stub):
    with pytest.raises(EmptyQueryError, match="the query holds no text"):
        await rerank(stub, "   ", hits(hit(1, "text")))
    assert stub.log == []


async def test_2001_hits_go_out_as_three_requests(stub):
    found = hits(*(hit(i, f"chunk {i}") for i in range(2_001)))
    reranked = await rerank(stub, "chunk 1500", found)
    assert sorted(len(call.body["documents"]) for call in stub.log) == [1, 1_000, 1_000]
    assert reranked.scores.index(max(reranked.scores)) == 1_500


def results(*indices: int):
    def change(_, body):
        entries = [{"index": i, "relevance_score": 0.5} for i in indices]
        return {**body, "results": entries}

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (results(0, 1), "returned 2 scores for 3 texts"),
        (results(0, 1, 3), "returned index 3, which was not sent, among 3 scores"),
        (results(0, 1, -1), "returned index -1, which was not sent, among 3 scores"),
        (results(0, 1, 1), "returned an index twice among 3 scores"),
    ],
)
async def test_an_answer_that_is_no_permutation_of_what_was_sent_is_refused(stub, change, fault):
    stub.change = change
    with pytest.raises(InvalidProviderResponse, match=fault):
        await rerank(stub, "answer", hits(hit(1, "a"), hit(2, "b"), hit(3, "c")))


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, ProviderRejected, False),
        (402, ProviderRejected, False),
        (403, ProviderRejected, False),
        (404, ProviderRejected, False),
        (422, ProviderRejected, False),
        (498, ProviderRejected, False),
        (429, RateLimited, True),
        (500, ProviderUnavailable, True),
        (503, ProviderUnavailable, True),
        (529, ProviderUnavailable, True),
    ],
)
async def test_a_status_becomes_our_error_and_only_a_passing_one_is_retried(
    stub, status, kind, retryable
):
    stub.push(*[Reply(status, {"message": "no luck"})] * 2)
    with pytest.raises(ProviderError, match="no luck") as caught:
        await rerank(stub, "a", hits(hit(1, "a")), deadline_s=3.0)
    assert (type(caught.value), caught.value.status, caught.value.retryable) == (
        kind,
        status,
        retryable,
    )
    assert len(stub.log) == (2 if retryable else 1)


async def test_a_refused_key_is_named_by_its_variable_and_never_quoted(stub):
    with pytest.raises(ProviderRejected) as caught:
        await rerank(stub, "a", hits(hit(1, "a")), api_key="wrong")
    assert str(caught.value) == (
        "cohere rerank-v4.0-fast answered 401: invalid api token [key]; "
        "set CO_API_KEY to a valid key"
    )


def test_a_missing_key_is_named_before_any_work():
    with pytest.raises(ConfigurationError, match="set CO_API_KEY"):
        CohereReranker(api_key=" ", model="rerank-v4.0-fast")


async def test_a_page_of_a_proxy_with_status_200_is_refused(stub):
    stub.push(Reply(200, b"<html>hi</html>", {"content-type": "text/html"}))
    with pytest.raises(InvalidProviderResponse, match="answered 200 with a body that is no JSON"):
        await rerank(stub, "a", hits(hit(1, "a")))


async def test_a_reset_and_an_overload_are_retried(stub):
    stub.push(Reset(), Reply(529, {"message": "overloaded"}))
    assert (await rerank(stub, "a", hits(hit(1, "a")))).scores == (0.99,)
    assert len(stub.log) == 3


async def test_a_slow_answer_is_a_timeout(stub):
    stub.latency_s = 0.4
    with pytest.raises(ProviderTimeout, match=r"within 0\.1 s"):
        await rerank(stub, "a", hits(hit(1, "a")), timeout_s=0.1, deadline_s=0.2)


async def test_a_dead_address_is_unavailable(stub):
    with pytest.raises(ProviderUnavailable):
        await rerank(stub, "a", hits(hit(1, "a")), base_url="http://127.0.0.1:9", deadline_s=0.5)
