"""`python -m benchmarks.ingest --peers-python PATH`: chunks a second into an empty and a full store.

Every side adds the same chunks (`ingest_data`) with the same vectors of 384 dimensions to the same
server, into nothing and into 100,000 chunks: ragpg through its client, from whole documents, with
splitting, staging, both indexes and publishing; COPY (binary, one transaction) into a table with the
same vectors and a stored `to_tsvector('english', text)` under GIN; and, with an interpreter that has
benchmarks/peers/requirements.txt, three stores through their own calls. "hnsw" has a vector index
while it adds, the others have none. CPU is that of client and server together, in microseconds a
chunk: on a shared machine it says more than the clock. The last table is ragpg's own process while
the collection grows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
from pgvector import HalfVector
from pgvector.psycopg import register_vector
from pydantic import SecretStr

from benchmarks.corpus import Corpus
from benchmarks.ingest_data import DIMENSIONS, GivenVectors, documents, passages
from benchmarks.lexical import fresh_database, server
from benchmarks.machine import machine
from benchmarks.server_cpu import cpu_seconds
from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.database.migrate import migrate
from ragpg.ingestion.tally import IngestProgress
from ragpg.settings import Settings
from ragpg.types import Document, Recipe
from ragpg.upkeep.dense_index import apply

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
STEP = 10_000
STOCK = """
create table stock (
    id bigint generated always as identity primary key,
    text text not null,
    embedding halfvec({dimensions}) not null,
    tsv tsvector generated always as (to_tsvector('english', text)) stored
);
create index on stock using gin (tsv);
"""


def recipe(context_provider: str) -> Recipe:
    """Given vectors; contexts by rule or none."""
    return Recipe(
        embedding_provider="given",
        embedding_model="given",
        dimensions=DIMENSIONS,
        context_provider=context_provider,
        context_model="rule-1" if context_provider == "rule" else "none",
    )


class Measured:
    """Seconds and CPU of what happens inside `with`, as a row of the result."""

    def __init__(self, dsn: str, chunks: int) -> None:
        self.dsn, self.chunks = dsn, chunks
        self.row: dict[str, Any] = {}

    def __enter__(self) -> Self:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute("checkpoint")
            self._cpu = cpu_seconds(conn)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_exc: object) -> None:
        spent = time.perf_counter() - self._start
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            cpu = cpu_seconds(conn) - self._cpu
        self.row = {
            "chunks": self.chunks,
            "seconds": spent,
            "per_second": self.chunks / spent,
            "cpu_us": cpu / self.chunks * 1e6,
            "load": os.getloadavg()[0],
        }


def service_url(dsn: str) -> str:
    """The URL of a role of ragpg_app on the same database."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "do $$ begin create role ragpg_bench_service login password 'bench' in role ragpg_app;"
            " exception when duplicate_object then null; end $$"
        )
    parts = urlsplit(dsn)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"ragpg_bench_service:bench@{host}"))


@asynccontextmanager
async def opened(dsn: str, name: str, context_provider: str) -> AsyncIterator[AsyncCollection]:
    """A new collection of this name."""
    settings = Settings(database_url=SecretStr(service_url(dsn)))
    async with AsyncClient(settings, embedder=GivenVectors()) as client:
        collection = client.collection(tenant="bench", name=name)
        await collection.create(recipe(context_provider))
        yield collection


def anonymous_kb() -> int:
    """Memory of this process that is its own, without files that it maps."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.partition("RssAnon:")[2].split()[0])


async def grow(collection: AsyncCollection, corpus: Corpus, size: int) -> list[dict[str, Any]]:
    """Ingest `size` chunks in one call, from a generator; chunks a second and memory by the way."""
    rows: list[dict[str, Any]] = []
    state = {"peak": 0, "next": STEP, "start": time.perf_counter(), "before": 0}

    def look(now: IngestProgress) -> None:
        state["peak"] = max(state["peak"], anonymous_kb())
        if now.chunks >= state["next"]:
            spent = time.perf_counter() - state["start"]
            rows.append(
                {
                    "chunks": now.chunks,
                    "per_second": (now.chunks - state["before"]) / spent,
                    "peak_mb": state["peak"] / 1024,
                }
            )
            state.update(
                next=state["next"] + STEP, start=time.perf_counter(), before=now.chunks, peak=0
            )

    await collection.ingest(documents(corpus, "grow", size, 5_000_000), progress=look)
    return rows


async def run_ragpg(
    dsn: str, corpus: Corpus, added: Sequence[Document], chunks: int, size: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """ragpg's rows, and what its process used while the collection grew."""
    rows: list[dict[str, Any]] = []

    async def add(collection: AsyncCollection, system: str, held: int) -> None:
        with Measured(dsn, chunks) as measured:
            report = await collection.ingest(added)
        if report.failed or report.chunks != chunks:
            raise RuntimeError(f"{report.chunks} of {chunks} chunks, failed: {report.failed[:1]}")
        rows.append({"system": system, "held": held, **measured.row, "stages": report.timings_s})

    async with opened(dsn, "empty", "none") as collection:
        await add(collection, "ragpg", 0)
    async with opened(dsn, "ruled", "rule") as collection:
        await add(collection, "ragpg, contexts by rule", 0)
        await collection.drop()
    async with opened(dsn, "large", "none") as collection:
        growth = await grow(collection, corpus, size)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("vacuum analyze")
        await add(collection, "ragpg", size)
        for document in added:
            await collection.delete(document.key)
        await asyncio.to_thread(apply, dsn, memory_mb=1000)
        await add(collection, "ragpg, hnsw", size)
    return rows, growth


def copy_rows(dsn: str, texts: Sequence[str], given: GivenVectors) -> None:
    """One binary COPY of one transaction."""
    with psycopg.connect(dsn) as conn:
        register_vector(conn)
        with (
            conn.cursor() as cursor,
            cursor.copy("copy stock (text, embedding) from stdin (format binary)") as copy,
        ):
            copy.set_types(["text", "halfvec"])
            for first in range(0, len(texts), 1000):
                part = texts[first : first + 1000]
                for text, vector in zip(part, given.vectors(part), strict=True):
                    copy.write_row((text, HalfVector(vector)))


def run_copy(dsn: str, corpus: Corpus, texts: Sequence[str], size: int) -> Iterator[dict[str, Any]]:
    """COPY's rows. The 100,000 chunks stay in the table, from which the peers are filled."""
    given = GivenVectors()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create extension vector")
        conn.execute(STOCK.format(dimensions=DIMENSIONS))
    for held in (0, size):
        if held:
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("truncate stock")
            copy_rows(dsn, passages(list(documents(corpus, "grow", size, 5_000_000))), given)
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("vacuum analyze stock")
        with Measured(dsn, len(texts)) as measured:
            copy_rows(dsn, texts, given)
        yield {"system": "COPY, stock GIN", "held": held, **measured.row}


def run_peers(dsn: str, python: str, texts: Sequence[str], held: int) -> dict[str, Any]:
    """The three stores' rows and versions."""
    with tempfile.TemporaryDirectory(prefix="ragpg-ingest-") as name:
        folder = Path(name)
        (folder / "texts.json").write_text(json.dumps(list(texts)), "utf-8")
        subprocess.run(  # noqa: S603  the interpreter that the user named
            [python, "-m", "benchmarks.peers.ingest", "--dsn", dsn, "--folder", name,
             "--held", str(held)],
            cwd=ROOT, check=True,
        )  # fmt: skip
        found: dict[str, Any] = json.loads((folder / "peers.json").read_text("utf-8"))
    return found


def show(rows: Sequence[dict[str, Any]], growth: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Both tables' lines."""
    yield f"{'held':>7} {'system':34} {'per s':>7} {'CPU us':>7} {'of COPY':>8} {'of best peer':>12}"
    for held in sorted({row["held"] for row in rows}):
        same = [row for row in rows if row["held"] == held]
        copied = next(row["per_second"] for row in same if row["system"].startswith("COPY"))
        peers = [row["per_second"] for row in same if row.get("peer")]
        for row in sorted(same, key=lambda row: -row["per_second"]):
            times = f"{row['per_second'] / max(peers):11.1f}x" if peers else ""
            yield (
                f"{held:7} {row['system']:34} {row['per_second']:7.0f} {row['cpu_us']:7.0f}"
                f" {row['per_second'] / copied:8.2f} {times:>12}"
            )
    yield f"\n{'chunks':>7} {'per s':>7} {'peak MB':>8}"
    for row in growth:
        yield f"{row['chunks']:7} {row['per_second']:7.0f} {row['peak_mb']:8.0f}"


def main() -> None:
    """Run everything and write results/ingest.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__)
    parser.add_argument("--chunks", type=int, default=6000, help="how many each side adds")
    parser.add_argument("--held", type=int, default=100_000, help="size of the full store")
    parser.add_argument("--peers-python", help="an interpreter with peers/requirements.txt")
    options = parser.parse_args()
    corpus = Corpus(words=100_000)
    added = list(documents(corpus, "added", options.chunks, 1_000_000))
    texts = passages(added)
    peers: dict[str, Any] = {"rows": [], "versions": {}}
    with server() as url:
        with fresh_database(url, "ragpg_bench_ingest") as dsn:
            migrate(dsn)
            rows, growth = asyncio.run(run_ragpg(dsn, corpus, added, len(texts), options.held))
        with fresh_database(url, "ragpg_bench_stock") as dsn:
            rows += run_copy(dsn, corpus, texts, options.held)
            if options.peers_python is not None:
                peers = run_peers(dsn, options.peers_python, texts, options.held)
    rows += peers["rows"]
    print("\n".join(show(rows, growth)), flush=True)
    result = {
        **machine(),
        "versions": {"psycopg": version("psycopg"), **peers["versions"]},
        "rows": rows,
        "growth": growth,
    }
    (RESULTS / "ingest.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
