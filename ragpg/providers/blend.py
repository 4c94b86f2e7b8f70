"""Reranking without a model: both arms' scores on one scale."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import anyio.lowlevel

from ragpg.types import Reranked, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ragpg.types import Hits


class BlendReranker:
    """Scores a hit by z(cosine) + z(BM25); deterministic, offline and free.

    z is the distance from the mean of the hits that were sent, in their standard deviations, so a
    score compares within one list only. Fusion by rank forgets by how much a hit won; this does
    not. It needs the depth of both arms (150 each) to know what an ordinary score is.
    """

    provider = "blend"
    model = "z-sum-1"

    async def rerank(self, query: str, hits: Hits) -> Reranked:  # noqa: ARG002 - scored already
        """One score per hit, in the order of `hits`, about -4 to 10.

        A hit without a BM25 score counts as 0, which is what BM25 gives to a chunk with no word of
        the query; one without a cosine counts as average.
        """
        started = time.perf_counter()
        await anyio.lowlevel.checkpoint()
        known = [hit.dense_score for hit in hits if hit.dense_score is not None]
        average = statistics.fmean(known) if known else 0.0
        dense = _z([average if hit.dense_score is None else hit.dense_score for hit in hits])
        lexical = _z([hit.lexical_score or 0.0 for hit in hits])
        usage = Usage(
            provider=self.provider,
            model=self.model,
            operation="rerank",
            cost_usd=0.0,
            duration_s=time.perf_counter() - started,
        )
        scores = tuple(a + b for a, b in zip(dense, lexical, strict=True))
        return Reranked(scores=scores, usage=(usage,))


def _z(values: Sequence[float]) -> list[float]:
    """Each value's distance from their mean in standard deviations; all 0 when they are equal."""
    if not values:
        return []
    mean = statistics.fmean(values)
    # pstdev of equal floats can be a rounding error above 0.
    spread = statistics.pstdev(values, mean) if max(values) > min(values) else 0.0
    return [(value - mean) / spread if spread else 0.0 for value in values]
