"""ragpg.search_hybrid as a SQL user calls it: fused from both arms' full depth, then limited."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from tests.sql.hybrid_seed import Passage, Source, add, hybrid, make_home, single, use_tenant

PAST = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def fuse(
    dense: Sequence[int], lexical: Sequence[int], *, weights: tuple[float, float], rrf_k: int
) -> list[tuple[int, float]]:
    """Reciprocal rank fusion of two lists of ids, best first, ties by id."""
    scores: dict[int, float] = {}
    for weight, ids in zip(weights, (dense, lexical), strict=True):
        for rank, chunk_id in enumerate(ids, start=1):
            scores[chunk_id] = scores.get(chunk_id, 0) + weight / (rrf_k + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


def arms(
    conn: psycopg.Connection, query: str, vector: str, depth: int, **filters: Any
) -> tuple[list[int], list[int]]:
    """What each arm returns alone."""
    extra = "".join(f", {name} => %({name})s" for name in filters)
    found = [
        [
            row[0]
            for row in conn.execute(
                f"select chunk_id from ragpg.{arm}('docs', %(asked)s{cast}, %(depth)s{extra})"
                " order by rank",
                {"asked": asked, "depth": depth, **filters},
            )
        ]
        for arm, asked, cast in (
            ("search_dense", vector, "::halfvec"),
            ("search_lexical", query, ""),
        )
    ]
    return found[0], found[1]


def seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - nothing secret


def random_sources(rng: random.Random, count: int) -> list[Source]:
    words = [f"word{n}" for n in range(12)]
    return [
        single(
            f"{'ab'[n % 2]}/{n}",
            " ".join(rng.choices(words, k=rng.randint(1, 8))),
            str([rng.randint(-3, 3) or 1 for _ in range(3)]),
            source="even" if n % 2 == 0 else "odd",
            tags=(f"t{n % 3}",),
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_it_equals_a_ten_line_fusion_in_python_on_random_data(owner, seed):
    rng = seeded(seed)
    add(owner, make_home(owner, "acme"), *random_sources(rng, 80))
    for _ in range(8):
        query = " ".join(rng.choices([f"word{n}" for n in range(13)], k=rng.randint(1, 3)))
        vector = str([rng.uniform(-1, 1) for _ in range(3)])
        depth, k = rng.choice([1, 3, 20, 150]), rng.choice([1, 5, 40])
        weights = rng.choice([(1.0, 1.0), (0.3, 2.0), (1.0, 0.0), (0.0, 0.5)])
        rrf_k = rng.choice([0, 1, 60])
        filters: dict[str, Any] = rng.choice(
            [{}, {"sources": ["odd"]}, {"tags_any": ["t0", "t2"]}, {"key_prefix": "a/"}]
        )
        dense, lexical = arms(owner, query, vector, depth, **filters)
        wanted = fuse(
            dense if weights[0] else [],
            lexical if weights[1] else [],
            weights=weights,
            rrf_k=rrf_k,
        )
        found = hybrid(
            owner,
            query,
            vector,
            "chunk_id, fused_score, rank, dense_rank, lexical_rank",
            k=k,
            depth=depth,
            dense_weight=weights[0],
            lexical_weight=weights[1],
            rrf_k=rrf_k,
            **filters,
        )
        assert [row[0] for row in found] == [chunk_id for chunk_id, _ in wanted[:k]]
        assert [row[1] for row in found] == pytest.approx([score for _, score in wanted[:k]])
        assert [row[2] for row in found] == list(range(1, len(found) + 1))
        for chunk_id, _, _, dense_rank, lexical_rank in found:
            assert dense_rank == (
                dense.index(chunk_id) + 1 if weights[0] and chunk_id in dense else None
            )
            assert lexical_rank == (
                lexical.index(chunk_id) + 1 if weights[1] and chunk_id in lexical else None
            )


def test_a_chunk_that_is_fourth_in_both_arms_beats_the_first_of_one(owner):
    # C22: with a limit of 1 inside each arm the fourth of both would never be seen.
    ids = add(
        owner,
        make_home(owner, "acme"),
        *(single(f"near{n}", f"other{n}", f"[100,{n},0]") for n in range(3)),
        single("fourth", "valve " + "filler " * 9, "[100,9,0]"),
        *(single(f"word{n}", "valve", "[0,1,0]") for n in range(3)),
        *(single(f"far{n}", f"else{n}", "[-1,0,0]") for n in range(3)),
    )
    found = hybrid(owner, "valve", "[1,0,0]", "chunk_id, fused_score", k=1, depth=4, dense_weight=1)
    assert found == [(ids[3], pytest.approx(2 / 64))]
    rest = hybrid(
        owner,
        "valve",
        "[1,0,0]",
        "chunk_id, dense_rank, lexical_rank, fused_score",
        depth=4,
        dense_weight=1,
    )
    assert rest == [
        (ids[3], 4, 4, pytest.approx(2 / 64)),
        (ids[0], 1, None, pytest.approx(1 / 61)),
        (ids[4], None, 1, pytest.approx(1 / 61)),
        (ids[1], 2, None, pytest.approx(1 / 62)),
        (ids[5], None, 2, pytest.approx(1 / 62)),
        (ids[2], 3, None, pytest.approx(1 / 63)),
        (ids[6], None, 3, pytest.approx(1 / 63)),
    ]


def test_a_chunk_that_an_arm_lacks_has_no_rank_but_its_true_score_there(owner):
    ids = add(
        owner,
        make_home(owner, "acme"),
        single("near", "gasket", "[1,0,0]"),
        single("word", "valve", "[0,1,0]"),
        single("far", "valve and gasket", "[-1,0,0]"),
    )
    bm25 = dict(
        owner.execute(
            "select chunk_id, score from ragpg.search_lexical('docs', 'valve')"
        ).fetchall()
    )
    assert sorted(bm25) == ids[1:]
    rows = hybrid(
        owner,
        "valve",
        "[1,0,0]",
        "chunk_id, dense_rank, dense_score, lexical_rank, lexical_score",
        depth=1,
        dense_weight=1,
    )
    assert rows == [
        (ids[0], 1, pytest.approx(1.0), None, 0.0),
        (ids[1], None, pytest.approx(0.0), 1, pytest.approx(bm25[ids[1]])),
    ]
    near_far = hybrid(
        owner, "valve", "[-1,0.1,0]", "chunk_id, lexical_rank, lexical_score", depth=1
    )
    assert near_far == [
        (ids[1], 1, pytest.approx(bm25[ids[1]])),
        (ids[2], None, pytest.approx(bm25[ids[2]])),
    ]
    # Two of three hold the word, so an arm asked for three has told all there is.
    whole = hybrid(owner, "valve", "[1,0,0]", "chunk_id, lexical_rank, lexical_score", depth=3)
    assert sorted(whole) == [
        (ids[0], None, 0.0),
        (ids[1], 1, pytest.approx(bm25[ids[1]])),
        (ids[2], 2, pytest.approx(bm25[ids[2]])),
    ]


def test_twelve_identical_texts_come_in_one_order_fifty_times(owner):
    # C24
    ids = add(
        owner, make_home(owner, "acme"), *(single(f"d{n}", "Turn the valve.") for n in range(12))
    )
    runs = {tuple(hybrid(owner, "valve", "[1,0,0]", k=5)) for _ in range(50)}
    assert runs == {tuple(ids[:5])}


def test_pages_put_together_are_one_long_list_whatever_their_size(owner):
    rng = seeded(3)
    ids = add(owner, make_home(owner, "acme"), *random_sources(rng, 60))
    whole = hybrid(owner, "word1 word2", "[1,1,0]", "chunk_id, rank, fused_score", k=1000, depth=25)
    assert len(whole) > 25
    for exclude in ([], [whole[0][0], whole[7][0], whole[12][0], ids[-1], -5]):
        kept = hybrid(
            owner, "word1 word2", "[1,1,0]", "chunk_id, rank", k=1000, depth=25, exclude=exclude
        )
        wanted = [row[0] for row in whole if row[0] not in exclude]
        assert kept == [(chunk_id, rank) for rank, chunk_id in enumerate(wanted, start=1)]
        for size in (1, 7, 20):
            pages: list[tuple[int, int]] = []
            while page := hybrid(
                owner,
                "word1 word2",
                "[1,1,0]",
                "chunk_id, rank",
                k=size,
                depth=25,
                exclude=exclude,
                after=pages[-1][0] if pages else None,
            ):
                assert len(page) <= size
                pages += page
            assert pages == kept


def test_after_may_name_a_chunk_that_is_excluded(owner):
    ids = add(owner, make_home(owner, "acme"), *(single(f"d{n}", "valve") for n in range(5)))
    page = hybrid(owner, "valve", "[1,0,0]", k=2, after=ids[1], exclude=ids[:2])
    assert page == [ids[2], ids[3]]


def test_after_a_chunk_that_was_not_found_is_refused_and_says_so_alike_for_foreign_ones(owner):
    foreign = add(owner, make_home(owner, "globex"), single("g", "valve"))
    add(owner, make_home(owner, "acme"), single("a", "valve"), single("b", "valve"))
    messages = set()
    for unknown in (foreign[0], 987_654_321):
        with pytest.raises(
            psycopg.Error, match="not among the 2 that this search found"
        ) as refused:
            hybrid(owner, "valve", "[1,0,0]", after=unknown)
        assert refused.value.sqlstate == "RG009"
        messages.add(str(refused.value).replace(str(unknown), "n").splitlines()[0])
    assert len(messages) == 1


def test_k_beyond_what_the_depth_finds_returns_all_of_it_and_no_more(owner):
    add(owner, make_home(owner, "acme"), *random_sources(seeded(1), 40))
    dense, lexical = arms(owner, "word3", "[1,0,0]", 4)
    assert sorted(hybrid(owner, "word3", "[1,0,0]", k=1000, depth=4)) == sorted({*dense, *lexical})


def test_a_query_or_a_vector_alone_searches_one_arm_and_none_is_refused(owner):
    ids = add(
        owner,
        make_home(owner, "acme"),
        single("a", "gasket", "[1,0,0]"),
        single("b", "valve", "[0.1,1,0]"),
    )
    columns = "chunk_id, dense_rank, dense_score, lexical_rank, dense_mode, lexical_mode"
    assert hybrid(owner, "valve", None, columns) == [(ids[1], None, None, 1, None, "scan")]
    only_dense = hybrid(owner, None, "[1,0,0]", "chunk_id, lexical_rank, lexical_score")
    assert only_dense == [(ids[0], None, None), (ids[1], None, None)]
    # A zero vector has no direction and a stop word no keyword: nothing, but no error.
    assert hybrid(owner, "the", "[0,0,0]") == []
    with pytest.raises(psycopg.Error, match="neither a query nor a query_embedding") as refused:
        hybrid(owner, None, None)
    assert refused.value.sqlstate == "RG009"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k is 0 and depth is 150"),
        ({"k": None}, "k is null and depth is 150"),
        ({"depth": 1001}, "k is 20 and depth is 1001"),
        ({"depth": None}, "k is 20 and depth is null"),
        ({"rrf_k": -1}, "rrf_k is -1"),
        ({"dense_weight": -0.5}, "the weights are -0.5 and 1"),
        ({"dense_weight": float("nan")}, "the weights are NaN and 1"),
        ({"lexical_weight": float("inf")}, "the weights are 0.6 and Infinity"),
        ({"dense_weight": 0, "lexical_weight": 0}, "one weight above 0"),
    ],
)
def test_arguments_outside_their_range_are_refused_with_their_values(owner, arguments, message):
    make_home(owner, "acme")
    with pytest.raises(psycopg.Error, match=message) as refused:
        hybrid(owner, "valve", "[1,0,0]", **arguments)
    assert refused.value.sqlstate == "RG009"


@pytest.mark.parametrize(
    "filters",
    [
        {"sources": ["wiki"]},
        {"tags_all": ["adr"]},
        {"tags_any": ["adr", "none"]},
        {"modified_from": dt.datetime(2025, 1, 1, tzinfo=dt.UTC)},
        {"key_prefix": "in/"},
        {"filter": 'strict exists($ ? (@."year" >= 2025))'},
        {
            "sources": ["wiki"],
            "tags_any": ["adr"],
            "modified_before": dt.datetime(2025, 6, 1, tzinfo=dt.UTC),
        },
    ],
)
def test_every_filter_reaches_both_arms(owner, filters):
    # C21: what is outside is the best hit of either arm alone.
    home = make_home(owner, "acme")
    outside: dict[str, Any] = {"source": "disk", "metadata": {"year": 2024}, "modified_at": PAST}
    inside: dict[str, Any] = {
        "source": "wiki",
        "tags": ("adr",),
        "metadata": {"year": 2025},
        "modified_at": dt.datetime(2025, 3, 1, tzinfo=dt.UTC),
    }
    if "modified_before" in filters:
        outside["modified_at"] = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    ids = add(
        owner,
        home,
        single("out/word", "valve valve valve", "[0,1,0]", **outside),
        single("out/near", "gasket", "[1,0,0]", **outside),
        single("in/word", "valve and much else of other kinds", "[0,1,0.5]", **inside),
        single("in/near", "gasket", "[1,0,0.5]", **inside),
    )
    assert set(hybrid(owner, "valve", "[1,0,0]")) == set(ids)
    assert set(hybrid(owner, "valve", "[1,0,0]", **filters)) == set(ids[2:])


def test_another_tenants_best_hit_and_expired_documents_stay_out(owner):
    globex = make_home(owner, "globex")
    add(owner, globex, single("g", "valve valve", "[1,0,0]", tags=("adr",)))
    acme = make_home(owner, "acme")
    ids = add(
        owner,
        acme,
        single("old", "valve valve", "[1,0,0]", expires_at=PAST, tags=("adr",)),
        single("a", "valve or gasket", "[1,1,0]", tags=("adr",)),
    )
    assert hybrid(owner, "valve", "[1,0,0]", tags_any=["adr"]) == [ids[1]]
    use_tenant(owner, "globex")
    assert len(hybrid(owner, "valve", "[1,0,0]", tags_any=["adr"])) == 1


def test_the_order_of_one_tenant_does_not_change_when_another_gets_more_rows(owner):
    add(owner, make_home(owner, "acme"), *random_sources(seeded(2), 30))
    before = hybrid(owner, "word1", "[1,0,0]", "chunk_id, fused_score, dense_score, lexical_score")
    add(owner, make_home(owner, "globex"), *random_sources(seeded(9), 50))
    use_tenant(owner, "acme")
    after = hybrid(owner, "word1", "[1,0,0]", "chunk_id, fused_score, dense_score, lexical_score")
    assert after == before


def test_no_tenant_an_unknown_collection_and_a_wrong_dimension_are_errors(owner, database):
    make_home(owner, "acme")
    for url in (database.service_url, database.reader_url):
        with psycopg.connect(url, autocommit=True) as conn:
            with pytest.raises(psycopg.Error) as refused:
                hybrid(conn, "valve", "[1,0,0]")
            assert refused.value.sqlstate == "RG001"
            use_tenant(conn, "acme")
            with pytest.raises(psycopg.Error) as refused:
                hybrid(conn, "valve", "[1,0,0]", collection="nothing")
            assert refused.value.sqlstate == "RG003"
            with pytest.raises(psycopg.Error) as refused:
                hybrid(conn, "valve", "[1,0]")
            assert refused.value.sqlstate == "RG005"


def test_identical_texts_become_one_hit_that_names_the_others(owner):
    home = make_home(owner, "acme")
    ids = add(
        owner,
        home,
        single("a", "Turn the valve.", "[1,0,0]"),
        single("b", "Another valve", "[1,0.5,0]"),
        single("c", "\n  Turn the valve. \t", "[1,0.1,0]"),
        single("d", "Turn the  valve.", "[1,0.2,0]"),
        Source(
            key="e",
            passages=[Passage(text="Turn the valve.", vector="[1,0.3,0]", table_header="|h|\n")],
        ),
    )
    plain = hybrid(owner, "valve", "[1,0,0]", "chunk_id, duplicates")
    assert len(plain) == 5
    assert {tuple(others) for _, others in plain} == {()}
    found = dict(hybrid(owner, "valve", "[1,0,0]", "chunk_id, duplicates", deduplicate=True))
    assert found == {ids[0]: [ids[2]], ids[1]: [], ids[3]: [], ids[4]: []}
    ranks = hybrid(owner, "valve", "[1,0,0]", "rank, fused_score", deduplicate=True)
    assert [rank for rank, _ in ranks] == [1, 2, 3, 4]


def test_deduplication_comes_before_the_limit_the_pages_and_the_exclusion(owner):
    home = make_home(owner, "acme")
    ids = add(owner, home, *(single(f"d{n}", f"valve {n // 3}") for n in range(12)))
    first = [ids[0], ids[3], ids[6], ids[9]]
    assert hybrid(owner, "valve", "[1,0,0]", k=4, deduplicate=True) == first
    assert hybrid(owner, "valve", "[1,0,0]", k=2, after=ids[3], deduplicate=True) == first[2:]
    # What is excluded has been read, so its text does not come back under another id.
    assert hybrid(owner, "valve", "[1,0,0]", exclude=[ids[0]], deduplicate=True) == first[1:]
