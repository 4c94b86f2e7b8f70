"""What others see while documents are ingested: one version, whole, and no connection held."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
import psycopg
import pytest
from psycopg import IsolationLevel
from pydantic import SecretStr

from ragpg import testing
from ragpg.client import AsyncClient
from ragpg.settings import Settings
from ragpg.types import Chunk, Document, Embedded, Purpose, Recipe, WrittenContext
from tests.conftest import TestDatabase

pytestmark = pytest.mark.anyio

RECIPE = Recipe(
    embedding_provider="testing",
    embedding_model="hash-256",
    dimensions=256,
    context_provider="testing",
    context_model="first-sentence",
    max_tokens=20,
    overlap_tokens=0,
)
CHUNKS = {"even": 3, "odd": 1}


def version(number: int) -> Document:
    """Even versions have three chunks, odd ones one; each chunk says which version it is of."""
    parity = "even" if number % 2 == 0 else "odd"
    sections = [
        f"# Pump {part}\n\nThe pump drains the tank, {parity} v{number} of this page.\n\n"
        for part in range(CHUNKS[parity])
    ]
    return Document(key="pump.md", text="".join(sections), title=f"v{number}")


class Reader:
    """Polls in a thread through search, the view and the tables; keeps what it saw."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self.seen: list[tuple[Any, ...]] = []
        self.failed: list[BaseException] = []
        self._vector = "[" + ",".join(["1"] * 256) + "]"
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with psycopg.connect(self._url) as conn:
                conn.isolation_level = IsolationLevel.REPEATABLE_READ
                while not self._stop.is_set():
                    with conn.transaction():
                        conn.execute("select ragpg.use_tenant('acme')")
                        self.seen.append((*self._searched(conn), *self._stored(conn)))
                    # By itself, so that the function's own statements are what must agree.
                    conn.isolation_level = IsolationLevel.READ_COMMITTED
                    with conn.transaction():
                        conn.execute("select ragpg.use_tenant('acme')")
                        searched = self._searched(conn)
                    conn.isolation_level = IsolationLevel.REPEATABLE_READ
                    self.seen.append((*searched, *searched))
        except BaseException as exc:
            self.failed.append(exc)
            raise

    def _searched(self, conn: psycopg.Connection) -> tuple[frozenset[str], int]:
        """The versions and the number of chunks that a search for them finds."""
        texts = conn.execute(
            "select chunk.text from ragpg.search_hybrid('manual', 'pump', %s::halfvec, 20) as hit"
            "  join ragpg.chunk on chunk.tenant_id = ragpg.current_tenant()"
            "                  and chunk.chunk_id = hit.chunk_id",
            [self._vector],
        ).fetchall()
        return versions(text for (text,) in texts), len(texts)

    def _stored(self, conn: psycopg.Connection) -> tuple[frozenset[str], int]:
        """The same from the view and the tables, which must agree with each other."""
        overview = conn.execute("select title, chunks from ragpg.document_overview").fetchall()
        texts = conn.execute(
            "select chunk.text from ragpg.document join ragpg.chunk using (tenant_id, document_id)"
            "  join ragpg.embedding using (tenant_id, chunk_id)"
        ).fetchall()
        found = versions(text for (text,) in texts)
        assert [(frozenset([title]), chunks) for title, chunks in overview] == (
            [(found, len(texts))] if texts else []
        )
        return found, len(texts)

    @contextmanager
    def reading(self) -> Iterator[None]:
        self._thread.start()
        while not self.seen and not self.failed:
            time.sleep(0.01)
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(timeout=60)
        assert self.failed == []


def versions(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(text.partition(" of this page")[0].rpartition(" ")[2] for text in texts)


def whole(seen: tuple[Any, ...]) -> bool:
    """Whether search and tables show one version and all its chunks."""
    searched, hits, stored, chunks = seen
    if searched != stored or len(stored) != 1 or hits != chunks:
        return False
    number = int(next(iter(stored))[1:])
    return bool(chunks == CHUNKS["even" if number % 2 == 0 else "odd"])


@pytest.fixture
async def manual(client):
    manual = client.collection(tenant="acme", name="manual")
    await manual.create(RECIPE)
    await manual.ingest([version(0)])
    return manual


async def test_a_reader_sees_one_whole_version_at_every_moment_of_fifty_ingests(manual, database):
    reader = Reader(database.service_url)
    with reader.reading():
        for number in range(1, 51):
            await manual.ingest([version(number)])
    assert [seen for seen in reader.seen if not whole(seen)] == []
    assert len({seen[0] for seen in reader.seen}) >= 10


async def test_a_reader_sees_a_deleted_document_whole_or_not_at_all(manual, database):
    nothing = (frozenset[str](), 0, frozenset[str](), 0)
    reader = Reader(database.service_url)
    with reader.reading():
        for number in range(1, 26):
            assert await manual.delete("pump.md")
            await manual.ingest([version(2 * number)])
    assert [seen for seen in reader.seen if seen != nothing and not whole(seen)] == []
    assert nothing in reader.seen


class Slow:
    """Counts the provider calls that are under way at one time, each of `latency_s`."""

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s
        self.now = 0
        self.most = {"context": 0, "embed": 0}

    async def call(self, kind: str) -> None:
        self.now += 1
        self.most[kind] = max(self.most[kind], self.now)
        await anyio.sleep(self.latency_s)
        self.now -= 1

    def embedder(self) -> testing.HashEmbedder:
        slow = self

        class Embedder(testing.HashEmbedder):
            async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
                await slow.call("embed")
                return await super().embed(texts, purpose=purpose)

        return Embedder()

    def writer(self) -> testing.FirstSentenceContextWriter:
        slow = self

        class Writer(testing.FirstSentenceContextWriter):
            async def write(
                self, document: Document, chunks: Sequence[Chunk]
            ) -> AsyncIterator[WrittenContext]:
                await slow.call("context")
                async for written in super().write(document, chunks):
                    yield written

        return Writer()


class Activity:
    """Looks at pg_stat_activity every 20 ms for transactions that wait for their client."""

    def __init__(self, database: TestDatabase, longer_than_s: float) -> None:
        self._database = database
        self._longer_than_s = longer_than_s
        self._stop = threading.Event()
        self.looked = 0
        self.idle: list[tuple[Any, ...]] = []
        self.connections = 0

    def __call__(self) -> None:
        with psycopg.connect(self._database.owner_url, autocommit=True) as conn:
            while not self._stop.wait(0.02):
                rows = conn.execute(
                    "select state, clock_timestamp() - state_change > make_interval(secs => %s),"
                    "       query from pg_stat_activity"
                    " where datname = current_database() and application_name = 'ragpg'",
                    [self._longer_than_s],
                ).fetchall()
                self.looked += 1
                self.connections = max(self.connections, len(rows))
                self.idle += [
                    row for row in rows if row[0].startswith("idle in transaction") and row[1]
                ]

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


async def test_no_transaction_waits_for_a_provider_with_20_ingests_and_a_pool_of_5(database):
    slow = Slow(latency_s=1.5)
    activity = Activity(database, longer_than_s=0.75)
    settings = Settings(database_url=SecretStr(database.service_url), pool_max_size=5)
    async with AsyncClient(
        settings, embedder=slow.embedder(), context_writer=slow.writer()
    ) as client:
        manual = client.collection(tenant="acme", name="manual")
        await manual.create(RECIPE)

        async def ingest(number: int) -> None:
            page = Document(key=f"{number}.md", text=f"# Page {number}\n\nThe pump P{number}.\n")
            assert (await manual.ingest([page])).created == (page.key,)

        with activity.watching():
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(ingest, number)
    assert activity.idle == []
    assert activity.looked > 20
    assert activity.connections <= 5
    # With a connection held by each ingest, no more than five calls could be under way.
    assert slow.most == {"context": 20, "embed": 20}
