"""Splitting where the subject changes: where neighbouring sentences' vectors point apart."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import mul

import regex

from ragpg.blocks import Block, table_header, table_rows
from ragpg.errors import InputError
from ragpg.split.cut import BREAKS, PROSE, grapheme_floor, pieces
from ragpg.split.fixed import check_sizes
from ragpg.split.section import document_blocks, sections
from ragpg.tokens import TokenMap, count_tokens
from ragpg.types import Document, Span

# The share of neighbouring pairs that count as a change of subject: the lowest fifth of cosines.
BREAK_SHARE = 0.2
_BATCH = 256
_SENTENCE_END = regex.compile(
    r"(?<![.!?…])[.!?…]+[\"'”’»)\]*_`]*\s+(?=[^\p{Ll}\s])|[。！？]+[」』”’）]*\s*|(?:\r\n?|\n)\s*(?:\r\n?|\n)\s*"
)


@dataclass(frozen=True, slots=True)
class _Unit:
    """A sentence, a row, a fence: what stays together. `opens` says that it begins a section."""

    start: int
    stop: int
    path: tuple[str, ...]
    header: str
    opens: bool


async def split_semantic(
    document: Document,
    *,
    max_tokens: int,
    embed: Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]],
) -> list[Span]:
    """Spans between changes of subject, in order, covering the text; `max_tokens` at most each.

    Sentences, rows, list items and fences are embedded (in calls of up to 256 texts, through
    `embed`, which returns one vector per text in order). A span ends at a new section, and
    between the fifth of neighbouring pairs inside sections whose cosine is lowest. Raises
    InputError for bad sizes or when `embed` returns another number of vectors than texts.
    """
    check_sizes(max_tokens=max_tokens, overlap_tokens=0)
    tokens = TokenMap(document.text)
    units = _without_blank(tokens, _units(document, tokens, max_tokens))
    cosines = await _neighbour_cosines(document.text, units, embed)
    inside = sorted(
        cosine for cosine, unit in zip(cosines, units[1:], strict=True) if not unit.opens
    )
    threshold = inside[int(len(inside) * BREAK_SHARE)] if inside else -math.inf
    spans: list[Span] = []
    for number, unit in enumerate(units):
        apart = number > 0 and (unit.opens or cosines[number - 1] < threshold)
        if spans and not apart:
            last = spans[-1]
            size = tokens.count(last.start, unit.stop) + count_tokens(last.table_header)
            if size <= max_tokens:
                spans[-1] = _span(last.start, unit.stop, last.section_path, last.table_header)
                continue
        spans.append(_span(unit.start, unit.stop, unit.path, unit.header))
    return spans


def _span(start: int, stop: int, path: tuple[str, ...], header: str) -> Span:
    return Span(start=start, stop=stop, section_path=path, table_header=header)


async def _neighbour_cosines(
    text: str,
    units: Sequence[_Unit],
    embed: Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]],
) -> list[float]:
    """The cosine of each unit with the next one; embeds a batch at a time and keeps one vector."""
    cosines: list[float] = []
    before: Sequence[float] | None = None
    for first in range(0, len(units), _BATCH):
        batch = units[first : first + _BATCH]
        vectors = await embed([text[unit.start : unit.stop] for unit in batch])
        if len(vectors) != len(batch):
            raise InputError(
                f"The embedder returned {len(vectors)} vectors for {len(batch)} sentences; "
                "it must return one for each."
            )
        for vector in vectors:
            if before is not None:
                cosines.append(_cosine(before, vector))
            before = vector
    return cosines


def _cosine(left: Sequence[float], right: Sequence[float]) -> float:
    norms = math.hypot(*left) * math.hypot(*right)
    return sum(map(mul, left, right)) / norms if norms else 0.0


def _units(document: Document, tokens: TokenMap, limit: int) -> Iterator[_Unit]:
    """The document's units in order, touching; a heading is part of the unit after it."""
    text = document.text
    for section in sections(text, document_blocks(document)):
        opens, held, end = True, section.blocks[0].start, section.blocks[-1].stop
        for block in _leaves(text, section.blocks, tokens, limit):
            if (block.kind == "heading" or block.faint) and block.stop < end:
                continue
            for start, stop in _ranges(text, tokens, held, block, limit):
                yield _Unit(start, stop, section.path, block.header, opens)
                opens = False
            held = block.stop


def _without_blank(tokens: TokenMap, units: Iterator[_Unit]) -> list[_Unit]:
    """The units, each blank one as part of the one before it, or of the first."""
    kept: list[_Unit] = []
    lead: int | None = None
    for unit in units:
        if tokens.count(unit.start, unit.stop) == 0:
            if kept:
                kept[-1] = replace(kept[-1], stop=unit.stop)
            elif lead is None:
                lead = unit.start
            continue
        kept.append(unit if lead is None else replace(unit, start=lead))
        lead = None
    return kept


def _leaves(text: str, blocks: Sequence[Block], tokens: TokenMap, limit: int) -> Iterator[Block]:
    """The blocks that stay whole or are cut into sentences, in order."""
    stack = list(reversed(blocks))
    while stack:
        block = stack.pop()
        fits = tokens.count(block.start, block.stop) <= limit
        if block.kind == "table" and not fits:
            repeat = count_tokens(table_header(text, block)) <= limit // 2
            stack.extend(reversed(table_rows(text, block, repeat_header=repeat)))
        elif block.children and not (block.kind == "item" and fits):
            stack.extend(reversed(block.children))
        else:
            yield block


def _ranges(
    text: str, tokens: TokenMap, start: int, block: Block, limit: int
) -> Iterator[tuple[int, int]]:
    """Sentences of text[start:block.stop], or all of it, each within the limit and not blank."""
    room = limit - count_tokens(block.header)
    breaks = BREAKS.get(block.kind, PROSE)
    edges = [start]
    if block.kind == "paragraph":
        edges += [
            match.end()
            for match in _SENTENCE_END.finditer(text, block.start, block.stop)
            if grapheme_floor(text, match.start(), match.end()) == match.end()
        ]
    edges.append(block.stop)
    begin = start
    for edge in edges[1:]:
        last = edge == edges[-1]
        if tokens.count(begin, edge) == 0 or (not last and tokens.count(edge, block.stop) == 0):
            continue
        yield from pieces(text, tokens, begin, edge, limit=room, breaks=breaks)
        begin = edge
    if begin < block.stop:
        yield begin, block.stop
