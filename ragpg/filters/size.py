"""How deep, wide and long a filter may be: one that is refused here is neither run nor logged.

Reading and compiling a filter takes time that other requests of the process wait for, and matching
it takes time of the server for each document: at these limits 0.03 s, and 0.4 ms a document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragpg.errors import FilterError
from ragpg.filters import And, Comparison, Filter, Not, Or
from ragpg.filters.operands import MAX_DEPTH

MAX_PARTS = 5_000
MAX_CHARACTERS = 1_000_000


def checked_size(where: Filter) -> Filter:
    """The same filter.

    Raises FilterError for more than 50 levels of and, or and not, 5,000 parts (conditions, and
    values of their lists) or 1,000,000 characters, in which the name of a field counts for each
    value that it is compared with. Takes 10 ms at the most: it stops where a limit is passed.
    """
    left: list[tuple[Filter, int]] = [(where, 0)]
    parts = characters = 0
    while left:
        one, depth = left.pop()
        if depth > MAX_DEPTH:
            raise FilterError(f"the filter nests deeper than {MAX_DEPTH}; use one list of parts")
        if isinstance(one, And | Or):
            parts += len(one.parts)
        elif isinstance(one, Comparison):
            values, long = _measured(one)
            parts += values
            characters += long
        if parts > MAX_PARTS:
            raise FilterError(
                f"the filter has at least {parts} parts, conditions and values in lists, and at"
                f" most {MAX_PARTS} are searched with; give the documents a tag for what they have"
                " in common"
            )
        if characters > MAX_CHARACTERS:
            raise FilterError(
                f"the filter has at least {characters} characters, a name counted for each value,"
                f" and at most {MAX_CHARACTERS} are searched with; give shorter values"
            )
        if isinstance(one, And | Or):
            left += [(part, depth + 1) for part in one.parts]
        elif isinstance(one, Not):
            left.append((one.part, depth + 1))
    return where


def _measured(one: Comparison) -> tuple[int, int]:
    """The number of values that it compares with, and the characters of them and their names."""
    named = sum(map(len, one.path))
    if isinstance(one.operand, Mapping):
        return _measured_entries(one.operand, named)
    values = one.operand if isinstance(one.operand, tuple) else (one.operand,)
    listed = len(values) if isinstance(one.operand, tuple) else 0
    return listed, sum(named + _length(value) for value in values)


def _measured_entries(entries: Mapping[str, Any], named: int) -> tuple[int, int]:
    """The same of what `contains` asks for, whose compiled form names each entry by its path."""
    count = characters = 0
    for name, value in entries.items():
        inner = named + len(name)
        if isinstance(value, Mapping):
            below, long = _measured_entries(value, inner)
        else:
            below, long = 0, inner + _length(value)
        count += 1 + below
        characters += long
    return count, characters


def _length(value: object) -> int:
    return len(value) if isinstance(value, str) else 0
