"""`python -m benchmarks.isolation`: a small tenant's searches while a large tenant is busy.

Half of the chunks are the large tenant's, 1 % are the small one's. Measured three times, in turn, for
`--rounds` rounds: the small tenant alone; while the large one ingests (documents of 20 chunks, each
indexed in one transaction, without a pause) and searches (one caller, without a pause); and beside as
many processes that only count, which shows what sharing the processors costs by itself. The target
is that p95 at most doubles. Prints a table and writes results/isolation.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from pgvector import HalfVector
from pgvector.psycopg import register_vector

from benchmarks import hybrid, hybrid_data
from benchmarks.corpus import Corpus
from benchmarks.lexical import fresh_database, server
from benchmarks.machine import machine
from ragpg.database.migrate import migrate
from ragpg.upkeep.dense_index import apply

LARGE, SMALL = "t0", "t1"
DOCUMENT_CHUNKS = 20
CONTEXT = multiprocessing.get_context("spawn")


def ingest(dsn: str, stop: Any, count: Any) -> None:
    """Add documents to the large tenant until told to stop; `count` is the chunks so far."""
    random = np.random.default_rng(99)
    texts = Corpus(words=20_000).chunks(1_000_000, seed=77)
    # Far above the corpus, whose chunks have their row for a number, and above the round before.
    row = 100_000_000 + count.value
    with psycopg.connect(dsn, autocommit=True) as conn:
        register_vector(conn)
        home = conn.execute("select ragpg.use_tenant(%s, true)", [LARGE]).fetchone()
        collection = conn.execute("select ragpg.collection_number('docs')").fetchone()
        if home is None or collection is None:
            raise LookupError(LARGE)
        while not stop.is_set():
            rows = list(range(row, row + DOCUMENT_CHUNKS))
            row += DOCUMENT_CHUNKS
            hybrid.add(
                conn,
                (home[0], collection[0]),
                rows=rows,
                texts=[next(texts) for _ in rows],
                kinds=["k0" for _ in rows],
                vectors=[HalfVector(random.standard_normal(hybrid_data.DIMENSIONS)) for _ in rows],
            )
            count.value += len(rows)


def search(dsn: str, questions: list[dict[str, Any]], stop: Any, count: Any) -> None:
    """Search the large tenant until told to stop; `count` is the searches so far."""
    call = hybrid.hybrid_caller(dsn)
    while not stop.is_set():
        for question in questions:
            call(question)
            count.value += 1
            if stop.is_set():
                break


def spin(stop: Any) -> None:
    """Use a processor and nothing else until told to stop."""
    total = 0
    while not stop.is_set():
        total += sum(range(10_000))


@contextmanager
def beside(targets: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> Iterator[None]:
    """These run in processes of their own meanwhile; each is given the event that stops it."""
    stop = CONTEXT.Event()
    processes = [
        CONTEXT.Process(target=target, args=tuple(stop if a is None else a for a in arguments))
        for target, arguments in targets
    ]
    for process in processes:
        process.start()
    time.sleep(4 if processes else 0)
    try:
        yield
    finally:
        stop.set()
        for process in processes:
            process.join(30)


def sample(dsn: str, questions: list[dict[str, Any]], seconds: float) -> list[float]:
    """Milliseconds of each search of the small tenant, one after the other."""
    call = hybrid.hybrid_caller(dsn)
    for question in questions[:8]:
        call(question)
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call(questions[len(latencies) % len(questions)])
        latencies.append((time.perf_counter() - start) * 1000)
    return latencies


def run(url: str, size: int, seconds: float, rounds: int) -> dict[str, Any]:
    """The latencies of the three situations, and how much the large tenant did meanwhile."""
    situations = ("alone", "large tenant busy", "processors busy")
    latencies: dict[str, list[float]] = {name: [] for name in situations}
    ingested, searched = CONTEXT.Value("q", 0), CONTEXT.Value("q", 0)
    with (
        tempfile.TemporaryDirectory(prefix="ragpg-isolation-") as name,
        fresh_database(url, "ragpg_bench_isolation") as dsn,
    ):
        folder = Path(name)
        hybrid_data.write(folder, size)
        migrate(dsn)
        hybrid.load(dsn, folder)
        apply(dsn, memory_mb=1000)
        questions = hybrid.read_questions(folder)
        small = [question for question in questions if question["tenant"] == SMALL]
        large = [question for question in questions if question["tenant"] == LARGE]
        loads: dict[str, list[Any]] = {
            "alone": [],
            "large tenant busy": [
                (ingest, (dsn, None, ingested)),
                (search, (dsn, large, None, searched)),
            ],
            "processors busy": [(spin, (None,)), (spin, (None,))],
        }
        for _ in range(rounds):
            for situation in situations:
                with beside(loads[situation]):
                    latencies[situation] += sample(dsn, small, seconds)
    alone = float(np.percentile(latencies["alone"], 95))
    rows = [
        {
            "situation": situation,
            "searches": len(taken),
            "per_second": len(taken) / (seconds * rounds),
            "p50_ms": float(np.percentile(taken, 50)),
            "p95_ms": float(np.percentile(taken, 95)),
            "p95_times": float(np.percentile(taken, 95)) / alone,
        }
        for situation, taken in latencies.items()
    ]
    return {
        "chunks": size,
        "rows": rows,
        "large_tenant": {"chunks_ingested": ingested.value, "searches": searched.value},
    }


def main() -> None:
    """Run once and write results/isolation.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.isolation", description=__doc__)
    parser.add_argument("--size", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=8, help="of each situation in each round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with server() as url:
        result = run(url, options.size, options.seconds, options.rounds)
    print(
        f"{'small tenant':20} {'searches':>8} {'per s':>7} {'p50 ms':>8} {'p95 ms':>8} {'p95':>6}"
    )
    for row in result["rows"]:
        print(
            f"{row['situation']:20} {row['searches']:8} {row['per_second']:7.1f} {row['p50_ms']:8.2f}"
            f" {row['p95_ms']:8.2f} {row['p95_times']:5.2f}x"
            + ("  more than double" if row["p95_times"] > 2 else "")
        )
    print(f"meanwhile the large tenant: {result['large_tenant']}")
    result["machine"] = machine()
    hybrid.RESULTS.mkdir(exist_ok=True)
    (hybrid.RESULTS / "isolation.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
