"""Providers of your own that answer nonsense or break: what it costs, and whom it touches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from pydantic import SecretStr

from ragpg import errors, testing
from ragpg.client import AsyncClient
from ragpg.ingestion.tally import IngestProgress
from ragpg.settings import Settings
from ragpg.types import (
    Answer,
    AnswerDelta,
    Chunk,
    Document,
    Embedded,
    Hits,
    Purpose,
    Recipe,
    Usage,
    WrittenContext,
)
from tests.conftest import client_on
from tests.vendor_stub import VendorStub

pytestmark = pytest.mark.anyio

PUMP = Document(key="pump.md", text="# Pump\n\nOpen the inlet valve.\n")
BAD = Document(key="bad.md", text="# Bad\n\nClose the outlet valve.\n")
FAN = Document(key="fan.md", text="# Fan\n\nClean the blades.\n")
USAGE = Usage(provider="own", model="writer", operation="context", cost_usd=0.25)
GAPS = """
select key, context_error, context_refused
  from ragpg.context_gap join ragpg.document using (tenant_id, document_id)
"""
BLANK = "testing first-sentence wrote a blank context for chunk 0"


class Writer(testing.FirstSentenceContextWriter):
    """Gives the chunk of bad.md this context, and the others a sentence."""

    def __init__(self, context: str, usage: tuple[Usage, ...] = ()) -> None:
        self.written = WrittenContext(position=0, context=context, usage=usage)

    async def write(
        self, document: Document, chunks: Sequence[Chunk]
    ) -> AsyncIterator[WrittenContext]:
        if document.key != BAD.key:
            async for written in super().write(document, chunks):
                yield written
            return
        yield self.written


def recipe(**fields) -> Recipe:
    return Recipe(
        embedding_provider="testing",
        embedding_model="hash-256",
        dimensions=256,
        context_provider="testing",
        context_model="first-sentence",
        **fields,
    )


@pytest.mark.parametrize("text", ["", " \n\t", "\0", " \0\0 ", "\u200b", "\u2003\u200b"])
@pytest.mark.parametrize("usage", [(), (USAGE,)], ids=["free", "paid"])
async def test_a_blank_context_is_a_gap_with_its_reason_and_touches_no_neighbour(
    database, owner, text, usage
):
    writer = Writer(text, usage)
    async with client_on(database, context_writer=writer) as client:
        docs = client.collection(tenant="acme", name="docs")
        report = await docs.ingest([PUMP, BAD, FAN])
        assert report.failed == ()
        assert report.created == ("pump.md", "bad.md", "fan.md")
        assert report.contexts_failed == 1
        assert report.nul_characters_removed == text.count("\0")
        assert (await docs.retrieve("outlet valve")).hits[0].document_key == "bad.md"
        # What was paid for is not asked for again; what was free is.
        assert (await docs.ingest([BAD])).unchanged == (() if not usage else ("bad.md",))
    assert owner.execute(GAPS).fetchall() == [("bad.md", BLANK, bool(usage))]
    paid = owner.execute("select count(*) from ragpg.usage where provider = 'own'").fetchone()
    assert paid == (len(usage),)


async def test_a_blank_context_holds_its_document_alone_where_the_recipe_says_so(database):
    writer = Writer("\0 ")
    async with client_on(database, context_writer=writer) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.create(recipe(failed_contexts="hold"))
        report = await docs.ingest([PUMP, BAD, FAN])
        assert report.created == ("pump.md", "fan.md")
        assert [(one.key, one.reason) for one in report.failed] == [("bad.md", "context")]
        assert f"the first of chunk 0 ({BLANK})" in report.failed[0].message


async def test_half_a_character_in_a_context_is_replaced_and_touches_no_neighbour(database, owner):
    writer = Writer("Of \ud800 the valve, \ud83d\ude80.", (USAGE,))
    async with client_on(database, context_writer=writer) as client:
        docs = client.collection(tenant="acme", name="docs")
        report = await docs.ingest([PUMP, BAD, FAN])
        assert report.created == ("pump.md", "bad.md", "fan.md")
    contexts = "select context from ragpg.chunk_overview where document_key = 'bad.md'"
    assert owner.execute(contexts).fetchall() == [("Of \ufffd the valve, 🚀.",)]


async def test_half_a_character_in_the_words_of_a_vendor_is_replaced_where_they_are_kept(
    database, owner
):
    class Refusing(Writer):
        async def write(self, document, chunks):
            del document
            yield WrittenContext(position=0, context=None, error=f"no\0 \udc00 {len(chunks)}")

    class Rejecting(testing.HashEmbedder):
        async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
            if any("outlet" in text for text in texts):
                raise errors.ProviderRejected(
                    "not \0'\ud800'", provider="own", model="e", status=400
                )
            return await super().embed(texts, purpose=purpose)

    async with client_on(
        database, context_writer=Refusing("unused"), embedder=Rejecting()
    ) as client:
        docs = client.collection(tenant="acme", name="docs")
        report = await docs.ingest([PUMP, BAD])
        assert report.created == ("pump.md",)
        assert report.failed[0].message.endswith("was not embedded: not '\ufffd'")
    assert owner.execute("select last_error from ragpg.staged_document").fetchone() == (
        report.failed[0].message,
    )
    assert owner.execute(GAPS).fetchall() == [("pump.md", "no \ufffd 1", False)]


async def test_the_nuls_of_a_context_are_counted_with_those_of_the_texts(database, owner):
    writer = Writer("a\0b\0 ctx")
    async with client_on(database, context_writer=writer) as client:
        docs = client.collection(tenant="acme", name="docs")
        report = await docs.ingest([BAD, Document(key="nul.md", text="One\0 word.")])
        assert report.nul_characters_removed == 3
    contexts = "select context from ragpg.chunk_overview where document_key = 'bad.md'"
    assert owner.execute(contexts).fetchall() == [("ab ctx",)]


@pytest.fixture
def stub() -> Iterator[VendorStub]:
    with VendorStub() as server:
        yield server


async def test_the_contexts_of_a_batch_are_held_to_the_same(database, owner, stub):
    said = {"inlet": "Of\0 the pump.", "outlet": "\0 \0", "blades": "Of the fan."}

    def results(line: dict[str, Any], asked: str) -> None:
        text = next(each for word, each in said.items() if word in asked)
        message = line["result"]["message"]
        message["content"] = [{"type": "text", "text": text}]

    settings = Settings(
        database_url=SecretStr(database.service_url),
        anthropic_api_key=SecretStr("key"),
        anthropic_base_url=stub.anthropic_url,
        batch_poll_s=0.05,
    )
    async with AsyncClient(settings, embedder=testing.HashEmbedder()) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.create(
            Recipe(
                embedding_provider="testing",
                embedding_model="hash-256",
                dimensions=256,
                context_provider="claude",
                context_model="claude-haiku-5-5",
            )
        )
        await docs.ingest([PUMP, BAD, FAN], batch=True, wait=False)
        stub.batches.end()
        for batch in stub.batches.batches.values():
            asked = {one["custom_id"]: str(one["params"]["messages"]) for one in batch.requests}
            for line in batch.lines:
                results(line, asked[line["custom_id"]])
        told: list[IngestProgress] = []
        report = await docs.resume(progress=told.append)
    assert sorted(report.created) == ["bad.md", "fan.md", "pump.md"]
    assert report.contexts_failed == 1
    # Of pump.md: an answer without text is no context that anything could be removed from.
    assert report.nul_characters_removed == 1
    contexts = "select document_key, context from ragpg.chunk_overview order by 1"
    assert owner.execute(contexts).fetchall() == [
        ("bad.md", None),
        ("fan.md", "Of the fan."),
        ("pump.md", "Of the pump."),
    ]
    why = "claude-haiku-5-5 answered without text"
    assert owner.execute(GAPS).fetchall() == [("bad.md", why, True)]
    # Each is told as it is stored, with what it cost.
    costs = [now.cost_usd for now in told if now.outcome == "contextualized"]
    assert len(costs) == 3
    assert costs == sorted(set(costs))


class Breaking(testing.FirstSentenceContextWriter):
    """Is paid for the first chunk of bad.md and then breaks."""

    async def write(
        self, document: Document, chunks: Sequence[Chunk]
    ) -> AsyncIterator[WrittenContext]:
        if document.key == BAD.key:
            yield WrittenContext(position=0, context="Paid for.", usage=(USAGE,))
            raise ValueError("no such\nvalve")
        async for written in super().write(document, chunks):
            yield written


async def test_a_writer_that_breaks_fails_its_document_alone_and_what_it_was_paid_for_is_kept(
    database, owner
):
    async with client_on(database, context_writer=Breaking()) as client:
        docs = client.collection(tenant="acme", name="docs")
        report = await docs.ingest([PUMP, BAD, FAN])
        assert report.created == ("pump.md", "fan.md")
        (failure,) = report.failed
        assert (failure.key, failure.reason) == ("bad.md", "provider")
        assert failure.message == (
            "testing first-sentence raised ValueError (no such valve) instead of an answer;"
            " mend that provider and try again"
        )
        assert [call.cost_usd for call in report.usage if call.provider == "own"] == [0.25]
    staged = "select document_key, context from ragpg.staged_chunk"
    assert owner.execute(staged).fetchall() == [("bad.md", "Paid for.")]
    assert owner.execute("select key, last_error from ragpg.pending").fetchall() == [
        ("bad.md", failure.message)
    ]
    async with client_on(database) as client:
        again = await client.collection(tenant="acme", name="docs").ingest([PUMP, BAD, FAN])
        assert again.created == ("bad.md",)
        assert not [call for call in again.usage if call.operation == "context"]


class BreakingEmbedder(testing.HashEmbedder):
    """Breaks where it meets an outlet valve, and at every query."""

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        if purpose == "query" or any("outlet" in text for text in texts):
            raise KeyError("outlet")
        return await super().embed(texts, purpose=purpose)


class BreakingGenerator(testing.QuotingGenerator):
    """Breaks after the first word."""

    async def generate(self, query: str, hits: Hits) -> Answer:
        raise ZeroDivisionError

    async def stream(self, query: str, hits: Hits) -> AsyncIterator[AnswerDelta | Answer]:
        yield AnswerDelta(text="The ")
        raise ZeroDivisionError


async def test_an_embedder_that_breaks_fails_the_documents_that_it_breaks_on_and_a_search_by_name(
    database,
):
    async with client_on(database, embedder=BreakingEmbedder()) as client:
        docs = client.collection(tenant="acme", name="docs")
        report = await docs.ingest([PUMP, BAD, FAN])
        assert report.created == ("pump.md", "fan.md")
        assert [one.key for one in report.failed] == ["bad.md"]
        assert "testing hash-256 raised KeyError ('outlet') instead" in report.failed[0].message
        with pytest.raises(errors.InvalidProviderResponse, match=r"raised KeyError") as raised:
            await docs.retrieve("valve")
    assert isinstance(raised.value.__cause__, KeyError)
    assert (raised.value.provider, raised.value.model) == ("testing", "hash-256")


async def test_a_generator_that_breaks_is_named_in_an_answer_and_half_way_through_a_stream(
    database,
):
    async with client_on(database, generator=BreakingGenerator()) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.ingest([PUMP])
        hits = await docs.retrieve("valve")
        why = "testing quoting raised ZeroDivisionError instead of an answer"
        with pytest.raises(errors.InvalidProviderResponse, match=why) as raised:
            await docs.generate("valve?", hits)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        pieces = docs.stream("valve?", hits)
        assert await anext(pieces) == AnswerDelta(text="The ")
        with pytest.raises(errors.InvalidProviderResponse, match=why):
            await anext(pieces)
