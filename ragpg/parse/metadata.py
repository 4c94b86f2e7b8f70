"""Front matter values to the fields of a Document, and any value to JSON."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from typing import Any, TypedDict

from ragpg.errors import DocumentError
from ragpg.inputs import shown
from ragpg.types import Json

_DEPTH_MAX = 40
_VALUES_MAX = 20_000
# Filters read a copy that each chunk has, and each hit brings one along.
MAX_BYTES = 100_000
# As many as a filter can compare with.
_MAX_DIGITS = 300
_INTEGER_END = 10**_MAX_DIGITS
_MODIFIED = ("modified_at", "modified", "updated_at", "updated", "last_updated", "lastmod", "date")
_REVIEW = ("review_by", "review_date")
_EXPIRY = ("expires_at", "expires", "expiry")


class Fields(TypedDict):
    """What front matter says, by the fields of a Document."""

    title: str | None
    source: str | None
    tags: tuple[str, ...]
    owner: str | None
    modified_at: dt.datetime | None
    review_by: dt.date | None
    expires_at: dt.datetime | None
    metadata: dict[str, Json]


def read_fields(values: Mapping[Any, Any], *, key: str) -> Fields:
    """Fields and the rest as metadata. A value that its field cannot hold stays in the metadata.

    `-` and `_` in names are the same, case does not matter. Raises DocumentError for a date of
    review or expiry that cannot be read (`front_matter`): passed over, it would leave a document
    in search for ever. Also for NaN, Infinity, and values nested or repeated beyond reason.
    """
    rest: dict[str, Any] = {str(name): value for name, value in values.items()}
    _check_dates(rest, key=key)
    names = {_plain(name): name for name in reversed(list(rest))}

    def take(reader: Any, *wanted: str) -> Any:
        for want in wanted:
            name = names.get(want)
            if name in rest:
                found = reader(rest[name])
                if found:
                    del rest[name]
                    return found
        return None

    title, source = take(_read_str, "title"), take(_read_str, "source")
    tags = take(_read_tags, "tags", "tag", "keywords") or ()
    owner = take(_read_owner, "owner", "owners")
    modified_at = take(read_datetime, *_MODIFIED)
    review_by = take(_read_date, *_REVIEW)
    expires_at = take(read_datetime, *_EXPIRY)
    return Fields(
        title=title,
        source=source,
        tags=tags,
        owner=owner,
        modified_at=modified_at,
        review_by=review_by,
        expires_at=expires_at,
        metadata=to_json(rest, key=key),
    )


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _check_dates(values: Mapping[str, Any], *, key: str) -> None:
    for name, value in values.items():
        if _plain(name) not in _REVIEW + _EXPIRY or read_datetime(value) is not None:
            continue
        if not _is_unset(value):
            raise DocumentError(
                f"The front matter of {key} has {name}: {shown(value)}, which is no date that is"
                " read; write it like 2099-12-31 or 2099-12-31T18:00:00+02:00, or remove it.",
                reason="front_matter",
            )


def _is_unset(value: Any) -> bool:
    """Whether a date is left empty, or of the year 1, see `read_datetime`."""
    if isinstance(value, str):
        if not value.strip():
            return True
        value = _from_iso(value)
        return value is not None and value.year == 1
    return value is None or (isinstance(value, dt.date) and value.year == 1)


def to_json(value: Any, *, key: str) -> Any:
    """The value with names as text, sequences as lists, and dates as ISO 8601.

    Raises DocumentError for NaN and Infinity, for a type that JSON lacks, for more than 20,000
    values or 40 levels, which only a hostile alias makes, and for more than 100,000 bytes as JSON.
    """
    left = [_VALUES_MAX]

    def convert(item: Any, depth: int) -> Any:
        left[0] -= 1
        if left[0] < 0 or depth > _DEPTH_MAX:
            raise _refused(key, f"more than {_VALUES_MAX} values or {_DEPTH_MAX} levels")
        if item is None or isinstance(item, (bool, str)):
            return item
        if isinstance(item, (int, float)):
            return _number(item, key)
        if isinstance(item, (dt.datetime, dt.date, dt.time)):
            return item.isoformat()
        if isinstance(item, Mapping):
            return {_name(name): convert(inner, depth + 1) for name, inner in item.items()}
        if isinstance(item, (list, tuple, set, frozenset)):
            return [convert(inner, depth + 1) for inner in item]
        raise _refused(key, f"a value of type {type(item).__name__}, which JSON cannot hold")

    converted = convert(value, 0)
    size = len(json.dumps(converted, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise _refused(
            key, f"{size} bytes as JSON, of which each chunk has a copy; at most {MAX_BYTES} do"
        )
    return converted


def _number(value: float, key: str) -> float:
    if isinstance(value, int):
        if abs(value) >= _INTEGER_END:
            raise _refused(key, f"an integer of more than {_MAX_DIGITS} digits")
    elif not math.isfinite(value):
        raise _refused(key, f"the number {value}, which JSON cannot hold")
    return value


def _name(name: Any) -> str:
    if isinstance(name, (dt.date, dt.datetime)):
        return name.isoformat()
    return str(name).lower() if name is None or isinstance(name, bool) else str(name)


def _refused(key: str, what: str) -> DocumentError:
    return DocumentError(
        f"The metadata of {key} holds {what}; change or remove it.", reason="unreadable"
    )


def _read_str(value: Any) -> str | None:
    if isinstance(value, (str, int, float, dt.date)) and not isinstance(value, bool):
        return " ".join(str(value).split()) or None
    return None


def _read_tags(value: Any) -> tuple[str, ...] | None:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        return None
    tags = [tag for part in parts if (tag := _read_str(part)) is not None]
    return (
        tuple(dict.fromkeys(tags)) if len(tags) == sum(part is not None for part in parts) else None
    )


def _read_owner(value: Any) -> str | None:
    if isinstance(value, list):
        return ", ".join(_read_tags(value) or ()) or None
    return _read_str(value)


def _read_date(value: Any) -> dt.date | None:
    moment = read_datetime(value)
    return None if moment is None else moment.date()


def read_datetime(value: Any) -> dt.datetime | None:
    """The moment, with its zone, or in UTC where none is given; None for what is no date.

    The year 1 is none: tools write 0001-01-01T00:00:00Z for a date that is not set.
    """
    if isinstance(value, str):
        value = _from_iso(value)
    if not isinstance(value, dt.date) or value.year == 1:
        return None
    if isinstance(value, dt.datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)


def _from_iso(value: str) -> dt.datetime | None:
    try:
        return dt.datetime.fromisoformat(value.strip())
    except ValueError:
        return None
