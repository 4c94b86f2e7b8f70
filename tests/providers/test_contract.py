"""One suite for every provider: the vendors' against the stub, the offline ones, the fakes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ragpg import testing
from ragpg.protocols import ContextWriter, DocumentEmbedder, Embedder, Generator, Reranker
from ragpg.providers.blend import BlendReranker
from ragpg.providers.claude import ClaudeContextWriter
from ragpg.providers.claude_generate import ClaudeGenerator
from ragpg.providers.cohere import CohereReranker
from ragpg.providers.extractive import ExtractiveGenerator
from ragpg.providers.local import LocalEmbedder
from ragpg.providers.rule import RuleContextWriter
from ragpg.providers.voyage import VoyageContextEmbedder, VoyageEmbedder, VoyageReranker
from ragpg.types import Answer, AnswerDelta, Hits
from tests.providers.making import cut, document, hit, hits
from tests.vendor_stub import VendorStub

pytestmark = pytest.mark.anyio

Build = Callable[[VendorStub], Any]

EMBEDDERS: dict[str, Build] = {
    "voyage": lambda stub: VoyageEmbedder(
        api_key="k", model="voyage-4", dimensions=256, base_url=stub.voyage_url
    ),
    "voyage-int8": lambda stub: VoyageEmbedder(
        api_key="k", model="voyage-4", dimensions=256, dtype="int8", base_url=stub.voyage_url
    ),
    "voyage-context": lambda stub: VoyageContextEmbedder(
        api_key="k", model="voyage-context-4", dimensions=256, base_url=stub.voyage_url
    ),
    "local": lambda _: LocalEmbedder(),
    "hash": lambda _: testing.HashEmbedder(),
}
WRITERS: dict[str, Build] = {
    "claude": lambda stub: ClaudeContextWriter(
        api_key="k", model="claude-haiku-5-5", base_url=stub.anthropic_url
    ),
    "rule": lambda _: RuleContextWriter(),
    "first-sentence": lambda _: testing.FirstSentenceContextWriter(),
}
RERANKERS: dict[str, Build] = {
    "voyage": lambda stub: VoyageReranker(
        api_key="k", model="rerank-2.5", base_url=stub.voyage_url
    ),
    "cohere": lambda stub: CohereReranker(
        api_key="k", model="rerank-v4.0-fast", base_url=stub.cohere_url
    ),
    "blend": lambda _: BlendReranker(),
    "overlap": lambda _: testing.OverlapReranker(),
}


GENERATORS: dict[str, Build] = {
    "claude": lambda stub: ClaudeGenerator(
        api_key="k", model="claude-sonnet-5-5", base_url=stub.anthropic_url
    ),
    "extractive": lambda _: ExtractiveGenerator(LocalEmbedder()),
    "quoting": lambda _: testing.QuotingGenerator(),
}


@pytest.fixture
async def provider(request: pytest.FixtureRequest, stub: VendorStub) -> AsyncIterator[Any]:
    """The provider that the parameter builds, closed afterwards if it holds connections."""
    built = request.param(stub)
    yield built
    if hasattr(built, "aclose"):
        await built.aclose()


def each(builders: dict[str, Build]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "provider", builders.values(), ids=builders.keys(), indirect=True
    )


TEXTS = [
    "Backups of the warehouse run every night at two.",
    "The cat sleeps on the sofa.",
    "Deployments happen on Tuesdays after the review.",
]


@each(EMBEDDERS)
async def test_an_embedder_gives_each_text_its_own_vector_in_order(provider: Embedder):
    embedded = await provider.embed(TEXTS, purpose="document")
    assert [len(vector) for vector in embedded.vectors] == [provider.dimensions] * 3
    assert {type(value) for vector in embedded.vectors for value in vector} == {float}
    for text, vector in zip(TEXTS, embedded.vectors, strict=True):
        alone = await provider.embed([text], purpose="document")
        assert alone.vectors[0] == pytest.approx(vector, abs=0.02)
    assert {(u.provider, u.model, u.operation) for u in embedded.usage} == {
        (provider.provider, provider.model, "embed")
    }


@each(EMBEDDERS)
async def test_an_embedder_puts_a_query_next_to_the_text_that_answers_it(provider: Embedder):
    texts = (await provider.embed(TEXTS, purpose="document")).vectors
    (query,) = (await provider.embed(["When do warehouse backups run?"], purpose="query")).vectors
    products = [sum(a * b for a, b in zip(query, text, strict=True)) for text in texts]
    assert products.index(max(products)) == 0


@each(EMBEDDERS)
async def test_an_embedder_of_nothing_gives_nothing(provider: Embedder):
    assert list((await provider.embed([], purpose="document")).vectors) == []


@each({"voyage-context": EMBEDDERS["voyage-context"]})
async def test_a_document_embedder_gives_each_chunk_a_vector(provider: VoyageContextEmbedder):
    assert isinstance(provider, DocumentEmbedder)
    embedded = await provider.embed_document(TEXTS)
    assert [len(vector) for vector in embedded.vectors] == [provider.dimensions] * 3


def test_only_the_contextual_embedder_is_one_of_documents():
    assert issubclass(VoyageContextEmbedder, DocumentEmbedder)
    assert not issubclass(VoyageEmbedder, DocumentEmbedder)


@each(WRITERS)
async def test_a_context_writer_answers_for_every_chunk_once(provider: ContextWriter):
    source = document(lines=60)
    chunks = cut(source, into=5)[1:]
    written = [each async for each in provider.write(source, chunks)]
    assert sorted(each.position for each in written) == [1, 2, 3, 4]
    assert all(each.context and each.context.strip() and not each.error for each in written)
    assert {(u.provider, u.model, u.operation) for w in written for u in w.usage} <= {
        (provider.provider, provider.model, "context")
    }
    assert provider.prompt_version >= 1


@each(WRITERS)
async def test_a_context_writer_without_chunks_writes_nothing(provider: ContextWriter):
    assert [each async for each in provider.write(document(lines=3), [])] == []


# The offline blend reads the scores of both arms, the others read the text.
FOUND = [
    hit(1, "The cat sleeps on the sofa.", dense_score=0.1, lexical_score=0.2),
    hit(2, "Backups of the warehouse run every night.", dense_score=0.9, lexical_score=7.0),
    hit(3, "The cat sleeps on the sofa.", dense_score=0.1, lexical_score=0.2),
    hit(4, "The warehouse is blue.", dense_score=0.3, lexical_score=1.0),
]


@each(RERANKERS)
async def test_a_reranker_scores_every_hit_in_the_order_it_was_given(provider: Reranker):
    query = "When do backups of the warehouse run?"
    scores = (await provider.rerank(query, hits(*FOUND))).scores
    assert len(scores) == 4
    assert max(scores) == scores[1]
    assert scores[0] == pytest.approx(scores[2])
    assert scores[3] > scores[0]
    turned = (await provider.rerank(query, hits(*FOUND[::-1]))).scores
    assert turned == pytest.approx(scores[::-1])


@each(RERANKERS)
async def test_a_reranker_of_nothing_gives_nothing(provider: Reranker):
    assert (await provider.rerank("backups", hits())).scores == ()


QUERY = "When do backups of the warehouse run every night?"
ANSWERING = hits(FOUND[1], FOUND[0])


def check(answer: Answer, sent: Hits, generator: Generator) -> None:
    assert (answer.provider, answer.model) == (generator.provider, generator.model)
    assert answer.hits is sent
    assert "".join(block.text for block in answer.blocks) == answer.text
    assert [citation.number for citation in answer.citations] == list(
        range(1, len(answer.citations) + 1)
    )
    assert {c.number for block in answer.blocks for c in block.citations} == {
        c.number for c in answer.citations
    }
    by_id = {each.chunk_id: each for each in sent}
    for citation in answer.citations:
        source = by_id[citation.chunk_id]
        assert citation.document_key == source.document_key
        quote = source.text[citation.start - source.start : citation.stop - source.start]
        assert citation.quote == quote != ""


@each(GENERATORS)
async def test_a_generator_quotes_what_was_sent(provider: Generator):
    answer = await provider.generate(QUERY, ANSWERING)
    check(answer, ANSWERING, provider)
    assert answer.supported
    assert answer.citations[0].chunk_id == 2
    assert "Backups of the warehouse" in answer.citations[0].quote


@each(GENERATORS)
async def test_a_streamed_answer_is_the_deltas_and_then_the_same_answer(provider: Generator):
    *deltas, answer = [each async for each in provider.stream(QUERY, ANSWERING)]
    assert isinstance(answer, Answer)
    check(answer, ANSWERING, provider)
    assert all(isinstance(delta, AnswerDelta) for delta in deltas)
    shown = [delta for delta in deltas if isinstance(delta, AnswerDelta)]
    assert "".join(delta.text for delta in shown).strip() == answer.text.strip()
    cited = {delta.citation.number for delta in shown if delta.citation}
    assert cited == {citation.number for citation in answer.citations}
    whole = await provider.generate(QUERY, ANSWERING)
    assert (answer.text, answer.citations) == (whole.text, whole.citations)


@each(GENERATORS)
async def test_a_generator_without_hits_says_that_it_found_nothing(provider: Generator):
    answer = await provider.generate(QUERY, hits())
    assert (answer.supported, answer.citations) == (False, ())
    assert answer.text.strip()
