"""Overlapping windows of a document that is too long, or too dear, to be read in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragpg.tokens import count_tokens
from ragpg.types import Chunk

# Characters that are counted at a time: a window's edge is exact to this.
_STEP = 2_000
# A chunk near an edge still sees a tenth of a window around it.
_OVERLAP = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """`text` is `document[start:stop]`, and `chunks` are those that are best read within it."""

    start: int
    stop: int
    text: str
    chunks: tuple[Chunk, ...]


def windows(text: str, chunks: Sequence[Chunk], *, max_tokens: int) -> list[Window]:
    """The windows of at most about `max_tokens` tokens that hold chunks, each chunk in one.

    A chunk goes to the window that shows the most text on the side where it shows least. A text
    that fits is one window.
    """
    edges = _edges(text, max_tokens)
    members: dict[tuple[int, int], list[Chunk]] = {edge: [] for edge in edges}
    for chunk in chunks:
        best = max(edges, key=lambda edge: min(_margins(chunk, edge, len(text))))
        members[best].append(chunk)
    return [
        Window(start=start, stop=stop, text=text[start:stop], chunks=tuple(members[start, stop]))
        for start, stop in edges
        if members[start, stop]
    ]


def _margins(chunk: Chunk, edge: tuple[int, int], length: int) -> tuple[int, int]:
    """Characters before and after the chunk; the document's own ends hide nothing."""
    start, stop = edge
    before = chunk.start - start if start > 0 else length
    after = stop - chunk.stop if stop < length else length
    return before, after


def _edges(text: str, max_tokens: int) -> list[tuple[int, int]]:
    marks = list(range(0, len(text), _STEP)) or [0]
    counts = [count_tokens(text[mark : mark + _STEP]) for mark in marks]
    if sum(counts) <= max_tokens:
        return [(0, len(text))]
    edges: list[tuple[int, int]] = []
    first = 0
    while True:
        last, total = first, 0
        while last < len(counts) and (last == first or total + counts[last] <= max_tokens):
            total += counts[last]
            last += 1
        edges.append((marks[first], marks[last] if last < len(marks) else len(text)))
        if last == len(counts):
            return edges
        # The next window begins within this one, but always after its beginning.
        first = max(first + 1, last - max(1, round((last - first) * _OVERLAP)))
