"""Quality on judged data: each arm, fusion and rerank, weights chosen on one half of the queries.

    python -m benchmarks.quality DIR... [--contexts none|rule]

Reads folders as `ragpg evaluate` does. Prints Pass@5/10/20 in percent (the share of a query's
relevant ids in the top k), checks that the SQL ranking of the lexical arm is that of BM25 computed in
Python on the same lexemes, and writes benchmarks/results/quality_<folder>.json. Weights are chosen by
Pass@10 on the even queries and reported on the odd ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio

from benchmarks.machine import machine
from ragpg import ladder, rerank, retrieve
from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.evaluate import evaluate
from ragpg.evaluation_data import read_evaluation
from ragpg.fanout import fan_out
from ragpg.providers.blend import BlendReranker
from ragpg.retrieve import Weights
from ragpg.settings import Settings
from ragpg.types import Hit, Hits

MEASURES = ("pass@5", "pass@10", "pass@20")
DENSE_WEIGHTS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.67, 2.5, 5.0)
DEPTH = 150
K1, B = 1.2, 0.75
RESULTS = Path(__file__).parent / "results"


async def hits_of(
    plan: ladder.Plan,
    handles: Mapping[str, AsyncCollection],
    vectors: Mapping[str, Sequence[float]],
) -> dict[str, Hits]:
    """All fused candidates of every query, each with its ranks and scores in both arms."""
    found: dict[str, Hits] = {}

    async def one(query) -> None:
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

    def fused(hit) -> float:
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


def figures(
    plan: ladder.Plan, runs: Mapping[str, Hits], keep=lambda _query_id: True
) -> list[float]:
    """Pass@5/10/20 in percent over the queries that are kept."""
    qrels = [qrel for qrel in plan.data.qrels if keep(qrel.query_id)]
    ids = {query_id: plan.ids(hits) for query_id, hits in runs.items()}
    mean = evaluate(qrels, ids, MEASURES, twins=plan.data.twins).mean
    return [100 * mean[name] for name in MEASURES]


async def same_ranking(
    plan: ladder.Plan, handles: Mapping[str, AsyncCollection]
) -> tuple[int, int]:
    """How many queries have the SQL top 150 that Python's BM25 gives, and how many were asked."""
    same = asked = 0
    for tenant, handle in handles.items():
        async with handle.transaction() as conn:
            cursor = await conn.execute(
                "select chunk_id, (select array_agg(lexeme || ' ' || coalesce(cardinality(positions), 1))"
                " from unnest(ragpg.tokenize(ragpg.contextualized(context, table_header, text))))"
                " from ragpg.chunk where collection_id = ragpg.collection_number(%s)",
                [handle.name],
            )
            counts = {
                chunk_id: Counter(
                    {
                        entry.rsplit(" ", 1)[0]: int(entry.rsplit(" ", 1)[1])
                        for entry in entries or []
                    }
                )
                for chunk_id, entries in await cursor.fetchall()
            }
            for query in plan.data.queries:
                if plan.tenant_of(query) != tenant:
                    continue
                cursor = await conn.execute(
                    "select array_agg(lexeme || ' ' || cardinality(positions)) from unnest(ragpg.tokenize(%s))",
                    [query.text],
                )
                row = await cursor.fetchone()
                terms = Counter(
                    {e.rsplit(" ", 1)[0]: int(e.rsplit(" ", 1)[1]) for e in (row[0] or [])}
                )
                cursor = await conn.execute(
                    "select chunk_id, score from ragpg.search_lexical(%s, %s, 150) order by rank",
                    [handle.name, query.text],
                )
                got = await cursor.fetchall()
                wanted = bm25(counts, terms)[:150]
                asked += 1
                same += agree(got, wanted)
    return same, asked


def agree(got: Sequence[tuple[int, float]], wanted: Sequence[tuple[int, float]]) -> bool:
    """Equal scores place by place; equal ids too, except among equal scores."""
    if len(got) != len(wanted):
        return False
    if any(not math.isclose(a[1], b[1], rel_tol=1e-5) for a, b in zip(got, wanted, strict=True)):
        return False
    last = wanted[-1][1] if wanted else 0.0
    clear = {i for i, score in wanted if score > last * (1 + 1e-5)}
    return clear <= {i for i, _ in got}


def bm25(counts: Mapping[int, Counter[str]], terms: Counter[str]) -> list[tuple[int, float]]:
    """Every matching chunk with its score, best first; Lucene's idf."""
    lengths = {chunk: sum(counter.values()) for chunk, counter in counts.items()}
    average = sum(lengths.values()) / max(len(lengths), 1)
    frequency = {term: sum(term in counter for counter in counts.values()) for term in terms}
    scores: dict[int, float] = defaultdict(float)
    for term, times in terms.items():
        idf = math.log(1 + (len(counts) - frequency[term] + 0.5) / (frequency[term] + 0.5))
        for chunk, counter in counts.items():
            if tf := counter.get(term):
                norm = K1 * (1 - B + B * lengths[chunk] / average)
                scores[chunk] += times * idf * tf * (K1 + 1) / (tf + norm)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


async def run(client: AsyncClient, directory: Path, contexts: str) -> dict:
    """All figures of one folder."""
    plan = ladder.plan_of(read_evaluation(directory))
    recipe = client.providers.default_recipe()
    if contexts == "none":
        recipe = replace(recipe, context_provider="none", context_model="none")
    made: list[AsyncCollection] = []
    started = time.perf_counter()
    try:
        handles = await ladder.ingest(client, plan, recipe, made, lambda *_: None)
        loaded_s = time.perf_counter() - started
        vectors = await ladder.embed_queries(client, plan, recipe)
        hits = await hits_of(plan, handles, vectors)
        blend = {
            query_id: await rerank.rerank(one, BlendReranker(), k=2 * DEPTH, timeout_s=60)
            for query_id, one in hits.items()
        }
        rows = {
            "dense": figures(plan, {i: ranked(h, 1, 0) for i, h in hits.items()}),
            "BM25": figures(plan, {i: ranked(h, 0, 1) for i, h in hits.items()}),
            "fused, weights 1 and 1": figures(plan, hits),
            "blend": figures(plan, blend),
        }
        order = {query.id: number for number, query in enumerate(plan.data.queries)}
        grid = {}
        for weight in DENSE_WEIGHTS:
            runs = {i: ranked(h, weight, 1) for i, h in hits.items()}
            grid[weight] = (
                figures(plan, runs, lambda i: order[i] % 2 == 0),
                figures(plan, runs, lambda i: order[i] % 2 == 1),
            )
        same, asked = await same_ranking(plan, handles)
    finally:
        for handle in made:
            await handle.drop()
    return {
        "folder": directory.name,
        "contexts": recipe.context_provider,
        "queries": len(plan.data.queries),
        "level": plan.data.level,
        "loaded_s": loaded_s,
        "rows": rows,
        "weights": {str(weight): {"even": a, "odd": b} for weight, (a, b) in grid.items()},
        "same_lexical_ranking": [same, asked],
    }


def show(result: dict) -> None:
    """One folder's figures as a table."""
    print(
        f"\n{result['folder']}, contexts {result['contexts']}, {result['queries']} queries, by {result['level']}"
    )
    for name, values in result["rows"].items():
        print(f"  {name:24s}" + "".join(f"{value:8.2f}" for value in values))
    print("  dense weight (lexical 1)   Pass@5/10/20 even queries          odd queries")
    for weight, halves in result["weights"].items():
        both = "      ".join(
            "".join(f"{value:8.2f}" for value in halves[half]) for half in ("even", "odd")
        )
        print(f"  {float(weight):24.2f}{both}")
    same, asked = result["same_lexical_ranking"]
    print(f"  lexical arm: {same} of {asked} queries have the ranking of BM25 computed in Python")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--contexts", choices=("none", "rule"), default="none")
    options = parser.parse_args()

    async def everything() -> None:
        with tempfile.TemporaryDirectory(prefix="ragpg-") as home:
            async with AsyncClient(Settings(home=Path(home), log_searches=False)) as client:
                for folder in options.folders:
                    result = await run(client, folder, options.contexts)
                    show(result)
                    RESULTS.mkdir(exist_ok=True)
                    name = f"quality_{folder.name}_{options.contexts}.json"
                    (RESULTS / name).write_text(json.dumps(machine() | result, indent=1) + "\n")

    asyncio.run(everything())


if __name__ == "__main__":
    main()
