"""Whether a document's fields have the types and lengths that can be stored."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

from ragpg.errors import DocumentError
from ragpg.inputs import shown
from ragpg.types import Document, MediaType

MAX_KEY: Final = 1000
# An entry of a B-tree index holds 2,704 bytes (a third of a page), the numbers before it included.
MAX_INDEXED_BYTES: Final = 2600
MEDIA_TYPES: Final = get_args(MediaType)


def check_key(key: object) -> None:
    """Raise DocumentError (`invalid`) unless a document can be stored under this key."""
    if not isinstance(key, str):
        raise _invalid(key, f"its key is of type {type(key).__name__}; give it as text (str)")
    if not key.strip() or len(key) > MAX_KEY:
        raise _invalid(
            key, f"its key has {len(key)} characters; give 1 to {MAX_KEY}, not all blank"
        )
    if "\0" in key:
        raise _invalid(key, "its key holds NUL, which cannot be stored; remove it")
    size = _bytes(key)
    if size is None:
        raise _invalid(
            key, "its key holds half of a surrogate pair, which is no character; mend it"
        )
    if size > MAX_INDEXED_BYTES:
        raise _invalid(key, f"its key has {size} bytes in UTF-8; give at most {MAX_INDEXED_BYTES}")


def can_be_stored(key: object) -> bool:
    """Whether a row may stand under this key, such as the one that says why there is no more."""
    try:
        check_key(key)
    except DocumentError:
        return False
    return True


def check_fields(document: Document) -> None:
    """Raise DocumentError (`invalid`) for the first field of a wrong type, length or value."""
    check_key(document.key)
    for name, (holds, wanted) in _FIELDS.items():
        value = getattr(document, name)
        if not holds(value):
            raise _invalid(document.key, f"{name} is {shown(value)}; give {wanted}")
    for name, texts in (("source", [document.source or ""]), ("tags", document.tags)):
        longest = max((_bytes(text) or 0 for text in texts), default=0)
        if longest > MAX_INDEXED_BYTES:
            raise _invalid(
                document.key,
                f"{name} has a text of {longest} bytes; give at most {MAX_INDEXED_BYTES}, or put it"
                " into metadata",
            )
    starts = document.page_starts
    if list(starts) != sorted(starts) or any(
        not 0 <= start <= len(document.text) for start in starts
    ):
        raise _invalid(
            document.key,
            f"page_starts are not offsets in a text of {len(document.text)} characters, in order",
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and all(holds(one) for one in value)
    )


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _is_moment(last_year: int) -> Callable[[Any], bool]:
    """A moment that Python can read again, whatever the time zone of the session; or None.

    One that it cannot read breaks every search that finds the document.
    """

    def holds(value: Any) -> bool:
        if not isinstance(value, dt.datetime):
            return value is None
        try:
            utc = value.astimezone(dt.UTC) if value.tzinfo is not None else value
        except OverflowError:
            return False
        return value.year > 1 and utc.year <= last_year

    return holds


_OPTIONAL_TEXT: Final = (_is(str, type(None)), "text (str) or None")
_FIELDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "text": (_is(str), "text (str); ragpg.parse.parse_bytes reads bytes"),
    "title": _OPTIONAL_TEXT,
    "source": _OPTIONAL_TEXT,
    "tags": (_is_list_of(_is(str)), "a tuple of texts, such as ('finance',)"),
    "metadata": (_is(Mapping), "a mapping, such as {'year': 2026}"),
    "modified_at": (
        _is_moment(9998),
        "a datetime.datetime of a year from 2 to 9998, or None",
    ),
    "owner": _OPTIONAL_TEXT,
    "review_by": (_is(dt.date, type(None)), "a datetime.date or None"),
    "expires_at": (
        _is_moment(9999),
        "a datetime.datetime of a year from 2 to 9999, in UTC too, or None",
    ),
    "media_type": (
        lambda value: isinstance(value, str) and value in MEDIA_TYPES,
        f"one of {', '.join(MEDIA_TYPES)}",
    ),
    "page_starts": (_is_list_of(_is_whole), "a tuple of whole numbers"),
}


def _bytes(text: str) -> int | None:
    """Its length in UTF-8; None where it holds half a character."""
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError:
        return None


def _invalid(key: object, fault: str) -> DocumentError:
    return DocumentError(f"document {shown(key)} cannot be stored: {fault}", reason="invalid")
