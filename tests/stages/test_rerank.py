"""Reranking: the vendor's order, or the fused one with a visible reason; never another chunk."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import anyio
import pytest

from ragpg import errors
from ragpg.rerank import rerank
from ragpg.types import Document, Hit, Hits, Reranked, Usage
from tests.conftest import client_on

pytestmark = pytest.mark.anyio


def hit(rank: int, key: str, text: str) -> Hit:
    return Hit(
        rank=rank,
        chunk_id=100 + rank,
        document_key=key,
        document_title=None,
        source=None,
        section_path=(),
        position=0,
        start=0,
        stop=len(text),
        page=None,
        text=text,
        table_header="",
        context=None,
        tags=(),
        metadata={},
        modified_at=None,
        dense_rank=rank,
        dense_score=0.5,
        lexical_rank=None,
        lexical_score=0.0,
        fused_score=1 / (60 + rank),
    )


HITS = Hits(
    hits=(hit(1, "d1", "same text"), hit(2, "d2", "same text"), hit(3, "d3", "the answer is 42")),
    query="what is the answer",
    usage=(Usage(provider="testing", model="hash", operation="embed"),),
    timings_s={"embed": 0.5},
)
USAGE = Usage(provider="vendor", model="judge", operation="rerank", cost_usd=0.002)


class Judge:
    """Gives these scores; keeps what it was sent."""

    provider = "vendor"
    model = "judge"

    def __init__(self, scores: Sequence[float]) -> None:
        self.scores = tuple(scores)
        self.sent: list[tuple[str, Hits]] = []

    async def rerank(self, query: str, hits: Hits) -> Reranked:
        await anyio.lowlevel.checkpoint()
        self.sent.append((query, hits))
        return Reranked(scores=self.scores, usage=(USAGE,))


class Failing(Judge):
    """Raises this."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(())
        self.error = error

    async def rerank(self, query: str, hits: Hits) -> Reranked:
        await anyio.lowlevel.checkpoint()
        raise self.error


class Sleeping(Judge):
    """Never answers."""

    async def rerank(self, query: str, hits: Hits) -> Reranked:
        await anyio.sleep_forever()
        raise AssertionError


async def test_two_chunks_of_one_text_keep_their_own_documents():
    # C26
    judge = Judge([0.2, 0.2, 0.9])
    reranked = await rerank(HITS, judge, k=3, timeout_s=5)
    assert [
        (found.rank, found.chunk_id, found.document_key, found.rerank_score) for found in reranked
    ] == [
        (1, 103, "d3", 0.9),
        (2, 101, "d1", 0.2),
        (3, 102, "d2", 0.2),
    ]
    assert judge.sent == [("what is the answer", HITS)]
    assert (reranked.reranker, reranked.degraded) == ("vendor judge", ())
    assert reranked.usage == (*HITS.usage, USAGE)
    assert set(reranked.timings_s) == {"embed", "rerank"}


async def test_all_else_of_a_hit_stays_as_the_search_left_it():
    reranked = await rerank(HITS, Judge([0.1, 0.3, 0.2]), k=1, timeout_s=5)
    (best,) = reranked
    assert (best.dense_rank, best.fused_score, best.text) == (2, 1 / 62, "same text")
    assert (best.rank, best.rerank_score) == (1, 0.3)


async def test_equal_scores_keep_the_fused_order_and_k_cuts_last():
    reranked = await rerank(HITS, Judge([0.5, 0.5, 0.5]), k=2, timeout_s=5)
    assert [(found.rank, found.chunk_id) for found in reranked] == [(1, 101), (2, 102)]


@pytest.mark.parametrize("scores", [[0.1, -2.0, 1e9], [-3.0, -2.0, -1.0], [0, 1, 2]])
async def test_any_finite_score_is_an_order(scores):
    reranked = await rerank(HITS, Judge(scores), k=3, timeout_s=5)
    assert [found.chunk_id for found in reranked] == [103, 101, 102] or scores != [0.1, -2.0, 1e9]
    assert [found.rerank_score for found in reranked] == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("judge", "reason"),
    [
        (Judge([0.1, 0.2]), "2 scores for 3 hits"),
        (Judge([0.1, 0.2, 0.3, 0.4]), "4 scores for 3 hits"),
        (Judge([]), "0 scores for 3 hits"),
        (Judge([0.1, math.nan, 0.3]), "or one that is not finite"),
        (Judge([0.1, math.inf, 0.3]), "or one that is not finite"),
        (
            Failing(
                errors.ProviderUnavailable("503 from the vendor", provider="vendor", model="judge")
            ),
            "503 from the vendor",
        ),
        (
            Failing(
                errors.RateLimited(
                    "429 from the vendor", provider="vendor", model="judge", retry_after_s=9
                )
            ),
            "429 from the vendor",
        ),
        (
            Failing(
                errors.ProviderRejected(
                    "401 from the vendor", provider="vendor", model="judge", status=401
                )
            ),
            "401 from the vendor",
        ),
        (Sleeping([]), "did not rerank within 0.05 s"),
    ],
)
async def test_a_reranker_that_fails_leaves_the_fused_order_and_says_why(judge, reason, caplog):
    with caplog.at_level(logging.WARNING, logger="ragpg"):
        shown = await rerank(HITS, judge, k=2, timeout_s=0.05)
    assert shown.hits == HITS.hits[:2]
    (sentence,) = shown.degraded
    assert reason in sentence
    assert sentence.startswith("vendor judge did not rerank")
    assert sentence.endswith("; the fused order is shown")
    assert [record.message for record in caplog.records] == [sentence]
    assert shown.reranker is None
    assert set(shown.timings_s) == {"embed", "rerank"}


async def test_an_answer_that_cannot_be_used_is_still_paid_for():
    shown = await rerank(HITS, Judge([0.1]), k=3, timeout_s=5)
    assert shown.usage == (*HITS.usage, USAGE)


async def test_our_own_mistakes_and_cancellation_are_not_swallowed():
    mend = r"vendor judge raised KeyError \('x'\) instead of an answer; mend that provider"
    with pytest.raises(errors.InvalidProviderResponse, match=mend) as raised:
        await rerank(HITS, Failing(KeyError("x")), k=3, timeout_s=5)
    assert isinstance(raised.value.__cause__, KeyError)
    with anyio.move_on_after(0.05) as scope:
        await rerank(HITS, Sleeping([]), k=3, timeout_s=60)
    assert scope.cancelled_caught


async def test_a_degraded_search_is_flagged_in_its_log(database, owner):
    down = Failing(errors.ProviderUnavailable("503", provider="vendor", model="judge"))
    async with client_on(database, reranker=down) as client:
        notes = client.collection(tenant="acme", name="notes")
        await notes.ingest(
            [Document(key="a", text="Turn the valve."), Document(key="b", text="A pump.")]
        )
        hits = await notes.search("valve", k=1)
    assert [found.document_key for found in hits] == ["a"]
    (sentence,) = hits.degraded
    assert owner.execute("select degraded, reranker from ragpg.search").fetchall() == [
        ([sentence], None)
    ]
    logged = owner.execute(
        "select fused_rank, rerank_rank, shown from ragpg.search_hit order by fused_rank"
    ).fetchall()
    assert logged == [(1, None, True), (2, None, False)]


async def test_a_reranker_gets_the_seconds_that_the_environment_says(database, monkeypatch):
    monkeypatch.setenv("RAGPG_RERANK_TIMEOUT_S", "0.25")
    async with client_on(database, reranker=Sleeping(())) as client:
        notes = client.collection(tenant="acme", name="notes")
        await notes.ingest([Document(key="a", text="Turn the valve.")])
        # The default would be 5 s and another sentence.
        hits = await notes.search("valve")
    assert [found.document_key for found in hits] == ["a"]
    (sentence,) = hits.degraded
    assert sentence.startswith("vendor judge did not rerank within 0.25 s;")


async def test_the_log_of_a_reranked_search_tells_both_ranks(database, owner):
    async with client_on(database, reranker=Judge([0.1, 0.9])) as client:
        notes = client.collection(tenant="acme", name="notes")
        await notes.ingest(
            [Document(key="a", text="Turn the valve."), Document(key="b", text="A pump.")]
        )
        hits = await notes.search("valve", k=1)
    assert [(found.document_key, found.rank) for found in hits] == [("b", 1)]
    logged = owner.execute(
        "select fused_rank, rerank_rank, rerank_score, shown from ragpg.search_hit order by fused_rank"
    ).fetchall()
    assert logged == [(1, None, None, False), (2, 1, 0.9, True)]
    spent = owner.execute("select cost_usd from ragpg.usage where operation = 'rerank'").fetchall()
    assert [float(row[0]) for row in spent] == [0.002]
