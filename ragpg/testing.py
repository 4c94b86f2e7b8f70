"""Stand-ins for the providers, for your own tests: deterministic, offline, no model, no files.

    client = AsyncClient(.., embedder=HashEmbedder(), context_writer=FirstSentenceContextWriter(),
                         reranker=OverlapReranker(), generator=QuotingGenerator())

They keep their contracts (order, counts, offsets, usage) and are simple enough to work out their
results by hand. There is no stand-in for the database: use a real Postgres.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import TYPE_CHECKING

import anyio.lowlevel

from ragpg.types import (
    Answer,
    AnswerBlock,
    AnswerDelta,
    Citation,
    Embedded,
    Operation,
    Reranked,
    Usage,
    WrittenContext,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ragpg.types import Chunk, Document, Hits, Purpose

# A text without a full stop is one sentence, however long.
MAX_CONTEXT = 200
NO_ANSWER = "The documents do not answer this."

_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"[^\s#][^\n]*?(?:[.!?。！？]|(?=\n)|\Z)")


class HashEmbedder:
    """A bag of words, each word in the place that its hash names, scaled to length 1.

    The cosine of two texts grows with the words that they share; word order, case and meaning play
    no part. Two words fall into one place about once in `dimensions` pairs.
    """

    provider = "testing"

    def __init__(self, dimensions: int = 256) -> None:
        self.dimensions = dimensions
        self.model = f"hash-{dimensions}"

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:  # noqa: ARG002
        """One vector per text, in order; both purposes alike."""
        await anyio.lowlevel.checkpoint()
        words = sum(len(_words(text)) for text in texts)
        return Embedded(
            vectors=[self._vector(text) for text in texts],
            usage=(_usage(self.model, "embed", input_tokens=words),),
        )

    def _vector(self, text: str) -> list[float]:
        counts = [0.0] * self.dimensions
        # A text without a word is one word itself, so that no vector is zero.
        for word in _words(text) or [text]:
            digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
            counts[int.from_bytes(digest) % self.dimensions] += 1.0
        length = math.sqrt(math.fsum(count * count for count in counts))
        return [count / length for count in counts]


class FirstSentenceContextWriter:
    """Gives every chunk the first sentence of its document, or the key where there is none."""

    provider = "testing"
    model = "first-sentence"
    prompt_version = 1

    async def write(
        self, document: Document, chunks: Sequence[Chunk]
    ) -> AsyncIterator[WrittenContext]:
        """One WrittenContext per chunk, in order; none fails."""
        sentence = _SENTENCE.search(document.text)
        context = sentence[0][:MAX_CONTEXT] if sentence else document.key
        for chunk in chunks:
            await anyio.lowlevel.checkpoint()
            yield WrittenContext(
                position=chunk.position, context=context, usage=(_usage(self.model, "context"),)
            )


class OverlapReranker:
    """Scores a hit by the share of the query's different words that its context and text hold."""

    provider = "testing"
    model = "overlap"

    async def rerank(self, query: str, hits: Hits) -> Reranked:
        """One score from 0 to 1 per hit, in the order of `hits`."""
        await anyio.lowlevel.checkpoint()
        wanted = set(_words(query))
        scores = tuple(
            len(wanted.intersection(_words(hit.contextualized))) / max(len(wanted), 1)
            for hit in hits
        )
        return Reranked(scores=scores, usage=(_usage(self.model, "rerank"),))


class QuotingGenerator:
    """Answers with the first sentence of the best hit, cited; without hits it says so."""

    provider = "testing"
    model = "quoting"

    async def generate(self, query: str, hits: Hits) -> Answer:
        """An answer of one block; `supported` is False when there are no hits."""
        await anyio.lowlevel.checkpoint()
        block = _quoting_block(hits)
        return Answer(
            query=query,
            text=block.text,
            blocks=(block,),
            citations=block.citations,
            supported=bool(block.citations),
            extractive=True,
            provider=self.provider,
            model=self.model,
            stop_reason="end_turn",
            hits=hits,
            usage=(_usage(self.model, "generate"),),
        )

    async def stream(self, query: str, hits: Hits) -> AsyncIterator[AnswerDelta | Answer]:
        """The text word by word, each citation once, then the whole Answer."""
        answer = await self.generate(query, hits)
        for piece in re.findall(r"\S+\s*", answer.text):
            yield AnswerDelta(text=piece)
        for citation in answer.citations:
            yield AnswerDelta(citation=citation)
        yield answer


def _quoting_block(hits: Hits) -> AnswerBlock:
    for hit in hits:
        sentence = _SENTENCE.search(hit.text)
        if sentence is None:
            continue
        citation = Citation(
            number=1,
            document_key=hit.document_key,
            document_title=hit.document_title,
            section_path=hit.section_path,
            page=hit.page_at(hit.start + sentence.start()),
            chunk_id=hit.chunk_id,
            start=hit.start + sentence.start(),
            stop=hit.start + sentence.end(),
            quote=sentence[0],
        )
        return AnswerBlock(text=sentence[0], citations=(citation,))
    return AnswerBlock(text=NO_ANSWER)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _usage(model: str, operation: Operation, *, input_tokens: int = 0) -> Usage:
    return Usage(
        provider="testing",
        model=model,
        operation=operation,
        input_tokens=input_tokens,
        cost_usd=0.0,
    )
