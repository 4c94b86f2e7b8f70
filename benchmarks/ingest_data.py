"""Documents and vectors of the ingest benchmark: every side adds the same chunks.

A document is 20 sections of text from `benchmarks.corpus`; chunks are what ragpg's splitter makes of
it. A vector is drawn from a fixed table by the text's checksum, so no side waits for a model.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.corpus import Corpus
from ragpg.split import split
from ragpg.types import Document, Embedded, Purpose

DIMENSIONS = 384
SECTIONS = 20
DISTINCT_VECTORS = 16_384


class GivenVectors:
    """An embedder that knows every vector already."""

    provider = "given"
    model = "given"
    dimensions = DIMENSIONS

    def __init__(self) -> None:
        random = np.random.default_rng(11)
        table = random.standard_normal((DISTINCT_VECTORS, DIMENSIONS)).astype(np.float32)
        self.table = table / np.linalg.norm(table, axis=1, keepdims=True)

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """A float32 matrix, a row for each text."""
        rows: np.ndarray = self.table[
            [zlib.crc32(text.encode()) % DISTINCT_VECTORS for text in texts]
        ]
        return rows

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        """The vectors, whatever they are for."""
        del purpose
        return Embedded(vectors=self.vectors(texts))  # type: ignore[arg-type]  # rows of a matrix

    async def aclose(self) -> None:
        """Nothing to close."""


def documents(corpus: Corpus, name: str, chunks: int, seed: int) -> Iterator[Document]:
    """About as many chunks as asked for, in documents of 20 sections, made one by one."""
    for number in range(chunks // SECTIONS):
        texts = corpus.chunks(SECTIONS, seed + number)
        sections = [f"# Part {part} of {number}\n\n{text}\n" for part, text in enumerate(texts)]
        yield Document(key=f"{name}/{number}.md", text="\n".join(sections))


def passages(made: Sequence[Document]) -> list[str]:
    """The texts of the chunks that ragpg makes of these documents, in order."""
    return [
        document.text[span.start : span.stop]
        for document in made
        for span in split(document, splitter="section", max_tokens=400, overlap_tokens=50)
    ]
