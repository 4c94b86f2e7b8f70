"""Retrieval through the client: filters on every path, pages, expansion, duplicates, citations."""

from __future__ import annotations

from dataclasses import replace

import anyio
import psycopg
import pytest

import ragpg
from ragpg import errors, testing
from ragpg.retrieve import Weights
from ragpg.types import Document, Embedded, Recipe
from tests.conftest import client_on

pytestmark = pytest.mark.anyio

GUIDE = """# Pump

The pump feeds the boiler.

## Valve

Turn the valve left to open it.

## Gasket

Change the gasket every year.

## Filter

Rinse the filter every week.
"""
SMALL = Recipe(
    embedding_provider="testing",
    embedding_model="hash-256",
    dimensions=256,
    context_provider="testing",
    context_model="first-sentence",
    max_tokens=16,
    overlap_tokens=0,
)


async def filled(client, *documents: Document):
    notes = client.collection(tenant="acme", name="notes")
    await notes.create(SMALL)
    report = await notes.ingest(documents)
    assert report.failed == ()
    return notes


def guide(**fields) -> Document:
    return Document(key="guide.md", text=GUIDE, **fields)


async def test_a_filter_holds_for_search_expansion_and_what_the_reranker_sees(database):
    # C21
    seen: set[str] = set()

    class Watching(testing.OverlapReranker):
        async def rerank(self, query, hits):
            seen.update(hit.document_key for hit in hits)
            return await super().rerank(query, hits)

    async with client_on(database, reranker=Watching()) as client:
        other = client.collection(tenant="globex", name="notes")
        await other.ingest([Document(key="secret.md", text="valve valve valve", tags=("adr",))])
        notes = await filled(
            client, guide(tags=("adr",)), Document(key="b.md", text="valve valve open valve")
        )
        wanted = ragpg.tags.any("adr")
        for unit in (None, "neighbours", "section"):
            hits = await notes.search("open valve", where=wanted, expand=unit)
            assert {hit.document_key for hit in hits} == {"guide.md"}
        assert seen == {"guide.md"}
        assert (await notes.search("open valve", k=1))[0].document_key == "b.md"


async def test_pages_through_the_client_are_the_long_list(client):
    notes = await filled(client, *(Document(key=f"{n}.md", text="A valve.") for n in range(9)))
    whole = [hit.chunk_id for hit in await notes.retrieve("valve", k=9)]
    pages: list[int] = []
    while True:
        after = pages[-1] if pages else None
        page = await notes.retrieve("valve", k=4, after=after)
        pages += [hit.chunk_id for hit in page]
        if len(page) < 4:
            break
    assert pages == whole
    rest = await notes.retrieve("valve", k=9, exclude=whole[:8])
    assert [(hit.chunk_id, hit.rank) for hit in rest] == [(whole[8], 1)]
    with pytest.raises(errors.InputError, match=r"after names chunk 12345.*begin again"):
        await notes.retrieve("valve", after=12345)


async def test_only_a_query_without_keywords_is_said_to_have_none(client):
    empty = client.collection(tenant="acme", name="empty")
    await empty.create(SMALL)
    assert (await empty.retrieve("backup policy")).notices == ()
    told = "the query holds no keyword (stop words or symbols only), so {} was searched"
    assert (await empty.retrieve("of the !?")).notices == (told.format("only meaning"),)
    notes = await filled(client, guide())
    assert (await notes.retrieve("zeppelin")).notices == ()
    none = await notes.retrieve("of the", weights=Weights(dense=0))
    assert none.hits == ()
    assert none.notices == (told.format("nothing"),)
    # What is a stop word is for the collection's language to say.
    german = client.collection(tenant="acme", name="german")
    await german.create(replace(SMALL, language="german"))
    assert (await german.retrieve("of the")).notices == ()
    assert (await german.retrieve("und das")).notices == (told.format("only meaning"),)


async def test_weights_choose_the_arm_and_a_stop_word_or_zero_vector_is_told(database):
    class Zero(testing.HashEmbedder):
        async def embed(self, texts, *, purpose):
            good = await super().embed(texts, purpose=purpose)
            if purpose == "document":
                return good
            return Embedded(vectors=[[0.0] * 256 for _ in texts], usage=good.usage)

    async with client_on(database) as client:
        notes = await filled(client, guide())
        hits = await notes.retrieve("valve", weights=Weights(dense=0))
        assert {hit.dense_rank for hit in hits} == {None}
        hits = await notes.retrieve("valve", weights=Weights(lexical=0))
        assert {hit.lexical_rank for hit in hits} == {None}
        assert all(hit.lexical_score is not None for hit in hits)
        assert "no keyword" in (await notes.retrieve("of the")).notices[0]
        with pytest.raises(errors.InputError, match="one weight above 0"):
            await notes.retrieve("valve", weights=Weights(dense=0, lexical=0))
        with pytest.raises(errors.InputError, match="k is 0, it must be 1 to 1000"):
            await notes.retrieve("valve", k=0)
        with pytest.raises(errors.EmptyQueryError):
            await notes.retrieve(" \0\n")
    async with client_on(database, embedder=Zero()) as client:
        hits = await client.collection(tenant="acme", name="notes").retrieve("valve")
        assert "embedding is zero" in hits.notices[0]
        assert {hit.dense_rank for hit in hits} == {None}


async def test_neighbours_follow_their_hit_as_hits_that_say_where_they_come_from(client):
    notes = await filled(client, guide())
    plain = await notes.search("turn left", k=1)
    hits = await notes.search("turn left", k=1, expand="neighbours")
    origin, before, after = hits
    assert origin == plain[0]
    assert origin.section_path == ("Pump", "Valve")
    assert origin.expanded_from is None
    assert [hit.section_path[-1] for hit in (before, after)] == ["Pump", "Gasket"]
    for added in (before, after):
        assert (added.expanded_from, added.rank) == (origin.chunk_id, origin.rank)
        assert (added.dense_rank, added.lexical_rank, added.rerank_score) == (None, None, None)
        assert added.fused_score == 0
        assert added.text == GUIDE[added.start : added.stop]


async def test_a_section_is_read_whole_and_expansion_works_on_any_hits(client):
    long = "# Log\n\n" + "\n\n".join(
        f"Entry {n} tells what happened on day {n} of the trial." for n in range(5)
    )
    notes = await filled(client, Document(key="log.md", text=long), guide())
    (hit,) = (await notes.retrieve("entry day 2", k=1)).hits
    hits = await notes.expand(await notes.retrieve("entry day 2", k=1), "section")
    assert hits[0] == hit
    assert "".join(h.text for h in sorted(hits, key=lambda h: h.position)) == long
    with pytest.raises(errors.InputError, match="it may be 'neighbours', 'section'"):
        await notes.expand(hits, "page")


async def test_hits_whose_document_is_gone_meanwhile_stay_but_gain_nothing(client):
    notes = await filled(client, guide())
    hits = await notes.retrieve("turn left", k=1)
    await notes.delete("guide.md")
    assert (await notes.expand(hits)).hits == hits.hits


async def test_citations_of_an_added_passage_map_to_its_own_words_and_are_logged(database, owner):
    class QuotingTheLast(testing.QuotingGenerator):
        async def generate(self, query, hits):
            answer = await super().generate(query, replace(hits, hits=hits.hits[-1:]))
            return replace(answer, hits=hits)

    async with client_on(database, generator=QuotingTheLast()) as client:
        notes = await filled(client, guide())
        answer = await notes.ask("turn left", k=1, expand="neighbours")
        (citation,) = answer.citations
        assert (citation.quote, citation.section_path) == ("Gasket", ("Pump", "Gasket"))
        assert GUIDE[citation.start : citation.stop] == citation.quote
        assert citation.chunk_id == answer.hits[-1].chunk_id
        logged = owner.execute(
            "select chunk_id from ragpg.search_hit where search_id = %s and cited",
            [answer.hits.search_id],
        ).fetchall()
        assert logged == [(answer.hits[0].chunk_id,)]


async def test_one_text_in_three_documents_is_one_hit_that_names_the_others(client):
    same = [Document(key=f"{n}.md", text="Turn the valve.", tags=(f"t{n}",)) for n in range(3)]
    notes = await filled(client, *same, Document(key="z.md", text="A valve, another text."))
    plain = await notes.search("turn valve")
    assert [hit.document_key for hit in plain] == ["0.md", "1.md", "2.md", "z.md"]
    assert {hit.duplicates for hit in plain} == {()}
    hits = await notes.search("turn valve", deduplicate=True)
    assert [hit.document_key for hit in hits] == ["0.md", "z.md"]
    assert hits[0].duplicates == (plain[1].chunk_id, plain[2].chunk_id)
    assert [hit.rank for hit in hits] == [1, 2]
    filtered = await notes.retrieve("valve", where=ragpg.tags.any("t1", "t2"), deduplicate=True)
    assert [(hit.document_key, hit.duplicates) for hit in filtered] == [
        ("1.md", (plain[2].chunk_id,))
    ]


async def test_psql_and_python_give_the_same_list(client, owner):
    notes = await filled(client, guide(), Document(key="b.md", text="Open the valve of the pump."))
    hits = await notes.retrieve("open the valve", k=5)
    vector = (await testing.HashEmbedder().embed(["open the valve"], purpose="query")).vectors[0]
    owner.execute("select ragpg.use_tenant('acme', true)")
    rows = owner.execute(
        "select chunk_id, fused_score from ragpg.search_hybrid('notes', 'open the valve', %s::halfvec, 5)",
        [str(list(vector))],
    ).fetchall()
    assert rows == [(hit.chunk_id, hit.fused_score) for hit in hits]


async def test_a_search_during_an_update_sees_one_version_and_never_none(database, client):
    notes = await filled(client, guide())
    seen: list[set[str]] = []
    done = anyio.Event()

    async def look() -> None:
        while not done.is_set():
            hits = await notes.retrieve("valve gasket filter pump", k=50)
            seen.append({hit.text.split()[-1] for hit in hits if "Gasket" in hit.section_path})

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        tasks.start_soon(look)
        for n in range(25):
            await notes.ingest([replace(guide(), text=GUIDE.replace("year.", f"year{n}."))])
        done.set()
    assert len(seen) > 20
    assert {len(words) for words in seen} == {1}


async def test_the_callers_own_connection_and_transaction_are_used(client, database):
    notes = await filled(client, guide())
    async with await psycopg.AsyncConnection.connect(database.service_url) as conn:
        hits = await notes.retrieve("valve", k=1, conn=conn)
        assert hits[0].section_path == ("Pump", "Valve")
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        await conn.rollback()
