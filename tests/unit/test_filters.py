"""Filters as values: what they refuse, their JSON, and what they compile to."""

from __future__ import annotations

import datetime as dt
import math
import re

import pytest

import ragpg.filters as ragpg
from ragpg.errors import FilterError
from ragpg.filters import And, Filter, Not, Or, as_filter
from ragpg.filters.jsonpath import FilterArguments, compile_filter

NOON = dt.datetime(2025, 6, 1, 12, tzinfo=dt.UTC)
TICK = dt.timedelta(microseconds=1)


def test_conditions_on_typed_columns_that_must_all_hold_become_typed_arguments():
    where = (
        ragpg.source.in_(["wiki", "hr"])
        & ragpg.tags.all("a")
        & ragpg.tags.all("b", "a")
        & ragpg.tags.any("x", "y")
        & ragpg.key.prefix("hr/")
        & (ragpg.modified >= NOON)
        & (ragpg.modified <= NOON)
    )
    assert compile_filter(where) == FilterArguments(
        sources=("wiki", "hr"),
        tags_all=("a", "b"),
        tags_any=("x", "y"),
        key_prefix="hr/",
        modified_from=NOON,
        modified_before=NOON + TICK,
    )


def test_two_conditions_on_one_column_become_their_intersection():
    where = (
        ragpg.source.in_(["wiki", "hr"])
        & (ragpg.source == "hr")
        & (ragpg.key.prefix("hr/") & ragpg.key.prefix("hr/2025"))
        & (ragpg.modified > NOON)
        & (ragpg.modified >= NOON)
        & ragpg.modified.between(NOON, NOON + 9 * TICK)
        & (ragpg.modified < NOON + 5 * TICK)
    )
    assert compile_filter(where) == FilterArguments(
        sources=("hr",),
        key_prefix="hr/2025",
        modified_from=NOON + TICK,
        modified_before=NOON + 5 * TICK,
    )


def test_a_second_condition_on_any_tag_becomes_a_jsonpath_beside_the_first():
    assert compile_filter(ragpg.tags.any("a") & ragpg.tags.any("b")) == FilterArguments(
        tags_any=("a",), filter='strict exists($ ? (exists(@."@tags"[*] ? (@ == "b"))))'
    )


def test_sources_that_exclude_each_other_find_nothing():
    where = (ragpg.source == "wiki") & (ragpg.source == "hr")
    assert compile_filter(where) == FilterArguments(sources=())


def test_an_empty_list_of_sources_or_tags_is_not_left_out():
    assert compile_filter(ragpg.source.in_([])) == FilterArguments(sources=())
    assert compile_filter(ragpg.tags.any()) == FilterArguments(tags_any=())
    assert compile_filter(ragpg.tags.all()) == FilterArguments()


def test_no_filter_and_the_empty_filter_leave_every_argument_out():
    assert compile_filter(None) == FilterArguments()
    assert compile_filter(Filter()) == FilterArguments()
    assert compile_filter(Filter() & Filter()) == FilterArguments()


def test_an_alternative_over_typed_columns_becomes_a_jsonpath():
    where = (ragpg.source == "wiki") | ragpg.tags.any("adr", "rfc")
    assert compile_filter(where) == FilterArguments(
        filter='strict (exists($ ? (@."@source" == "wiki"))'
        ' || exists($ ? (exists(@."@tags"[*] ? ((@ == "adr" || @ == "rfc"))))))'
    )


def test_a_negated_alternative_becomes_conjuncts_and_a_double_negation_none():
    source, year = ragpg.source == "wiki", ragpg.field("year") == 2025
    assert compile_filter(~(~source | year)) == FilterArguments(
        sources=("wiki",), filter='strict !(exists($ ? (@."year" == 2025)))'
    )


def test_metadata_becomes_one_strict_jsonpath_in_which_each_test_stands_alone():
    where = (ragpg.field("year") >= 2025) & (ragpg.field("team", "lead") != "ada")
    assert compile_filter(where) == FilterArguments(
        filter='strict (exists($ ? (@."year" >= 2025))'
        ' && !(exists($ ? (@."team"."lead" == "ada"))))'
    )


def test_an_instant_is_compared_in_utc_at_one_width():
    where = ragpg.field("due") < dt.datetime(
        2025, 1, 1, 1, 30, tzinfo=dt.timezone(dt.timedelta(hours=2))
    )
    assert compile_filter(where) == FilterArguments(
        filter='strict exists($ ? (@."@instants"."due" < "2024-12-31T23:30:00.000000Z"))'
    )


def test_a_date_stands_for_its_midnight_in_utc():
    assert compile_filter(ragpg.modified >= dt.date(2025, 6, 1)) == FilterArguments(
        modified_from=dt.datetime(2025, 6, 1, tzinfo=dt.UTC)
    )


def test_the_last_microsecond_of_time_has_no_successor_and_is_still_compared():
    last = dt.datetime.max.replace(tzinfo=dt.UTC)
    assert compile_filter(ragpg.modified <= last) == FilterArguments(
        filter='strict exists($ ? (@."@modified_at" <= "9999-12-31T23:59:59.999999Z"))'
    )


def test_a_chain_of_thousands_of_alternatives_is_one_list_and_compiles():
    chain = ragpg.field("n") == 0
    for n in range(1, 3000):
        chain = chain | (ragpg.field("n") == n)
    assert isinstance(chain, Or)
    assert len(chain.parts) == 3000
    assert (compile_filter(chain).filter or "").count("exists") == 3000
    assert Filter.from_json(chain.to_json()) == chain


def test_json_that_nests_too_deep_is_refused():
    value: dict[str, object] = {"a": 1}
    for _ in range(60):
        value = {"not": value}
    with pytest.raises(FilterError, match="nests deeper than 50"):
        Filter.from_json(value)


def nested(levels: int) -> Filter:
    where = ragpg.field("a") == 1
    for n in range(levels // 2):
        where = (where | (ragpg.field("b") == n)) & (ragpg.field("c") == n)
    return where


def test_a_filter_that_is_searched_with_is_read_back_from_its_log_and_a_deeper_one_is_refused():
    deepest = nested(50)
    assert Filter.from_json(deepest.to_json()) == deepest
    assert compile_filter(as_filter(deepest)).filter is not None
    for levels in (52, 120, 800, 4000):
        for refusing in (as_filter, compile_filter, Filter.to_json):
            with pytest.raises(FilterError, match="nests deeper than 50; use one list of parts"):
                refusing(nested(levels))
    # Two conditions in one object are one level more than their JSON shows.
    value: dict[str, object] = {"a": 1, "b": 2}
    for _ in range(49):
        value = {"not": value}
    assert Filter.from_json(Filter.from_json(value).to_json()) == Filter.from_json(value)
    with pytest.raises(FilterError, match="nests deeper than 50"):
        Filter.from_json({"not": value})


@pytest.mark.parametrize("levels", [51, 500, 900])
def test_what_a_field_contains_and_the_path_to_it_have_a_depth_as_well(levels):
    value: dict[str, object] = {"a": 1}
    for _ in range(levels):
        value = {"a": value}
    with pytest.raises(FilterError, match="o contains got an object that nests deeper than 50"):
        Filter.from_json({"o": {"contains": value}})
    with pytest.raises(FilterError, match=f"a field of {levels} names nests deeper than 50"):
        Filter.from_json({"field": ["a"] * levels, "==": 1})


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"or": [{"n": 1}] * 5001}, "the filter has at least 5001 parts, conditions and values"),
        ({"n": {"in": list(range(5001))}}, "the filter has at least 5001 parts"),
        ({"or": [{"n": {"in": list(range(2500))}}] * 3}, "and at most 5000 are searched with"),
        (
            {"n": {"contains": {str(n): n for n in range(5001)}}},
            "the filter has at least 5001 parts",
        ),
        ({"key": "x" * 1_000_001}, "the filter has at least 1000001 characters"),
        ({"x" * 1000: {"in": list(range(1001))}}, "the filter has at least 1001000 characters"),
        (
            {"x": {"contains": {"y" * 1000: {str(n): n for n in range(1000)}}}},
            "and at most 1000000 are searched with; give shorter values",
        ),
    ],
)
def test_a_filter_that_is_too_large_is_refused_with_its_size(where, message):
    with pytest.raises(FilterError) as raised:
        Filter.from_json(where)
    assert message in str(raised.value)


def test_parts_that_are_shared_are_counted_each_time_and_counting_ends_at_the_limit():
    where = ragpg.field("a") == 1
    for _ in range(20):
        where = Or(parts=(And(parts=(where, where)), where))
    with pytest.raises(FilterError, match=r"at least 5\d+ parts"):
        compile_filter(where)


LONG = "x" * 5_000_000
DEEP: list[object] = []
for _ in range(700):
    DEEP = [DEEP]


@pytest.mark.parametrize("operand", [LONG, [LONG], {LONG: 1}, list(range(9999)), DEEP], ids=type)
@pytest.mark.parametrize(
    "shape",
    [
        lambda operand: operand,
        lambda operand: {"and": operand},
        lambda operand: {"not": operand},
        lambda operand: {"field": operand, "nothing": 1},
        lambda operand: {"year": {">": operand, "nothing": 1}},
        lambda operand: {"year": {"==": operand, "nothing": 1}},
        lambda operand: {"year": {"in": operand, "nothing": 1}},
        lambda operand: {"year": {"between": operand}},
        lambda operand: {"year": {"prefix": operand, "nothing": 1}},
        lambda operand: {"year": {"exists": operand}},
        lambda operand: {"year": {"contains": operand, "nothing": 1}},
        lambda operand: {"year": {"at": operand}},
        lambda operand: {"modified": {">=": operand}},
        lambda operand: {"source": {"in": operand, "nothing": 1}},
        lambda operand: {"tags": {"any": operand, "nothing": 1}},
        lambda operand: {"year": {str(operand): 1}},
        lambda operand: {f"tenant{operand}": {"nothing": 1}},
        lambda operand: {f"@{operand}": 1},
        lambda operand: {f"${operand}": 1},
        lambda operand: {f"{operand}": {}},
    ],
)
def test_a_message_shows_the_beginning_of_what_was_wrong_however_long_or_deep_it_is(shape, operand):
    with pytest.raises(FilterError) as raised:
        Filter.from_json(shape(operand))
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "where",
    [
        {"year": {">": True}},
        {"due": {"<": {"at": "2025-06-01T12:00:00"}}},
        {"due": {"<": {"at": "0001-01-01T00:00:00+14:00"}}},
        {"field": [1], "==": 1},
        {"source": {"==": 5}},
        {"modified": {"prefix": "2025"}},
        {"Source": "wiki"},
    ],
)
def test_a_message_to_a_client_that_sends_json_does_not_speak_python(where):
    with pytest.raises(FilterError) as raised:
        Filter.from_json(where)
    message = str(raised.value).replace("use ragpg.source, in JSON source", "")
    assert not re.search(r"in_|tzinfo|datetime\.|field\(|dt\.|ragpg\.", message), message


def test_names_and_values_are_written_as_json_strings():
    where = ragpg.field('a"b\\') == 'O\'Brien\n"$.*" 👍'
    assert compile_filter(where) == FilterArguments(
        filter='strict exists($ ? (@."a\\"b\\\\" == "O\'Brien\\n\\"$.*\\" 👍"))'
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ragpg.field("year") > True, "year > got True, which has no order"),
        (lambda: ragpg.field("year") > None, "year > got None, which has no order"),
        (lambda: ragpg.field("tag").in_("abc"), "tag in wants a list, not 'abc'"),
        (
            lambda: ragpg.comparison("field", ("tag",), "not_in", 3),
            "tag not_in wants a list, not 3",
        ),
        (lambda: ragpg.comparison("field", ("x",), "==", math.nan), "x == got nan, which JSON"),
        (lambda: ragpg.field("x") < float("inf"), "x < got inf, which JSON"),
        (lambda: ragpg.field("x") == 10**400, "x == got a number of more than 300 digits"),
        (lambda: ragpg.field("x") == [1], "x == got list [1]; it accepts text, a number"),
        (lambda: ragpg.field("x") == {"a": 1}, "x == got dict {'a': 1}; it accepts text, a number"),
        (lambda: ragpg.field("x") == "a\0", "Postgres holds neither NUL"),
        (lambda: ragpg.field("x") == "\ud83d", "nor half a surrogate"),
        (
            lambda: ragpg.field("x") < NOON.replace(tzinfo=None),
            "without a zone; give it one, as in 2025-06-01T12:00:00+00:00",
        ),
        (lambda: ragpg.field("x").between(1, "2"), "two values of one type"),
        (lambda: ragpg.field("x").between(1, NOON), "two values of one type"),
        (lambda: ragpg.comparison("field", ("x",), "contains", [1]), "or an object of these"),
        (lambda: ragpg.comparison("field", ("x",), "prefix", 1), "x prefix wants text, not 1"),
        (lambda: ragpg.modified >= "2025-01-01", "a date or a datetime with a zone"),
        (lambda: ragpg.modified.contains(1), "'modified' has no operator 'contains'"),
        (lambda: ragpg.source == 3, "source == compares with text, not with 3"),
        (lambda: ragpg.source.in_([None]), "source in compares with text, not with None"),
        (lambda: ragpg.key == None, "key == compares with text, not with None"),  # noqa: E711
        (ragpg.key.exists, "'key' has no operator 'exists'; it accepts ==, !=, in"),
        (
            lambda: ragpg.comparison("tags", (), "any", [["adr"]]),
            "tags any wants text, not list ['adr']",
        ),
        (lambda: ragpg.field("tenant"), "pass the argument tenant= instead"),
        (lambda: ragpg.field("Collection"), "pass the argument collection= instead"),
        (lambda: ragpg.field("@source"), "names that begin with @ are reserved"),
        (ragpg.field, "wants the name of a metadata field"),
        (lambda: ragpg.field("a") == 1 and ragpg.field("b") == 2, "join filters with &, | and ~"),
        (lambda: 1 < ragpg.field("a") < 3, "join filters with &, | and ~"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_what_can(build, message):
    with pytest.raises(FilterError) as raised:
        build()
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("key", "use ragpg.key"),
        ("source", "use ragpg.source"),
        ("tags", "use ragpg.tags, as in ragpg.tags.any('adr')"),
        ("modified_at", "use ragpg.modified"),
        ("modified", "use ragpg.modified"),
        ("title", "put what you filter by into the metadata under another name"),
        ("owner", "put what you filter by into the metadata under another name"),
        ("review_by", "put what you filter by into the metadata under another name"),
        ("Review-By", "put what you filter by into the metadata under another name"),
        ("expires_at", "put what you filter by into the metadata under another name"),
    ],
)
def test_a_field_of_the_document_itself_is_refused_as_metadata_with_the_right_way(name, way):
    with pytest.raises(FilterError) as raised:
        ragpg.field(name)
    assert str(raised.value).startswith(f"{name!r} is the document's own and no metadata; ")
    assert way in str(raised.value)
    # Metadata of a caller's own may have the same name, and an entry below it is always metadata.
    by_name = Filter.from_json({"field": [name], "==": "x"})
    assert Filter.from_json(by_name.to_json()) == by_name
    assert (ragpg.field(name, "team") == "x").to_json() == {"field": [name, "team"], "==": "x"}


@pytest.mark.parametrize("name", ["title", "owner", "review_by", "expires_at", "modified_at"])
def test_a_field_of_the_document_itself_is_refused_in_json_as_well(name):
    with pytest.raises(FilterError, match="is the document's own and no metadata"):
        Filter.from_json({name: "x"})


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({}, Filter()),
        ({"year": 2025}, ragpg.field("year") == 2025),
        ({"year": {">=": 2025}}, ragpg.field("year") >= 2025),
        ({"year": None}, ragpg.field("year") == None),  # noqa: E711
        (
            {"year": {">=": 2020, "<": 2025}, "a.b": 1},
            And(
                parts=(
                    ragpg.field("year") >= 2020,
                    ragpg.field("year") < 2025,
                    ragpg.field("a.b") == 1,
                )
            ),
        ),
        ({"field": ["a", "b"], "in": [1, "x"]}, ragpg.field("a", "b").in_([1, "x"])),
        ({"field": ["source"], "==": "x"}, ragpg.metadata_field("source") == "x"),
        ({"field": ["tennant"], "==": "x"}, ragpg.field("tennant") == "x"),
        ({"tags": {"any": ["adr"]}}, ragpg.tags.any("adr")),
        ({"source": "wiki"}, ragpg.source == "wiki"),
        ({"key": {"prefix": "hr/"}}, ragpg.key.prefix("hr/")),
        ({"modified": {">=": "2025-06-01T12:00:00Z"}}, ragpg.modified >= NOON),
        ({"modified": {"<": "2025-06-01"}}, ragpg.modified < dt.date(2025, 6, 1)),
        ({"modified": {"in": ["2025-06-01"]}}, ragpg.modified.in_([dt.date(2025, 6, 1)])),
        ({"modified": None}, ragpg.modified == None),  # noqa: E711
        ({"source": {"!=": None}}, ragpg.source.exists()),
        ({"due": {"<": {"at": "2025-06-01"}}}, ragpg.field("due") < dt.date(2025, 6, 1)),
        ({"due": {"at": "2025-06-01"}}, ragpg.field("due") == dt.date(2025, 6, 1)),
        ({"due": "2025-06-01"}, ragpg.field("due") == "2025-06-01"),
        ({"x": {"exists": False}}, ragpg.comparison("field", ("x",), "exists", operand=False)),
        ({"x": {"contains": {"at": 1}}}, ragpg.field("x").contains({"at": 1})),
        ({"x": {"between": [1, 2.5]}}, ragpg.field("x").between(1, 2.5)),
        ({"and": []}, And(parts=())),
        ({"or": [{"a": 1}, {"not": {"b": 2}}]},
         Or(parts=(ragpg.field("a") == 1, Not(part=ragpg.field("b") == 2)))),
    ],
)  # fmt: skip
def test_json_says_the_same_as_python_and_comes_back_equal(value, where):
    assert Filter.from_json(value) == where
    assert Filter.from_json(where.to_json()) == where


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"tag": {"$regexx": "a"}}, "'tag' has no operator '$regexx'; it accepts ==, !=, <"),
        ({"tag": {"gte": 3}}, "'tag' has no operator 'gte'; it accepts ==, !=, <"),
        ({"tag": {}}, "'tag' has no condition"),
        ({"tennant": "acme"}, "'tennant' looks like 'tenant', which is the argument tenant="),
        ({"tenant": "acme"}, "pass the argument tenant= instead"),
        ({"field": ["collection"], "==": 1}, "pass the argument collection= instead"),
        ({"tag": "a", "$limit": 5}, "'$limit' is not known here; accepted are and, or, not"),
        ({"and": {"a": 1}}, "'and' wants a list of filters"),
        ({"not": [1]}, "a filter is an object"),
        ({"field": "a", "==": 1}, "'field' wants a list of names"),
        ({"source": {"any": ["x"]}}, "'source' has no operator 'any'; it accepts ==, !=, in"),
        ({"tags": ["adr"]}, "'tags' has no operator '=='; it accepts any, all, none"),
        ({"tags": {"any": "adr"}}, "tags any wants a list, not 'adr'"),
        ({"modified": {">=": "yesterday"}}, "'yesterday' is no date"),
        ({"modified": {">=": 5}}, "5 is no date"),
        ({"modified": {">=": "2025-06-01T12:00:00"}}, "without a zone"),
        ({"x": {"exists": 1}}, "x exists wants true or false, not 1"),
        ({"x": {"between": [1]}}, "wants a low and a high value, not 1 values"),
        ({1: 2}, "1 is not known here"),
        ([["tag", "=", "a"]], "a filter is an object"),
        ("tag = 'a'", "a filter is an object"),
        (None, "a filter is an object"),
    ],
)
def test_json_that_is_not_known_is_refused_and_never_ignored(value, message):
    with pytest.raises(FilterError) as raised:
        Filter.from_json(value)
    assert message in str(raised.value)
