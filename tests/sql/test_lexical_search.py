"""Filters, expiry, plans, roles and tenants of the lexical arm."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.sql.lexical_corpus import (
    add,
    ask,
    assert_same_ranking,
    make_home,
    put_into_index,
    random_text,
    rank_bm25,
    read_chunks,
    remove,
    search,
)


def test_each_filter_keeps_what_it_names_and_scores_do_not_change(owner):
    home = make_home(owner)
    day = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    first = add(
        owner,
        home,
        ["apple pie"],
        source="wiki",
        tags=["a", "b"],
        key="food/pie",
        modified_at=day,
        metadata='{"year": 2026, "lang": "en"}',
    )
    second = add(
        owner,
        home,
        ["apple tree apple"],
        source="mail",
        tags=["b"],
        key="garden_tree",
        modified_at=day + dt.timedelta(days=1),
        metadata='{"year": 9}',
    )
    third = add(owner, home, ["apple juice and more"], key="food%")
    scores = dict(search(owner, home, "apple"))
    assert set(scores) == {*first, *second, *third}
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"sources": ["wiki"]}, first),
        ({"sources": ["wiki", "mail"]}, first + second),
        ({"sources": []}, []),
        ({"tags_all": ["a", "b"]}, first),
        ({"tags_all": ["b"]}, first + second),
        ({"tags_any": ["a", "x"]}, first),
        ({"tags_any": []}, []),
        ({"modified_from": day}, first + second),
        ({"modified_before": day + dt.timedelta(days=1)}, first),
        ({"modified_from": day + dt.timedelta(days=1)}, second),
        ({"key_prefix": "food"}, first + third),
        ({"key_prefix": "food%"}, third),
        ({"key_prefix": "garden_"}, second),
        ({"filter": "$.year >= 2026"}, first),
        ({"filter": '$.lang == "en" && $.year > 9'}, first),
        ({"filter": "$.missing == 1"}, []),
        ({"sources": ["mail"], "tags_any": ["a"]}, []),
    ]
    for filters, expected in cases:
        found = search(owner, home, "apple", **filters)
        assert {chunk_id for chunk_id, _ in found} == set(expected), filters
        assert all(scores[chunk_id] == score for chunk_id, score in found)


def test_what_has_expired_does_not_come_back_and_what_has_not_does(owner):
    home = make_home(owner)
    now = dt.datetime.now(dt.UTC)
    add(owner, home, ["apple"], expires_at=now - dt.timedelta(seconds=1))
    kept = add(owner, home, ["apple"], expires_at=now + dt.timedelta(hours=1))
    assert [chunk_id for chunk_id, _ in search(owner, home, "apple")] == kept
    assert [chunk_id for chunk_id, _ in search(owner, home, "apple", key_prefix="d")] == kept


def test_a_context_is_found_as_the_text_is(owner):
    home = make_home(owner)
    ids = add(owner, home, ["Revenue grew by 3 %."], context="From the report of Acme on 2023.")
    assert [chunk_id for chunk_id, _ in search(owner, home, "acme report")] == ids


def test_the_recipes_language_reads_documents_and_queries(owner):
    home = make_home(owner, language="german")
    ids = add(owner, home, ["Die Häuser stehen leer."])
    assert [chunk_id for chunk_id, _ in search(owner, home, "ein leeres Haus")] == ids


def by_index(conn, home, query, k, **filters):
    """Ids and scores of the plan for large collections, and the mode that was taken."""
    extra = "".join(f", {name} => %({name})s" for name in filters)
    rows = conn.execute(
        "select chunk_id, score, mode from ragpg._search_lexical("
        f"%(tenant)s, %(collection)s, %(query)s, %(k)s, scan_up_to => 0{extra}) order by rank",
        {"tenant": home.tenant, "collection": home.collection, "query": query, "k": k} | filters,
    ).fetchall()
    return [(row[0], row[1]) for row in rows], {row[2] for row in rows}


def test_the_index_plan_gives_the_exact_ranking(owner):
    rng = random.Random(11)  # noqa: S311
    home = make_home(owner)
    ids = []
    for _ in range(6):
        ids += add(owner, home, [random_text(rng, 2000) for _ in range(400)])
    remove(owner, home, rng.sample(ids, 150))
    assert put_into_index(owner, home, most=1000) == 1000
    chunks = read_chunks(owner, home)
    taken = set()
    queries = [
        " ".join(f"wort{int(2000 ** rng.random())}" for _ in range(size))
        for size in (1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 8, 12, 30)
    ]
    for still in (1250, 0):
        for query in ["wort1", "wort1 wort2 wort3", "wort1999 wort3", "wort3 " * 5, *queries]:
            for k in (1, 20, 150):
                found, mode = by_index(owner, home, query, k)
                assert_same_ranking(found, rank_bm25(chunks, ask(owner, query), k))
                taken |= mode
        assert put_into_index(owner, home) == still
    assert "index" in taken


def test_a_collection_goes_into_the_index_as_it_outgrows_the_scan(owner):
    home = make_home(owner)

    def add_many(first: int, last: int) -> int:
        with owner.transaction():
            # One document of many chunks; the search reads no document.
            owner.execute("set local session_replication_role = replica")
            owner.execute(
                "with made as (insert into ragpg.chunk (tenant_id, collection_id, document_id,"
                " position, start, stop, section_path, table_header, text, text_hash)"
                " select %(tenant)s, %(collection)s, 1, n, 0, 4, '{}', '', 'pear', ''"
                " from generate_series(%(first)s::integer, %(last)s) as n returning *)"
                " insert into ragpg.embedding (tenant_id, chunk_id, collection_id, document_key,"
                " tags, attributes, embedding) select tenant_id, chunk_id, collection_id, 'd', '{}',"
                " '{}', '[1,0,0]' from made",
                {"tenant": home.tenant, "collection": home.collection}
                | {"first": first, "last": last},
            )
            owner.execute(
                "select ragpg.lexical_add(%s, %s, array(select chunk_id from ragpg.chunk"
                " where position between %s and %s))",
                [home.tenant, home.collection, first, last],
            )
        count = owner.execute("select count(*) from ragpg.lexeme_vector where indexed").fetchone()
        assert count
        return int(count[0])

    assert add_many(1, 6900) == 0
    assert add_many(6901, 7000) == 0
    # 200 new ones, and 800 that were waiting.
    assert add_many(7001, 7200) == 1000
    assert len(search(owner, home, "pear", 1000)) == 1000
    owner.execute("select ragpg.compact_lexical(%s, %s)", [home.tenant, home.collection])
    assert add_many(7201, 7201) == 7201


def test_a_filter_gives_the_best_of_what_passes_in_every_plan(owner):
    rng = random.Random(14)  # noqa: S311
    home = make_home(owner)
    for number in range(10):
        add(owner, home, [random_text(rng, 500) for _ in range(60)], source=f"source {number}")
    chunks = read_chunks(owner, home)
    passing = {
        row[0]
        for row in owner.execute(
            "select chunk_id from ragpg.embedding where source in ('source 3', 'source 7')"
        )
    }
    best = rank_bm25(chunks, ask(owner, "wort5 wort9 wort1"), 10_000)
    expected = [pair for pair in best if pair[0] in passing][:50]
    given = {"sources": ["source 3", "source 7"]}
    found, mode = by_index(owner, home, "wort5 wort9 wort1", 50, **given)
    assert mode == {"filtered"}
    assert_same_ranking(found, expected)
    found, mode = by_index(owner, home, "wort5 wort9 wort1", 50, **given, list_up_to=10)
    assert mode <= {"index", "scan"}
    assert_same_ranking(found, expected)


@pytest.mark.parametrize("scan_up_to", [0, 7000])
@pytest.mark.parametrize("k", [5, 500])
def test_a_filter_that_is_known_to_be_broad_is_asked_of_the_best_chunks_alone(owner, scan_up_to, k):
    home = make_home(owner)
    rng = random.Random(31)  # noqa: S311
    for number in range(4):
        add(owner, home, [random_text(rng) for _ in range(100)], source=f"source {number}")
    arguments = {"tenant": home.tenant, "collection": home.collection, "k": k,
                 "scan_up_to": scan_up_to, "sources": ["source 0", "source 2", "source 3"]}  # fmt: skip
    call = (
        "select arm.ids, arm.scores, arm.mode from ragpg._lexical_arm(%(tenant)s, %(collection)s,"
        " 'wort5 wort9 wort1', %(k)s, %(sources)s, null, null, null, null, null, null,"
        " is_broad => {}, scan_up_to => %(scan_up_to)s, list_up_to => 400) as arm"
    )
    ids, scores, mode = owner.execute(call.format("false"), arguments).fetchone()
    assert mode == "filtered"
    assert len(ids) == len(set(ids)) > 4
    broad = owner.execute(call.format("true"), arguments).fetchone()
    assert broad[:2] == (ids, scores)
    assert broad[2] in {"index", "scan"}


def test_the_lexical_arm_keeps_to_the_chunks_that_it_is_handed(owner):
    home = make_home(owner)
    first, second, _ = add(owner, home, ["apple", "apple pie", "apple"])
    for passing, expected in (([second, first], [first, second]), ([second], [second]), ([], None)):
        found = owner.execute(
            "select arm.ids from ragpg._lexical_arm(%s, %s, 'apple', 9, '{wiki}', null, null, null,"
            " null, null, null, %s) as arm",
            [home.tenant, home.collection, passing],
        ).fetchone()
        assert found == (expected,)


def test_the_service_and_the_reader_may_search_but_not_touch_the_index(owner, database):
    home = make_home(owner)
    ids = add(owner, home, ["apple pie"])
    for url in (database.service_url, database.reader_url):
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(home.tenant)])
            assert [chunk_id for chunk_id, _ in search(conn, home, "apple")] == ids
            assert (
                len(conn.execute("select * from ragpg.query_lexemes('notes', 'apple')").fetchall())
                == 1
            )
            assert (
                len(
                    conn.execute(
                        "select * from ragpg.explain_lexical('notes', 'apple', %s)", ids
                    ).fetchall()
                )
                == 1
            )
            for forbidden in [
                "select * from ragpg.lexeme_vector",
                "select * from ragpg.lexeme_count",
                "select * from ragpg.lexical_reference",
                "select ragpg.lexical_add(1, 1, '{1}')",
                "select ragpg.lexical_remove(1, 1, '{1}')",
                "select * from ragpg._search_lexical(1, 1, 'apple')",
                "select * from ragpg.score_lexical(1, 1, 'apple', '{1}')",
                "select * from ragpg._query_terms(1, 1, 'apple')",
                "select ragpg.compact_lexical(1, 1)",
                "select ragpg.rebuild_lexical(1, 1)",
            ]:
                with pytest.raises(errors.InsufficientPrivilege):
                    conn.execute(forbidden)


@pytest.mark.parametrize("setting", ["", "not a number", "0", "-1"])
def test_without_a_tenant_every_function_refuses(owner, database, setting):
    home = make_home(owner)
    ids = add(owner, home, ["apple pie"])
    with psycopg.connect(database.service_url, autocommit=True) as conn:
        conn.execute("select set_config('ragpg.tenant_id', %s, false)", [setting])
        for call in [
            "select * from ragpg.search_lexical('notes', 'apple')",
            "select * from ragpg.query_lexemes('notes', 'apple')",
            f"select * from ragpg.explain_lexical('notes', 'apple', {ids[0]})",
        ]:
            with pytest.raises(psycopg.Error) as raised:
                conn.execute(call)
            assert raised.value.sqlstate == "RG001"


def test_another_tenants_words_change_neither_hits_nor_scores_nor_counts(owner):
    ours = make_home(owner)
    add(owner, ours, ["apple pie", "pear"])
    before = search(owner, ours, "apple pie")
    theirs = make_home(owner)
    foreign = add(owner, theirs, ["apple pie apple"] * 30)
    assert len(search(owner, theirs, "apple", 50)) == 30
    owner.execute("select set_config('ragpg.tenant_id', %s, false)", [str(ours.tenant)])
    assert search(owner, ours, "apple pie") == before
    assert (
        owner.execute(
            "select * from ragpg.explain_lexical('notes', 'apple', %s)", [foreign[0]]
        ).fetchall()
        == []
    )
    assert owner.execute("select chunks from ragpg.query_lexemes('notes', 'apple')").fetchall() == [
        (1,)
    ]


def test_two_collections_of_one_tenant_have_statistics_of_their_own(owner):
    home = make_home(owner)
    add(owner, home, ["apple pie", "pear"])
    before = search(owner, home, "apple")
    made = owner.execute(
        "select ragpg.create_collection('other', to_jsonb(collection)"
        " - '{tenant_id,collection_id,name,created_at}'::text[]) from ragpg.collection"
    ).fetchone()[0]
    other = type(home)(tenant=home.tenant, collection=made, name="other")
    add(owner, other, ["apple"] * 9)
    assert search(owner, home, "apple") == before
    assert len(search(owner, other, "apple")) == 9


def test_hostile_text_in_any_argument_neither_raises_nor_finds_more(owner):
    rng = random.Random(12)  # noqa: S311
    home = make_home(owner)
    ids = add(owner, home, ["apple pie", "pear tree"])
    pieces = [
        "'",
        '"',
        "\\",
        ";",
        "--",
        "$1",
        "$x$",
        "%s",
        "%1$s",
        "%",
        "{",
        "}",
        "(",
        ")",
        "&",
        "|",
        "!",
        ":*",
        "apple",
        "pear",
        "or 1=1",
        "union select",
        "\n",
        "é",
        "연결",
        "💥",
    ]
    for _ in range(300):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 8)))
        found = search(owner, home, text)
        assert {chunk_id for chunk_id, _ in found} <= set(ids)
        assert search(owner, home, "apple", sources=[text], tags_all=[text]) == []
        assert search(owner, home, "apple", key_prefix=text, tags_any=[text]) == []
    for collection in ["no'tes", "notes; drop", ""]:
        with pytest.raises(psycopg.Error) as raised:
            owner.execute("select * from ragpg.search_lexical(%s, 'apple')", [collection])
        assert raised.value.sqlstate == "RG003"


@pytest.mark.parametrize("k", [0, -1, 1001, None])
def test_a_k_out_of_range_is_refused(owner, k):
    make_home(owner)
    with pytest.raises(psycopg.Error) as raised:
        owner.execute("select * from ragpg.search_lexical('notes', 'apple', %s)", [k])
    assert raised.value.sqlstate == "RG009"


def test_a_query_of_a_whole_book_is_answered(owner):
    rng = random.Random(13)  # noqa: S311
    home = make_home(owner)
    ids = add(owner, home, ["wort1 wort2", "wort3"])
    query = " ".join(f"word{rng.randrange(10**6)}" for _ in range(20_000)) + " wort3"
    assert [chunk_id for chunk_id, _ in search(owner, home, query)] == ids[1:]


def test_an_empty_collection_and_an_emptied_one_find_nothing(owner):
    home = make_home(owner)
    assert search(owner, home, "apple") == []
    remove(owner, home, add(owner, home, ["apple"]))
    assert search(owner, home, "apple") == []
    assert owner.execute(
        "select sum(chunks), sum(total_length) from ragpg.lexeme_count"
    ).fetchone() == (0, 0)


def test_the_python_reference_ranks_by_hand_computed_scores():
    chunks = {1: Counter({"a": 1}), 2: Counter({"a": 2, "b": 2})}
    ((chunk_id, score),) = rank_bm25(chunks, {"b": 1}, 5)
    # idf ln 2; two occurrences in a chunk of length 4 where the average is 2.5
    assert (chunk_id, round(score, 5)) == (2, 0.81547)
