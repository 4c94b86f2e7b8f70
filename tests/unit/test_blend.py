from __future__ import annotations

import anyio
import pytest

from ragpg.providers.blend import BlendReranker
from ragpg.types import Hit, Hits


def hit(rank, dense, lexical):
    return Hit(
        rank=rank,
        chunk_id=rank,
        document_key="d",
        document_title=None,
        source=None,
        section_path=(),
        position=rank,
        start=0,
        stop=1,
        page=None,
        text="x",
        table_header="",
        context=None,
        tags=(),
        metadata={},
        modified_at=None,
        dense_rank=None if dense is None else rank,
        dense_score=dense,
        lexical_rank=None if lexical is None else rank,
        lexical_score=lexical,
        fused_score=1 / (60 + rank),
    )


def scores(*pairs):
    hits = Hits(hits=tuple(hit(rank, *pair) for rank, pair in enumerate(pairs, start=1)))

    async def call():
        return await BlendReranker().rerank("query", hits)

    return anyio.run(call).scores


def test_a_score_is_the_sum_of_both_distances_from_the_mean_in_standard_deviations():
    # cosine: mean 0.4, deviation 0.2; BM25: mean 5, deviation 3.
    assert scores((0.6, 8.0), (0.2, 2.0), (0.6, 2.0), (0.2, 8.0)) == pytest.approx(
        (2.0, -2.0, 0.0, 0.0)
    )


def test_a_hit_that_is_far_ahead_in_one_arm_beats_one_that_is_second_in_both():
    far_ahead, second, *_ = scores((0.30, 40.0), (0.35, 6.0), (0.36, 1.0), (0.30, 5.0), (0.3, 4.0))
    assert far_ahead > second


def test_a_missing_bm25_score_counts_as_zero():
    assert scores((0.5, None), (0.5, 4.0)) == scores((0.5, 0.0), (0.5, 4.0)) == (-1.0, 1.0)


def test_a_missing_cosine_counts_as_the_average_of_the_others():
    assert scores((0.8, 1.0), (None, 1.0), (0.2, 1.0))[1] == 0.0


def test_without_any_cosine_the_order_is_that_of_bm25():
    assert scores((None, 9.0), (None, 1.0)) == (1.0, -1.0)


@pytest.mark.parametrize("pairs", [[(0.1, 7.0)], [(0.1, 7.0)] * 3])
def test_hits_that_do_not_differ_all_score_zero(pairs):
    assert scores(*pairs) == (0.0,) * len(pairs)


def test_no_hits_give_no_scores():
    assert scores() == ()
