"""What ragpg needs of a provider: four Protocols, each one small object of yours or ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from ragpg.types import (
    Answer,
    AnswerDelta,
    Chunk,
    Document,
    Embedded,
    Hits,
    Purpose,
    Reranked,
    WrittenContext,
)


class Embedder(Protocol):
    """Turns texts into vectors. One instance, one model, one dimension."""

    provider: str
    model: str
    dimensions: int

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        """One vector of length `dimensions` per text, in order; splits into vendor-sized batches.

        Texts are not blank. Raises ProviderError.
        """
        ...


@runtime_checkable
class DocumentEmbedder(Protocol):
    """An Embedder that reads all chunks of one document together (voyage-context-*)."""

    async def embed_document(self, chunks: Sequence[str]) -> Embedded:
        """One vector per chunk of one document, in order. Raises ProviderError."""
        ...


@runtime_checkable
class WindowedEmbedder(Protocol):
    """A DocumentEmbedder that reads a long document in several calls."""

    def windows(self, chunks: Sequence[str]) -> Sequence[range]:
        """The runs of chunks that are read together, in order, each of one call; CPU work."""
        ...


class ContextWriter(Protocol):
    """Writes a short text that situates a chunk within its document."""

    provider: str
    model: str
    prompt_version: int

    def write(self, document: Document, chunks: Sequence[Chunk]) -> AsyncIterator[WrittenContext]:
        """One WrittenContext per chunk, in any order, each as soon as it is there.

        A chunk that fails is yielded with `error`, and with `refused` where it would fail again;
        only what makes all of them impossible raises ProviderError.
        """
        ...


class Reranker(Protocol):
    """Scores hits against the query."""

    provider: str
    model: str

    async def rerank(self, query: str, hits: Hits) -> Reranked:
        """One score per hit, in the order of `hits`; larger is better. Raises ProviderError."""
        ...


class Generator(Protocol):
    """Answers a query from hits, with citations."""

    provider: str
    model: str

    async def generate(self, query: str, hits: Hits) -> Answer:
        """A grounded answer, or one that says that there is none. Raises ProviderError."""
        ...

    def stream(self, query: str, hits: Hits) -> AsyncIterator[AnswerDelta | Answer]:
        """Deltas as they come, then the whole Answer as the last item. Raises ProviderError.

        An error after the first delta says that the answer is partial.
        """
        ...


@runtime_checkable
class CorpusGenerator(Protocol):
    """A Generator that can read a whole small collection, and does so cheaply the second time.

    One without this property is only ever given hits.
    """

    @property
    def max_corpus_tokens(self) -> int:
        """The largest collection that it can read, in tokens as `ragpg.tokens` counts them."""
        ...
