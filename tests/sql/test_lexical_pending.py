"""Keys that wait in the list of the index of lexemes are found like those that are in the index."""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
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
    remove,
)

# wort1 to wort9 are in many chunks, wort1900 in next to none.
QUERIES = ["wort1 wort2 wort3", "wort1900 wort7 wort31 wort1", "wort250 wort3 wort3", "wort1200"]
EMPTIED = "select gin_clean_pending_list('ragpg.lexeme_vector_keys')"


@pytest.fixture
def large(owner):
    """The owner of a database in which a collection of 100 chunks is large."""
    owner.execute(
        "create or replace function ragpg._scan_up_to() returns integer"
        " language sql immutable as 'select 100'"
    )
    return owner


def empty_list(conn):
    """How many pages of keys had waited."""
    return conn.execute(EMPTIED).fetchone()[0]


def check(conn, home):
    chunks = read_chunks(conn, home)
    for query in QUERIES:
        for k in (1, 20, 150):
            rows = conn.execute(
                "select chunk_id, score, mode from ragpg._search_lexical(%s, %s, %s, %s,"
                " scan_up_to => 0) order by rank",
                [home.tenant, home.collection, query, k],
            ).fetchall()
            assert "scan" not in {row[2] for row in rows}
            found = [(row[0], row[1]) for row in rows]
            assert_same_ranking(found, rank_bm25(chunks, ask(conn, query), k))


def texts(rng, count):
    return [random_text(rng, 2000) for _ in range(count)]


def test_new_keys_wait_in_a_list_that_empties_itself_at_a_quarter_megabyte(large):
    home = make_home(large)
    rng = random.Random(1)  # noqa: S311
    add(large, home, texts(rng, 150))
    assert 5 < empty_list(large) <= 40
    for _ in range(6):
        add(large, home, texts(rng, 150))
        assert empty_list(large) <= 40
    add(large, home, texts(rng, 900))
    # Without an end it would be 100 pages and more.
    assert empty_list(large) <= 40


def test_a_search_is_exact_while_keys_wait_and_when_none_waits_any_more(large):
    home = make_home(large)
    rng = random.Random(2)  # noqa: S311
    ids = add(large, home, texts(rng, 500))
    put_into_index(large, home)
    check(large, home)
    empty_list(large)
    check(large, home)
    late = add(large, home, texts(rng, 40))
    # Some of the keys of chunks that are gone are in the index, others wait.
    remove(large, home, [*ids[:60], *late[:15]])
    check(large, home)
    assert empty_list(large) > 0
    check(large, home)
    add(large, home, texts(rng, 20))
    large.execute("vacuum ragpg.lexeme_vector")
    assert empty_list(large) == 0
    check(large, home)


def test_the_keys_of_a_writer_that_is_killed_or_rolls_back_are_never_found(large, database):
    home = make_home(large)
    rng = random.Random(3)  # noqa: S311
    add(large, home, texts(rng, 200))
    put_into_index(large, home)
    for end in ("rollback", "kill"):
        writer = psycopg.connect(database.owner_url)
        # More than the list holds, so that some of its keys are in the index already.
        add(writer, home, texts(rng, 700))
        if end == "kill":
            large.execute("select pg_terminate_backend(%s)", [writer.info.backend_pid])
            time.sleep(0.2)
        else:
            writer.rollback()
        writer.close()
        check(large, home)
        add(large, home, texts(rng, 20))
        check(large, home)
    empty_list(large)
    large.execute("vacuum ragpg.lexeme_vector")
    check(large, home)


def at_once(*works: Callable[[], object]) -> None:
    """Each in a thread of its own; raises what the first failure was."""
    with ThreadPoolExecutor(max_workers=len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result(timeout=240)


def write(url: str, home: Home, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    with psycopg.connect(url) as conn:
        for turn in range(4):
            ids = add(conn, home, texts(rng, 12))
            conn.commit()
            remove(conn, home, ids[: 1 + turn])
            if turn % 2:
                conn.rollback()
            conn.commit()


def tidy(url: str, home: Home) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for _ in range(8):
            empty_list(conn)
            conn.execute("vacuum ragpg.lexeme_vector")
            # One snapshot, so that what is found is compared with the chunks of that moment.
            with conn.transaction():
                conn.execute("set transaction isolation level repeatable read")
                check(conn, home)


def test_ten_writers_and_who_empties_the_list_beside_them_lose_nothing(large, database):
    home = make_home(large)
    rng = random.Random(4)  # noqa: S311
    add(large, home, texts(rng, 150))
    at_once(
        *(partial(write, database.owner_url, home, seed) for seed in range(10)),
        *(partial(tidy, database.owner_url, home) for _ in range(2)),
    )
    put_into_index(large, home)
    check(large, home)
    empty_list(large)
    check(large, home)


def test_what_the_former_index_held_and_what_is_written_after_the_change_are_both_found(large):
    home = make_home(large)
    rng = random.Random(5)  # noqa: S311
    # As before revision 0018, whose one statement this is undone by.
    large.execute("alter index ragpg.lexeme_vector_keys set (fastupdate = off)")
    add(large, home, texts(rng, 200))
    put_into_index(large, home)
    assert empty_list(large) == 0
    check(large, home)
    large.execute(importlib.import_module("migrations.versions.0018_pending_keys").PENDING)
    check(large, home)
    add(large, home, texts(rng, 30))
    check(large, home)
    assert empty_list(large) > 0
    check(large, home)
