"""ragpg.search_dense as a SQL user calls it: exact where it says so, and never too few rows."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg
import pytest

from ragpg.upkeep import dense_index
from tests.sql import dense_seed
from tests.sql.dense_seed import Row, make_collection, search

COUNT = 6000
WIDTH = 128
PAST = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def test_scores_are_cosines_and_equal_ones_are_ordered_by_chunk(owner):
    home = make_collection(owner, tenant="acme")
    vectors = {9: "[3,4]", 2: "[1,0]", 7: "[1,0]", 5: "[-2,0]", 4: "[0,5]"}
    dense_seed.insert_rows(owner, home, [Row(chunk_id=i, vector=v) for i, v in vectors.items()])
    assert search(owner, "acme", "docs", "[10,0]") == [
        (2, 1, 1.0, "exact"),
        (7, 2, 1.0, "exact"),
        (9, 3, pytest.approx(0.6, abs=1e-6), "exact"),
        (4, 4, 0.0, "exact"),
        (5, 5, -1.0, "exact"),
    ]
    assert [row[0] for row in search(owner, "acme", "docs", "[10,0]", k=2)] == [2, 7]


def test_expired_documents_are_not_found(owner):
    home = make_collection(owner, tenant="acme")
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    rows = [
        Row(chunk_id=1, vector="[1,0]", expires_at=PAST),
        Row(chunk_id=2, vector="[1,0]", expires_at=later),
        Row(chunk_id=3, vector="[1,0]"),
    ]
    dense_seed.insert_rows(owner, home, rows)
    assert [row[0] for row in search(owner, "acme", "docs", "[1,0]")] == [2, 3]


def test_typed_arguments_narrow_and_time_is_half_open(owner):
    home = make_collection(owner, tenant="acme")
    noon = dt.datetime(2025, 6, 1, 12, tzinfo=dt.UTC)
    rows = [
        Row(
            chunk_id=1, vector="[1,0]", key="hr/a", source="wiki", tags=("a", "b"), modified_at=noon
        ),
        Row(chunk_id=2, vector="[1,0]", key="hr%b", source="disk", tags=("b",)),
        Row(chunk_id=3, vector="[1,0]", key="it/a", source="wiki", modified_at=PAST),
    ]
    dense_seed.insert_rows(owner, home, rows)

    def ids(**arguments):
        return [row[0] for row in search(owner, "acme", "docs", "[1,0]", **arguments)]

    assert ids(sources=["wiki"]) == [1, 3]
    assert ids(sources=[]) == []
    assert ids(tags_all=["a", "b"]) == [1]
    assert ids(tags_any=["a", "b"]) == [1, 2]
    assert ids(tags_any=[]) == []
    assert ids(modified_from=noon) == [1]
    assert ids(modified_before=noon) == [3]
    assert ids(key_prefix="hr/") == [1]
    assert ids(key_prefix="hr%") == [2]
    assert ids(key_prefix="hr_") == []
    assert ids(filter='strict exists($ ? (@."@source" == "disk"))') == [2]


def test_a_query_vector_without_a_direction_finds_nothing(owner):
    home = make_collection(owner, tenant="acme")
    dense_seed.insert_rows(owner, home, [Row(chunk_id=1, vector="[1,0]")])
    assert search(owner, "acme", "docs", "[0,0]") == []


def test_a_stored_vector_without_a_direction_is_never_ranked(owner):
    home = make_collection(owner, tenant="acme")
    rows = [Row(chunk_id=1, vector="[0,0]"), Row(chunk_id=2, vector="[1,0]")]
    dense_seed.insert_rows(owner, home, rows)
    assert search(owner, "acme", "docs", "[1,0]") == [(2, 1, 1.0, "exact")]


def test_two_dimensions_live_in_one_database_and_a_wrong_one_is_refused(owner):
    small = make_collection(owner, tenant="acme", name="small", dimensions=2)
    large = make_collection(owner, tenant="acme", name="large", dimensions=3072)
    dense_seed.insert_rows(owner, small, [Row(chunk_id=1, vector="[1,0]")])
    wide = str([1] * 3072)
    dense_seed.insert_rows(owner, large, [Row(chunk_id=2, vector=wide)])
    assert [row[0] for row in search(owner, "acme", "small", "[1,0]")] == [1]
    assert [row[0] for row in search(owner, "acme", "large", wide)] == [2]
    with pytest.raises(
        psycopg.Error, match="has 2 dimensions, the collection's have 3072"
    ) as refused:
        search(owner, "acme", "large", "[1,0]")
    assert refused.value.sqlstate == "RG005"


@pytest.mark.parametrize("k", [0, 1001, None])
def test_k_outside_1_to_1000_is_refused(owner, k):
    make_collection(owner, tenant="acme")
    with pytest.raises(psycopg.Error, match="it must be 1 to 1000") as refused:
        search(owner, "acme", "docs", "[1,0]", k=k)
    assert refused.value.sqlstate == "RG009"


def test_another_tenants_rows_are_never_found_and_no_tenant_is_an_error(owner, database):
    ours = make_collection(owner, tenant="acme")
    theirs = make_collection(owner, tenant="globex")
    make_collection(owner, tenant="globex", name="private")
    dense_seed.insert_rows(owner, ours, [Row(chunk_id=1, vector="[1,0]")])
    dense_seed.insert_rows(owner, theirs, [Row(chunk_id=2, vector="[1,0]")])
    for url in (database.service_url, database.reader_url):
        with psycopg.connect(url, autocommit=True) as conn:
            assert [row[0] for row in search(conn, "acme", "docs", "[1,0]")] == [1]
            assert [row[0] for row in search(conn, "globex", "docs", "[1,0]")] == [2]
            with pytest.raises(psycopg.Error, match="no collection 'private'") as unknown:
                search(conn, "acme", "private", "[1,0]")
            assert unknown.value.sqlstate == "RG003"
            with pytest.raises(psycopg.Error, match="no tenant is set") as unset:
                conn.execute("select * from ragpg.search_dense('docs', '[1,0]')")
            assert unset.value.sqlstate == "RG001"
            for inner in ("_search_dense(1, 1, '[1,0]')", "score_dense(1, 1, '[1,0]', '{1}')"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(f"select * from ragpg.{inner}")


def test_the_arm_hands_on_what_passes_a_filter_if_it_met_it_and_it_is_not_too_much(owner):
    home = make_collection(owner, tenant="acme")
    rows = [
        Row(chunk_id=1, vector="[1,0]", source="wiki"),
        Row(chunk_id=2, vector="[0,1]", source="wiki"),
        Row(chunk_id=3, vector="[1,1]", source="disk"),
        Row(chunk_id=4, vector="[1,2]", source="wiki", expires_at=PAST),
    ]
    dense_seed.insert_rows(owner, home, rows)

    def arm(sources: list[str] | None, list_up_to: int) -> tuple[Any, ...]:
        found = owner.execute(
            "select arm.ids, arm.passing, arm.is_broad from ragpg._dense_arm(%s, %s, '[1,0]', 1, %s,"
            " null, null, null, null, null, null, list_up_to => %s) as arm",
            [*home, sources, list_up_to],
        ).fetchone()
        assert found is not None
        ids, passing, is_broad = found
        return ids, passing and sorted(passing), is_broad

    assert arm(["wiki"], 2) == ([1], [1, 2], None)
    assert arm(["wiki"], 1) == ([1], None, True)
    assert arm(["none"], 2) == (None, [], None)
    assert arm(None, 2) == ([1], None, None)


def test_score_dense_gives_the_true_cosine_of_each_chunk_of_the_collection(owner):
    home = make_collection(owner, tenant="acme")
    other = make_collection(owner, tenant="globex")
    dense_seed.insert_rows(
        owner, home, [Row(chunk_id=1, vector="[3,4]"), Row(chunk_id=2, vector="[0,1]")]
    )
    dense_seed.insert_rows(owner, other, [Row(chunk_id=3, vector="[1,0]")])
    scored = owner.execute(
        "select * from ragpg.score_dense(%s, %s, '[1,0]', '{1,2,3,99}') order by 1", home
    ).fetchall()
    assert scored == [(1, pytest.approx(0.6, abs=1e-6)), (2, 0.0)]


# A collection of 6000 rows beside a small tenant, with thresholds low enough to meet every plan.


@pytest.fixture
def grid(owner, database):
    """The tenants "large" (6000 rows) and "small" (30 rows), and the vectors by chunk."""
    random = np.random.default_rng(3)
    vectors = random.standard_normal((COUNT + 30, WIDTH)).astype(np.float16)
    large = make_collection(owner, tenant="large", dimensions=WIDTH)
    small = make_collection(owner, tenant="small", dimensions=WIDTH)
    for home, ids in ((large, range(COUNT)), (small, range(COUNT, COUNT + 30))):
        rows = (
            Row(
                chunk_id=i,
                vector=str(vectors[i].tolist()),
                key=f"k{i % 10}/{i}",
                source=f"s{i % 50}",
                tags=(f"t{i % 2}", f"u{i % 100}"),
                metadata={"n": i % 3, "rare": i % 500},
            )
            for i in ids
        )
        dense_seed.insert_rows(owner, home, rows)
    owner.execute(
        "update ragpg.dense_setting set exact_max = 100, sketch_max = 5000,"
        " prefilter_max = 200, index_above = 5000, unindex_below = 1000"
    )
    owner.execute("vacuum analyze ragpg.embedding")
    return vectors


FILTERS: dict[str, tuple[dict[str, Any], Callable[[int], bool]]] = {
    "none": ({}, lambda _i: True),
    "source 2 %": ({"sources": ["s7"]}, lambda i: i % 50 == 7),
    "tags 50 %": ({"tags_any": ["t1"]}, lambda i: i % 2 == 1),
    "tags 1 %": ({"tags_all": ["u7", "t1"]}, lambda i: i % 100 == 7),
    "tags that exclude each other": ({"tags_all": ["t0", "t1"]}, lambda _i: False),
    "metadata 33 %": ({"filter": 'strict exists($ ? (@."n" == 1))'}, lambda i: i % 3 == 1),
    "metadata 0.2 %": ({"filter": 'strict exists($ ? (@."rare" == 7))'}, lambda i: i % 500 == 7),
    "key 10 %": ({"key_prefix": "k3/"}, lambda i: i % 10 == 3),
}


@pytest.mark.parametrize("indexed", [False, True], ids=["no index", "index"])
def test_no_plan_returns_fewer_rows_than_match_or_another_order_than_by_score(
    owner, database, grid, indexed
):
    if indexed:
        dense_index.apply(database.owner_url)
    query = np.random.default_rng(5).standard_normal(WIDTH).astype(np.float16)
    lengths = np.linalg.norm(grid.astype(float), axis=1) * np.linalg.norm(query.astype(float))
    cosines = grid.astype(float) @ query.astype(float) / lengths
    taken = set()
    for name, (arguments, matches) in FILTERS.items():
        for tenant, ids in (("large", range(COUNT)), ("small", range(COUNT, COUNT + 30))):
            for k in (1, 10, 150, 1000):
                found = search(owner, tenant, "docs", str(query.tolist()), k=k, **arguments)
                matching = sorted((i for i in ids if matches(i)), key=lambda i: -cosines[i])
                wanted = matching[:k]
                assert len(found) == len(wanted), (name, tenant, k, found[:1])
                assert [row[1] for row in found] == list(range(1, len(found) + 1))
                for chunk, _, score, mode in found:
                    assert math.isclose(score, cosines[chunk], abs_tol=1e-4)
                    taken.add(mode)
                scores = [row[2] for row in found]
                assert scores == sorted(scores, reverse=True)
                if found and found[0][3].startswith("exact"):
                    assert [row[0] for row in found] == wanted, (name, tenant, k)
    assert taken == ({"exact", "ann", "exact-after-ann"} if indexed else {"exact", "sketch"})


def test_an_index_is_scanned_for_fewer_matches_than_without_one(owner, database, grid):
    # 120 match, between prefilter_max by the root of the rows, 35, and prefilter_max itself, 200.
    query = str(grid[0].tolist())
    assert search(owner, "large", "docs", query, k=10, sources=["s7"])[0][3] == "exact"
    dense_index.apply(database.owner_url)
    assert search(owner, "large", "docs", query, k=10, sources=["s7"])[0][3] == "ann"


def test_the_exact_top_10_of_a_small_tenant_is_found_beside_a_large_one(owner, database):
    # Half a percent of the rows are the tenant's: a filter behind a global index misses them.
    random = np.random.default_rng(7)
    vectors = random.standard_normal((2000, 8)).astype(np.float16)
    small = make_collection(owner, tenant="small", dimensions=8)
    large = make_collection(owner, tenant="large", dimensions=8)
    for i, vector in enumerate(vectors):
        if i % 200 == 0:
            dense_seed.insert_rows(owner, small, [Row(chunk_id=i, vector=str(vector.tolist()))])
    dense_seed.insert_rows(
        owner, large,
        (Row(chunk_id=i, vector=str(v.tolist())) for i, v in enumerate(vectors) if i % 200),
    )  # fmt: skip
    query = np.array([1, 0.2, -0.3, 0.1, 0, 0.5, -0.2, 0.1])
    own = vectors[::200].astype(float)
    cosines = own @ query / np.linalg.norm(own, axis=1)
    wanted = [int(i) * 200 for i in np.argsort(-cosines)]
    # Both kinds of index: that of the large collection, and one over all tenants, as a bait.
    owner.execute("update ragpg.dense_setting set index_above = 1000, unindex_below = 500")
    dense_index.apply(database.owner_url)
    assert owner.execute("select tenant_id from ragpg.dense_index").fetchall() == [(large[0],)]
    owner.execute(
        "create index bait on ragpg.embedding"
        " using hnsw ((embedding::halfvec(8)) halfvec_cosine_ops)"
    )
    owner.execute("analyze ragpg.embedding")
    near = f"embedding::halfvec(8) <=> '{query.tolist()}'::halfvec(8)"
    with owner.transaction(force_rollback=True):
        owner.execute("set local enable_seqscan = off; set local enable_sort = off")
        behind = (
            f"select chunk_id from ragpg.embedding where tenant_id = {small[0]}"
            f" order by {near} limit 10"
        )
        plan = "\n".join(line for (line,) in owner.execute(f"explain {behind}"))
        assert "using bait" in plan
        missed = owner.execute(behind).fetchall()
    assert len(missed) < 10
    with psycopg.connect(database.service_url, autocommit=True) as conn:
        for asked in (owner, conn):
            found = search(asked, "small", "docs", str(query.tolist()), k=10)
            assert [row[0] for row in found] == wanted
            assert {row[3] for row in found} == {"exact"}


def test_an_unfiltered_search_of_a_large_collection_reads_its_own_hnsw_index(owner, database, grid):
    dense_index.apply(database.owner_url)
    names = owner.execute("select index_name from ragpg.dense_index").fetchall()
    assert names == [("embedding_ann_1_1",)]
    scans = "select idx_scan from pg_stat_user_indexes where indexrelname = 'embedding_ann_1_1'"
    query = str(grid[5].tolist())
    with psycopg.connect(database.service_url, autocommit=True) as conn:
        chunk, rank, _, mode = search(conn, "large", "docs", query, k=5)[0]
        assert (chunk, rank, mode) == (5, 1, "ann")
    deadline = time.monotonic() + 10
    while owner.execute(scans).fetchone() == (0,):
        assert time.monotonic() < deadline, "the search did not use the index"
        time.sleep(0.05)


def test_an_index_scan_goes_on_where_all_that_its_breadth_holds_has_expired(owner, database, grid):
    dense_index.apply(database.owner_url)
    query = np.random.default_rng(5).standard_normal(WIDTH).astype(np.float16)
    large = grid[:COUNT].astype(float)
    cosines = large @ query.astype(float) / np.linalg.norm(large, axis=1)
    nearest = [int(i) for i in np.argsort(-cosines)]
    owner.execute(
        "update ragpg.embedding set expires_at = %s where chunk_id = any (%s)",
        [PAST, nearest[:900]],
    )
    found = search(owner, "large", "docs", str(query.tolist()), k=20)
    assert {row[3] for row in found} == {"ann"}
    assert len(found) == 20
    assert not {row[0] for row in found} & set(nearest[:900])
    assert len({row[0] for row in found} & set(nearest[900:920])) >= 18


def test_an_alias_is_searched_as_the_collection_that_it_means(owner):
    home = make_collection(owner, tenant="acme")
    dense_seed.insert_rows(owner, home, [Row(chunk_id=1, vector="[1,0]")])
    owner.execute(
        "insert into ragpg.collection_alias (tenant_id, alias, collection_id) values (%s, 'live', %s)",
        home,
    )
    assert [row[0] for row in search(owner, "acme", "live", "[1,0]")] == [1]


def test_the_order_by_that_the_function_uses_is_served_by_the_index_and_a_similarity_is_not(
    owner, database, grid
):
    dense_index.apply(database.owner_url)
    home = "tenant_id = 1 and collection_id = 1"
    vector = f"'{grid[5].tolist()}'::halfvec({WIDTH})"
    near = f"embedding::halfvec({WIDTH}) <=> {vector}"

    def plan(order: str) -> str:
        owner.execute("set enable_seqscan = off")
        text = (
            f"explain (costs off) select chunk_id from ragpg.embedding where {home}"
            f" order by {order} limit 5"
        )
        return "\n".join(row[0] for row in owner.execute(text).fetchall())

    assert "Index Scan using embedding_ann_1_1" in plan(near)
    assert "embedding_ann_1_1" not in plan(f"1 - ({near}) desc")
    assert "embedding_ann_1_1" not in plan(f"({near}) + 0")


def test_a_sketch_search_can_be_served_by_the_covering_index_alone(owner, grid):
    # At this size a scan of any other index and the small table costs about the same.
    owner.execute("alter table ragpg.embedding drop constraint embedding_pkey")
    for name in ("source", "modified_at", "document_key"):
        owner.execute(f"drop index ragpg.embedding_{name}")
    owner.execute("set enable_seqscan = off")
    owner.execute("set enable_bitmapscan = off")
    text = (
        "explain (costs off) select chunk_id from ragpg.embedding where tenant_id = 1"
        " and collection_id = 1 and (expires_at is null or expires_at > now())"
        f" order by sketch <~> binary_quantize('{grid[5].tolist()}'::halfvec) limit 5"
    )
    plan = "\n".join(row[0] for row in owner.execute(text).fetchall())
    assert "Index Only Scan using embedding_sketch" in plan


def test_an_invalid_index_is_not_used(owner, database, grid):
    dense_index.apply(database.owner_url)
    owner.execute(
        "update pg_index set indisvalid = false"
        " where indexrelid = 'ragpg.embedding_ann_1_1'::regclass"
    )
    assert search(owner, "large", "docs", str(grid[5].tolist()), k=5)[0][3] == "sketch"


def test_a_prepared_search_keeps_its_plan_and_leaves_no_setting_behind(owner, database, grid):
    dense_index.apply(database.owner_url)
    with psycopg.connect(database.service_url, autocommit=True, prepare_threshold=0) as conn:
        conn.execute("select ragpg.use_tenant('large', true)")
        conn.execute("select '[1]'::halfvec")
        settings = (
            "select current_setting('hnsw.ef_search'), current_setting('hnsw.iterative_scan'),"
            " current_setting('enable_sort'), current_setting('enable_seqscan')"
        )
        before = conn.execute(settings).fetchone()
        text = "select mode from ragpg.search_dense('docs', %s::halfvec, 5) limit 1"
        modes = [conn.execute(text, [str(grid[i].tolist())]).fetchone() for i in range(12)]
        assert modes == [("ann",)] * 12
        assert conn.execute(settings).fetchone() == before
