"""Splitting by size alone, with overlap."""

from __future__ import annotations

from ragpg.errors import InputError
from ragpg.split.cut import pieces
from ragpg.tokens import TokenMap
from ragpg.types import Span


def check_sizes(*, max_tokens: int, overlap_tokens: int) -> None:
    """Raise InputError unless 1 <= max_tokens and 0 <= overlap_tokens < max_tokens."""
    if max_tokens < 1:
        raise InputError(f"max_tokens is {max_tokens}; give 1 or more.")
    if not 0 <= overlap_tokens < max_tokens:
        raise InputError(
            f"overlap_tokens is {overlap_tokens}; give 0 or more and less than max_tokens "
            f"({max_tokens})."
        )


def split_fixed(text: str, *, max_tokens: int, overlap_tokens: int) -> list[Span]:
    """Spans of similar size, at most `max_tokens` each, overlapping by up to `overlap_tokens`.

    Ends at a sentence, a line, a word or a grapheme, whichever is found first near the limit.
    """
    check_sizes(max_tokens=max_tokens, overlap_tokens=overlap_tokens)
    tokens = TokenMap(text)
    ranges = pieces(text, tokens, 0, len(text), limit=max_tokens, overlap=overlap_tokens)
    return [Span(start=start, stop=stop) for start, stop in ranges if start < stop]
