"""The JSON form of what a client takes and returns: written by `to_json`, read by `from_json`."""

from __future__ import annotations

import datetime as dt
import reprlib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, Self

from ragpg.errors import InputError


class JsonForm:
    """A value with a JSON form; docs/json.md lists the keys of each."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """The fields by name, in their order, in types of JSON alone; `json.dumps` takes it.

        Tuples are lists, a date is ISO 8601, an instant the same in UTC with `+00:00` (one without
        a zone counts as UTC, as it does when it is stored). Metadata is as it was given, but for
        dates in it. `from_json` makes an equal value of it.
        """
        return {each.name: plain(_zoned(getattr(self, each.name))) for each in _fields(type(self))}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """The value that such an object describes; fields with a default may be left out.

        Raises InputError, which names the place, for an unknown or missing field and a wrong type.
        """
        read: Self = _read_object(cls, value, cls.__name__)
        return read


def plain(value: object) -> Any:
    """The value in JSON's types, as deep as dataclasses, mappings, lists and tuples go.

    An instant with a zone is given in UTC, unless it is in no year there that Python can say; what
    is none of these is returned as it is.
    """
    if isinstance(value, JsonForm):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, dt.datetime):
        return _in_utc(value).isoformat()
    return value.isoformat() if isinstance(value, dt.date) else value


def _in_utc(value: dt.datetime) -> dt.datetime:
    try:
        return value if value.tzinfo is None else value.astimezone(dt.UTC)
    except OverflowError:
        return value


def _zoned(value: object) -> object:
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=dt.UTC)
    return value


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read_object(kind: Any, value: object, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise _refused(place, value, "an object")
    known = {each.name: each for each in _fields(kind)}
    for name in value:
        if name not in known:
            raise InputError(
                f"{place} has no field {reprlib.repr(name)}; it may have {', '.join(known)}"
            )
    for name, each in known.items():
        if name not in value and each.default is MISSING and each.default_factory is MISSING:
            raise InputError(f"{place} lacks {name!r}; give it")
    hints = _hints(kind)
    read = {name: _read(hints[name], inner, f"{place}.{name}") for name, inner in value.items()}
    return kind(**read)


def _read(kind: Any, value: Any, place: str) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if NoneType in inner:
        given = next(each for each in inner if each is not NoneType)
        return None if value is None else _read(given, value, place)
    if origin is Literal:
        if value not in inner:
            raise _refused(place, value, f"one of {', '.join(map(repr, inner))}")
        return value
    if origin in {tuple, Sequence}:
        if not isinstance(value, list | tuple):
            raise _refused(place, value, "a list")
        return tuple(_read(inner[0], one, f"{place}[{n}]") for n, one in enumerate(value))
    if origin in {dict, Mapping}:
        if not isinstance(value, Mapping):
            raise _refused(place, value, "an object")
        return {name: _read(inner[1], one, f"{place}.{name}") for name, one in value.items()}
    return value if kind is Any else _read_one(kind, value, place)


def _read_one(kind: type, value: Any, place: str) -> Any:
    if issubclass(kind, JsonForm):
        return _read_object(kind, value, place)
    if kind in {dt.datetime, dt.date}:
        return _read_date(kind, value, place)
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _refused(place, value, "a number of up to 308 digits") from None
    if type(value) is not kind:
        raise _refused(place, value, _NAMES[kind])
    return value


def _read_date(kind: type, value: object, place: str) -> dt.date:
    reads = dt.datetime.fromisoformat if kind is dt.datetime else dt.date.fromisoformat
    try:
        return typing.cast("dt.date", _zoned(reads(typing.cast("str", value))))
    except (TypeError, ValueError):
        raise _refused(place, value, _NAMES[kind]) from None


_NAMES: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dt.date: "a date such as '2025-01-31'",
    dt.datetime: "an instant such as '2025-01-31T12:00:00+00:00'",
}


def _refused(place: str, value: object, wanted: str) -> InputError:
    return InputError(f"{place} is {reprlib.repr(value)}; give {wanted}")
