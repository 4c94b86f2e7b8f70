"""Filters as Postgres answers them, against a plain Python reading of the same expression."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ragpg.filters as ragpg
from ragpg.filters import And, Comparison, Filter, Not, Or
from ragpg.filters.jsonpath import compile_filter
from tests.sql import dense_seed
from tests.sql.dense_seed import Row

# The rows of the cases on metadata that peers get wrong: mixed types, missing, null, nested, dates.
METADATA: dict[int, dict[str, Any]] = {
    1: {"year": 9, "tag": "a"},
    2: {"year": 10},
    3: {"year": "unknown"},
    4: {"tag": None},
    5: {},
    6: {"year": "2024_7", "tag": ["a", "b"]},
    7: {"a.b": 1, "a": {"b": 2}},
    8: {"tag": "O'Brien"},
    9: {"flag": True, "price": 12.5, "code": "007"},
    10: {"date": "2025-01-01T00:00:00+02:00"},
    11: {"date": "2025-01-01"},
}
MODIFIED = dt.datetime(2025, 6, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def filtered(owner: psycopg.Connection):
    """Ids of the rows that a filter selects, in order."""
    home = dense_seed.make_collection(owner, tenant="acme")
    dense_seed.insert_rows(
        owner, home, [Row(chunk_id=i, vector="[1,0]", metadata=m) for i, m in METADATA.items()]
    )

    def select(where: Filter) -> list[int]:
        return matching(owner, where)

    return select


def matching(conn: psycopg.Connection, where: Filter) -> list[int]:
    arguments = compile_filter(where).parameters()
    found = dense_seed.search(conn, "acme", "docs", "[1,0]", k=1000, **arguments)
    return sorted(row[0] for row in found)


EVERY = list(METADATA)


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        (ragpg.field("year") >= 10, [2]),
        (ragpg.field("year") > 9.5, [2]),
        (ragpg.field("year") < 10, [1]),
        (ragpg.field("year") >= "10", [3, 6]),
        (ragpg.field("year") == 9, [1]),
        (ragpg.field("year") == "9", []),
        (ragpg.field("price") > 12, [9]),
        (ragpg.field("flag") == True, [9]),  # noqa: E712
        (ragpg.field("flag") == 1, []),
        (ragpg.field("code") == 7, []),
        (ragpg.field("code").prefix("00"), [9]),
        (ragpg.field("tag") == "a", [1]),
        (ragpg.field("tag") != "a", [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (~(ragpg.field("tag") == "a"), [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (ragpg.field("tag").not_in(["a"]), [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (ragpg.field("tag") == None, [4]),  # noqa: E711
        (ragpg.field("tag").in_([None, "a"]), [1, 4]),
        (~ragpg.field("tag").exists(), [2, 3, 5, 7, 9, 10, 11]),
        (ragpg.field("tag").contains("a"), [6]),
        (ragpg.field("a").contains({"b": 2}), [7]),
        (ragpg.field("a").contains({"b": 3}), []),
        (ragpg.field("a").contains({}), [7]),
        (ragpg.field("tag").in_([]), []),
        (ragpg.field("tag").not_in([]), EVERY),
        (ragpg.field("a.b") == 1, [7]),
        (ragpg.field("a", "b") == 2, [7]),
        (ragpg.field("tag") == "O'Brien", [8]),
        (ragpg.field("date") == dt.datetime(2024, 12, 31, 22, tzinfo=dt.UTC), [10]),
        (ragpg.field("date") >= dt.date(2025, 1, 1), [11]),
        (ragpg.field("date").between(dt.date(2024, 1, 1), dt.date(2025, 1, 1)), [10, 11]),
        (ragpg.field("date") != dt.date(2025, 1, 1), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (ragpg.field("date").in_([dt.date(2025, 1, 1), 9]), [11]),
        (ragpg.field("year").between(9, 10), [1, 2]),
        (ragpg.tags.none("x"), EVERY),
        (ragpg.tags.any(), []),
        (ragpg.tags.all(), EVERY),
        (ragpg.source.in_([]), []),
        (ragpg.source != "wiki", EVERY),
        (~ragpg.source.exists(), EVERY),
        (ragpg.key.prefix("d"), EVERY),
        (Filter(), EVERY),
        (Or(parts=()), []),
    ],
    ids=str,
)
def test_a_filter_selects_the_rows_that_its_documentation_says(filtered, where, ids):
    assert filtered(where) == ids


@pytest.mark.parametrize(
    "name",
    ["author' = 'x' OR '1'='1' --", 'a"b', "%(x)s", ":name", "meta data", "", "\\", "\n\t\x01", "$",
     "$.*", "👍 é", "a]", "* ? (@ == 1)"],
)  # fmt: skip
def test_any_name_and_any_value_mean_only_themselves(owner, name):
    home = dense_seed.make_collection(owner, tenant="acme")
    rows = [Row(chunk_id=1, vector="[1,0]", metadata={"other": name, "@ignored": 1})]
    if name != "@":
        rows.append(Row(chunk_id=2, vector="[1,0]", metadata={name: name}))
    dense_seed.insert_rows(owner, home, rows)
    assert matching(owner, ragpg.field(name) == name) == [2]
    assert matching(owner, ragpg.field("other").in_([name, "x') OR 1=1 --"])) == [1]
    assert matching(owner, ragpg.field(name).contains({name: name})) == []
    assert matching(owner, ragpg.field(name).prefix(name)) == [2]
    assert matching(owner, ragpg.source == name) == []
    assert matching(owner, ragpg.tags.any(name) | ragpg.key.prefix(name)) == (
        [1, 2] if name == "" else []
    )


def test_a_thousand_values_in_a_list_are_one_filter(filtered):
    assert filtered(ragpg.field("year").in_(range(10, 5000))) == [2]
    assert filtered(ragpg.field("year").not_in(range(5000))) == [3, 4, 5, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2025-01-01", "2025-01-01T00:00:00.000000Z"),
        ("2025-01-01T10:30:00", "2025-01-01T10:30:00.000000Z"),
        ("2025-01-01 10:30", "2025-01-01T10:30:00.000000Z"),
        ("2025-01-01T10:30:00.25+0530", "2025-01-01T05:00:00.250000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-14:00", None),
        ("2025-02-30", None),
        ("2025-01-01T24:00:00Z", None),
        ("2025-01-01T10:30:60Z", None),
        ("0000-01-01", None),
        ("2025-01-01T10:30:00 Europe/Oslo", None),
        ("today", None),
        ("2025", None),
        ("2025-01-01\n", None),
    ],
)
def test_metadata_text_is_an_instant_only_if_it_is_iso_8601(owner, text, instant):
    for zone, style in (("UTC", "ISO, MDY"), ("Asia/Tokyo", "German, DMY")):
        owner.execute(f"set timezone = '{zone}'")
        owner.execute(f"set datestyle = '{style}'")
        assert owner.execute("select ragpg.instant(%s)", [text]).fetchone() == (instant,)


# One property over random rows and random expressions, answered by Postgres and by Python.

NAMES = ["a", "b", "a.b", "ü", "q'\"\\"]
VALUES = [None, True, False, 0, 1, -3, 2.5, 10, "", "a", "ab", "b", "10", "x'\"\\\n👍",
          "2025-01-01", "2025-01-01T02:00:00+02:00", "2025-03-01T00:00:00.5Z"]  # fmt: skip
INSTANTS = [dt.datetime(2025, 1, 1, tzinfo=dt.UTC), dt.date(2025, 3, 1)]
TAGS = ["adr", "rfc", "o'brien"]
SOURCES = ["wiki", "hr/wiki", "100%"]
KEYS = ["hr/a", "hr/b", "it_a", "hr"]
scalars = st.sampled_from(VALUES)
rows = st.fixed_dictionaries(
    {
        "key": st.sampled_from(KEYS),
        "source": st.sampled_from([None, *SOURCES]),
        "tags": st.lists(st.sampled_from(TAGS), max_size=3, unique=True).map(tuple),
        "modified_at": st.sampled_from(
            [None, *(MODIFIED + dt.timedelta(microseconds=n) for n in (-1, 0, 1))]
        ),
        "metadata": st.dictionaries(
            st.sampled_from(NAMES),
            st.one_of(
                scalars,
                st.lists(st.one_of(scalars, st.just({"a": 1, "b": "x"})), max_size=3),
                st.dictionaries(st.sampled_from(NAMES), scalars, max_size=2),
            ),
            max_size=3,
        ),
    }
)
ordered = st.sampled_from([v for v in VALUES if v is not None and not isinstance(v, bool)])
compared = st.one_of(scalars, st.sampled_from(INSTANTS))
fields = st.one_of(st.tuples(st.sampled_from(NAMES)), st.tuples(*[st.sampled_from(NAMES)] * 2))
moments = st.sampled_from([MODIFIED + dt.timedelta(microseconds=n) for n in (-1, 0, 1, 2)])
on_field = lambda operators, operands: st.builds(  # noqa: E731
    lambda path, operator, operand: ragpg.comparison("field", path, operator, operand),
    fields,
    st.sampled_from(operators),
    operands,
)
on_target = lambda targets, operators, operands: st.builds(  # noqa: E731
    lambda target, operator, operand: ragpg.comparison(target, (), operator, operand),
    st.sampled_from(targets),
    st.sampled_from(operators),
    operands,
)
names = st.sampled_from([*KEYS, *SOURCES])
LEAVES = {
    "equal": on_field(["==", "!="], compared),
    "order": on_field(["<", "<=", ">", ">="], st.one_of(ordered, st.sampled_from(INSTANTS))),
    "in": on_field(["in", "not_in"], st.lists(compared, max_size=3)),
    "exists": on_field(["exists"], st.booleans()),
    "contains": on_field(
        ["contains"],
        st.one_of(scalars, st.dictionaries(st.sampled_from(NAMES), scalars, max_size=2)),
    ),
    "prefix": on_field(["prefix"], st.sampled_from(["", "a", "x'"])),
    "between": on_field(
        ["between"], st.sampled_from([(0, 2.5), ("a", "b"), (INSTANTS[0], INSTANTS[1])])
    ),
    "tags": on_target(
        ["tags"], ["any", "all", "none"], st.lists(st.sampled_from(TAGS), max_size=2)
    ),
    "key or source": on_target(["key", "source"], ["==", "!="], names),
    "key or source in": on_target(["key", "source"], ["in", "not_in"], st.lists(names, max_size=3)),
    "key or source prefix": on_target(
        ["key", "source"], ["prefix"], st.sampled_from(["", "hr", "hr/", "it_", "100%"])
    ),
    "there or not": on_target(["source", "modified"], ["exists"], st.booleans()),
    "modified": on_target(["modified"], ["==", "!=", "<", "<=", ">", ">="], moments),
    "modified between": on_target(["modified"], ["between"], st.tuples(moments, moments)),
}
either = st.one_of(*LEAVES.values())
several = st.lists(
    st.one_of(either, either.map(lambda part: Not(part=part))), min_size=2, max_size=3
).map(tuple)
LEAVES["joined"] = st.one_of(
    several.map(lambda parts: And(parts=parts)),
    several.map(lambda parts: Or(parts=parts)),
    several.map(lambda parts: Not(part=And(parts=parts))),
    several.map(lambda parts: Not(part=Or(parts=parts))),
    st.tuples(several, several).map(lambda two: And(parts=(Or(parts=two[0]), *two[1]))),
    st.tuples(several, several).map(lambda two: Or(parts=(And(parts=two[0]), *two[1]))),
)
MISSING = object()


def holds(where: Filter, row) -> bool:
    if isinstance(where, And):
        return all(holds(part, row) for part in where.parts)
    if isinstance(where, Or):
        return any(holds(part, row) for part in where.parts)
    if isinstance(where, Not):
        return not holds(where.part, row)
    if not isinstance(where, Comparison):
        return True
    opposite = {"!=": "==", "not_in": "in", "none": "any"}.get(where.operator)
    if opposite is not None:
        return not holds(dataclasses.replace(where, operator=opposite), row)
    return bool(operator_holds(where.operator, stored_value(where, row), where.operand))


def stored_value(where: Comparison, row):
    if where.target != "field":
        name = {"modified": "modified_at"}.get(where.target, where.target)
        return MISSING if row[name] is None else row[name]
    value = row["metadata"]
    for name in where.path:
        value = value.get(name, MISSING) if isinstance(value, dict) else MISSING
    return value


def operator_holds(operator, value, operand):  # noqa: PLR0911 (one for each operator)
    match operator:
        case "exists":
            return (value is not MISSING) == operand
        case "in":
            return any(compares("==", value, one) for one in operand)
        case "between":
            return compares(">=", value, operand[0]) and compares("<=", value, operand[1])
        case "prefix":
            return isinstance(value, str) and value.startswith(operand)
        case "any":
            return bool(set(value) & set(operand))
        case "all":
            return set(operand) <= set(value)
        case "contains" if isinstance(operand, dict):
            return has(value, operand) or (
                isinstance(value, list) and any(has(one, operand) for one in value)
            )
        case "contains":
            return isinstance(value, list) and any(compares("==", one, operand) for one in value)
    return compares(operator, value, operand)


def has(value, entries) -> bool:
    return isinstance(value, dict) and all(
        name in value and compares("==", value[name], wanted) for name, wanted in entries.items()
    )


def compares(operator, value, operand):
    if isinstance(operand, dt.datetime) and isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            return False
        value = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    if kind(value) != kind(operand):
        return False
    return {
        "==": lambda: value == operand,
        "<": lambda: value < operand,
        "<=": lambda: value <= operand,
        ">": lambda: value > operand,
        ">=": lambda: value >= operand,
    }[operator]()


def kind(value):
    if value is None or isinstance(value, bool | str | dt.datetime | list | dict):
        return type(value)
    return float if isinstance(value, int | float) else object()


@pytest.mark.parametrize("kind", LEAVES)
@given(data=st.data())
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_postgres_and_python_agree_on_random_filters_over_random_rows(owner, data, kind):
    home = owner.execute(
        "select tenant_id, collection_id from ragpg.collection join ragpg.tenant using (tenant_id)"
        " where tenant.key = 'acme'"
    ).fetchone() or dense_seed.make_collection(owner, tenant="acme")
    stored = data.draw(st.lists(rows, min_size=8, max_size=8))
    owner.execute("delete from ragpg.embedding")
    dense_seed.insert_rows(
        owner, home, [Row(chunk_id=i, vector="[1,0]", **row) for i, row in enumerate(stored)]
    )
    for where in data.draw(st.lists(LEAVES[kind], min_size=4, max_size=4)):
        wanted = [i for i, row in enumerate(stored) if holds(where, row)]
        assert matching(owner, where) == wanted, compile_filter(where)
        assert Filter.from_json(where.to_json()) == where


def test_no_value_of_the_caller_is_part_of_a_statement():
    arguments = compile_filter(
        (ragpg.field("x'; drop table ragpg.chunk --") == "'; drop table ragpg.chunk --")
        & (ragpg.source == "'; drop table ragpg.chunk --")
    )
    assert arguments.sources == ("'; drop table ragpg.chunk --",)
    assert arguments.filter is not None
    names = re.findall(r'"(?:[^"\\]|\\.)*"', arguments.filter)
    assert names == ['"x\'; drop table ragpg.chunk --"', '"\'; drop table ragpg.chunk --"']
