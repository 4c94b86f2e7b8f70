"""Upkeep of BM25 indexes: what is planned, done in steps beside searches and writers, and gone on with."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from ragpg import upkeep
from ragpg.errors import ConflictError
from ragpg.upkeep import dense_index, lexical_index
from ragpg.upkeep.lexical_index import LexicalChange, LexicalProgress
from tests.sql.lexical_corpus import (
    Home,
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
# As if this release, or this server, had another stem for one lexeme of each text.
READ_OTHERWISE = (
    "update ragpg.lexeme_vector set weights = overlay(weights::text placing '{7:1,'"
    " from 1 for 1)::sparsevec"
)


def check(conn: psycopg.Connection, home: Home, k: int = 25) -> None:
    chunks = read_chunks(conn, home)
    for query in QUERIES:
        assert_same_ranking(search(conn, home, query, k), rank_bm25(chunks, ask(conn, query), k))


@pytest.fixture
def home(owner):
    """A collection of 120 chunks of which one lexeme each is not as tokenize reads it now."""
    rng = random.Random(20)  # noqa: S311
    made = make_home(owner)
    add(owner, made, [random_text(rng) for _ in range(120)])
    owner.execute(READ_OTHERWISE)
    return made


def left_over(owner: psycopg.Connection) -> tuple[int, int, int]:
    row = owner.execute(
        "select (select count(*) from ragpg.lexical_rebuild),"
        " (select count(*) from ragpg.lexeme_rebuild),"
        " (select count(*) from ragpg.lexeme_rebuild_count)"
    ).fetchone()
    assert row
    return row


def advice(owner: psycopg.Connection) -> str:
    row = owner.execute("select advice from ragpg.lexical_health").fetchone()
    assert row
    return str(row[0])


def test_a_plan_says_what_it_would_rebuild_and_why_and_does_nothing(owner, database, home):
    found = upkeep.plan(database.owner_url)
    assert found.lexical == (
        LexicalChange(
            action="rebuild",
            tenant_id=home.tenant,
            collection_id=home.collection,
            tenant="tenant 0",
            collection="notes",
            chunks=120,
            done=0,
            reason="texts are read otherwise now, by a new release or another PostgreSQL",
        ),
    )
    assert found.lexical[0].seconds > found.lexical[0].writers_wait_s > 0
    assert advice(owner).startswith("rebuild: texts are read otherwise now")
    assert left_over(owner) == (0, 0, 0)


def test_a_plan_is_about_every_tenant_and_leaves_good_collections_out(owner, database, home):
    add(owner, make_home(owner), ["a pump"])
    poor = make_home(owner, "poor")
    add(owner, poor, ["a pump", "a valve"])
    owner.execute("delete from ragpg.lexeme_count where collection_id = %s", [poor.collection])
    found = upkeep.plan(database.owner_url).lexical
    assert [(one.tenant, one.collection, one.reason) for one in found] == [
        (
            "tenant 0",
            "notes",
            "texts are read otherwise now, by a new release or another PostgreSQL",
        ),
        ("tenant 2", "poor", "counts differ from the stored chunks"),
    ]


def test_an_apply_rebuilds_and_tells_where_it_is(owner, database, home, monkeypatch):
    monkeypatch.setattr(lexical_index, "REBUILD_CHUNKS", 50)
    told: list[upkeep.Progress] = []
    done = upkeep.apply(database.owner_url, progress=told.append)
    assert [one.action for one in done.lexical] == ["rebuild"]
    assert [
        (one.doing, one.done, one.total) for one in told if isinstance(one, LexicalProgress)
    ] == [
        ("reading texts", 0, 120),
        ("reading texts", 50, 120),
        ("reading texts", 100, 120),
        ("exchanging", 120, 120),
    ]
    assert (advice(owner), left_over(owner)) == ("good", (0, 0, 0))
    check(owner, home)
    assert upkeep.apply(database.owner_url).lexical == ()


def test_until_the_exchange_a_search_reads_the_old_index_as_a_whole(owner, database, home):
    before = search(owner, home, QUERIES[1])
    owner.execute("select ragpg.rebuild_lexical_step(1, 1, 60)")
    assert search(owner, home, QUERIES[1]) == before
    assert advice(owner).startswith("rebuild: texts are read otherwise now")
    with psycopg.connect(database.owner_url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("select set_config('ragpg.tenant_id', %s, false)", [str(home.tenant)])
        assert search(reader, home, QUERIES[1]) == before
        upkeep.apply(database.owner_url)
        assert search(reader, home, QUERIES[1]) == before
        reader.commit()
        check(reader, home)


def test_chunks_that_come_change_and_go_during_a_rebuild_are_as_they_are_at_its_end(
    owner, database, home
):
    ids = [chunk_id for (chunk_id,) in owner.execute("select chunk_id from ragpg.chunk order by 1")]
    owner.execute("select ragpg.rebuild_lexical_step(1, 1, 60)")
    remove(owner, home, ids[:10])
    add(owner, home, ["wort1 wort150 wort299"] * 7)
    # As publish writes a context that lacked: the chunk stays, its lexemes are written anew.
    changed = ids[20:25]
    owner.execute("select ragpg.lexical_remove(1, 1, %s)", [changed])
    owner.execute(
        "update ragpg.chunk set context = 'wort250 wort250' where chunk_id = any (%s)", [changed]
    )
    owner.execute("select ragpg.lexical_add(1, 1, %s)", [changed])
    upkeep.apply(database.owner_url)
    check(owner, home)
    assert owner.execute(
        "select chunks, stored_chunks, advice from ragpg.lexical_health"
    ).fetchone() == (117, 117, "good")
    counted = (
        "select entry.number, sum(entry.value) from {}, ragpg._entries({}) as entry group by 1"
    )
    assert sorted(owner.execute(counted.format("ragpg.lexeme_count", "counts"))) == sorted(
        owner.execute(
            "select entry.number, count(*)::double precision from ragpg.lexeme_vector,"
            " ragpg._entries(weights) as entry group by 1"
        )
    )


def test_an_apply_that_is_stopped_keeps_what_it_has_and_the_next_one_goes_on(
    owner, database, home, monkeypatch
):
    monkeypatch.setattr(lexical_index, "REBUILD_CHUNKS", 50)
    stop = threading.Event()

    def after_the_first_step(now: upkeep.Progress) -> None:
        if now.done == 50:
            blocker.execute("lock table ragpg.lexeme_rebuild in share mode")
            stop.set()

    with psycopg.connect(database.owner_url) as blocker:
        began = time.monotonic()
        with pytest.raises(
            ConflictError, match="BM25 index of 'notes' of tenant 'tenant 0' was st"
        ):
            upkeep.apply(database.owner_url, progress=after_the_first_step, stop=stop)
        assert time.monotonic() - began < 20
    assert left_over(owner) == (1, 50, 1)
    (change,) = upkeep.plan(database.owner_url).lexical
    assert (change.chunks, change.done) == (120, 50)
    told: list[upkeep.Progress] = []
    upkeep.apply(database.owner_url, progress=told.append)
    assert [one.done for one in told if one.doing == "reading texts"] == [50, 100]
    assert (advice(owner), left_over(owner)) == ("good", (0, 0, 0))
    check(owner, home)


def test_a_rebuild_that_was_begun_is_finished_though_nothing_else_wants_it(owner, database, home):
    owner.execute("select ragpg.rebuild_lexical(1, 1)")
    owner.execute("select ragpg.rebuild_lexical_step(1, 1, 60)")
    (change,) = upkeep.plan(database.owner_url).lexical
    assert (change.reason, change.done) == ("a rebuild was begun and is not finished", 60)
    upkeep.apply(database.owner_url)
    assert left_over(owner) == (0, 0, 0)
    check(owner, home)


def test_what_another_release_has_read_is_not_used(owner, database, home):
    owner.execute("select ragpg.rebuild_lexical_step(1, 1, 60)")
    owner.execute("update ragpg.lexical_rebuild set reading = 'another release'")
    owner.execute("update ragpg.lexeme_rebuild set weights = '{7:1}/1000000000'")
    upkeep.apply(database.owner_url)
    check(owner, home)


def test_the_rows_of_a_rebuild_go_with_their_collection(owner, home):
    owner.execute("select ragpg.rebuild_lexical_step(1, 1, 60)")
    owner.execute("select ragpg.delete_collection('notes')")
    assert left_over(owner) == (0, 0, 0)


def test_a_collection_that_is_deleted_during_its_rebuild_ends_it(
    owner, database, home, monkeypatch
):
    monkeypatch.setattr(lexical_index, "REBUILD_CHUNKS", 50)

    def delete_after_the_first_step(now: upkeep.Progress) -> None:
        if (now.doing, now.done) == ("reading texts", 50):
            owner.execute("select ragpg.delete_collection('notes')")

    done = upkeep.apply(database.owner_url, progress=delete_after_the_first_step)
    assert [one.action for one in done.lexical] == ["rebuild"]
    assert left_over(owner) == (0, 0, 0)
    assert owner.execute("select count(*) from ragpg.lexeme_count").fetchone() == (0,)


def test_a_collection_that_was_emptied_needs_no_rebuild(owner, database):
    home = make_home(owner)
    chunks = add(owner, home, ["wort1 wort2 wort3 wort4 wort5"] * 3)
    remove(owner, home, chunks)
    assert owner.execute(
        "select chunks, stored_chunks, advice from ragpg.lexical_health"
    ).fetchone() == (0, 0, "good")
    assert upkeep.plan(database.owner_url).lexical == ()


def test_runs_of_counts_are_compacted(owner, database):
    home = make_home(owner)
    with psycopg.connect(database.owner_url) as writer:
        # Under this isolation writers leave their runs to others.
        writer.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for _ in range(30):
            add(writer, home, ["wort1 wort2 wort3"])
            writer.commit()
    (change,) = upkeep.plan(database.owner_url).lexical
    assert (change.action, change.reason) == ("compact", "many runs of counts")
    upkeep.apply(database.owner_url)
    assert owner.execute("select runs, advice from ragpg.lexical_health").fetchone() == (1, "good")
    check(owner, home)


def test_rows_of_a_large_collection_that_are_not_indexed_are_put_into_the_index(
    owner, database, monkeypatch
):
    monkeypatch.setattr(lexical_index, "COMPACT_CHUNKS", 10)
    rng = random.Random(22)  # noqa: S311
    home = make_home(owner)
    add(owner, home, [random_text(rng) for _ in range(25)])
    assert upkeep.plan(database.owner_url).lexical == ()
    # As if scanning ended here: what a search scores does not depend on it.
    owner.execute(
        "create or replace function ragpg._scan_up_to() returns integer language sql immutable"
        " parallel safe begin atomic select 20; end"
    )
    told: list[upkeep.Progress] = []
    done = upkeep.apply(database.owner_url, progress=told.append)
    assert [(one.action, one.reason) for one in done.lexical] == [
        ("compact", "25 chunks of a large collection are not in its index yet")
    ]
    assert [(one.doing, one.done) for one in told] == [
        ("indexing", 10),
        ("indexing", 20),
        ("indexing", 25),
        ("merging counts", 0),
    ]
    assert owner.execute(
        "select count(*) from ragpg.lexeme_vector where not indexed"
    ).fetchone() == (0,)
    check(owner, home)


def test_a_rebuild_puts_the_rows_of_a_large_collection_into_the_index_when_it_has_exchanged_them(
    owner, database, home, monkeypatch
):
    monkeypatch.setattr(lexical_index, "COMPACT_CHUNKS", 50)
    owner.execute(
        "create or replace function ragpg._scan_up_to() returns integer language sql immutable"
        " parallel safe begin atomic select 20; end"
    )
    owner.execute("update ragpg.lexeme_vector set indexed = true")
    indexed = "select count(*) filter (where indexed), count(*) from ragpg.lexeme_vector"
    told: list[upkeep.Progress] = []

    def check_each(now: upkeep.Progress) -> None:
        told.append(now)
        if now.doing == "indexing":
            check(owner, home)

    upkeep.apply(database.owner_url, progress=check_each)
    assert [(one.doing, one.done) for one in told] == [
        ("reading texts", 0),
        ("exchanging", 120),
        ("indexing", 50),
        ("indexing", 100),
        ("indexing", 120),
    ]
    assert owner.execute(indexed).fetchone() == (120, 120)
    assert upkeep.plan(database.owner_url).lexical == ()


def test_a_rebuild_leaves_the_rows_of_a_small_collection_to_the_scan(owner, database, home):
    owner.execute("update ragpg.lexeme_vector set indexed = true")
    upkeep.apply(database.owner_url)
    assert owner.execute("select distinct indexed from ragpg.lexeme_vector").fetchall() == [
        (False,)
    ]
    check(owner, home)


def run_beside(database, home, work: Callable[[], object]) -> list[int]:
    """How many writes and searches were done beside `work`, each by its threads; none may fail."""
    over = threading.Event()
    failures: list[BaseException] = []
    done = [0, 0]

    def until_over(place: int, act: Callable[[psycopg.Connection, random.Random], None]) -> None:
        rng = random.Random(place)  # noqa: S311
        try:
            with psycopg.connect(database.owner_url) as conn:
                conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(home.tenant)])
                while not over.is_set():
                    act(conn, rng)
                    conn.commit()
                    done[place] += 1
        except BaseException as failure:
            failures.append(failure)
            raise

    def write(conn: psycopg.Connection, rng: random.Random) -> None:
        ids = add(conn, home, [random_text(rng) for _ in range(3)])
        if rng.random() < 0.5:
            remove(conn, home, ids[:1])

    def read(conn: psycopg.Connection, _rng: random.Random) -> None:
        assert len(search(conn, home, "wort1 wort2", 20)) == 20

    threads = [threading.Thread(target=until_over, args=[0, write]) for _ in range(4)]
    threads += [threading.Thread(target=until_over, args=[1, read])]
    for thread in threads:
        thread.start()
    try:
        work()
    finally:
        over.set()
        for thread in threads:
            thread.join(timeout=60)
    assert not failures
    return done


def test_rebuilds_beside_four_writers_and_a_reader_come_to_an_end_and_lose_nothing(
    owner, database, home
):
    def work() -> None:
        for _ in range(4):
            owner.execute("select ragpg.rebuild_lexical_step(1, 1, 100)")
            upkeep.apply(database.owner_url)

    writes, reads = run_beside(database, home, work)
    assert writes > 0
    assert reads > 0
    assert owner.execute(
        "select chunks = stored_chunks, advice from ragpg.lexical_health"
    ).fetchone() == (
        True,
        "good",
    )
    check(owner, home)


def test_a_rebuild_under_a_stricter_isolation_is_refused(owner, database, home):
    with psycopg.connect(database.owner_url) as conn:
        conn.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        with pytest.raises(
            psycopg.Error, match="under serializable, in which it would not"
        ) as raised:
            conn.execute("select ragpg.rebuild_lexical(1, 1)")
    assert raised.value.sqlstate == "RG009"


def test_an_apply_on_a_server_with_another_default_isolation_rebuilds(owner, database, home):
    owner.execute(
        f"alter database \"{database.name}\" set default_transaction_isolation = 'serializable'"
    )
    upkeep.apply(database.owner_url)
    assert advice(owner) == "good"


def test_two_applies_at_once_are_one_and_a_refusal(owner, database, home):
    owner.execute("select pg_advisory_lock(%s)", [dense_index.INDEX_LOCK])
    with pytest.raises(ConflictError, match="another `ragpg index apply` is at work"):
        upkeep.apply(database.owner_url)
    assert advice(owner).startswith("rebuild: ")


def test_estimates_go_by_the_size_up_to_which_collections_are_scanned(owner):
    assert owner.execute("select ragpg._scan_up_to()").fetchone() == (lexical_index.SCANNED,)
