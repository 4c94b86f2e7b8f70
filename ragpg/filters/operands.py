"""What the operators of a filter compare with: each operand checked, as the filter holds it."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from ragpg.errors import FilterError
from ragpg.inputs import shown

Instant = dt.datetime | dt.date

ORDER = ("<", "<=", ">", ">=")
# A Postgres numeric holds far more, but no JSON writer sends more and the cost of reading it grows.
_MAX_DIGITS = 300
# Far below the recursion limits of Python and of Postgres.
MAX_DEPTH = 50


def _scalar(where: str, value: object) -> str | int | float | bool | dt.datetime | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(where, value)
    if isinstance(value, int):
        if abs(value) >= 10**_MAX_DIGITS:
            raise FilterError(f"{where} got a number of more than {_MAX_DIGITS} digits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FilterError(f"{where} got {value}, which JSON metadata cannot hold")
        return float(value)
    if isinstance(value, Instant):
        return _instant(where, value)
    raise FilterError(
        f"{where} got {shown(value)}; it accepts text, a number, "
        "true, false, null, a date or a datetime with a zone"
    )


def text(where: str, value: object) -> str:
    """`value`, if it is text that Postgres can hold; raises FilterError otherwise."""
    if not isinstance(value, str):
        raise FilterError(f"{where} wants text, not {shown(value)}")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise FilterError(
            f"{where} got {shown(value)}: Postgres holds neither NUL nor half a surrogate; drop it"
        )
    return str(value)


def _instant(where: str, value: Instant) -> dt.datetime:
    if not isinstance(value, dt.datetime):
        return dt.datetime.combine(value, dt.time(), tzinfo=dt.UTC)
    if value.utcoffset() is None:
        raise FilterError(
            f"{where} got {value.isoformat()} without a zone; give it one, as in"
            f" {value.isoformat()}+00:00, which is UTC"
        )
    try:
        return value.astimezone(dt.UTC)
    except OverflowError:
        raise FilterError(
            f"{where} got {value.isoformat()}, which is outside the years 1 to 9999 in UTC"
        ) from None


def _ordered(where: str, value: object) -> str | float | dt.datetime:
    checked = _scalar(where, value)
    if checked is None or isinstance(checked, bool):
        raise FilterError(
            f"{where} got {shown(value)}, which has no order; ask whether it is equal"
        )
    return checked


def _list(where: str, values: object) -> tuple[object, ...]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise FilterError(f"{where} wants a list, not {shown(values)}")
    return tuple(values)


def _scalars(where: str, values: object) -> tuple[object, ...]:
    return tuple(_scalar(where, value) for value in _list(where, values))


def _texts(where: str, values: object) -> tuple[str, ...]:
    return tuple(text(where, value) for value in _list(where, values))


def _truth(where: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise FilterError(f"{where} wants true or false, not {shown(value)}")
    return value


def _bounds(where: str, values: object) -> tuple[object, object]:
    bounds = tuple(_ordered(where, value) for value in _list(where, values))
    if len(bounds) != 2:  # noqa: PLR2004 (low and high)
        raise FilterError(f"{where} wants a low and a high value, not {len(bounds)} values")
    if len({str if isinstance(b, str) else isinstance(b, dt.datetime) for b in bounds}) != 1:
        raise FilterError(f"{where} wants two values of one type, not {shown(bounds)}")
    return bounds[0], bounds[1]


def _contained(where: str, value: object, depth: int = 0) -> object:
    if depth > MAX_DEPTH:
        raise FilterError(f"{where} got an object that nests deeper than {MAX_DEPTH}; ask for less")
    if isinstance(value, Mapping):
        return {
            text(where, name): _contained(where, part, depth + 1) for name, part in value.items()
        }
    if isinstance(value, Instant) or (isinstance(value, Sequence) and not isinstance(value, str)):
        raise FilterError(f"{where} wants text, a number, true, false, null or an object of these")
    return _scalar(where, value)


CHECKS: Mapping[str, Callable[[str, object], object]] = {
    "==": _scalar,
    "!=": _scalar,
    **dict.fromkeys(ORDER, _ordered),
    "in": _scalars,
    "not_in": _scalars,
    "exists": _truth,
    "contains": _contained,
    "prefix": text,
    "between": _bounds,
    **dict.fromkeys(("any", "all", "none"), _texts),
}
