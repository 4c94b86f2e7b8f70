"""PDF to Markdown: the text layer page by page, headings where the font size is clear."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import whitespace
from typing import Final

import pypdfium2 as pdfium  # type: ignore[import-untyped]
import pypdfium2.raw as pdfium_c  # type: ignore[import-untyped]

from ragpg.errors import DocumentError
from ragpg.parse.metadata import read_datetime
from ragpg.types import Document

_HEADING_RATIO: Final = 1.15  # of the body's size; bold text and superscripts stay below it
_HEADING_LEVELS: Final = 3
_HEADING_CHARACTERS: Final = 120
_GAP_RATIO: Final = 1.6  # of the line height: a wider gap parts paragraphs
_HYPHENS: Final = frozenset(
    {"\x02", "\ufffe", "\u00ad"}
)  # how PDFium marks a word broken at a line's end
# PDFium gives NUL for a glyph whose character the font does not say.
_BLANK: Final = f"{whitespace}\0"
# What would be Markdown's own marks at the start of a line of plain text.
_MARKS = re.compile(r"(?=#{1,6}(?:\s|$)|(?:={2,}|-{2,}|`{3,}|~{3,}|\+{3,})\S*\s*$|>|`{3}|~{3})")
_DATE = re.compile(r"D:(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(?:Z|([+-]\d\d)'?(\d\d)?)?")
_FIELDS: Final = {
    "Author": "author",
    "Subject": "subject",
    "Keywords": "keywords",
    "Creator": "creator",
    "Producer": "producer",
}


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    size: float
    top: float
    bottom: float


def parse_pdf(content: bytes, *, key: str) -> Document:
    """The document; `page_starts` has one offset for each page, in order.

    A page without text begins where the next one does, see `ragpg.parse.notices`.

    A line in a larger font than most of the text becomes a heading, by size, of level 1 to 3.
    Raises DocumentError with reason `unreadable` for a broken or encrypted file, `no_text` where
    no page has a text layer.
    """
    try:
        with pdfium.PdfDocument(content) as pdf:
            pages = [_lines(page) for page in pdf]
            properties = pdf.get_metadata_dict(skip_empty=True)
    except pdfium.PdfiumError as exc:
        raise DocumentError(
            f"{key} cannot be read as PDF ({exc}); open it and save it again without a password.",
            reason="unreadable",
        ) from exc
    if not any(pages):
        raise DocumentError(
            f"{key} has {len(pages)} pages and no text layer; run text recognition on it first.",
            reason="no_text",
        )
    levels = _levels([line for page in pages for line in page])
    starts: list[int] = []
    parts: list[str] = []
    length = 0
    for page in pages:
        starts.append(length)
        text = "".join(_markdown(page, levels))
        parts.append(text)
        length += len(text)
    text = "".join(parts)
    return Document(
        key=key,
        text=text,
        title=_title(properties, text),
        modified_at=_moment(properties.get("ModDate", "")),
        metadata={
            name: properties[field] for field, name in _FIELDS.items() if field in properties
        },
        media_type="pdf",
        page_starts=tuple(starts),
    )


def _title(properties: dict[str, str], text: str) -> str | None:
    title = " ".join(properties.get("Title", "").split())
    if title.strip("\0"):
        return title  # with its NULs: `clean` counts them
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return heading[1] if heading else None


def _moment(value: str) -> dt.datetime | None:
    match = _DATE.match(value)
    if match is None:
        return None
    year, month, day, hour, minute, second, zone_hour, zone_minute = match.groups()
    zone = f"{zone_hour}:{zone_minute or '00'}" if zone_hour else "+00:00"
    return read_datetime(f"{year}-{month}-{day}T{hour}:{minute}:{second}{zone}")


def _lines(page: pdfium.PdfPage) -> list[_Line]:
    """The page's lines that are not blank, in the order of its text layer."""
    textpage = page.get_textpage()
    raw = textpage.raw
    lines: list[_Line] = []
    letters: list[str] = []
    first = 0
    joined = ""
    for index in range(textpage.count_chars() + 1):
        code = pdfium_c.FPDFText_GetUnicode(raw, index) if index < textpage.count_chars() else 10
        if code not in (10, 13):
            if not letters:
                first = index
            letters.append(chr(code))
            continue
        text = "".join(letters)
        letters.clear()
        if not text.strip(_BLANK):
            continue
        broken = text.rstrip()[-1] in _HYPHENS
        text = joined + " ".join(text.strip().rstrip("".join(_HYPHENS)).split())
        joined = ""
        if broken:
            joined = text
            continue
        size = pdfium_c.FPDFText_GetFontSize(raw, first)
        _left, bottom, _right, top = textpage.get_charbox(first, loose=True)
        lines.append(_Line(text, round(size, 1), top, bottom))
    if joined and lines:
        last = lines.pop()
        lines.append(_Line(f"{last.text}\n{joined}", last.size, last.top, last.bottom))
    return lines


def _levels(lines: Sequence[_Line]) -> dict[float, int]:
    """Heading levels by font size: the three largest sizes clearly above the body's."""
    weights: Counter[float] = Counter()
    for line in lines:
        weights[line.size] += len(line.text)
    body = weights.most_common(1)[0][0]
    larger = sorted((size for size in weights if size >= body * _HEADING_RATIO), reverse=True)
    return {size: level for level, size in enumerate(larger[:_HEADING_LEVELS], start=1)}


def _markdown(lines: Sequence[_Line], levels: dict[float, int]) -> Iterator[str]:
    before: _Line | None = None
    for line in lines:
        level = levels.get(line.size, 0)
        if level and not (
            len(line.text) <= _HEADING_CHARACTERS and any(map(str.isalpha, line.text))
        ):
            level = 0
        if before is not None:
            height = max(line.top - line.bottom, 1.0)
            apart = (
                level
                or before.size != line.size
                or before.bottom - line.top > (_GAP_RATIO - 1) * height
            )
            yield "\n" if apart else ""
        mark = f"{'#' * level} " if level else "\\" if _MARKS.match(line.text) else ""
        yield f"{mark}{line.text}\n"
        before = line
    if lines:
        yield "\n"
