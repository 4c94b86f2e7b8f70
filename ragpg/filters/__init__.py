"""Filter expressions and what they compile to: typed arguments and one jsonpath, never SQL text.

    ragpg.field("year") >= 2025                    ragpg.tags.any("adr", "rfc")
    ragpg.field("team", "lead") == "ada"           ragpg.source.in_(["wiki", "hr"])
    ragpg.modified >= dt.date(2025, 1, 1)          ragpg.key.prefix("hr/")

join with `&`, `|` and `~`. What a comparison means:

- Types matter. 9 is less than 10; "9" is a string, `True` is not a number, and a value of another
  type never matches. Strings compare by code point.
- A date or datetime compares with the instants that metadata holds as ISO 8601 strings. A date
  stands for its midnight in UTC; stored text without a zone is read as UTC, as YAML does; an
  operand without a zone is refused. Text that is no date does not match.
- `!=`, `not_in` and `none` are the negation of `==`, `in_` and `any`: they include rows that lack
  the key. `== None` matches a stored null only; `exists()` matches a stored null too.
- An empty `in_` or `any` matches nothing; an empty `not_in`, `none` or `all` matches everything.
- `contains` asks for an element of a list, or for an object that has at least the given entries.
- Of `source` and `modified`, which may be unset, `== None` is "not set" and `!= None` "set".
- How deep, long and wide a filter may be says `ragpg.filters.size`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ragpg.errors import FilterError
from ragpg.filters.operands import CHECKS, MAX_DEPTH, ORDER, Instant, text
from ragpg.inputs import shortened, shown

Scalar = str | int | float | bool | None | Instant
Target = Literal["field", "key", "source", "tags", "modified"]

_ACCEPTED: Mapping[Target, tuple[str, ...]] = {
    "field": ("==", "!=", *ORDER, "in", "not_in", "exists", "contains", "prefix", "between"),
    "key": ("==", "!=", "in", "not_in", "prefix"),
    "source": ("==", "!=", "in", "not_in", "prefix", "exists"),
    "tags": ("any", "all", "none"),
    "modified": ("==", "!=", *ORDER, "in", "not_in", "between", "exists"),
}
# An argument of the call, never a field: as a metadata key it would widen the scope unnoticed.
ARGUMENTS = {
    "tenant": "tenant",
    "tenant_id": "tenant",
    "collection": "collection",
    "collection_id": "collection",
}
# Fields of the document itself, by the name of the Document's field: metadata never holds what they
# say, so a filter on it would match nothing.
_NO_FILTER = "no filter reaches it: put what you filter by into the metadata under another name"
OWN_FIELDS = {
    "key": "use ragpg.key, in JSON key",
    "source": "use ragpg.source, in JSON source",
    "tags": "use ragpg.tags, as in ragpg.tags.any('adr'), in JSON tags",
    "modified_at": "use ragpg.modified, in JSON modified",
    "modified": "use ragpg.modified, in JSON modified",
    "title": _NO_FILTER,
    "owner": _NO_FILTER,
    "review_by": _NO_FILTER,
    "expires_at": _NO_FILTER,
}


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on documents; join with `&`, `|` and `~`. `Filter()` matches everything."""

    def __and__(self, other: Filter) -> Filter:
        return And(parts=(*_parts(And, self), *_parts(And, other)))

    def __or__(self, other: Filter) -> Filter:
        return Or(parts=(*_parts(Or, self), *_parts(Or, other)))

    def __invert__(self) -> Filter:
        return Not(part=self)

    def __bool__(self) -> bool:
        raise FilterError("a filter is neither true nor false; join filters with &, | and ~")

    @staticmethod
    def from_json(value: object) -> Filter:
        """The filter that `value` describes; the grammar is in `ragpg.filters.json_form`.

        Raises FilterError with the accepted list for anything it does not know.
        """
        from ragpg.filters.json_form import parse

        return parse(value)

    def to_json(self) -> dict[str, Any]:
        """JSON that `from_json` turns into an equal filter.

        Raises FilterError for one that is too large, see `ragpg.filters.size`.
        """
        from ragpg.filters.json_form import render
        from ragpg.filters.size import checked_size

        return render(checked_size(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class And(Filter):
    """True where every part is; without parts, everywhere."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Or(Filter):
    """True where some part is; without parts, nowhere."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Not(Filter):
    """True where the part is not."""

    part: Filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Filter):
    """One test of one field; built by `comparison`, which checks operator and operand.

    `path` is used by the target "field" only. Instants in `operand` are datetimes in UTC.
    """

    target: Target
    path: tuple[str, ...]
    operator: str
    operand: Any


Where = Filter | Mapping[str, Any]


def as_filter(where: Where | None) -> Filter | None:
    """A filter, or the one that its JSON form describes; None stays None. Raises FilterError."""
    from ragpg.filters.size import checked_size

    if where is None:
        return None
    return checked_size(where) if isinstance(where, Filter) else Filter.from_json(where)


def _parts(kind: type[And | Or], where: Filter) -> tuple[Filter, ...]:
    """A chain of one operator is one list, so that its length is no depth."""
    if not isinstance(where, Filter):
        raise FilterError(
            f"{type(where).__name__} is no filter; join with ragpg.Filter.from_json(..), or build"
            " the filter with ragpg.field(..)"
        )
    return where.parts if isinstance(where, And | Or) and isinstance(where, kind) else (where,)


def comparison(target: Target, path: tuple[str, ...], operator: str, operand: object) -> Comparison:
    """A checked comparison. Raises FilterError naming what is accepted."""
    name = shortened(".".join(path[:MAX_DEPTH])) if target == "field" else target
    if operator not in _ACCEPTED[target]:
        accepted = ", ".join(_ACCEPTED[target])
        raise FilterError(f"{name!r} has no operator {shown(operator)}; it accepts {accepted}")
    if target in ("source", "modified") and operand is None and operator in ("==", "!="):
        operator, operand = "exists", operator == "!="
    checked = CHECKS[operator](f"{name} {operator}", operand)
    if target != "field" and operator != "exists":
        _check_type(target, f"{name} {operator}", checked)
    return Comparison(target=target, path=path, operator=operator, operand=checked)


def _check_type(target: Target, where: str, checked: object) -> None:
    wanted = dt.datetime if target == "modified" else str
    for value in checked if isinstance(checked, tuple) else (checked,):
        if not isinstance(value, wanted):
            accepted = "a date or a datetime with a zone" if target == "modified" else "text"
            raise FilterError(f"{where} compares with {accepted}, not with {shown(value)}")


# Fields define == as SQLAlchemy's columns do, so they are neither comparable nor hashable.
@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """`ragpg.key` or `ragpg.source`; compares as text."""

    target: Target
    path: tuple[str, ...] = ()

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, value: object) -> Filter:  # type: ignore[override]
        return comparison(self.target, self.path, "==", value)

    def __ne__(self, value: object) -> Filter:  # type: ignore[override]
        return comparison(self.target, self.path, "!=", value)

    def in_(self, values: Iterable[Scalar]) -> Filter:
        """Equal to one of `values`; of none of them if there are none."""
        return comparison(self.target, self.path, "in", values)

    def not_in(self, values: Iterable[Scalar]) -> Filter:
        """The negation of `in_`; includes rows that lack the field."""
        return comparison(self.target, self.path, "not_in", values)

    def prefix(self, start: str) -> Filter:
        """Text that begins with `start`."""
        return comparison(self.target, self.path, "prefix", start)

    def exists(self) -> Filter:
        """The field is there; for metadata, also where it is null."""
        return comparison(self.target, self.path, "exists", operand=True)


@dataclass(frozen=True, slots=True, eq=False)
class Ordered(Named):
    """A metadata field, or `ragpg.modified`; also compares by order."""

    def __lt__(self, value: Scalar) -> Filter:
        return comparison(self.target, self.path, "<", value)

    def __le__(self, value: Scalar) -> Filter:
        return comparison(self.target, self.path, "<=", value)

    def __gt__(self, value: Scalar) -> Filter:
        return comparison(self.target, self.path, ">", value)

    def __ge__(self, value: Scalar) -> Filter:
        return comparison(self.target, self.path, ">=", value)

    def between(self, low: Scalar, high: Scalar) -> Filter:
        """At least `low` and at most `high`."""
        return comparison(self.target, self.path, "between", (low, high))

    def contains(self, value: Scalar | Mapping[str, Any]) -> Filter:
        """A list with this element, or an object with at least these entries."""
        return comparison(self.target, self.path, "contains", value)


@dataclass(frozen=True, slots=True, eq=False)
class Tags:
    """`ragpg.tags`."""

    def any(self, *names: str) -> Filter:
        """At least one of these tags."""
        return comparison("tags", (), "any", names)

    def all(self, *names: str) -> Filter:
        """Every one of these tags."""
        return comparison("tags", (), "all", names)

    def none(self, *names: str) -> Filter:
        """Not one of these tags."""
        return comparison("tags", (), "none", names)


key = Named("key")
source = Named("source")
modified = Ordered("modified")
tags = Tags()


def field(*path: str) -> Ordered:
    """The metadata field at `path`; `field("a", "b")` is b within a.

    A dot in a name is part of the name. Raises FilterError for the document's own fields (title,
    key, source, tags, modified_at, owner, review_by, expires_at), for `tenant` and `collection`,
    which are arguments of the call, and for names that begin with @, which are reserved.
    """
    named = metadata_field(*path)
    own = OWN_FIELDS.get(named.path[0].lower().replace("-", "_"))
    if own is not None and len(named.path) == 1:
        raise FilterError(
            f"{path[0]!r} is the document's own and no metadata; {own} (metadata of this very name"
            f' is {{"field": ["{path[0]}"], ..}} in JSON)'
        )
    return named


def metadata_field(*path: str) -> Ordered:
    """The same for any name, also where the document has a field of its own of this name."""
    if not path:
        raise FilterError("a field wants the name of a metadata field; give one")
    if len(path) > MAX_DEPTH:
        raise FilterError(f"a field of {len(path)} names nests deeper than {MAX_DEPTH}; name fewer")
    names = tuple(text("the name of a field", name) for name in path)
    if names[0].lower() in ARGUMENTS:
        argument = ARGUMENTS[names[0].lower()]
        raise FilterError(
            f"{names[0]!r} is no metadata field; pass the argument {argument}= instead"
        )
    if names[0].startswith("@"):
        raise FilterError(
            f"{shown(names[0])} is no metadata field; names that begin with @ are reserved"
        )
    return Ordered("field", names)
