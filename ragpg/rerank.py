"""Stage 5 of 7: hits -> fewer hits in a better order, or the same order and a visible flag."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace

import anyio

from ragpg.errors import InvalidProviderResponse, ProviderError
from ragpg.faults import faults_named
from ragpg.protocols import Reranker
from ragpg.types import Hits, Usage

LOGGER = logging.getLogger("ragpg")


async def rerank(hits: Hits, reranker: Reranker, *, k: int, timeout_s: float) -> Hits:
    """The `k` best hits by the reranker's score; ties keep the fused order.

    Fails open: when the reranker fails or takes longer than `timeout_s`, the fused order is
    returned, `rerank_score` stays None and `degraded` says why. A vendor's failure is never raised;
    what is no ProviderError is a mistake in the reranker, and raises InvalidProviderResponse.
    """
    name = f"{reranker.provider} {reranker.model}"
    started = time.perf_counter()
    usage: tuple[Usage, ...] = ()
    # Outermost: a mistake in your reranker is raised, since a flag would hide it.
    with faults_named(reranker):
        try:
            with anyio.fail_after(timeout_s):
                reranked = await reranker.rerank(hits.query, hits)
            usage = reranked.usage
            scores = _checked(reranked.scores, len(hits), reranker)
        except TimeoutError:
            return _degraded(hits, k, f"{name} did not rerank within {timeout_s:g} s", started)
        except ProviderError as exc:
            paid = replace(hits, usage=hits.usage + usage)
            return _degraded(paid, k, f"{name} did not rerank: {exc}", started)
    ordered = sorted(zip(scores, hits, strict=True), key=lambda pair: (-pair[0], pair[1].rank))
    return replace(
        hits,
        hits=tuple(
            replace(hit, rank=rank, rerank_score=score)
            for rank, (score, hit) in enumerate(ordered[:k], start=1)
        ),
        reranker=name,
        usage=hits.usage + usage,
        timings_s={**hits.timings_s, "rerank": time.perf_counter() - started},
    )


def _checked(scores: tuple[float, ...], count: int, reranker: Reranker) -> tuple[float, ...]:
    if len(scores) != count or not all(math.isfinite(score) for score in scores):
        raise InvalidProviderResponse(
            f"{len(scores)} scores for {count} hits, or one that is not finite",
            provider=reranker.provider,
            model=reranker.model,
        )
    return scores


def _degraded(hits: Hits, k: int, reason: str, started: float) -> Hits:
    sentence = f"{reason}; the fused order is shown"
    LOGGER.warning("%s", sentence)
    return replace(
        hits,
        hits=hits.hits[:k],
        degraded=(*hits.degraded, sentence),
        timings_s={**hits.timings_s, "rerank": time.perf_counter() - started},
    )
