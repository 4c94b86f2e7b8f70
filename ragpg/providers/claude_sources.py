"""Hits as `search_result` blocks, and a model's citations back as passages of documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ragpg.providers.failures import Vendor, invalid
from ragpg.tokens import is_blank
from ragpg.types import Citation, Hit, Hits

# Where a sentence or a line ends; the white space stays with what precedes it. The escapes are the
# full stop, exclamation and question mark of Chinese and Japanese, which no space follows.
_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[\u3002\uff01\uff1f])|\n\s*")
# A block is what a citation quotes at least; shorter ones (a heading, a number) join the next.
_LEAST_CHARACTERS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A hit as it was sent: its chunk text in consecutive pieces, each with its offset."""

    hit: Hit
    uri: str
    pieces: tuple[tuple[int, str], ...]

    def block(self) -> dict[str, Any]:
        """The `search_result` block; only the chunk's own words are in its citable content.

        The title carries the document's title, the section path, the written context and a
        table's repeated header: the model reads them, and no citation can quote them.
        """
        return {
            "type": "search_result",
            "source": self.uri,
            "title": _title(self.hit),
            "content": [{"type": "text", "text": text} for _, text in self.pieces],
            "citations": {"enabled": True},
        }


@dataclass(slots=True)
class Citer:
    """Turns the citations of one answer into numbered passages of what was sent."""

    vendor: Vendor
    sources: dict[str, Source]
    _numbered: dict[tuple[int, int, int], Citation] = field(default_factory=dict)

    @property
    def citations(self) -> tuple[Citation, ...]:
        """All citations so far, each once, by number."""
        return tuple(self._numbered.values())

    def cite(self, location: Any) -> Citation:
        """The passage that a `search_result_location` names, numbered by first use.

        Raises InvalidProviderResponse when the source was not sent, the blocks are not in it, or
        the cited text is another than theirs.
        """
        kind = getattr(location, "type", None)
        if kind != "search_result_location":
            raise invalid(self.vendor, f"cited a {kind}, where only search results were sent")
        source = self.sources.get(location.source)
        if source is None:
            raise invalid(self.vendor, f"cited {location.source}, which was not sent")
        first, last = location.start_block_index, location.end_block_index
        if not 0 <= first < last <= len(source.pieces):
            raise invalid(
                self.vendor,
                f"cited blocks {first} to {last} of {len(source.pieces)} of {location.source}",
            )
        start = source.pieces[first][0]
        text = "".join(piece for _, piece in source.pieces[first:last])
        if text != location.cited_text:
            raise invalid(
                self.vendor, f"cited words that blocks {first} to {last} of {source.uri} lack"
            )
        words = text.strip()
        return self._number(source.hit, start + text.index(words), words)

    def _number(self, hit: Hit, offset: int, words: str) -> Citation:
        start, stop = hit.start + offset, hit.start + offset + len(words)
        key = (hit.chunk_id, start, stop)
        if key not in self._numbered:
            self._numbered[key] = Citation(
                number=len(self._numbered) + 1,
                document_key=hit.document_key,
                document_title=hit.document_title,
                section_path=hit.section_path,
                page=hit.page_at(start),
                chunk_id=hit.chunk_id,
                start=start,
                stop=stop,
                quote=words,
            )
        return self._numbered[key]


def sources(hits: Hits) -> dict[str, Source]:
    """The hits that hold text, in their order, by an address that stays the same between calls."""
    found = {}
    for hit in hits:
        if not is_blank(hit.text):
            uri = f"ragpg://document/{quote(hit.document_key, safe='')}/chunk/{hit.chunk_id}"
            found[uri] = Source(hit=hit, uri=uri, pieces=tuple(pieces(hit.text)))
    return found


def pieces(text: str) -> Iterator[tuple[int, str]]:
    """Consecutive exact slices that make up `text`, with their offsets; blank only if `text` is.

    Cut after a sentence or a line, so that a citation quotes little more than what supports it.
    """
    start = 0
    last: tuple[int, str] | None = None
    for end in [*(match.end() for match in _END.finditer(text)), len(text)]:
        piece = text[start:end]
        if end < len(text) and (len(piece.strip()) < _LEAST_CHARACTERS or is_blank(piece)):
            continue
        if last is not None and is_blank(piece):
            last = (last[0], last[1] + piece)
        else:
            if last is not None:
                yield last
            last = (start, piece)
        start = end
    if last is not None:
        yield last


def _title(hit: Hit) -> str:
    place = " > ".join([hit.document_title or hit.document_key, *hit.section_path])
    parts = [place]
    if hit.context:
        parts.append(f"Context: {hit.context}")
    if hit.table_header:
        parts.append(f"Table header: {hit.table_header.splitlines()[0]}")
    return "\n".join(parts)
