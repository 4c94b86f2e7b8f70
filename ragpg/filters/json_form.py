"""Filters as JSON, for services and the command line.

    filter    = {}                                   everything
              | {"and": [filter, ..]} | {"or": [filter, ..]} | {"not": filter}
              | {name: condition, ..}                all of them
              | {"field": [name, ..], operator: operand, ..}
    condition = value                                the same as {"==": value}
              | {operator: operand, ..}              all of them

`name` is source, tags, key, modified, or a metadata field; {"field": ["a", "b"], ..} reaches b
within a, and metadata fields whose name means something here or is that of a field of the document
itself (title, owner, review_by, expires_at), which no filter reaches. Operators of metadata: == !=
< <= > >= in not_in exists contains prefix between; of source and key: == != in not_in prefix
(source: exists); of tags: any all none; of modified: == != < <= > >= in not_in between exists. An
instant in metadata is {"at": "2025-01-01"} or {"at": "2025-01-01T08:00:00+02:00"}; modified takes
the text alone. A date is its midnight in UTC: {"modified": {"<": "2025-02-01"}} has all of January,
while "<=" and "between" with "2025-01-31" leave out all but the first moment of its last day.
{"source": null} and {"modified": null} are documents without one. Unknown names and operators are
refused, and filters of more than 50 levels, 5,000 parts or 1,000,000 characters, see
`ragpg.filters.size`.
"""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Mapping
from typing import Any, cast

from ragpg.errors import FilterError
from ragpg.filters import (
    ARGUMENTS,
    And,
    Comparison,
    Filter,
    Not,
    Or,
    Target,
    comparison,
    field,
    metadata_field,
)
from ragpg.filters.jsonpath import canonical
from ragpg.filters.operands import MAX_DEPTH
from ragpg.filters.size import checked_size
from ragpg.inputs import shown

_TYPED: tuple[Target, ...] = ("source", "tags", "key", "modified")
# The longest name of an argument, and a few typing errors.
_LONGEST_NEAR = 20
_WORDS = ("and", "or", "not", "field", *_TYPED)


def parse(value: object) -> Filter:
    """The filter that `value` describes.

    Raises FilterError for anything that it does not know, and for a filter that is too large.
    """
    return checked_size(_parsed(value, 0))


def _parsed(value: object, depth: int) -> Filter:
    if depth > MAX_DEPTH:
        raise FilterError(f"the filter nests deeper than {MAX_DEPTH}; use one list of parts")
    if not isinstance(value, Mapping):
        raise FilterError(
            f'a filter is an object such as {{"year": {{">=": 2025}}}}, not {shown(value)}'
        )
    if "field" in value:
        path = value["field"]
        if not isinstance(path, list | tuple) or not path:
            raise FilterError(
                f'\'field\' wants a list of names such as ["a", "b"], not {shown(path)}'
            )
        tests = {name: operand for name, operand in value.items() if name != "field"}
        return _joined(_conditions("field", metadata_field(*path).path, tests))
    parts: list[Filter] = []
    for name, part in value.items():
        parts.extend(_entry(name, part, depth + 1))
    return _joined(parts)


def _joined(parts: list[Filter]) -> Filter:
    if not parts:
        return Filter()
    return parts[0] if len(parts) == 1 else And(parts=tuple(parts))


def _entry(name: object, part: object, depth: int) -> list[Filter]:
    if name in ("and", "or"):
        if not isinstance(part, list | tuple):
            raise FilterError(f"{name!r} wants a list of filters, not {shown(part)}")
        parts = tuple(_parsed(one, depth) for one in part)
        return [And(parts=parts) if name == "and" else Or(parts=parts)]
    if name == "not":
        return [Not(part=_parsed(part, depth))]
    if name in _TYPED:
        return _conditions(name, (), part)
    _refuse_words(name)
    return _conditions("field", field(cast("str", name)).path, part)


def _refuse_words(name: object) -> None:
    """Names that are operators elsewhere, or that nearly name an argument, are typing errors."""
    accepted = ", ".join(_WORDS)
    if not isinstance(name, str) or name.startswith("$"):
        raise FilterError(
            f"{shown(name)} is not known here; accepted are {accepted} and metadata fields"
        )
    # Comparing a long name takes the square of its length.
    if len(name) > _LONGEST_NEAR:
        return
    near = difflib.get_close_matches(name.lower(), ARGUMENTS, n=1, cutoff=0.85)
    if near and name.lower() not in ARGUMENTS:
        raise FilterError(
            f"{name!r} looks like {near[0]!r}, which is the argument {ARGUMENTS[near[0]]}=; for a "
            f'metadata field of this name write {{"field": ["{name}"], ..}}'
        )


def _conditions(target: Target, path: tuple[str, ...], part: object) -> list[Filter]:
    if not isinstance(part, Mapping) or set(part) == {"at"}:
        part = {"==": part}
    if not part:
        raise FilterError(
            f'{shown(".".join(path) or target)} has no condition; write one such as {{"==": 1}}'
        )
    return [_condition(target, path, operator, operand) for operator, operand in part.items()]


def _condition(target: Target, path: tuple[str, ...], operator: str, operand: object) -> Filter:
    if target == "modified" and operator != "exists" and operand is not None:
        operand = _each(operand, _instant)
    elif target == "field" and operator != "contains":
        operand = _each(operand, _value)
    return comparison(target, path, operator, operand)


def _each(operand: object, read: Any) -> object:
    return [read(one) for one in operand] if isinstance(operand, list | tuple) else read(operand)


def _value(value: object) -> object:
    if isinstance(value, Mapping) and set(value) == {"at"}:
        return _instant(value["at"])
    return value


def _instant(value: object) -> dt.datetime | dt.date:
    try:
        day_only = isinstance(value, str) and len(value) == len("2025-01-01")
        kind = dt.date if day_only else dt.datetime
        return kind.fromisoformat(cast("str", value))
    except (TypeError, ValueError):
        raise FilterError(
            f"{shown(value)} is no date; write 2025-01-01 or 2025-01-01T08:00:00+02:00"
        ) from None


def render(where: Filter) -> dict[str, Any]:
    """JSON that `parse` turns into an equal filter."""
    if isinstance(where, And):
        return {"and": [render(part) for part in where.parts]}
    if isinstance(where, Or):
        return {"or": [render(part) for part in where.parts]}
    if isinstance(where, Not):
        return {"not": render(where.part)}
    if not isinstance(where, Comparison):
        return {}
    operand = where.operand
    if isinstance(operand, tuple):
        operand = [_rendered(where.target, value) for value in operand]
    else:
        operand = _rendered(where.target, operand)
    test = {where.operator: operand}
    if where.target != "field":
        return {where.target: test}
    return {"field": list(where.path), **test}


def _rendered(target: Target, value: object) -> object:
    if not isinstance(value, dt.datetime):
        return value
    return canonical(value) if target == "modified" else {"at": canonical(value)}
