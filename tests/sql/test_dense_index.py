"""Index maintenance: what is planned, what is built and mended, and the recall that is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import psycopg
import pytest

from ragpg.errors import ConflictError, DatabaseError
from ragpg.upkeep import dense_index, dense_recall
from ragpg.upkeep.dense_index import IndexChange, IndexProgress
from ragpg.upkeep.dense_recall import RecallCheck, RecallFailure
from tests.sql import dense_seed
from tests.sql.dense_seed import Row, make_collection

WIDTH = 128


def fill(owner: psycopg.Connection, home: tuple[int, int], count: int, *, first: int = 0) -> None:
    vectors = np.random.default_rng(first).standard_normal((count, WIDTH)).astype(np.float16)
    dense_seed.insert_rows(
        owner,
        home,
        (Row(chunk_id=first + i, vector=str(v.tolist())) for i, v in enumerate(vectors)),
    )


@pytest.fixture
def home(owner):
    """A collection of 300 rows; indexes are made from 200 rows on and dropped below 100."""
    owner.execute(
        "update ragpg.dense_setting set index_above = 200, unindex_below = 100, exact_max = 50"
    )
    made = make_collection(owner, tenant="acme", dimensions=WIDTH)
    fill(owner, made, 300)
    return made


def states(owner: psycopg.Connection) -> list[tuple[str, str]]:
    return owner.execute(
        "select index_name, state from ragpg.dense_index order by index_name"
    ).fetchall()


def test_a_plan_says_what_it_would_do_and_does_nothing(owner, database, home):
    plan = dense_index.plan(database.owner_url, memory_mb=1)
    change = IndexChange(
        action="create",
        tenant_id=home[0],
        collection_id=home[1],
        tenant="acme",
        collection="docs",
        dimensions=WIDTH,
        rows=300,
        index_name="embedding_ann_1_1",
    )
    assert plan.changes == (change,)
    assert (plan.memory_bytes, plan.maintenance_bytes) == (300 * (730 + 2 * WIDTH), 1024**2)
    assert states(owner) == []


def test_a_build_that_does_not_fit_its_memory_is_told_before_it_starts(owner, database, home):
    owner.execute("update ragpg.dense_collection set rows = 1")
    fill(owner, home, 1000, first=1000)
    plan = dense_index.plan(database.owner_url, memory_mb=1)
    # A server with an old pgvector has warnings of its own.
    assert [warning for warning in plan.warnings if not warning.startswith("pgvector ")] == [
        (
            "the largest build needs about 2 MB and maintenance_work_mem is 1 MB, so it will be"
            " several times slower; if the server has the memory, pass --memory-mb 2"
        ),
    ]


def test_an_index_comes_above_one_threshold_and_goes_below_the_other(owner, database, home):
    assert [c.action for c in dense_index.apply(database.owner_url).changes] == ["create"]
    assert states(owner) == [("embedding_ann_1_1", "valid")]
    owner.execute("delete from ragpg.embedding where chunk_id >= 150")
    assert dense_index.apply(database.owner_url).changes == ()
    owner.execute("delete from ragpg.embedding where chunk_id >= 99")
    assert [c.action for c in dense_index.apply(database.owner_url).changes] == ["drop"]
    assert states(owner) == []
    fill(owner, home, 100, first=5000)
    assert dense_index.apply(database.owner_url).changes == ()


def test_what_a_failed_build_left_is_rebuilt(owner, database, home):
    dense_index.apply(database.owner_url)
    owner.execute(
        "update pg_index set indisvalid = false"
        " where indexrelid = 'ragpg.embedding_ann_1_1'::regclass"
    )
    assert states(owner) == [("embedding_ann_1_1", "invalid")]
    assert [c.action for c in dense_index.apply(database.owner_url).changes] == ["rebuild"]
    assert states(owner) == [("embedding_ann_1_1", "valid")]


def test_the_index_of_a_deleted_collection_is_dropped(owner, database, home):
    dense_index.apply(database.owner_url)
    owner.execute("delete from ragpg.embedding")
    owner.execute("delete from ragpg.collection")
    changes = dense_index.apply(database.owner_url).changes
    assert [(c.action, c.collection, c.rows) for c in changes] == [("drop", None, 0)]
    assert states(owner) == []


def test_an_index_serves_4000_dimensions(owner, database):
    owner.execute("update ragpg.dense_setting set index_above = 2, unindex_below = 1")
    home = make_collection(owner, tenant="acme", dimensions=4000)
    vectors = np.random.default_rng(1).standard_normal((3, 4000)).astype(np.float16)
    dense_seed.insert_rows(
        owner, home, (Row(chunk_id=i, vector=str(v.tolist())) for i, v in enumerate(vectors))
    )
    dense_index.apply(database.owner_url)
    assert states(owner) == [("embedding_ann_1_1", "valid")]


REFUSES_PARALLEL = """
create function refuse_parallel() returns event_trigger language plpgsql as $$
begin
    if current_setting('max_parallel_maintenance_workers') <> '0' then
        raise exception using errcode = '53100',
            message = 'could not resize shared memory segment: No space left on device';
    end if;
end $$;
create event trigger refuse_parallel on ddl_command_start when tag in ('CREATE INDEX')
    execute function refuse_parallel();
"""


def test_a_build_without_enough_shared_memory_is_repeated_without_workers(owner, database, home):
    owner.execute(REFUSES_PARALLEL)
    told: list[IndexProgress] = []
    dense_index.apply(database.owner_url, progress=told.append)
    assert states(owner) == [("embedding_ann_1_1", "valid")]
    assert [p.notice for p in told if p.notice] == [
        (
            "could not resize shared memory segment: No space left on device: building without"
            " parallel workers"
        )
    ]


def test_a_build_that_fails_otherwise_is_an_error_of_ours(owner, database, home):
    owner.execute(REFUSES_PARALLEL.replace("53100", "22000"))
    with pytest.raises(DatabaseError, match="No space left on device"):
        dense_index.apply(database.owner_url)


def test_progress_names_the_phase_and_counts_while_a_build_waits(owner, database, home):
    # An open transaction that has seen the table holds a concurrent build in its first phase.
    with psycopg.connect(database.owner_url) as blocker:
        blocker.execute("lock table ragpg.embedding in row exclusive mode")
        release = threading.Timer(1.5, blocker.rollback)
        release.start()
        told: list[IndexProgress] = []
        dense_index.apply(database.owner_url, progress=told.append)
        release.join()
    assert "waiting for writers before build" in [p.phase for p in told]
    assert {p.change.index_name for p in told} == {"embedding_ann_1_1"}


@pytest.mark.parametrize(("grown", "left"), [(True, "invalid"), (False, "invalid")])
def test_an_apply_that_is_stopped_lets_go_at_once_and_the_next_one_goes_on(
    owner, database, home, grown, left
):
    if not grown:
        dense_index.apply(database.owner_url)
        owner.execute("update ragpg.dense_setting set unindex_below = 1000, index_above = 2000")
    # An open transaction that has seen the table holds both a build and a drop.
    with psycopg.connect(database.owner_url) as blocker:
        blocker.execute("select count(*) from ragpg.embedding")
        blocker.execute("lock table ragpg.embedding in row exclusive mode")
        stop = threading.Event()
        threading.Timer(1.0, stop.set).start()
        began = time.monotonic()
        with pytest.raises(ConflictError, match="was stopped with its worker"):
            dense_index.apply(database.owner_url, stop=stop)
        assert time.monotonic() - began < 10
    assert states(owner) == [("embedding_ann_1_1", left)]
    dense_index.apply(database.owner_url)
    assert states(owner) == ([("embedding_ann_1_1", "valid")] if grown else [])


def test_two_applies_at_once_are_one_and_a_refusal(owner, database, home):
    owner.execute("select pg_advisory_lock(%s)", [dense_index.INDEX_LOCK])
    with pytest.raises(ConflictError, match="another `ragpg index apply` is at work"):
        dense_index.apply(database.owner_url)


def only_check(found: Iterable[RecallCheck | RecallFailure]) -> RecallCheck:
    """The one result, of a collection that could be measured."""
    (check,) = found
    assert isinstance(check, RecallCheck)
    return check


def test_recall_is_measured_on_stored_vectors_and_shown_in_index_health(owner, database, home):
    dense_index.apply(database.owner_url)
    check = only_check(dense_recall.recall(database.owner_url, queries=5, k=20))
    assert (check.tenant, check.collection, check.query_source) == ("acme", "docs", "stored")
    assert (check.queries, check.k, check.modes) == (5, 20, ("ann",))
    assert check.mean_recall == check.lowest_recall == 1.0
    assert check.advice is None
    shown = owner.execute(
        "select collection, rows, unfiltered_mode, index_name, index_state, index_bytes > 0,"
        "       mean_recall, recall_queries, recall_query_source from ragpg.index_health"
    ).fetchall()
    assert shown == [("docs", 300, "ann", "embedding_ann_1_1", "valid", True, 1.0, 5, "stored")]


def test_recall_prefers_logged_queries_and_applies_their_filters(owner, database, home):
    vector = str(np.random.default_rng(9).standard_normal(WIDTH).tolist())
    owner.execute(
        "insert into ragpg.search (tenant_id, collection_id, query, query_embedding, filter, k,"
        " notices, degraded, timings_ms)"
        " values (%s, %s, 'q', %s::halfvec, %s, 10, '{}', '{}', '{}')",
        [*home, vector, '{"key": {"prefix": "no such"}}'],
    )
    check = only_check(dense_recall.recall(database.owner_url, queries=5, k=20))
    assert (check.query_source, check.queries, check.modes) == ("logged", 1, ("exact",))


def test_recall_that_is_too_low_is_told_with_what_mends_it(owner, database, home):
    fill(owner, home, 3000, first=1000)
    owner.execute("update ragpg.dense_setting set sketch_rescored = 1, index_above = 100000")
    coarse = only_check(dense_recall.recall(database.owner_url, queries=10))
    assert coarse.modes == ("sketch",)
    assert coarse.mean_recall < 0.99
    assert coarse.advice is not None
    assert "raise ef_search (ann) or sketch_rescored (sketch)" in coarse.advice
    owner.execute("update ragpg.dense_setting set sketch_rescored = 3300")
    whole = only_check(dense_recall.recall(database.owner_url, queries=10))
    assert (whole.mean_recall, whole.advice) == (1.0, None)
    stored = owner.execute("select count(*) from ragpg.dense_recall").fetchone()
    assert stored == (2,)


def test_index_health_of_a_tenant_shows_no_other(owner, database, home):
    make_collection(owner, tenant="globex", name="theirs")
    with psycopg.connect(database.service_url) as conn:
        conn.execute("select ragpg.use_tenant('acme')")
        assert conn.execute("select collection from ragpg.index_health").fetchall() == [("docs",)]
        assert conn.execute("select count(*) from ragpg.dense_recall").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("select * from ragpg.dense_index")


def test_an_index_of_more_than_200_000_rows_is_built_more_broadly_and_takes_longer():
    small = IndexChange(
        action="create", tenant_id=1, collection_id=1, tenant="acme", collection="docs",
        dimensions=384, rows=200_000, index_name="embedding_ann_1_1",
    )  # fmt: skip
    large = replace(small, rows=400_000)
    assert (small.ef_construction, large.ef_construction) == (64, 160)
    assert large.seconds == pytest.approx(5 * small.seconds)
