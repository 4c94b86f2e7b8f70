"""The lexical arm under filters that pass much, little and nothing, by every plan: the exact ranking."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.sql.lexical_corpus import (
    Home,
    add,
    ask,
    assert_same_ranking,
    make_home,
    put_into_index,
    random_text,
    rank_bm25,
    read_chunks,
)

if TYPE_CHECKING:
    import psycopg

# wort1 to wort9 are in many chunks, wort190 in few; together with them it makes a first round.
QUERIES = ["wort1 wort2 wort3", "wort4 wort190 wort7 wort31 wort1"]
# Of 800 chunks: all, half, a tenth, a hundredth, one, none; those that hold wort1, those that do not.
TAGS = ["all", "half", "tenth", "few", "one", "nothing", "likely", "unlikely"]


def fill(conn: psycopg.Connection[Any], home: Home) -> None:
    """800 indexed chunks, tagged; a tag is in their metadata, too."""
    rng = random.Random(41)  # noqa: S311
    for number in range(800):
        text = random_text(rng, 200)
        holds = "wort1" in text.split()
        tags = [
            "all",
            *(["half"] if number % 2 == 0 else []),
            *(["tenth"] if number % 10 == 3 else []),
            *(["few"] if number % 100 == 7 else []),
            *(["one"] if number == 400 else []),
            "likely" if holds else "unlikely",
        ]
        add(conn, home, [text], tags=tags, metadata='{"kinds": ["' + '", "'.join(tags) + '"]}')
    put_into_index(conn, home)
    conn.execute("analyze ragpg.embedding")


def search(
    conn: psycopg.Connection[Any], home: Home, **given: object
) -> tuple[list[tuple[int, float]], str | None]:
    """Ids and scores, best first, and the mode."""
    arguments: dict[str, object] = dict.fromkeys(
        ("tags_any", "filter", "passing", "is_broad", "list_up_to")
    )
    arguments |= {"tenant": home.tenant, "collection": home.collection} | given
    row = conn.execute(
        "select coalesce(arm.ids, '{}'), coalesce(arm.scores, '{}'), arm.mode from"
        " ragpg._lexical_arm(%(tenant)s, %(collection)s, %(query)s, %(k)s, null, null,"
        " %(tags_any)s, null, null, null, %(filter)s, %(passing)s, %(is_broad)s,"
        " scan_up_to => %(scan_up_to)s, list_up_to => %(list_up_to)s) as arm",
        arguments,
    ).fetchone()
    assert row
    return list(zip(row[0], row[1], strict=True)), row[2]


def check(conn: psycopg.Connection[Any], home: Home, **given: object) -> set[str | None]:
    """The modes that were taken for every tag and query; each found the exact ranking."""
    modes = set()
    chunks = read_chunks(conn, home)
    for query in QUERIES:
        every = rank_bm25(chunks, ask(conn, query), len(chunks))
        for tag in TAGS:
            passing = [
                row[0]
                for row in conn.execute(
                    "select chunk_id from ragpg.embedding where tags && %s", [[tag]]
                )
            ]
            filters: list[dict[str, object]] = [
                {"tags_any": [tag]},
                {"filter": f'$.kinds[*] == "{tag}"'},
                {"tags_any": [tag], "passing": passing},
            ]
            kept = set(passing)
            for k in (3, 150):
                expected = [pair for pair in every if pair[0] in kept][:k]
                for fields in filters:
                    found, mode = search(conn, home, query=query, k=k, **(given | fields))
                    assert_same_ranking(found, expected)
                    modes.add(mode)
    return modes


def expect(conn: psycopg.Connection[Any], rows: int) -> None:
    """The planner expects so many rows of every filter."""
    conn.execute(
        "create or replace function ragpg._planned_rows(rows_of text, query_embedding halfvec,"
        " sources text[], tags_all text[], tags_any text[], modified_from timestamptz,"
        " modified_before timestamptz, key_prefix text, filter jsonpath) returns bigint"
        f" language sql volatile as 'select {rows}::bigint'"
    )


@pytest.mark.parametrize("by_blocks", [False, True])
def test_a_filter_of_any_selectivity_gives_the_exact_ranking(owner, by_blocks):
    home = make_home(owner)
    fill(owner, home)
    if by_blocks:
        owner.execute(
            "create or replace function ragpg._worth_blocks(chunks bigint, terms integer)"
            " returns bigint language sql immutable as 'select -1::bigint'"
        )
        filled = owner.execute(
            "select ragpg._fill_block(%s, %s, 1)", [home.tenant, home.collection]
        ).fetchone()
        assert filled == (800,)
    assert {"index", "filtered"} <= check(owner, home, scan_up_to=0)
    # As few as possible are listed, then none although they are said to be many.
    assert check(owner, home, scan_up_to=0, list_up_to=0) <= {"index", "scan", None}
    assert "index" in check(owner, home, scan_up_to=0, is_broad=True)


@pytest.mark.parametrize("rows", [0, 10**12])
def test_an_estimate_that_is_far_off_costs_time_and_no_chunk(owner, rows):
    home = make_home(owner)
    fill(owner, home)
    expect(owner, rows)
    assert {"index", "filtered"} <= check(owner, home, scan_up_to=0)


def test_a_small_collection_is_scanned_under_a_filter_that_passes_much(owner):
    home = make_home(owner)
    fill(owner, home)
    assert {"scan", "filtered"} <= check(owner, home, scan_up_to=7000)


def test_a_filter_is_asked_of_some_of_the_best_before_a_score_is_aimed_at(owner):
    home = make_home(owner)
    fill(owner, home)
    owner.execute("begin")
    owner.execute("select set_config('ragpg.explain', 'analyze', true)")
    search(owner, home, query=QUERIES[0], k=3, tags_any=["half"], scan_up_to=0, list_up_to=99)
    plans = owner.execute("select current_setting('ragpg.explained')").fetchone()[0]
    owner.execute("rollback")
    assert "CTE expected" in plans
    # Of the few that the last statement met, k pass, and the filter was not asked of the rest.
    assert "CTE bar" in plans.split("Execution Time")[-2]
