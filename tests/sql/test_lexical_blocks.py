"""What the blocks of columns find is the BM25 ranking, whatever came, went and waits."""

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
    put_into_index,
    random_text,
    rank_bm25,
    read_chunks,
    remove,
)

# wort1 to wort9 are in many chunks, wort900 in next to none.
QUERIES = [
    "wort1 wort2 wort3",
    "wort5 wort1 wort2 wort2 wort8 wort13",
    "wort4 wort900 wort7 wort31 wort1",
    "wort1 wort2 wort3 wort4 wort5 wort6 wort7 wort8 wort9 wort10 wort11 wort12 wort13",
]


@pytest.fixture
def eager(owner):
    """The owner of a database in which blocks are used from the first visit of the index on."""
    owner.execute(
        "create or replace function ragpg._worth_blocks(chunks bigint, terms integer)"
        " returns bigint language sql immutable as 'select -1::bigint'"
    )
    return owner


def fill(conn, home, fewest=1):
    row = conn.execute(
        "select ragpg._fill_block(%s, %s, %s)", [home.tenant, home.collection, fewest]
    ).fetchone()
    return row[0]


def reaching(conn, home, query, need):
    """What the blocks find, or None where the index is read."""
    row = conn.execute(
        "select found from ragpg._query_weights(%(tenant)s, %(collection)s, %(query)s)"
        " as asked, ragpg._reaching(%(tenant)s, %(collection)s, asked.numbers, asked.factors,"
        " asked.frequencies, null, asked.chunks, %(need)s, 0) as found",
        {"tenant": home.tenant, "collection": home.collection, "query": query, "need": need},
    ).fetchone()
    return row[0]


def check(conn, home):
    chunks = read_chunks(conn, home)
    for query in QUERIES:
        for k in (1, 20, 150):
            rows = conn.execute(
                "select chunk_id, score, mode from ragpg._search_lexical(%s, %s, %s, %s,"
                " scan_up_to => 0) order by rank",
                [home.tenant, home.collection, query, k],
            ).fetchall()
            assert {row[2] for row in rows} == {"index"}
            found = [(row[0], row[1]) for row in rows]
            assert_same_ranking(found, rank_bm25(chunks, ask(conn, query), k))


def unaccounted(conn):
    """Indexed chunks that neither wait nor are in a block: none may be."""
    return conn.execute(
        "select count(*) from ragpg.lexeme_vector as vector"
        " where indexed and not exists (select from ragpg.lexeme_waiting as waiting"
        "   where waiting.chunk_id = vector.chunk_id)"
        " and not exists (select from ragpg.lexeme_block as block"
        "   where vector.chunk_id = any (block.chunk_ids))"
    ).fetchone()[0]


def test_the_blocks_give_the_exact_ranking_after_every_kind_of_change(eager):
    rng = random.Random(3)  # noqa: S311
    home = make_home(eager)
    ids = add(eager, home, [random_text(rng, 2000) for _ in range(1500)])
    assert put_into_index(eager, home) == 1500
    assert eager.execute("select count(*) from ragpg.lexeme_waiting").fetchone() == (1500,)
    check(eager, home)
    assert fill(eager, home) == 1500
    assert eager.execute("select count(*) from ragpg.lexeme_waiting").fetchone() == (0,)
    # Few chunks are left to be scored, so it is the blocks that were read.
    assert 0 < len(reaching(eager, home, QUERIES[0], 1.5)) < 300
    check(eager, home)
    remove(eager, home, rng.sample(ids, 400))
    check(eager, home)
    ids += add(eager, home, [random_text(rng, 2000) for _ in range(300)])
    assert put_into_index(eager, home) == 300
    check(eager, home)
    assert fill(eager, home) == 300
    check(eager, home)
    assert unaccounted(eager) == 0


@pytest.mark.parametrize("sampled", ["null", "1e-9", "2.5", "1e9"])
def test_a_sampled_score_that_is_far_off_costs_time_and_no_chunk(eager, sampled):
    eager.execute(
        "create or replace function ragpg._sampling(tenant integer, collection integer,"
        " numbers integer[], factors double precision[], common boolean[], chunks bigint,"
        " k integer, passes text) returns text language sql stable as $$ select"
        f" 'select {sampled}::double precision, null::bigint[], null::float, null::float' $$"
    )
    rng = random.Random(16)  # noqa: S311
    home = make_home(eager)
    add(eager, home, [random_text(rng, 2000) for _ in range(400)])
    put_into_index(eager, home)
    assert fill(eager, home) == 400
    check(eager, home)


def test_common_words_are_found_without_the_index_of_lexemes(eager):
    rng = random.Random(17)  # noqa: S311
    home = make_home(eager)
    add(eager, home, [random_text(rng) for _ in range(400)])
    put_into_index(eager, home)
    assert fill(eager, home) == 400
    expected = rank_bm25(read_chunks(eager, home), ask(eager, QUERIES[0]), 10)
    eager.execute("drop index ragpg.lexeme_vector_keys")
    # Whoever asks for keys without their index computes them of every chunk, and is found out.
    eager.execute(
        "create or replace function ragpg.lexeme_keys(collection_id integer, weights sparsevec)"
        " returns tsvector language sql immutable as 'select (1 / 0)::text::tsvector'"
    )
    found = eager.execute(
        "select chunk_id, score from ragpg._search_lexical(%s, %s, %s, 10, scan_up_to => 0)"
        " order by rank",
        [home.tenant, home.collection, QUERIES[0]],
    ).fetchall()
    assert_same_ranking(found, expected)


def test_a_chunk_that_is_indexed_anew_under_its_number_is_found_by_what_it_holds_now(eager):
    rng = random.Random(4)  # noqa: S311
    home = make_home(eager)
    ids = add(eager, home, [random_text(rng, 300) for _ in range(600)])
    put_into_index(eager, home)
    assert fill(eager, home) == 600
    changed = [ids[7], ids[401]]
    eager.execute(
        "select ragpg.lexical_remove(%s, %s, %s)", [home.tenant, home.collection, changed]
    )
    eager.execute(
        "update ragpg.chunk set context = 'wort1 wort2 wort3 wort4 wort5' where chunk_id = any (%s)",
        [changed],
    )
    eager.execute("select ragpg.lexical_add(%s, %s, %s)", [home.tenant, home.collection, changed])
    check(eager, home)
    assert put_into_index(eager, home) == 2
    check(eager, home)
    assert fill(eager, home) == 2
    check(eager, home)
    assert unaccounted(eager) == 0


def test_a_block_that_is_rolled_back_leaves_its_chunks_waiting(eager):
    rng = random.Random(5)  # noqa: S311
    home = make_home(eager)
    add(eager, home, [random_text(rng) for _ in range(300)])
    put_into_index(eager, home)
    with eager.transaction(force_rollback=True):
        assert fill(eager, home) == 300
        check(eager, home)
    assert eager.execute("select count(*) from ragpg.lexeme_waiting").fetchone() == (300,)
    check(eager, home)


def test_fewer_chunks_than_asked_for_stay_waiting(owner):
    home = make_home(owner)
    add(owner, home, ["pear"] * 9)
    put_into_index(owner, home)
    assert fill(owner, home, fewest=10) == 0
    assert fill(owner, home, fewest=9) == 9


def test_chunks_that_a_block_takes_in_may_be_removed_meanwhile(eager, database):
    rng = random.Random(8)  # noqa: S311
    home = make_home(eager)
    ids = add(eager, home, [random_text(rng) for _ in range(400)])
    put_into_index(eager, home)
    with psycopg.connect(database.owner_url) as filler:
        assert fill(filler, home) == 400
        # Waits for nobody: neither this one for the filler, nor a second filler for the first.
        eager.execute("set lock_timeout = '5s'")
        remove(eager, home, ids[:50])
        assert fill(eager, home) == 0
        filler.rollback()
    # The rows of chunks that are gone stayed behind, and do no harm.
    check(eager, home)
    assert fill(eager, home) == 400
    check(eager, home)
    assert unaccounted(eager) == 0


def test_rankings_are_right_after_writers_and_fillers_of_one_collection(eager, database):
    home = make_home(eager)
    first = random.Random(1)  # noqa: S311
    add(eager, home, [random_text(first) for _ in range(200)])
    put_into_index(eager, home)
    failures: list[BaseException] = []

    def write(seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311
        try:
            with psycopg.connect(database.owner_url) as conn:
                for turn in range(6):
                    ids = add(conn, home, [random_text(rng) for _ in range(rng.randint(5, 15))])
                    put_into_index(conn, home)
                    conn.commit()
                    remove(conn, home, ids[: 1 + turn])
                    if turn % 2:
                        conn.rollback()
                    fill(conn, home, fewest=1 + 10 * turn)
                    conn.commit()
        except BaseException as failure:
            failures.append(failure)
            raise

    writers = [threading.Thread(target=write, args=[seed]) for seed in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=120)
    assert not failures
    put_into_index(eager, home)
    check(eager, home)
    assert unaccounted(eager) == 0


def test_a_writer_fills_a_block_when_enough_chunks_wait(eager):
    eager.execute(
        "create or replace function ragpg._block_rows() returns integer"
        " language sql immutable as 'select 50'"
    )
    eager.execute(
        "create or replace function ragpg._scan_up_to() returns integer"
        " language sql immutable as 'select 60'"
    )
    rng = random.Random(9)  # noqa: S311
    home = make_home(eager)
    for _ in range(12):
        add(eager, home, [random_text(rng) for _ in range(20)])
    blocks, waiting = eager.execute(
        "select (select array_agg(cardinality(chunk_ids)) from ragpg.lexeme_block),"
        " (select count(*) from ragpg.lexeme_waiting)"
    ).fetchone()
    assert blocks == [50, 50, 50, 50]
    assert waiting == 40
    check(eager, home)


def test_a_search_under_a_filter_is_exact_by_way_of_the_blocks(eager):
    rng = random.Random(10)  # noqa: S311
    home = make_home(eager)
    ids = add(eager, home, [random_text(rng) for _ in range(500)], source="kept")
    add(eager, home, [random_text(rng) for _ in range(100)], source="other")
    put_into_index(eager, home)
    assert fill(eager, home) == 600
    chunks = read_chunks(eager, home)
    every = rank_bm25(chunks, ask(eager, QUERIES[1]), 600)
    expected = [pair for pair in every if pair[0] in set(ids)][:20]
    found = eager.execute(
        "select chunk_id, score from ragpg._search_lexical(%s, %s, %s, 20, sources => '{kept}',"
        " scan_up_to => 0, list_up_to => 10) order by rank",
        [home.tenant, home.collection, QUERIES[1]],
    ).fetchall()
    assert_same_ranking(found, expected)


def test_too_many_waiting_chunks_are_left_to_the_index(eager):
    eager.execute(
        "create or replace function ragpg._scan_up_to() returns integer"
        " language sql immutable as 'select 60'"
    )
    rng = random.Random(12)  # noqa: S311
    home = make_home(eager)
    add(eager, home, [random_text(rng) for _ in range(50)])
    put_into_index(eager, home)
    fill(eager, home)
    add(eager, home, [random_text(rng) for _ in range(61)])
    assert reaching(eager, home, QUERIES[0], 1.0) is None
    check(eager, home)
    fill(eager, home)
    assert reaching(eager, home, QUERIES[0], 1.0) is not None
    check(eager, home)


def counts(conn):
    """Waiting chunks, blocks, and chunks in blocks."""
    return conn.execute(
        "select (select count(*) from ragpg.lexeme_waiting), count(*),"
        " coalesce(sum(cardinality(chunk_ids)), 0) from ragpg.lexeme_block"
    ).fetchone()


def test_a_rebuild_that_changes_weights_gives_up_the_blocks_that_held_them(eager):
    rng = random.Random(13)  # noqa: S311
    home = make_home(eager)
    # Fixed, since an average that has moved would change every weight.
    eager.execute(
        "insert into ragpg.lexical_reference values (%s, %s, 30)", [home.tenant, home.collection]
    )
    ids = add(eager, home, [random_text(rng) for _ in range(100)])
    put_into_index(eager, home)
    fill(eager, home)
    # As by another release: the blocks hold weights that are no longer true.
    for changed, left in ((9, (0, 1, 100)), (90, (19, 1, 9))):
        eager.execute(
            "update ragpg.chunk set context = 'wort1 wort2 wort3' where chunk_id = any (%s)",
            [ids[:changed]],
        )
        eager.execute("update ragpg.lexeme_count set total_length = 30 * chunks")
        eager.execute("select ragpg.rebuild_lexical(%s, %s)", [home.tenant, home.collection])
        assert counts(eager) == left
        check(eager, home)
        put_into_index(eager, home)
        check(eager, home)
        fill(eager, home)
        check(eager, home)
        assert unaccounted(eager) == 0


def test_compacting_puts_the_rest_into_a_block_and_renews_one_that_is_mostly_gone(eager):
    eager.execute(
        "create or replace function ragpg._block_rows() returns integer"
        " language sql immutable as 'select 80'"
    )
    eager.execute(
        "create or replace function ragpg._scan_up_to() returns integer"
        " language sql immutable as 'select 60'"
    )
    rng = random.Random(15)  # noqa: S311
    home = make_home(eager)
    ids = add(eager, home, [random_text(rng) for _ in range(170)])
    assert counts(eager) == (90, 1, 80)
    remove(eager, home, ids[:50])
    assert counts(eager) == (90, 1, 80)
    eager.execute("select ragpg.compact_lexical(%s, %s)", [home.tenant, home.collection])
    # Of 170 chunks 120 are left, 30 of them in the block that is mostly gone.
    assert counts(eager) == (0, 2, 120)
    check(eager, home)
    assert unaccounted(eager) == 0


def test_a_deleted_collection_leaves_nothing_behind(owner):
    home = make_home(owner)
    add(owner, home, ["pear apple"] * 20)
    put_into_index(owner, home)
    fill(owner, home)
    add(owner, home, ["pear"])
    owner.execute("select ragpg.delete_collection('notes')")
    assert owner.execute(
        "select (select count(*) from ragpg.lexeme_waiting), (select count(*) from"
        " ragpg.lexeme_block), (select count(*) from ragpg.lexeme_column)"
    ).fetchone() == (0, 0, 0)


def test_many_blocks_of_gone_chunks_are_told_and_compacted_away(eager):
    eager.execute(
        "create or replace function ragpg._scan_up_to() returns integer"
        " language sql immutable as 'select 20'"
    )
    home = make_home(eager)
    add(eager, home, [f"wort{number % 9} wort{number}" for number in range(30)])
    fill(eager, home)
    # As 4,000 chunks would leave them that came and went, four times.
    eager.execute(
        "insert into ragpg.lexeme_block (tenant_id, collection_id, chunk_ids)"
        " select %s, %s, array(select generate_series(900001, 904000)) from generate_series(1, 4)",
        [home.tenant, home.collection],
    )
    advice = "select action, reason from ragpg.lexical_plan()"
    assert eager.execute(advice).fetchall() == [
        ("compact", "many blocks of columns, most of whose chunks are gone")
    ]
    eager.execute("select ragpg.compact_lexical(%s, %s)", [home.tenant, home.collection])
    assert eager.execute(advice).fetchall() == []
    assert unaccounted(eager) == 0
    check(eager, home)


def test_blocks_that_never_were_full_become_one(eager):
    eager.execute(
        "create or replace function ragpg._scan_up_to() returns integer"
        " language sql immutable as 'select 20'"
    )
    home = make_home(eager)
    for at in range(0, 2400, 600):
        add(eager, home, [f"wort{number % 9} wort{number}" for number in range(at, at + 600)])
        put_into_index(eager, home)
        fill(eager, home)
    counted = "select count(*) from ragpg.lexeme_block where tenant_id = %s"
    assert eager.execute(counted, [home.tenant]).fetchone() == (4,)
    eager.execute("select ragpg.compact_lexical(%s, %s)", [home.tenant, home.collection])
    assert eager.execute(counted, [home.tenant]).fetchone() == (1,)
    assert unaccounted(eager) == 0
    check(eager, home)
