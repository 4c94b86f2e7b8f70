"""Quality on judged data: each arm, fusion and rerank, beside the figures of another pipeline.

    python -m benchmarks.quality DIR... [--contexts none|title|rule|given] [--lang en de..] [--every 3]
        [--cut fixed|whole]

Prints Pass@5/10/20 and 150 in percent (the share of a query's relevant ids in the top k; 150 is what
a reranker gets), checks the SQL ranking of the lexical arm against BM25 computed in Python, and writes
benchmarks/results/quality_<name>_<contexts>.json. `--lang` takes the documents and queries of one
metadata.lang, in a collection of its own with the tokenizer of that language. `--contexts rule` is the
default recipe, `given` takes contexts.jsonl. `--cut fixed` cuts every 300 tokens, not at
headings, `--cut whole` nowhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from benchmarks.machine import machine
from benchmarks.quality_bm25 import same_ranking
from benchmarks.quality_parts import CONFIGURATIONS, CUTS, Part, parts, recut
from benchmarks.quality_reference import (
    BLEND,
    BLEND_50,
    BM25,
    BM25_50,
    DEFAULT,
    DENSE,
    DENSE_50,
    EQUAL,
    reference,
)
from benchmarks.quality_titles import TitleWriter
from ragpg import ladder, rerank, retrieve
from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.evaluate import Measures, evaluate
from ragpg.evaluation_data import Query
from ragpg.fanout import fan_out
from ragpg.providers.blend import BlendReranker
from ragpg.retrieve import DEPTH, Weights
from ragpg.settings import Settings
from ragpg.types import Hit, Hits, Recipe

MEASURES = ("pass@5", "pass@10", "pass@20", "pass@150")
# What weights are told apart by: the answer alone, and what a reranker is sent.
WEIGHED_BY = ("pass@10", "pass@150")
DENSE_WEIGHTS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.67, 2.5, 5.0)
RESULTS = Path(__file__).parent / "results"


async def hits_of(
    plan: ladder.Plan,
    handles: Mapping[str, AsyncCollection],
    vectors: Mapping[str, Sequence[float]],
) -> dict[str, Hits]:
    """All fused candidates of every query, each with its ranks and scores in both arms."""
    found: dict[str, Hits] = {}

    async def one(query: Query) -> None:
        handle = handles.get(plan.tenant_of(query))
        if handle is None:
            return
        async with handle.transaction() as conn:
            deep = await retrieve.retrieve(
                conn,
                retrieve.checked_query(query.text),
                collection=handle.name,
                embedding=vectors[query.id],
                dimensions=len(vectors[query.id]),
                where=None,
                k=2 * DEPTH,
                weights=Weights(),
                exclude=(),
                after=None,
                deduplicate=False,
            )
        # An arm is searched as deep as k, so ranks beyond the depth are cut here.
        found[query.id] = ranked(replace(deep, hits=tuple(map(cut, deep))), 1, 1)

    await fan_out([partial(one, query) for query in plan.data.queries], anyio.CapacityLimiter(2))
    return found


def cut(hit: Hit) -> Hit:
    """The hit without a rank that lies beyond the depth of an arm."""
    dense, lexical = hit.dense_rank, hit.lexical_rank
    return replace(
        hit,
        dense_rank=dense if dense is not None and dense <= DEPTH else None,
        lexical_rank=lexical if lexical is not None and lexical <= DEPTH else None,
    )


def ranked(hits: Hits, dense: float, lexical: float) -> Hits:
    """The same candidates, fused with other weights."""

    def fused(hit: Hit) -> float:
        score = 0.0
        if hit.dense_rank is not None:
            score += dense / (60 + hit.dense_rank)
        if hit.lexical_rank is not None:
            score += lexical / (60 + hit.lexical_rank)
        return score

    ordered = sorted(
        (hit for hit in hits if fused(hit) > 0), key=lambda hit: (-fused(hit), hit.chunk_id)
    )
    return replace(hits, hits=tuple(ordered))


def within(hits: Hits, count: int, scores: str) -> Hits:
    """The first hits, best first by the scores of one arm."""

    def place(hit: Hit) -> tuple[float, int]:
        score = getattr(hit, scores)
        return (math.inf if score is None else -score, hit.chunk_id)

    return replace(hits, hits=tuple(sorted(hits.hits[:count], key=place)))


def measured(plan: ladder.Plan, runs: Mapping[str, Hits]) -> Measures:
    """The measures of all queries."""
    ids = {query_id: plan.ids(hits) for query_id, hits in runs.items()}
    return evaluate(plan.data.qrels, ids, MEASURES, twins=plan.data.twins)


async def blended(hits: Mapping[str, Hits], count: int) -> dict[str, Hits]:
    """The first `count` hits of each query, reranked by the sum of z-scores."""
    return {
        query_id: await rerank.rerank(
            replace(one, hits=one.hits[:count]), BlendReranker(), k=2 * DEPTH, timeout_s=60
        )
        for query_id, one in hits.items()
    }


async def rows_of(plan: ladder.Plan, hits: Mapping[str, Hits]) -> dict[str, list[float]]:
    """Each row's measures in percent."""
    default = Weights()
    runs = {
        DENSE: {i: ranked(one, 1, 0) for i, one in hits.items()},
        DENSE_50: {i: within(one, 50, "dense_score") for i, one in hits.items()},
        BM25: {i: ranked(one, 0, 1) for i, one in hits.items()},
        BM25_50: {i: within(one, 50, "lexical_score") for i, one in hits.items()},
        EQUAL: hits,
        DEFAULT: {i: ranked(one, default.dense, default.lexical) for i, one in hits.items()},
        BLEND_50: await blended(hits, 50),
        BLEND: await blended(hits, 2 * DEPTH),
    }
    return {
        name: [100 * measured(plan, run).mean[measure] for measure in MEASURES]
        for name, run in runs.items()
    }


def weights_of(plan: ladder.Plan, hits: Mapping[str, Hits]) -> dict[str, dict[str, list[float]]]:
    """By dense weight and measure a fraction for each judged query, in the order of the file."""
    by_weight = {}
    judged = {qrel.query_id for qrel in plan.data.qrels}
    order = [query.id for query in plan.data.queries if query.id in judged]
    for weight in DENSE_WEIGHTS:
        by_query = measured(plan, {i: ranked(one, weight, 1) for i, one in hits.items()}).by_query
        by_weight[str(weight)] = {
            measure: [round(by_query[query_id][measure], 4) for query_id in order]
            for measure in WEIGHED_BY
        }
    return by_weight


def recipe_of(client: AsyncClient, part: Part, contexts: str) -> Recipe:
    """The default recipe in the part's language, with other contexts and cuts where asked."""
    recipe = replace(client.providers.default_recipe(), language=part.language)
    if part.cut == "fixed":
        recipe = replace(recipe, splitter="fixed", max_tokens=300, overlap_tokens=0)
    elif part.cut == "whole":
        recipe = replace(recipe, splitter="whole")
    if contexts == "none":
        return replace(recipe, context_provider="none", context_model="none")
    if contexts == "given":
        given = ladder.GivenContextWriter
        return replace(recipe, context_provider=given.provider, context_model=given.model)
    return recipe


async def run(client: AsyncClient, part: Part, contexts: str) -> dict[str, Any]:
    """All figures of one part."""
    plan, recipe = part.plan, recipe_of(client, part, contexts)
    made: list[AsyncCollection] = []
    try:
        handles = await ladder.ingest(client, plan, recipe, made, lambda *_: None)
        vectors = await ladder.embed_queries(client, plan, recipe)
        hits = await hits_of(plan, handles, vectors)
        same, asked = await same_ranking(plan, handles, recipe.language)
    finally:
        for handle in made:
            await handle.drop()
    return {
        "name": part.name,
        "contexts": contexts,
        "queries": len({qrel.query_id for qrel in plan.data.qrels}),
        "documents": len(plan.data.documents),
        "level": plan.data.level,
        "language": part.language,
        "rows": await rows_of(plan, hits),
        "by_weight": weights_of(plan, hits),
        "same_lexical_ranking": [same, asked],
    }


def show(result: Mapping[str, Any]) -> None:
    """One part's figures as a table, with the reference's and the difference where there is one."""
    print(f"\n{result['name']}, contexts {result['contexts']}, {result['queries']} queries")
    beside = reference(result["name"], result["contexts"])
    for name, values in result["rows"].items():
        line = f"  {name:28s}" + "".join(f"{value:8.2f}" for value in values)
        for value, other in zip(values, beside.get(name, ()), strict=False):
            line += f"   {other:.1f} ({value - other:+.1f})"
        print(line)
    same, asked = result["same_lexical_ranking"]
    print(f"  lexical arm: {same} of {asked} queries have the ranking of BM25 computed in Python")


def main() -> None:
    """Measure every part and write its file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--contexts", choices=("none", "title", "rule", "given"), default="none")
    parser.add_argument("--lang", nargs="+", choices=tuple(CONFIGURATIONS), default=[])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--cut", choices=tuple(CUTS), default="section")
    options = parser.parse_args()

    async def everything() -> None:
        with tempfile.TemporaryDirectory(prefix="ragpg-") as home:
            settings = Settings(home=Path(home), log_searches=False)
            writer = TitleWriter() if options.contexts == "title" else None
            async with AsyncClient(settings, context_writer=writer) as client:
                for folder in options.folders:
                    for part in parts(folder, options.lang, options.every):
                        write(await run(client, recut(part, options.cut), options.contexts))

    asyncio.run(everything())


def write(result: Mapping[str, Any]) -> None:
    """Print a result and write its file."""
    show(result)
    RESULTS.mkdir(exist_ok=True)
    name = (
        re.sub(r"\W+", "-", f"{result['name']}")
        .replace("-one-question-in", "")
        .replace("-chunks-of", "")
        .replace("-documents", "")
    )
    path = RESULTS / f"quality_{name}_{result['contexts']}.json"
    path.write_text(json.dumps(machine() | dict(result)) + "\n")


if __name__ == "__main__":
    main()
