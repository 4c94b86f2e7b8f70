"""The SQL ranking is the BM25 ranking, whatever was written, removed and rolled back before."""

from __future__ import annotations

import random
import threading

import psycopg
import pytest

from tests.sql.lexical_corpus import (
    add,
    ask,
    assert_same_ranking,
    make_home,
    random_text,
    rank_bm25,
    read_chunks,
    remove,
    search,
)

QUERIES = ["wort1", "wort1 wort2 wort3", "wort7 wort150 wort2 wort2", "wort299 wort250 absent"]


def check(conn, home, k=25):
    chunks = read_chunks(conn, home)
    for query in QUERIES:
        assert_same_ranking(search(conn, home, query, k), rank_bm25(chunks, ask(conn, query), k))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_scores_equal_python_before_and_after_updates_and_deletes(owner, seed):
    rng = random.Random(seed)  # noqa: S311
    home = make_home(owner)
    ids = []
    for batch in (1, 3, 40, 1, 100):
        ids += add(owner, home, [random_text(rng) for _ in range(batch)])
    check(owner, home)
    gone = rng.sample(ids, 60)
    remove(owner, home, gone)
    check(owner, home)
    add(owner, home, [random_text(rng) for _ in range(len(gone))])
    check(owner, home)


def test_scores_follow_the_average_length_of_now_although_weights_are_stored(owner):
    rng = random.Random(4)  # noqa: S311
    home = make_home(owner)
    add(owner, home, ["wort1 wort2"] * 3)
    add(owner, home, [" ".join(random_text(rng) for _ in range(5)) for _ in range(80)])
    drift = owner.execute("select drift from ragpg.lexical_health").fetchone()[0]
    assert drift > 10
    check(owner, home)
    owner.execute("select ragpg.rebuild_lexical(%s, %s)", [home.tenant, home.collection])
    drift, advice = owner.execute("select drift, advice from ragpg.lexical_health").fetchone()
    assert 0.99 < drift < 1.01
    assert advice == "good"
    check(owner, home)


def test_texts_that_are_read_otherwise_now_are_to_be_rebuilt(owner):
    home = make_home(owner)
    add(owner, home, ["the pump is adding water", "drained on Monday"])
    advice = "select advice from ragpg.lexical_health"
    assert owner.execute(advice).fetchone() == ("good",)
    # As if this release, or this server, had another stem for adding.
    other = "overlay(weights::text placing '{7:1,' from 1 for 1)::sparsevec"
    owner.execute(f"update ragpg.lexeme_vector set weights = {other} where length > 2")
    assert owner.execute(advice).fetchone()[0].startswith("rebuild: texts are read otherwise now")
    owner.execute("select ragpg.rebuild_lexical(%s, %s)", [home.tenant, home.collection])
    assert owner.execute(advice).fetchone() == ("good",)


def test_a_rolled_back_write_leaves_no_trace(owner):
    rng = random.Random(5)  # noqa: S311
    home = make_home(owner)
    ids = add(owner, home, [random_text(rng) for _ in range(50)])
    before = search(owner, home, "wort1 wort2 wort9")
    with owner.transaction(force_rollback=True):
        add(owner, home, [random_text(rng) for _ in range(20)])
        with owner.transaction(force_rollback=True):
            remove(owner, home, ids[:10])
        remove(owner, home, ids[10:20])
    assert search(owner, home, "wort1 wort2 wort9") == before
    check(owner, home)


def test_scores_are_right_after_ten_concurrent_writers_of_one_tenant(owner, database):
    home = make_home(owner)
    failures: list[BaseException] = []

    def write(seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311
        try:
            with psycopg.connect(database.owner_url) as conn:
                for turn in range(8):
                    ids = add(conn, home, [random_text(rng) for _ in range(rng.randint(2, 6))])
                    if turn % 3 == 1:
                        remove(conn, home, ids[:1])
                    if turn % 4 == 3:
                        conn.rollback()
                    conn.commit()
        except BaseException as failure:
            failures.append(failure)
            raise

    writers = [threading.Thread(target=write, args=[seed]) for seed in range(10)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=60)
    assert not failures
    assert owner.execute(
        "select chunks = stored_chunks, chunks > 150 from ragpg.lexical_health"
    ).fetchone() == (True, True)
    check(owner, home)
    owner.execute("select ragpg.compact_lexical(%s, %s)", [home.tenant, home.collection])
    check(owner, home)


def test_many_small_writes_are_merged_so_that_a_search_reads_few_runs(owner):
    rng = random.Random(6)  # noqa: S311
    home = make_home(owner)
    for _ in range(70):
        add(owner, home, [random_text(rng)])
    runs = owner.execute("select runs from ragpg.lexical_health").fetchone()[0]
    assert runs <= 16
    check(owner, home)


def test_a_removed_lexeme_leaves_the_counts_when_they_are_compacted(owner):
    home = make_home(owner)
    add(owner, home, ["alpha beta", "beta gamma"])
    remove(owner, home, add(owner, home, ["delta"]))
    owner.execute("select ragpg.compact_lexical(%s, %s)", [home.tenant, home.collection])
    counts = owner.execute(
        "select entry.value from ragpg.lexeme_count, ragpg._entries(counts) as entry order by 1"
    ).fetchall()
    assert counts == [(1.0,), (1.0,), (2.0,)]


def test_a_snapshot_sees_the_statistics_and_rows_of_one_moment(owner, database):
    rng = random.Random(7)  # noqa: S311
    home = make_home(owner)
    add(owner, home, [random_text(rng) for _ in range(30)])
    with psycopg.connect(database.owner_url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("select set_config('ragpg.tenant_id', %s, false)", [str(home.tenant)])
        before = search(reader, home, "wort1 wort2 wort3")
        for _ in range(10):
            add(owner, home, [random_text(rng)])
        assert search(reader, home, "wort1 wort2 wort3") == before
        reader.commit()
        assert search(reader, home, "wort1 wort2 wort3") != before


def test_a_writer_under_repeatable_read_does_not_fail_when_runs_are_due(owner, database):
    home = make_home(owner)
    for _ in range(7):
        add(owner, home, ["alpha"])
    with psycopg.connect(database.owner_url) as writer:
        writer.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        writer.execute("select 1")
        add(owner, home, ["beta"])
        add(writer, home, ["gamma"])
    assert len(search(owner, home, "alpha beta gamma", 20)) == 9


def test_equal_texts_score_equal_and_rank_by_chunk_id_in_every_run(owner):
    home = make_home(owner)
    ids = add(owner, home, ["the disk of replica seven is full"] * 12 + ["other words"] * 5)
    for _ in range(20):
        found = search(owner, home, "replica disk full", 5)
        assert [chunk_id for chunk_id, _ in found] == ids[:5]
        assert len({score for _, score in found}) == 1


def test_score_lexical_gives_the_search_scores_and_zero_for_a_chunk_without_a_match(owner):
    rng = random.Random(8)  # noqa: S311
    home = make_home(owner)
    ids = add(owner, home, [random_text(rng) for _ in range(40)] + ["nothing"])
    scores = dict(
        owner.execute(
            "select * from ragpg.score_lexical(%s, %s, 'wort1 wort2', %s)",
            [home.tenant, home.collection, ids],
        ).fetchall()
    )
    assert set(scores) == set(ids)
    assert scores[ids[-1]] == 0
    assert scores | dict(search(owner, home, "wort1 wort2", 50)) == scores


def test_score_lexical_gives_a_chunk_that_is_named_twice_once(owner):
    home = make_home(owner)
    ids = add(owner, home, ["restart the broker", "a slow disk"])
    found = owner.execute(
        "select chunk_id from ragpg.score_lexical(%s, %s, 'disk', %s) order by 1",
        [home.tenant, home.collection, [*ids, *ids]],
    ).fetchall()
    assert found == [(ids[0],), (ids[1],)]


def test_scores_are_looked_up_however_few_chunks_the_statistics_give_a_collection(owner):
    home = make_home(owner)
    ids = add(owner, home, [f"disk number {number}" for number in range(400)])
    with owner.transaction(force_rollback=True):
        for column in ("tenant_id", "collection_id"):
            owner.execute(
                f"alter table ragpg.lexeme_vector alter column {column} set (n_distinct = 1000)"
            )
        owner.execute("analyze ragpg.lexeme_vector")
        owner.execute("set local plan_cache_mode = force_generic_plan")
        owner.execute(
            "prepare scores (integer, integer, bigint[]) as"
            " select * from ragpg._bm25($1, $2, '{1}', '{1}', 3, 3, $3)"
        )
        lines = owner.execute(
            "explain (analyze, costs off, timing off, summary off, buffers off)"
            f" execute scores ({home.tenant}, {home.collection}, '{{{ids[7]}, {ids[300]}}}')"
        ).fetchall()
        owner.execute("deallocate scores")
    plan = "\n".join(line for (line,) in lines)
    assert "chunk_id = wanted.chunk_id" in plan
    assert "chunk_id = ANY" not in plan
    scan = next(line for line in plan.splitlines() if "lexeme_vector_pkey" in line)
    assert "Index Scan" in scan
    assert "loops=2" in scan


def test_explain_adds_up_to_the_score_and_names_every_lexeme(owner):
    home = make_home(owner)
    ids = add(owner, home, ["restart the broker", "the broker is slow", "a slow disk"])
    found = dict(search(owner, home, "restart slow broker absent"))
    rows = owner.execute(
        "select lexeme, chunks, frequency, contribution"
        " from ragpg.explain_lexical('notes', 'restart slow broker absent', %s)",
        [ids[1]],
    ).fetchall()
    assert {(row[0], row[1], row[2]) for row in rows} == {
        ("restart", 1, 0),
        ("slow", 2, 1),
        ("broker", 2, 1),
        ("absent", 0, 0),
    }
    assert sum(row[3] for row in rows) == pytest.approx(found[ids[1]], rel=1e-9)
    lexemes = owner.execute(
        "select lexeme, times, chunks, round(idf::numeric, 4)"
        " from ragpg.query_lexemes('notes', 'slow slow absent')"
    ).fetchall()
    assert [(row[0], row[1], row[2], float(row[3])) for row in lexemes] == [
        ("absent", 1, 0, 2.0794),
        ("slow", 2, 2, 0.47),
    ]


def test_a_rebuild_beside_a_writer_loses_nothing(owner, database):
    rng = random.Random(15)  # noqa: S311
    home = make_home(owner)
    add(owner, home, ["wort1"])
    add(owner, home, [random_text(rng) for _ in range(60)])
    failures: list[BaseException] = []

    def write() -> None:
        mine = random.Random(16)  # noqa: S311
        try:
            with psycopg.connect(database.owner_url) as conn:
                for _ in range(25):
                    ids = add(conn, home, [random_text(mine) for _ in range(4)])
                    conn.commit()
                    remove(conn, home, ids[:1])
                    conn.commit()
        except BaseException as failure:
            failures.append(failure)
            raise

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        owner.execute("select ragpg.rebuild_lexical(%s, %s)", [home.tenant, home.collection])
    writer.join()
    assert not failures
    owner.execute("select ragpg.rebuild_lexical(%s, %s)", [home.tenant, home.collection])
    assert owner.execute("select chunks, stored_chunks from ragpg.lexical_health").fetchone() == (
        136,
        136,
    )
    check(owner, home)
