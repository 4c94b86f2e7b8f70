"""What a filter compiles to: typed arguments of the search functions, and one jsonpath.

Every test of the jsonpath stands in its own `exists($ ? (..))` in strict mode: a missing key or a
value of another type makes the inner test unknown, `exists` turns that into false, and so `!` is a
true negation. Literals and names go through json.dumps and nowhere else.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ragpg.filters import And, Comparison, Filter, Not, Or
from ragpg.filters.size import checked_size

_NEGATED = {"!=": "==", "not_in": "in", "none": "any"}
_RESERVED = {
    "key": ("@key",),
    "source": ("@source",),
    "tags": ("@tags",),
    "modified": ("@modified_at",),
}
_TICK = dt.timedelta(microseconds=1)
_NOTHING = "(1 == 0)"
_EVERYTHING = "(1 == 1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterArguments:
    """The filter arguments of the search functions.

    None leaves an argument out; an empty tuple finds nothing. `modified_before` is exclusive.
    `filter` is the text of a jsonpath predicate over `embedding.attributes`.
    """

    sources: tuple[str, ...] | None = None
    tags_all: tuple[str, ...] | None = None
    tags_any: tuple[str, ...] | None = None
    modified_from: dt.datetime | None = None
    modified_before: dt.datetime | None = None
    key_prefix: str | None = None
    filter: str | None = None

    def parameters(self) -> dict[str, Any]:
        """By name, as psycopg is to send them: a tuple would be a row, a list is an array."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}


def compile_filter(where: Filter | None) -> FilterArguments:
    """The arguments that select the same rows as `where`.

    Conditions on typed columns that must all hold become typed arguments, for which the planner's
    estimates are good; all others become one jsonpath. Raises FilterError for a filter that is too
    large, see `ragpg.filters.size`.
    """
    typed = FilterArguments()
    rest: list[str] = []
    for condition in () if where is None else _conjuncts(checked_size(where)):
        narrowed = _narrowed(typed, condition) if isinstance(condition, Comparison) else None
        if narrowed is None:
            rest.append(_predicate(condition))
        else:
            typed = narrowed
    return replace(typed, filter="strict " + _joined("&&", rest)) if rest else typed


def _conjuncts(where: Filter) -> Iterator[Filter]:
    if isinstance(where, And):
        for part in where.parts:
            yield from _conjuncts(part)
    elif isinstance(where, Not) and isinstance(where.part, Not):
        yield from _conjuncts(where.part.part)
    elif isinstance(where, Not) and isinstance(where.part, Or):
        for part in where.part.parts:
            yield from _conjuncts(Not(part=part))
    elif type(where) is not Filter:
        yield where


def _narrowed(typed: FilterArguments, condition: Comparison) -> FilterArguments | None:
    """`typed` with the condition in it as well, or None where only a jsonpath can say it."""
    operand = condition.operand
    narrowed = None
    match condition.target, condition.operator:
        case "source", ("==" | "in") as operator:
            narrowed = _with_sources(typed, (operand,) if operator == "==" else operand)
        case "tags", "all":
            narrowed = replace(typed, tags_all=_merged(typed.tags_all or (), operand) or None)
        case "tags", "any" if typed.tags_any is None:
            narrowed = replace(typed, tags_any=operand)
        case "key", "prefix" if operand.startswith(typed.key_prefix or ""):
            narrowed = replace(typed, key_prefix=operand)
        case "modified", ("==" | "<" | "<=" | ">" | ">=" | "between") as operator:
            narrowed = _with_modified(typed, operator, operand)
    return narrowed


def _with_sources(typed: FilterArguments, given: tuple[str, ...]) -> FilterArguments:
    allowed = given if typed.sources is None else tuple(s for s in typed.sources if s in given)
    return replace(typed, sources=_merged((), allowed))


def _merged(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _with_modified(typed: FilterArguments, operator: str, operand: Any) -> FilterArguments | None:
    """Postgres keeps microseconds, as Python does, so "after t" is "from t + 1 us"."""
    low, high = operand if operator == "between" else (operand, operand)
    start, stop = typed.modified_from, typed.modified_before
    try:
        if operator in ("==", ">=", ">", "between"):
            first = low + _TICK if operator == ">" else low
            start = first if start is None else max(start, first)
        if operator in ("==", "<=", "<", "between"):
            end = high if operator == "<" else high + _TICK
            stop = end if stop is None else min(stop, end)
    except OverflowError:
        return None
    return replace(typed, modified_from=start, modified_before=stop)


def _predicate(where: Filter) -> str:
    if isinstance(where, Not):
        return f"!({_predicate(where.part)})"
    if isinstance(where, And):
        return _joined("&&", [_predicate(part) for part in where.parts])
    if isinstance(where, Or):
        return _joined("||", [_predicate(part) for part in where.parts])
    if isinstance(where, Comparison):
        positive = _NEGATED.get(where.operator)
        if positive is not None:
            return f"!({_exists(replace(where, operator=positive))})"
        return _exists(where)
    return _EVERYTHING


def _joined(operator: str, parts: Sequence[str]) -> str:
    """The parts joined as a balanced tree, since Postgres reads a jsonpath by recursion."""
    if not parts:
        return _EVERYTHING if operator == "&&" else _NOTHING
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    left, right = _joined(operator, parts[:middle]), _joined(operator, parts[middle:])
    return f"({left} {operator} {right})"


def _exists(where: Comparison) -> str:
    if where.operator == "exists" and where.operand is False:
        return f"!({_exists(replace(where, operand=True))})"
    return f"exists($ ? ({_test(where)}))"


def _test(where: Comparison) -> str:
    at = _at(_RESERVED.get(where.target, where.path))
    operand = where.operand
    match where.operator:
        case "in":
            test = _joined("||", [_compared(where, "==", value) for value in operand])
        case "between":
            low, high = operand
            test = f"({_compared(where, '>=', low)} && {_compared(where, '<=', high)})"
        case "prefix":
            test = f"{at} starts with {_literal(operand)}"
        case "exists":
            test = f"exists({at})"
        case "contains":
            test = _contains(at, operand)
        case "any":
            test = f"exists({at}[*] ? ({_joined('||', [_same(tag) for tag in operand])}))"
        case "all":
            test = _joined("&&", [f"exists({at}[*] ? ({_same(tag)}))" for tag in operand])
        case operator:
            test = _compared(where, operator, operand)
    return test


def _compared(where: Comparison, operator: str, value: object) -> str:
    """Instants of metadata are stored a second time, canonical, under "@instants"."""
    path = _RESERVED.get(where.target, where.path)
    if isinstance(value, dt.datetime) and where.target == "field":
        path = ("@instants", *path)
    return f"{_at(path)} {operator} {_literal(value)}"


def _at(path: Sequence[str]) -> str:
    return "@" + "".join(f".{_literal(name)}" for name in path)


def _same(value: object) -> str:
    return f"@ == {_literal(value)}"


def _contains(base: str, value: object) -> str:
    if not isinstance(value, Mapping):
        return f"exists({base}[*] ? ({_same(value)}))"
    return f"({_has(base, value)} || exists({base}[*] ? ({_has('@', value)})))"


def _has(base: str, entries: Mapping[str, Any]) -> str:
    if not entries:
        return f'{base}.type() == "object"'
    tests = []
    for name, value in entries.items():
        inner = f"{base}.{_literal(name)}"
        is_object = isinstance(value, Mapping)
        tests.append(_has(inner, value) if is_object else f"{inner} == {_literal(value)}")
    return _joined("&&", tests)


def _literal(value: object) -> str:
    if isinstance(value, dt.datetime):
        value = canonical(value)
    return json.dumps(value, ensure_ascii=False)


def canonical(instant: dt.datetime) -> str:
    """`instant` in UTC at one width, so that order of text is order of time."""
    return instant.astimezone(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
