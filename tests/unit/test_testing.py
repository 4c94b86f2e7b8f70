from __future__ import annotations

import math

import anyio
import pytest

from ragpg.testing import (
    FirstSentenceContextWriter,
    HashEmbedder,
    OverlapReranker,
    QuotingGenerator,
)
from ragpg.types import AnswerDelta, Chunk, Citation, Document, Hit, Hits


def hit(rank, text, *, start=0, context=None):
    return Hit(
        rank=rank,
        chunk_id=70 + rank,
        document_key="guide",
        document_title="Guide",
        source=None,
        section_path=("Leave",),
        position=rank,
        start=start,
        stop=start + len(text),
        page=None,
        text=text,
        table_header="",
        context=context,
        tags=(),
        metadata={},
        modified_at=None,
        dense_rank=rank,
        dense_score=0.5,
        lexical_rank=None,
        lexical_score=None,
        fused_score=1 / (60 + rank),
    )


def embed(embedder, *texts):
    async def call():
        return await embedder.embed(texts, purpose="document")

    return anyio.run(call).vectors


def cosine(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def test_the_cosine_of_hashed_texts_is_that_of_their_bags_of_words():
    a, b, c = embed(HashEmbedder(4096), "red blue green", "Blue, RED!", "seven eight")
    assert cosine(a, b) == pytest.approx(2 / math.sqrt(3 * 2))
    assert cosine(a, c) == 0.0


def test_hashed_vectors_have_the_length_that_was_asked_for_and_are_never_zero():
    vectors = embed(HashEmbedder(8), "!!!", "a b c d e f g h i j k l m n")
    assert [len(vector) for vector in vectors] == [8, 8]
    assert [cosine(vector, vector) for vector in vectors] == pytest.approx([1.0, 1.0])
    assert (HashEmbedder(8).model, HashEmbedder(8).dimensions) == ("hash-8", 8)


def test_hashed_vectors_are_the_same_in_every_process():
    (vector,) = embed(HashEmbedder(8), "postgres")
    assert vector == [0.0] * 2 + [1.0] + [0.0] * 5


def test_every_chunk_gets_the_first_sentence_of_its_document_as_context():
    document = Document(key="guide", text="# Guide\n\nWe trust people. They return it.")
    chunks = [Chunk(position=n, start=0, stop=7, text="# Guide") for n in (0, 1)]

    async def collect(document):
        return [each async for each in FirstSentenceContextWriter().write(document, chunks)]

    written = anyio.run(collect, document)
    assert [(each.position, each.context) for each in written] == [
        (0, "Guide"),
        (1, "Guide"),
    ]
    assert anyio.run(collect, Document(key="k", text="A b. C d."))[0].context == "A b."
    assert anyio.run(collect, Document(key="k", text="#"))[0].context == "k"


def test_overlap_is_the_share_of_the_querys_words_in_context_and_text():
    hits = Hits(hits=(hit(1, "annual leave"), hit(2, "sick days", context="Leave and Annual")))

    async def call(query):
        return (await OverlapReranker().rerank(query, hits)).scores

    assert anyio.run(call, "annual leave days off") == (2 / 4, 3 / 4)
    assert anyio.run(call, "?") == (0.0, 0.0)


def test_the_quoting_answer_is_the_best_hits_first_sentence_at_its_place_in_the_document():
    hits = Hits(hits=(hit(1, "Ask your lead. Then book it.", start=40), hit(2, "Other.")))
    citation = Citation(
        number=1,
        document_key="guide",
        document_title="Guide",
        section_path=("Leave",),
        page=None,
        chunk_id=71,
        start=40,
        stop=54,
        quote="Ask your lead.",
    )

    async def call():
        return await QuotingGenerator().generate("how?", hits)

    answer = anyio.run(call)
    assert (answer.text, answer.citations, answer.supported, answer.extractive) == (
        "Ask your lead.",
        (citation,),
        True,
        True,
    )
    assert answer.hits == hits


def test_without_hits_the_quoting_answer_says_so():
    async def call():
        return await QuotingGenerator().generate("how?", Hits(hits=()))

    answer = anyio.run(call)
    assert (answer.text, answer.supported, answer.citations) == (
        "The documents do not answer this.",
        False,
        (),
    )


def test_a_quoting_stream_is_the_text_in_pieces_then_the_citation_then_the_answer():
    async def call():
        hits = Hits(hits=(hit(1, "Ask your lead."),))
        return [item async for item in QuotingGenerator().stream("how?", hits)]

    *deltas, answer = anyio.run(call)
    assert deltas == [
        AnswerDelta(text="Ask "),
        AnswerDelta(text="your "),
        AnswerDelta(text="lead."),
        AnswerDelta(citation=answer.citations[0]),
    ]
