"""Pages of a list: each hit once, whatever the sizes of the pages, and an end that is told."""

from __future__ import annotations

from typing import Any

import pytest

from ragpg import testing
from ragpg.errors import InputError
from ragpg.retrieve import Weights
from ragpg.types import Document, Hits, Recipe
from tests.conftest import client_on

pytestmark = pytest.mark.anyio

COUNT = 320
SECTIONS = Recipe(
    embedding_provider="testing",
    embedding_model="hash-256",
    dimensions=256,
    context_provider="testing",
    context_model="first-sentence",
    max_tokens=16,
    overlap_tokens=0,
)
# Some say it twice, so that the arms differ.
LOG = "".join(
    f"## Day {n}\n\nThe valve {'valve ' * (n % 3)}of boiler {n}.\n\n" for n in range(COUNT)
)


class CountingReranker(testing.OverlapReranker):
    """Counts its calls."""

    calls = 0

    async def rerank(self, query: str, hits: Hits) -> Any:
        self.calls += 1
        return await super().rerank(query, hits)


class CountingEmbedder(testing.HashEmbedder):
    """Counts the queries that it embedded."""

    queries = 0

    async def embed(self, texts: Any, *, purpose: Any) -> Any:
        self.queries += purpose == "query"
        return await super().embed(texts, purpose=purpose)


@pytest.fixture
async def log(client):
    log = client.collection(tenant="acme", name="log")
    await log.create(SECTIONS)
    report = await log.ingest([Document(key="log.md", text=LOG)])
    assert report.chunks == COUNT
    return log


async def paged(call: Any, sizes: list[int], **arguments: Any) -> list[Hits]:
    """Pages of these sizes in turn, to the one that is short."""
    pages: list[Hits] = []
    after = None
    while True:
        k = sizes[len(pages) % len(sizes)]
        page = await call("valve boiler", k=k, after=after, **arguments)
        pages.append(page)
        if len(page) < k:
            return pages
        after = page[-1].chunk_id


def ids(pages: list[Hits]) -> list[int]:
    return [hit.chunk_id for page in pages for hit in page]


async def test_a_list_that_is_deep_enough_is_paged_to_its_end_in_pages_of_any_size(log):
    whole = [hit.chunk_id for hit in await log.retrieve("valve boiler", k=1000)]
    assert len(set(whole)) == COUNT
    pages = await paged(log.retrieve, [50, 7, 130], depth=1000)
    assert ids(pages) == whole
    assert [hit.rank for page in pages for hit in page] == list(range(1, COUNT + 1))
    assert {page.notices for page in pages} == {()}


async def test_a_list_that_ends_because_of_its_depth_says_so_on_its_last_page(log):
    pages = await paged(log.retrieve, [60, 20])
    found = ids(pages)
    assert 150 <= len(set(found)) == len(found) < COUNT
    sentence = (
        "the list ends here, since each arm was searched 150 deep; for more begin again, with a"
        " greater depth (up to 1000) or a filter"
    )
    assert [page.notices for page in pages] == [()] * (len(pages) - 1) + [(sentence,)]
    left = await log.retrieve("valve boiler", k=300, depth=150, exclude=found)
    assert sentence.replace("150", "300") in left.notices
    for weights in (Weights(dense=0), Weights(lexical=0)):
        pages = await paged(log.retrieve, [100], weights=weights)
        assert len(ids(pages)) == 150
        assert pages[-1].notices == (sentence,)


async def test_a_page_larger_than_the_depth_is_refused_since_it_would_be_of_another_list(log):
    first = await log.retrieve("valve boiler", k=200)
    assert len(first) == 200
    for call in (log.retrieve, log.search):
        with pytest.raises(InputError, match=r"k is 200 and depth 150: .*; give depth=200 or more"):
            await call("valve boiler", k=200, after=first[-1].chunk_id)
    pages = await paged(log.retrieve, [200, 60], depth=200)
    assert len(ids(pages)) == len(set(ids(pages)))
    assert ids(pages)[:200] == [hit.chunk_id for hit in first]


async def test_a_reranked_and_logged_search_is_paged(log, owner):
    whole = await log.search("valve boiler", k=150)
    pages = await paged(log.search, [40, 9])
    assert ids(pages) == [hit.chunk_id for hit in whole]
    assert [hit.rank for page in pages for hit in page] == list(range(1, 151))
    assert [page.notices for page in pages[:-1]] == [()] * (len(pages) - 1)
    (notice,) = pages[-1].notices
    assert notice == (
        "the list ends here, since 150 hits were reranked; for more begin again, with a greater"
        " depth (up to 1000) or a filter"
    )
    shown = owner.execute(
        "select array_agg(chunk_id order by rerank_rank), min(rerank_rank), max(rerank_rank)"
        "  from ragpg.search_hit where search_id = any (%s) and shown group by search_id"
        " order by search_id",
        [[page.search_id for page in pages[:3]]],
    ).fetchall()
    assert shown == [
        (ids(pages[:1]), 1, 40),
        (ids(pages[1:2]), 41, 49),
        (ids(pages[2:3]), 50, 89),
    ]
    short = await paged(log.search, [200], depth=1000)
    assert len(set(ids(short))) == COUNT
    assert short[-1].notices == ()


async def test_a_search_leaves_chunks_out_and_weighs_its_arms(log):
    first = await log.search("valve boiler", k=20)
    left_out = [hit.chunk_id for hit in first]
    rest = await log.search("valve boiler", k=150, exclude=left_out)
    assert rest.notices[0].startswith("the list ends here, since each arm was searched 150 deep")
    assert not {hit.chunk_id for hit in rest} & set(left_out)
    assert set(ids([await log.search("valve boiler", k=150)])) <= {*ids([rest]), *left_out}
    alone = await log.search("valve boiler", k=150, weights=Weights(dense=0))
    assert {hit.dense_rank for hit in alone} == {None}


async def test_what_is_no_page_is_refused_before_anything_is_paid(database, log):
    reranker, embedder = CountingReranker(), CountingEmbedder()
    async with client_on(database, reranker=reranker, embedder=embedder) as client:
        there = client.collection(tenant="acme", name="log")
        with pytest.raises(InputError, match=r"after names chunk 12345, .*among the 150 .*; page"):
            await there.search("valve", after=12345)
        assert (reranker.calls, embedder.queries) == (0, 1)
        for call in (there.retrieve, there.search):
            wrong: Any
            for wrong, said in (
                ("x", "'x'"), (None, "None"), (float("nan"), "nan"), (float("inf"), "inf"),
                (-1, "-1"), (True, "True"), (1e7, "10000000.0"), ([1], r"list \[1\]"),
            ):  # fmt: skip
                sentence = rf"the dense weight is {said}, it must be 0 to 1000000; the usual"
                with pytest.raises(InputError, match=sentence):
                    await call("valve", weights=Weights(dense=wrong))
                with pytest.raises(InputError, match="the lexical weight is "):
                    await call("valve", weights=Weights(lexical=wrong))
            with pytest.raises(
                InputError, match=r"both weights are 0, .*; give one weight above 0"
            ):
                await call("valve", weights=Weights(dense=0, lexical=0.0))
            for arguments in ({"depth": 0}, {"after": "1"}, {"exclude": [0]}, {"k": 1001}):
                with pytest.raises(InputError, match="it must be 1 to"):
                    await call("valve", **arguments)
        with pytest.raises(InputError, match="the query has 32001 characters, at most 32000 are"):
            await there.ask("x" * 32_001)
        assert (reranker.calls, embedder.queries) == (0, 1)
        assert len(await there.search("valve " * 5_333, k=1)) == 1
