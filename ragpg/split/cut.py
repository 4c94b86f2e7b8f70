"""Where a long passage may be cut: never inside a grapheme, at the best break near the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import regex

from ragpg.tokens import TokenMap

_GRAPHEME = regex.compile(r"\X")
# Between two of these a grapheme always ends (UAX 29, rule GB999): no need to look further back.
_SIMPLE = regex.compile(r"[\x20-\x7e\p{Han}\p{Hiragana}]{2}|[\r\n][\x20-\x7e]|[\x20-\x7e][\r\n]")

# Reverse patterns: each finds the place to cut that is nearest to the limit. They are separate
# because joined by "|" they took a hundred times as long on deep indentation.
_SENTENCE = regex.compile(r"(?r)[.!?…]+[\"'”’»)\]*_`]*\s++(?=[^\p{Ll}\s]|\Z)")
_SENTENCE_CJK = regex.compile(r"(?r)[。！？]+[」』”’）]*+\s*+(?=\S|\Z)")
_BLANK = regex.compile(r"(?r)(?:\r\n?|\n)[^\S\r\n]*+(?:\r\n?|\n)")
_LINE = regex.compile(r"(?r)(?:\r\n?|\n)")
_CLAUSE = regex.compile(r"(?r)[,;:]\s++(?=\S|\Z)")
_CLAUSE_CJK = regex.compile(r"(?r)[，；：、]")
_PART = regex.compile(r"(?r)[,;}\]>]+")
_CELL = regex.compile(r"(?r)(?<!\\)\|[^\S\r\n]*+(?=[^ \t]|\Z)")
_SPACE = regex.compile(r"(?r)\s+")

# Best first; of patterns that are equally good, the one that ends nearest to the limit counts.
Breaks = Sequence[Sequence["regex.Pattern[str]"]]
PROSE: Final[Breaks] = (
    (_SENTENCE, _SENTENCE_CJK, _BLANK),
    (_LINE,),
    (_CLAUSE, _CLAUSE_CJK),
    (_SPACE,),
    (_PART,),
)
LINES: Final[Breaks] = ((_BLANK,), (_LINE,), (_PART,), (_SPACE,))
CELLS: Final[Breaks] = ((_LINE,), (_CELL,), (_SPACE,))
BREAKS: Final[Mapping[str, Breaks]] = {"fence": LINES, "html": LINES, "row": CELLS}  # else PROSE

_SENTENCE_START = regex.compile(
    r"(?:[.!?…][\"'”’»)\]*_`]*\s+(?=[^\p{Ll}\s])|[。！？][」』”’）]*\s*|\n)(?=\S)"
)
_WORD_START = regex.compile(r"\s(?=\S)")


def grapheme_floor(text: str, low: int, position: int) -> int:
    """The last grapheme boundary in (low, position], or `low`; `low` must be one itself."""
    sync = position
    while sync > low and not (
        sync < len(text) and sync - 1 >= low and _SIMPLE.fullmatch(text, sync - 1, sync + 1)
    ):
        sync -= 1
    boundary = sync
    # A boundary at `position` depends on no character after it, and on none before `sync`. The
    # slice keeps the search for flags from counting back to the start of the text.
    for match in _GRAPHEME.finditer(text[sync : position + 1]):
        if sync + match.end() > position:
            break
        boundary = sync + match.end()
    return boundary


def pieces(
    text: str,
    tokens: TokenMap,
    start: int,
    stop: int,
    *,
    limit: int,
    first: int | None = None,
    overlap: int = 0,
    breaks: Breaks = PROSE,
) -> list[tuple[int, int]]:
    """Ranges of at most `limit` tokens that cover [start, stop), of similar size, in order.

    The first has at most `first` tokens where that is given. Each later one begins up to
    `overlap` tokens before the end of the one before it. Linear in the passage.
    """
    ranges: list[tuple[int, int]] = []
    done = begin = start
    room = limit if first is None else first
    while True:
        lap = min(overlap, room - 1)
        total = tokens.count(begin, stop)
        if total <= room:
            return [*ranges, (begin, stop)]
        count = max(2, -(-(total - lap) // (room - lap)))
        goal = min(room, -(-(total + (count - 1) * lap) // count) + room // 8)
        end = _cut(text, tokens, begin, stop, goal=goal, done=done, breaks=breaks)
        if end <= done:  # nothing new fits behind the overlap: begin where the last one ended
            begin = done
            continue
        if tokens.count(end, stop) == 0:
            end = stop
        ranges.append((begin, end))
        if end == stop:
            return ranges
        begin = _overlap_start(text, tokens, begin, end, overlap=min(overlap, limit - 1))
        done, room = end, limit


def _cut(
    text: str, tokens: TokenMap, begin: int, stop: int, *, goal: int, done: int, breaks: Breaks
) -> int:
    """The best place to end a passage that begins at `begin`; `done` or less if there is none."""
    high = min(stop, tokens.reach(begin, goal))
    low = max(done, tokens.reach(begin, max(1, goal // 2)))
    for equals in breaks:
        matches = [pattern.search(text, low, high) for pattern in equals]
        place = max((match.end() for match in matches if match is not None), default=low)
        if place > low and grapheme_floor(text, begin, place) == place:
            return place
    place = grapheme_floor(text, begin, high)
    if place > done and tokens.count(begin, place) > 0:
        return place
    return high if begin == done else done  # one grapheme is longer than the limit: cut hard


def _overlap_start(text: str, tokens: TokenMap, begin: int, end: int, *, overlap: int) -> int:
    """Where the next passage begins: a sentence, a word, or any grapheme of the last tokens."""
    low = max(tokens.back(end, overlap), begin + 1)
    if overlap <= 0 or low >= end:
        return end
    for pattern in (_SENTENCE_START, _WORD_START):
        match = pattern.search(text, low - 1, end)
        if match is not None and low <= match.end() < end:
            place = match.end()
            if grapheme_floor(text, begin, place) == place:
                return place
    boundary = grapheme_floor(text, begin, low)
    if boundary < low:
        first = _GRAPHEME.match(text[boundary:end])
        return end if first is None else boundary + first.end()
    return boundary
