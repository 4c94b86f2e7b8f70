"""The search log from Python: listed, one with its candidates, and why a chunk was or was not found."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from pydantic import SecretStr

import ragpg
from ragpg import errors, testing
from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.settings import Settings
from ragpg.types import Document
from tests.conftest import client_on

pytestmark = pytest.mark.anyio
NOTES = [
    Document(key="a.md", text="Turn the valve.", metadata={"year": 2025}),
    Document(key="b.md", text="Open a valve.", metadata={"year": 2024}),
    Document(key="c.md", text="Feed the cat."),
]


async def notes(client: AsyncClient, tenant: str = "acme") -> AsyncCollection:
    collection = client.collection(tenant=tenant, name="notes")
    await collection.ingest(NOTES)
    return collection


async def chunk_of(collection: AsyncCollection, key: str) -> int:
    async with collection.transaction() as conn:
        cursor = await conn.execute(
            "select chunk_id from ragpg.chunk_overview where collection = %s and document_key = %s",
            [collection.name, key],
        )
        row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def test_searches_are_listed_newest_first_page_by_page(client: AsyncClient):
    docs = await notes(client)
    other = client.collection(tenant="acme", name="other")
    await other.ingest([Document(key="d.md", text="Another valve.")])
    before = dt.datetime.now(dt.UTC)
    for query in ("valve", "cat", "open"):
        await docs.search(query, k=2, where={"key": {"prefix": ""}})
    await other.ask("another")

    newest = (await client.search_log(tenant="acme", limit=1))[0]
    assert (newest.collection, newest.query, newest.k) == ("other", "another", 20)
    assert (newest.candidates, newest.shown, newest.cited) == (1, 1, 1)
    assert newest.searched_at >= before - dt.timedelta(seconds=5)
    second = await client.search_log(tenant="acme", after=newest.search_id, limit=2)
    assert [each.query for each in second] == ["open", "cat"]
    last = await client.search_log(tenant="acme", after=second[-1].search_id)
    assert [each.query for each in last] == ["valve"]
    assert last[0].filter == {"key": {"prefix": ""}}
    assert last[0].reranker == "testing overlap"
    assert set(last[0].timings_s) == {"embed", "retrieve", "rerank"}
    assert 0 < last[0].timings_s["retrieve"] < 30
    of_notes = await client.search_log(tenant="acme", collection="notes")
    assert [each.query for each in of_notes] == ["open", "cat", "valve"]
    await docs.set_alias("live")
    assert await client.search_log(tenant="acme", collection="live") == of_notes
    with pytest.raises(errors.CollectionNotFound, match="'missing'"):
        await client.search_log(tenant="acme", collection="missing")
    with pytest.raises(errors.InputError, match="limit is 0, it must be 1 to 1000"):
        await client.search_log(tenant="acme", limit=0)


async def test_one_search_has_every_candidate_with_its_rank_in_each_arm(client: AsyncClient):
    docs = await notes(client)
    hits = await docs.search("turn the valve", k=1)
    assert hits.search_id is not None
    logged = await client.logged_search(hits.search_id, tenant="acme")
    assert logged.search.query == "turn the valve"
    assert [hit.document_key for hit in logged.hits if hit.shown] == ["a.md"]
    first = logged.hits[0]
    assert (first.chunk_id, first.beginning) == (hits[0].chunk_id, "Turn the valve.")
    assert (first.dense_rank, first.lexical_rank) == (hits[0].dense_rank, hits[0].lexical_rank)
    assert first.fused_score == pytest.approx(hits[0].fused_score)
    assert first.rerank_score == hits[0].rerank_score
    assert {hit.document_key for hit in logged.hits[1:]} == {"b.md", "c.md"}
    assert [hit.rerank_rank for hit in logged.hits[1:]] == [None, None]
    read = ragpg.LoggedSearch.from_json(json.loads(json.dumps(logged.to_json())))
    assert read == logged


async def test_a_candidate_says_the_way_that_it_took(client: AsyncClient):
    docs = await notes(client)
    answer = await docs.ask("turn the valve", k=1)
    number = answer.hits.search_id
    assert number is not None
    cited = await client.explain_search(number, answer.citations[0].chunk_id, tenant="acme")
    assert (cited.outcome, cited.document_key) == ("cited", "a.md")
    assert cited.reason == (
        "it was shown and is cited: dense rank 1, lexical rank 1, rank 1 of 3 after fusion, rank 1"
        " after reranking by testing overlap"
    )
    assert cited.lexical_score == pytest.approx(sum(cited.lexemes.values()))
    assert set(cited.lexemes) >= {"turn", "valv"}

    behind = await client.explain_search(number, await chunk_of(docs, "b.md"), tenant="acme")
    assert behind.outcome == "not_shown"
    assert behind.reason == (
        "it was found (dense rank 2, lexical rank 2, rank 2 of 3 after fusion) and is not among the"
        " 1 that were shown: after reranking by testing overlap others stood before it, or it is on"
        " another page"
    )
    assert behind.hit is not None
    assert behind.hit.shown is False


async def test_a_chunk_that_was_not_found_says_why_not(client: AsyncClient, owner):
    docs = await notes(client)
    other = client.collection(tenant="acme", name="other")
    await other.ingest([Document(key="d.md", text="Another valve.")])
    numbers = {key: await chunk_of(docs, key) for key in ("a.md", "b.md", "c.md")}

    filtered = await docs.search("valve", where=ragpg.field("year") == 2025)
    assert filtered.search_id is not None
    why = await client.explain_search(filtered.search_id, numbers["b.md"], tenant="acme")
    assert (why.outcome, why.reason) == (
        "filtered",
        "'b.md' does not pass the filter of the search",
    )
    assert why.lexical_score == pytest.approx(sum(why.lexemes.values()))
    assert why.hit is None
    elsewhere = await client.explain_search(
        filtered.search_id, await chunk_of(other, "d.md"), tenant="acme"
    )
    assert (elsewhere.outcome, elsewhere.dense_score) == ("elsewhere", None)
    gone = await client.explain_search(filtered.search_id, 999_999, tenant="acme")
    assert (gone.outcome, gone.document_key, gone.dense_score) == ("gone", None, None)

    excluded = await docs.search("valve", exclude=[numbers["a.md"]])
    assert excluded.search_id is not None
    left_out = await client.explain_search(excluded.search_id, numbers["a.md"], tenant="acme")
    assert left_out.outcome == "left_out"
    assert "else the call excluded it" in left_out.reason
    assert left_out.dense_score is not None

    owner.execute(
        "update ragpg.document set expires_at = now() - interval '1 day' where key = 'c.md'"
    )
    over = await client.explain_search(excluded.search_id, numbers["c.md"], tenant="acme")
    # It was a candidate before it expired, and the log keeps that.
    assert over.outcome in {"shown", "not_shown"}
    owner.execute("delete from ragpg.search_hit where chunk_id = %s", [numbers["c.md"]])
    over = await client.explain_search(excluded.search_id, numbers["c.md"], tenant="acme")
    assert (over.outcome, over.reason) == (
        "expired",
        "'c.md' had expired when this was searched",
    )


async def test_a_chunk_that_both_arms_passed_over_is_outranked_and_a_repeated_text_is_named(
    client: AsyncClient,
):
    docs = client.collection(tenant="acme", name="notes")
    same = [Document(key=f"{n:03}.md", text=f"Valve {n} is open.") for n in range(160)]
    await docs.ingest([*same, Document(key="copy.md", text="Valve 7 is open.")])
    await docs.ingest([Document(key="far.md", text="Feed the cat every morning.")])
    hits = await docs.search("Valve 7 is open.", k=1)
    assert hits.search_id is not None
    why = await client.explain_search(hits.search_id, await chunk_of(docs, "far.md"), tenant="acme")
    assert why.outcome == "outranked"
    assert "the last of 150 that the dense arm returned" in why.reason
    assert why.reason.endswith("and no word of the query is in it")
    assert why.least_dense_score is not None
    assert why.dense_score is not None
    assert why.dense_score < why.least_dense_score

    once = await docs.search("Valve 7 is open.", k=1, deduplicate=True)
    assert once.search_id is not None
    shown = {
        hit.chunk_id for hit in (await client.logged_search(once.search_id, tenant="acme")).hits
    }
    copies = {await chunk_of(docs, key) for key in ("007.md", "copy.md")}
    (left,) = copies - shown
    why = await client.explain_search(once.search_id, left, tenant="acme")
    assert why.outcome == "repeated"


async def test_a_whole_corpus_says_that_it_was_read_whole(database):
    class Reader(testing.QuotingGenerator):
        max_corpus_tokens = 20_000

    async with client_on(database, generator=Reader()) as client:
        docs = await notes(client)
        hits = await docs.ground("valve")
        assert hits.mode == "whole_corpus"
        assert hits.search_id is not None
        why = await client.explain_search(hits.search_id, hits[0].chunk_id, tenant="acme")
        assert why.reason == "the collection was read whole, this chunk too: it was shown"


async def test_the_log_of_another_tenant_is_not_there(client: AsyncClient):
    acme = await notes(client, "acme")
    globex = await notes(client, "globex")
    own = await acme.search("valve")
    foreign = await globex.search("secret valve")
    assert own.search_id is not None
    assert foreign.search_id is not None
    assert [each.query for each in await client.search_log(tenant="acme")] == ["valve"]
    for call in (
        client.logged_search(foreign.search_id, tenant="acme"),
        client.explain_search(foreign.search_id, own[0].chunk_id, tenant="acme"),
    ):
        with pytest.raises(
            errors.SearchNotFound, match=rf"^the log has no search {foreign.search_id} of"
        ):
            await call
    # A chunk of another tenant and one that never was look the same.
    why = await client.explain_search(own.search_id, foreign[0].chunk_id, tenant="acme")
    never = await client.explain_search(own.search_id, 999_999, tenant="acme")
    assert (why.outcome, why.reason, why.document_key, why.dense_score, why.lexemes) == (
        never.outcome,
        never.reason,
        None,
        None,
        {},
    )
    assert await client.prune_log(tenant="acme", older_than_days=0) == 1
    assert await client.search_log(tenant="acme") == []
    assert [each.query for each in await client.search_log(tenant="globex")] == ["secret valve"]
    with pytest.raises(errors.TenantNotFound):
        await client.search_log(tenant="initech")


async def test_only_searches_of_that_age_are_pruned(client: AsyncClient, owner):
    docs = await notes(client)
    for query in ("valve", "cat"):
        await docs.search(query)
    owner.execute(
        "update ragpg.search set searched_at = now() - interval '31 days' where query = 'cat'"
    )
    assert await client.prune_log(tenant="acme", older_than_days=30) == 1
    assert [each.query for each in await client.search_log(tenant="acme")] == ["valve"]
    with pytest.raises(errors.InputError, match="older_than_days is -1"):
        await client.prune_log(tenant="acme", older_than_days=-1)


def test_the_blocking_client_reads_and_prunes_the_same_log(database):
    settings = Settings(database_url=SecretStr(database.service_url))
    with ragpg.Client(settings, embedder=testing.HashEmbedder()) as client:
        docs = client.collection(tenant="acme", name="notes")
        docs.ingest(NOTES)
        hits = docs.search("valve", k=1)
        (logged,) = client.search_log(tenant="acme")
        assert logged.search_id == hits.search_id
        one = client.logged_search(logged.search_id, tenant="acme")
        assert [hit.chunk_id for hit in one.hits if hit.shown] == [hits[0].chunk_id]
        why = client.explain_search(logged.search_id, hits[0].chunk_id, tenant="acme")
        assert why.outcome == "shown"
        assert client.prune_log(tenant="acme", older_than_days=0) == 1
