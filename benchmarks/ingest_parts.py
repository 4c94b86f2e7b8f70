"""`python -m benchmarks.ingest_parts --held 30000`: where an ingest's processor time goes.

The chunks of `benchmarks.ingest`, added through the client to an empty collection and to one of
`--held` chunks; microseconds of processor time a chunk. The server's are those of the backend while
a statement ran, as the kernel counts them, so the server must be on this machine; those inside
publishing are its functions' shares by their own time. What the client does is timed by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from pydantic import SecretStr
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.corpus import Corpus
from benchmarks.ingest import recipe, service_url
from benchmarks.ingest_data import GivenVectors, documents
from benchmarks.lexical import fresh_database, server
from benchmarks.server_cpu import cpu_seconds
from ragpg import parse
from ragpg.client import AsyncClient
from ragpg.database import statements
from ragpg.database.connections import SQLALCHEMY_DRIVER
from ragpg.database.migrate import migrate
from ragpg.dsn import connect_args
from ragpg.settings import Settings
from ragpg.split import split
from ragpg.types import Document

NAMES = {text: name for file in ("ingest", "index") for name, text in statements(file).items()}
INSIDE = {
    "tokens": ("tokenize", "_compounds", "_levels", "_pairs"),
    "weights, and keys of new rows": ("lexical_add", "lexeme_number", "_reference_length"),
    "counts": ("_write_counts", "_merge_counts", "_settle_counts", "_entries"),
    "keys of waiting rows": ("_index_rows", "_outgrows_scan"),
    "blocks of columns": ("_fill_block",),
}
spent: Counter[str] = Counter()


def backend_ns(pid: int) -> int:
    """Processor time of a process so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[0])


class CountingCursor(psycopg.AsyncCursor[Any]):
    """Adds what each statement took in its backend to `spent`."""

    async def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        """As the driver's."""
        before = backend_ns(self.connection.info.backend_pid)
        await super().execute(query, *args, **kwargs)
        self._add(query, before)
        return self

    async def executemany(self, query: Any, *args: Any, **kwargs: Any) -> None:
        """As the driver's."""
        before = backend_ns(self.connection.info.backend_pid)
        await super().executemany(query, *args, **kwargs)
        self._add(query, before)

    def _add(self, query: Any, before: int) -> None:
        name = NAMES.get(query, "transactions")
        spent[name] += backend_ns(self.connection.info.backend_pid) - before


def inside_publishing(conn: psycopg.Connection[Any]) -> Iterator[tuple[str, float]]:
    """The parts of publishing, each with its share of the time."""
    rows = conn.execute("select funcname, total_time, self_time from pg_stat_user_functions")
    times = {name: (total, own) for name, total, own in rows}
    rest = 1.0
    for part, functions in INSIDE.items():
        own = sum(times[name][1] for name in functions if name in times)
        share = own / times["publish_documents"][0]
        rest -= share
        yield part, share
    yield "rows, their indexes, history", rest


def counting_engine(dsn: str) -> AsyncEngine:
    """A pool of connections whose statements are counted."""
    engine = create_async_engine(
        SQLALCHEMY_DRIVER, pool_size=10, connect_args=connect_args(service_url(dsn))
    )

    @event.listens_for(engine.sync_engine, "connect")
    def count(dbapi_connection: Any, _record: Any) -> None:
        dbapi_connection.driver_connection.cursor_factory = CountingCursor

    return engine


def alone(added: Sequence[Document]) -> float:
    """Microseconds for reading and splitting these documents, as the client does it."""
    before = time.process_time()
    for document in added:
        cleaned, _ = parse.clean(document)
        split(cleaned, splitter="section", max_tokens=400, overlap_tokens=50)
    return (time.process_time() - before) * 1e6


async def run(dsn: str, name: str, added: Sequence[Document], held: Sequence[Document]) -> None:
    """Print the parts of adding these documents to a collection that holds the others."""
    engine = counting_engine(dsn)
    settings = Settings(database_url=SecretStr(service_url(dsn)))
    with psycopg.connect(dsn, autocommit=True) as conn:
        async with AsyncClient(settings, engine=engine, embedder=GivenVectors()) as client:
            collection = client.collection(tenant="bench", name=name)
            await collection.create(recipe("none"))
            if held:
                await collection.ingest(held)
            await engine.dispose()
            conn.execute("vacuum analyze")
            conn.execute("checkpoint")
            conn.execute("select pg_stat_reset()")
            spent.clear()
            splitting, total, client_before = alone(added), cpu_seconds(conn), time.process_time()
            report = await collection.ingest(added)
            in_client = (time.process_time() - client_before) * 1e6
            await engine.dispose()
        total = (cpu_seconds(conn) - total) * 1e6
        shares = list(inside_publishing(conn))
    parts = {"client: reading and splitting": splitting}
    parts["client: the rest"] = in_client - splitting
    publishing = spent.pop("publish_documents") / 1000
    parts |= {f"publishing: {part}": share * publishing for part, share in shares}
    parts |= {f"statement {statement}": ns / 1000 for statement, ns in spent.most_common()}
    parts["server: the rest, its background processes"] = total - sum(parts.values())
    print(f"\n{report.chunks} chunks into {len(held) * 20}: microseconds a chunk")
    for part, microseconds in [*parts.items(), ("in all", total)]:
        print(f"{part:48} {microseconds / report.chunks:7.1f}", flush=True)


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=6000)
    parser.add_argument("--held", type=int, default=30_000)
    options = parser.parse_args()
    corpus = Corpus(words=100_000)
    held = list(documents(corpus, "held", options.held, 5_000_000))
    with server() as url, fresh_database(url, "ragpg_bench_parts") as dsn:
        migrate(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("alter database ragpg_bench_parts set track_functions = 'all'")
        warm = list(documents(corpus, "warm", 1000, 2_000_000))
        added = list(documents(corpus, "added", options.chunks, 1_000_000))
        asyncio.run(run(dsn, "warm", warm, []))
        asyncio.run(run(dsn, "empty", added, []))
        asyncio.run(run(dsn, "large", added, held))


if __name__ == "__main__":
    main()
