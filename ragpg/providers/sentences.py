"""The parts of a Markdown passage that can be quoted alone: sentences, list items, rows, code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Beyond this a run of code is quoted line by line.
_CODE_CHARS = 300

FRONT_MATTER = re.compile(r"\A\ufeff?(---|\+\+\+)[ \t]*\n.*?\n\1[ \t]*(?:\n|\Z)", re.DOTALL)
_FENCE = re.compile(r"[ \t]*(?:>[ \t]?)*(?P<mark>`{3,}|~{3,})")
_HEADING = re.compile(r"[ ]{0,3}#{1,6}(?:[ \t]|$)")
_UNDERLINE = re.compile(r"[ ]{0,3}(?:=+|-+|\*[ *]*|_[ _]*)[ \t]*")
_ROW = re.compile(r"[ \t]*\|.*\|[ \t]*")
_DELIMITER_ROW = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*")
_MARKER = re.compile(r"[ \t]*(?:>[ \t]*)*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?)?")
_ITEM = re.compile(r"[ \t]*(?:>[ \t]*)*(?:[-*+]|\d{1,9}[.)])[ \t]+")
_LABEL = re.compile(r"(\*\*|__)[^*_]+(?:\1:?|:\1)")
_CJK_STOPS = "\u3002\uff01\uff1f"
_WORDS = re.compile(r"\w+\W+\w+")
_SENTENCE_END = re.compile(
    r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)(?<!\bcf)(?<!\bDr)(?<!\bMr)(?<!\bMrs)(?<!\bNo)"
    r"(?<!\b[A-Z])(?:[.!?\u2026\u061f\u0964][\"'\u201d\u2019)\]*_`]*)(?=\s+[^\sa-z])"
    r"|[\u3002\uff01\uff1f][\u300d\u300f\u201d\u2019\uff09]*"
)


def quotable(text: str) -> list[tuple[int, int]]:
    """Ranges of `text` that read well alone, in order, without white space at their ends.

    A range is a sentence of a paragraph or list item, a whole table row, or a run of code lines;
    headings, table headers, fences, list markers and front matter are in none. Linear.
    """
    found = [_trimmed(text, start, stop) for start, stop in _units(text)]
    return [(start, stop) for start, stop in found if _says_something(text[start:stop])]


def _says_something(part: str) -> bool:
    return any(map(str.isalnum, part)) and not _LABEL.fullmatch(part)


def _units(text: str) -> Iterator[tuple[int, int]]:
    front_matter = FRONT_MATTER.match(text)
    lines = _lines(text, front_matter.end() if front_matter else 0)
    block: list[tuple[int, int]] = []
    fence = ""
    for at, (start, stop) in enumerate(lines):
        line = text[start:stop]
        mark = _FENCE.match(line)
        if fence:
            if mark and mark["mark"].startswith(fence):
                yield from _code(block)
                block, fence = [], ""
            elif line.strip():
                block.append((start, stop))
            else:
                yield from _code(block)
                block = []
            continue
        following = text[slice(*lines[at + 1])] if at + 1 < len(lines) else ""
        ends = mark or not line.strip() or _HEADING.match(line) or _UNDERLINE.fullmatch(line)
        row = _ROW.fullmatch(line) or _DELIMITER_ROW.fullmatch(following)
        if ends or row or _ITEM.match(line):
            yield from _prose(text, block)
            block = []
        if mark:
            fence = mark["mark"]
        elif row:
            if not _DELIMITER_ROW.fullmatch(line) and not _DELIMITER_ROW.fullmatch(following):
                yield start, stop
        elif not ends and not _is_setext(following):
            block.append((start, stop))
    yield from _code(block) if fence else _prose(text, block)


def _is_setext(following: str) -> bool:
    """True where the next line makes this one a heading."""
    return bool(re.fullmatch(r"[ ]{0,3}(?:={2,}|-{2,})[ \t]*", following))


def _lines(text: str, start: int) -> list[tuple[int, int]]:
    lines: list[tuple[int, int]] = []
    while start < len(text):
        stop = text.find("\n", start)
        stop = len(text) if stop < 0 else stop
        lines.append((start, stop))
        start = stop + 1
    return lines


def _prose(text: str, block: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The sentences of consecutive lines, the marker of the first line left out."""
    if not block:
        return
    marker = _MARKER.match(text, block[0][0], block[0][1])
    start, stop = marker.end() if marker else block[0][0], block[-1][1]
    for end in _SENTENCE_END.finditer(text, start, stop):
        part = text[start : end.end()].strip()
        # A label such as "**Cause.**" belongs to the sentence that it opens.
        if end[0][0] in _CJK_STOPS or (_WORDS.search(part) and not _LABEL.fullmatch(part)):
            yield start, end.end()
            start = end.end()
    yield start, stop


def _code(block: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The lines as one range when it is short, else one by one."""
    if block and block[-1][1] - block[0][0] <= _CODE_CHARS:
        yield block[0][0], block[-1][1]
    else:
        yield from block


def _trimmed(text: str, start: int, stop: int) -> tuple[int, int]:
    part = text[start:stop]
    return start + len(part) - len(part.lstrip()), start + len(part.rstrip())
