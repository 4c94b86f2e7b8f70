"""A small collection is read whole: all of it and nothing else, cached, cited, logged."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

import ragpg
from ragpg import errors, testing
from ragpg.client import AsyncClient
from ragpg.providers.claude_generate import ClaudeGenerator
from ragpg.tokens import count_tokens
from ragpg.types import Answer, AnswerDelta, Document, Recipe
from tests.conftest import client_on
from tests.vendor_stub import VendorStub

pytestmark = pytest.mark.anyio

RECIPE = Recipe(
    embedding_provider="testing",
    embedding_model="hash-256",
    dimensions=256,
    context_provider="testing",
    context_model="first-sentence",
    max_tokens=60,
    overlap_tokens=0,
)
MANUAL = "# Pump\n\n" + "".join(
    f"## Part {n}\n\nPart {n} of the pump is checked every {n} weeks by the night shift, who write"
    f" the pressure and the temperature of part {n} into the book beside the door.\n\n"
    for n in range(1, 13)
)
LEAVE = (
    "# Leave\n\nEverybody has 30 days of leave, those who work at night 33, and may carry five of"
    " them over to the next year if the office hears of it before December, in writing.\n\n"
    "## Parental\n\nParental leave is 14 weeks. It is for each parent and each child, and may be"
    " taken in two parts, if the first begins in the year in which the child was born.\n"
)
QUESTION = "How many weeks is parental leave?"


@pytest.fixture
def stub():
    with VendorStub() as running:
        yield running


@asynccontextmanager
async def on(database, stub: VendorStub) -> AsyncIterator[AsyncClient]:
    """A client with the real Claude generator on the stub, and the fakes for all else."""
    claude = ClaudeGenerator(
        api_key="sk-ant-test", model="claude-sonnet-5-5", base_url=stub.anthropic_url
    )
    try:
        async with client_on(database, generator=claude) as client:
            yield client
    finally:
        await claude.aclose()


async def filled(client, *documents: Document, tenant="acme", name="notes", recipe=RECIPE):
    notes = client.collection(tenant=tenant, name=name)
    await notes.create(recipe)
    report = await notes.ingest(
        documents or (Document(key="pump.md", text=MANUAL), Document(key="leave.md", text=LEAVE))
    )
    assert report.failed == ()
    return notes


def sent(stub: VendorStub, call: int = -1) -> list[dict[str, Any]]:
    (message,) = stub.calls("/v1/messages")[call].body["messages"]
    content: list[dict[str, Any]] = message["content"]
    return content


def texts(content: list[dict[str, Any]]) -> list[str]:
    """The chunk text of each search result, joined from its pieces."""
    return ["".join(piece["text"] for piece in block["content"]) for block in content[:-1]]


async def test_all_chunks_go_out_in_order_with_one_cache_mark_and_the_question_last(
    database, stub, owner
):
    async with on(database, stub) as client:
        notes = await filled(client)
        answer = await notes.ask(QUESTION, k=1)
    content = sent(stub)
    assert [block["type"] for block in content] == ["search_result"] * (len(content) - 1) + ["text"]
    assert content[-1] == {"type": "text", "text": QUESTION}
    marked = [place for place, block in enumerate(content) if "cache_control" in block]
    assert marked == [len(content) - 2]
    live = owner.execute(
        "select chunk.text from ragpg.chunk join ragpg.document using (tenant_id, document_id)"
        ' order by document.key collate "C", chunk.position'
    ).fetchall()
    assert texts(content) == [text for (text,) in live]
    assert "".join(texts(content)) == LEAVE + MANUAL
    assert (answer.mode, answer.hits.mode, answer.supported) == (
        "whole_corpus",
        "whole_corpus",
        True,
    )
    assert [hit.rank for hit in answer.hits] == list(range(1, len(live) + 1))
    assert {(hit.dense_rank, hit.lexical_rank, hit.rerank_score) for hit in answer.hits} == {
        (None, None, None)
    }


async def test_the_next_question_has_the_same_prefix_byte_for_byte_and_reads_it_from_the_cache(
    database, stub, owner
):
    async with on(database, stub) as client:
        notes = await filled(client)
        first = await notes.ask(QUESTION)
        await client.collection(tenant="acme", name="notes").ingest(
            [Document(key="pump.md", text=MANUAL)]
        )
        second = await notes.ask("Who checks part 7 of the pump?")
    assert sent(stub, 0)[:-1] == sent(stub, 1)[:-1]
    assert sent(stub, 0)[-1] != sent(stub, 1)[-1]
    (wrote,), (read,) = first.usage, second.usage
    assert wrote.cache_write_tokens > 512
    assert (wrote.cache_read_tokens, read.cache_write_tokens) == (0, 0)
    assert read.cache_read_tokens == wrote.cache_write_tokens
    assert read.input_tokens < 20
    assert read.cost_usd is not None
    assert wrote.cost_usd is not None
    assert read.cost_usd < wrote.cost_usd / 2
    paid = owner.execute(
        "select provider, operation, cache_write_tokens, cache_read_tokens from ragpg.usage"
        " where operation = 'generate' order by usage_id"
    ).fetchall()
    assert paid == [
        ("claude", "generate", wrote.cache_write_tokens, 0),
        ("claude", "generate", 0, wrote.cache_write_tokens),
    ]


async def test_citations_lead_to_the_documents_words_and_false_ones_withhold_the_answer(
    database, stub
):
    def misquoted(_call, body):
        for block in body["content"]:
            for citation in block.get("citations") or ():
                citation["cited_text"] = "Parental leave is 40 weeks.\n"
        return body

    async with on(database, stub) as client:
        notes = await filled(client)
        answer = await notes.ask(QUESTION)
        (citation,) = answer.citations
        assert (citation.document_key, citation.section_path, citation.quote) == (
            "leave.md",
            ("Leave", "Parental"),
            "## Parental\n\nParental leave is 14 weeks.",
        )
        assert LEAVE[citation.start : citation.stop] == citation.quote
        stub.change = misquoted
        with pytest.raises(errors.InvalidProviderResponse, match="cited words that blocks"):
            await notes.ask(QUESTION)


async def test_the_log_says_that_the_corpus_was_read_whole_and_what_was_cited(
    database, stub, owner
):
    async with on(database, stub) as client:
        notes = await filled(client)
        where = ragpg.key.prefix("leave")
        answer = await notes.ask(QUESTION, where=where)
        searched = await notes.search(QUESTION)
    logged = owner.execute(
        "select search_id, mode, query, query_embedding is null, filter, dense_mode, reranker"
        " from ragpg.search order by search_id"
    ).fetchall()
    assert logged == [
        (answer.hits.search_id, "whole_corpus", QUESTION, True, where.to_json(), None, None),
        (searched.search_id, "retrieved", QUESTION, False, None, "exact", "testing overlap"),
    ]
    rows = owner.execute(
        "select mode, fused_rank, dense_rank, lexical_rank, document_key, shown, cited"
        " from ragpg.search_log where search_id = %s order by fused_rank",
        [answer.hits.search_id],
    ).fetchall()
    assert rows == [
        ("whole_corpus", 1, None, None, "leave.md", True, False),
        ("whole_corpus", 2, None, None, "leave.md", True, True),
    ]


async def test_other_tenants_and_collections_filtered_and_expired_documents_are_never_sent(
    database, stub
):
    past, future = (dt.datetime.now(dt.UTC) + dt.timedelta(days=days) for days in (-1, 1))
    async with on(database, stub) as client:
        await filled(client, Document(key="a.md", text="Leave of globex."), tenant="globex")
        await filled(client, Document(key="a.md", text="Leave of others."), name="others")
        notes = await filled(
            client,
            Document(key="hr/b.md", text="Leave is 30 days.", tags=("hr",), expires_at=future),
            Document(key="hr/a.md", text="Leave was 20 days.", tags=("hr",), expires_at=past),
            Document(key="hr/c.md", text="Leave needs a form.", tags=("hr", "form")),
            Document(key="it/d.md", text="Leave the server on.", metadata={"year": 2025}),
        )
        asked = {
            "all": None,
            "tag": ragpg.tags.any("hr"),
            "both tags": ragpg.tags.any("hr") & ragpg.tags.any("form"),
            "prefix": ragpg.key.prefix("it/"),
            "year": ragpg.field("year") >= 2025,
            "not": ~ragpg.tags.any("form"),
        }
        read = {}
        for name, where in asked.items():
            answer = await notes.ask("What of leave?", where=where)
            assert answer.mode == "whole_corpus", name
            read[name] = texts(sent(stub))
    assert read == {
        "all": ["Leave is 30 days.", "Leave needs a form.", "Leave the server on."],
        "tag": ["Leave is 30 days.", "Leave needs a form."],
        "both tags": ["Leave needs a form."],
        "prefix": ["Leave the server on."],
        "year": ["Leave the server on."],
        "not": ["Leave is 30 days.", "Leave the server on."],
    }


async def test_where_the_filter_lets_nothing_through_no_vendor_is_called(database, stub):
    async with on(database, stub) as client:
        notes = await filled(client)
        answer = await notes.ask(QUESTION, where=ragpg.key == "missing.md")
    assert (answer.mode, answer.supported, len(answer.hits)) == ("retrieved", False, 0)
    assert stub.log == []


async def test_the_limit_counts_titles_contexts_and_texts_and_one_token_more_is_retrieved(
    database, stub
):
    async with on(database, stub) as client:
        notes = await filled(client, Document(key="leave.md", text=LEAVE, title="Leave rules"))
        hits = (await notes.ask(QUESTION)).hits
        tokens = sum(
            16
            + count_tokens("Leave rules")
            + sum(count_tokens(heading) for heading in hit.section_path)
            + count_tokens(hit.contextualized)
            for hit in hits
        )
        modes = []
        for limit in (tokens, tokens - 1, 0):
            await notes.create(replace(RECIPE, whole_corpus_tokens=limit))
            modes.append((await notes.ask(QUESTION, k=1)).mode)
    assert modes == ["whole_corpus", "retrieved", "retrieved"]
    assert len(texts(sent(stub))) == 1


async def test_the_limit_alone_of_a_recipe_may_change_and_nothing_is_ingested_anew(
    database, stub, owner
):
    async with on(database, stub) as client:
        notes = await filled(client)
        await notes.set_alias("live")
        before = owner.execute("select chunk_id, xmin from ragpg.chunk order by 1").fetchall()
        assert (await notes.recipe()).whole_corpus_tokens == 20_000
        changed = replace(RECIPE, whole_corpus_tokens=0)
        alias = client.collection(tenant="acme", name="live")
        assert await alias.create(changed) == changed
        assert await notes.recipe() == changed
        assert (await notes.ask(QUESTION)).mode == "retrieved"
        report = await notes.ingest([Document(key="pump.md", text=MANUAL)])
        assert report.unchanged == ("pump.md",)
        with pytest.raises(errors.RecipeMismatch, match="max_tokens 60"):
            await notes.create(replace(changed, whole_corpus_tokens=5, max_tokens=61))
        assert (await notes.recipe()).whole_corpus_tokens == 0
        async with client.transaction("acme") as conn:
            await conn.execute("select ragpg.set_whole_corpus_tokens('live', 30000)")
        assert (await notes.ask(QUESTION)).mode == "whole_corpus"
        with pytest.raises(errors.InputError, match="whole_corpus_tokens is -1, it must be 0 to"):
            await notes.create(replace(RECIPE, whole_corpus_tokens=-1))
    assert owner.execute("select chunk_id, xmin from ragpg.chunk order by 1").fetchall() == before


async def test_a_recipe_that_names_no_limit_leaves_the_one_that_is_set(database, stub):
    async with on(database, stub) as client:
        notes = client.collection(tenant="acme", name="notes")
        assert (await notes.create(RECIPE)).whole_corpus_tokens == 20_000
        async with client.transaction("acme") as conn:
            await conn.execute("select ragpg.set_whole_corpus_tokens('notes', 777)")
        assert (await notes.create(RECIPE)).whole_corpus_tokens == 777
        await notes.create(replace(RECIPE, whole_corpus_tokens=0))
        assert (await notes.create()).whole_corpus_tokens == 0
        assert (await notes.create(RECIPE)).whole_corpus_tokens == 0
        assert (await notes.recipe()).whole_corpus_tokens == 0
        named = replace(RECIPE, whole_corpus_tokens=20_000)
        assert await notes.create(named) == named
        assert await notes.recipe() == named
        with pytest.raises(errors.RecipeMismatch, match="max_tokens 60") as raised:
            await notes.create(replace(RECIPE, max_tokens=61))
        assert "whole_corpus_tokens" not in str(raised.value)


async def test_a_generator_gets_hits_unless_it_says_how_much_it_can_read(database, stub):
    class Reading(testing.QuotingGenerator):
        def __init__(self, max_corpus_tokens: int) -> None:
            self.max_corpus_tokens = max_corpus_tokens

    modes = []
    for generator in (testing.QuotingGenerator(), Reading(20), Reading(1_000_000)):
        async with client_on(database, generator=generator) as client:
            notes = await filled(client)
            modes.append((await notes.ask(QUESTION)).mode)
    assert modes == ["retrieved", "retrieved", "whole_corpus"]


async def test_the_whole_corpus_can_be_streamed(database, stub):
    async with on(database, stub) as client:
        notes = await filled(client)
        hits = await notes.ground(QUESTION)
        assert (await notes.rerank(QUESTION, hits, k=2)).mode == "retrieved"
        *deltas, answer = [item async for item in notes.stream(QUESTION, hits)]
    assert isinstance(answer, Answer)
    assert answer.mode == "whole_corpus"
    assert "".join(d.text for d in deltas if isinstance(d, AnswerDelta)) == answer.text
    assert [citation.document_key for citation in answer.citations] == ["leave.md"]


async def test_a_search_and_an_answer_from_given_hits_are_as_before(database, stub):
    async with on(database, stub) as client:
        notes = await filled(client)
        hits = await notes.search(QUESTION, k=3)
        answer = await notes.generate(QUESTION, hits)
    assert (hits.mode, len(hits), hits.reranker) == ("retrieved", 3, "testing overlap")
    assert (answer.mode, len(texts(sent(stub)))) == ("retrieved", 3)


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("claude-sonnet-5-5", 615_384),  # 0.8 of a window of 1,000,000, and 1.3 tokens a token
        ("claude-sonnet-4-5", 123_076),  # a window of 200,000
        ("claude-haiku-5-5", 61_538),  # five times the price above 100,000
        ("claude-unheard-of", 123_076),
    ],
)
def test_claude_reads_what_fits_its_window_below_its_price_step(model, tokens):
    assert ClaudeGenerator(api_key="sk-ant-test", model=model).max_corpus_tokens == tokens
