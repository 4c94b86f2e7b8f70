"""Making a document storable: no NUL, no lone surrogate, JSON metadata, some text."""

from __future__ import annotations

import datetime as dt
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ragpg.blocks import has_words, markdown_blocks
from ragpg.errors import DocumentError
from ragpg.parse.check import check_fields
from ragpg.parse.metadata import to_json
from ragpg.tokens import is_blank
from ragpg.types import Document

# Lines after which a paragraph has ended: whatever block they are in says something. Found at the
# start of almost any document, which need not be parsed then to know that it has words.
_SAYS_SOMETHING = re.compile(r"^[A-Za-z][^\r\n]*(?:\r?\n[ \t]*(?:\r?\n|\Z)|\Z)", re.MULTILINE)


def clean(document: Document) -> tuple[Document, int]:
    """The document as Postgres can store it, and how many NUL characters were removed.

    NULs are removed from text, title, source, owner, tags and metadata (names and values, at any
    depth); `page_starts` follow. Surrogate pairs are joined to the character they stand for.
    Metadata becomes JSON: dates as ISO 8601. Raises DocumentError with reason `no_text` where
    nothing but blanks, headings, rules and comments is left, `encoding` for a lone surrogate,
    `unreadable` for metadata that is not JSON, `invalid` for a field of a wrong type or length.
    """
    check_fields(document)
    removed = 0

    def mend(value: str) -> str:
        nonlocal removed
        removed += value.count("\0")
        return _joined(value.replace("\0", ""), document.key)

    def mend_optional(value: str | None) -> str | None:
        return None if value is None else mend(value).strip() or None

    text = mend(document.text)
    mended = replace(
        document,
        text=text,
        title=mend_optional(document.title),
        source=mend_optional(document.source),
        owner=mend_optional(document.owner),
        tags=tuple(tag for raw in document.tags if (tag := mend(raw).strip())),
        metadata=_mend_json(to_json(document.metadata, key=document.key), mend),
        page_starts=_shifted(document.text, text, document.page_starts),
        modified_at=_zoned(document.modified_at),
        expires_at=_zoned(document.expires_at),
    )
    _require_words(mended)
    return mended, removed


def _joined(value: str, key: str) -> str:
    """The text with surrogate pairs joined; plain text comes back as it is."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        pass
    else:
        return value
    try:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as exc:
        raise DocumentError(
            f"{key} holds half of a surrogate pair, which is no character; "
            "read its source with the right encoding.",
            reason="encoding",
        ) from exc


def _mend_json(value: Any, mend: Any) -> Any:
    if isinstance(value, str):
        return mend(value)
    if isinstance(value, Mapping):
        return {mend(name): _mend_json(inner, mend) for name, inner in value.items()}
    if isinstance(value, list):
        return [_mend_json(inner, mend) for inner in value]
    return value


def _shifted(before: str, after: str, starts: tuple[int, ...]) -> tuple[int, ...]:
    if len(before) == len(after) or not starts:
        return starts
    gone = [index for index, character in enumerate(before) if character == "\0"]
    return tuple(start - bisect_left(gone, start) for start in starts)


def _zoned(moment: dt.datetime | None) -> dt.datetime | None:
    return moment.replace(tzinfo=dt.UTC) if moment is not None and moment.tzinfo is None else moment


def _require_words(document: Document) -> None:
    text = document.text
    if is_blank(text):
        raise DocumentError(
            f"{document.key} holds no text; add some, or leave it out.", reason="no_text"
        )
    if document.media_type == "text":
        return
    if "<!--" not in text and _SAYS_SOMETHING.search(text) is not None:
        return
    if not has_words(text, markdown_blocks(text)):
        raise DocumentError(
            f"{document.key} holds headings and nothing below them; add text, or leave it out.",
            reason="no_text",
        )
