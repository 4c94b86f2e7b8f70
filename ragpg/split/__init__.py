"""Splitting a document into spans, pure and synchronous except where vectors are needed.

Spans are ordered by start and cover the text: every character lies in some span, and the white
space between two passages belongs to one of them. `table_header` and text together keep to
`max_tokens` as `ragpg.tokens.count_tokens` counts, with two exceptions: splitter "whole", and a
text whose every place to cut would lie inside one grapheme is still cut at the limit. A table
whose header takes more than half of the limit is continued without it. No span is blank unless
the whole text is.
"""

from __future__ import annotations

from typing import Literal

from ragpg.errors import InputError
from ragpg.split.fixed import split_fixed
from ragpg.split.section import split_section
from ragpg.split.semantic import split_semantic
from ragpg.split.whole import split_whole
from ragpg.types import Document, Span

__all__ = ["split", "split_semantic"]


def split(
    document: Document,
    *,
    splitter: Literal["section", "fixed", "whole"],
    max_tokens: int,
    overlap_tokens: int,
) -> list[Span]:
    """The document's spans in order; empty only where its text is.

    Linear in the text. "section" and "fixed" raise InputError unless 1 <= max_tokens and
    0 <= overlap_tokens < max_tokens; an unknown splitter raises it as well.
    """
    if splitter == "section":
        return split_section(document, max_tokens=max_tokens, overlap_tokens=overlap_tokens)
    if splitter == "fixed":
        return split_fixed(document.text, max_tokens=max_tokens, overlap_tokens=overlap_tokens)
    if splitter == "whole":
        return split_whole(document.text)
    raise InputError(f"There is no splitter {splitter!r}; use section, fixed, semantic or whole.")
