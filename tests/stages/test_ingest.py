"""Ingest on a real Postgres: what becomes live, what it costs, what is kept, and what fails."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import ragpg
from ragpg import errors, testing
from ragpg.types import Chunk, Document, Embedded, Purpose, Recipe, WrittenContext
from tests.conftest import client_on

pytestmark = pytest.mark.anyio

LEAVE = """# Leave

Everybody has 30 days of leave a year.

## Carrying over

Five days may be carried over to March.

## Sick leave

Tell your lead on the first day.
"""


def leave(text: str = LEAVE, **fields) -> Document:
    return Document(key="hr/leave.md", text=text, **fields)


def recipe(**fields) -> Recipe:
    """The recipe of the fakes, with chunks of a section each."""
    return Recipe(
        embedding_provider="testing",
        embedding_model="hash-256",
        dimensions=256,
        context_provider="testing",
        context_model="first-sentence",
        max_tokens=20,
        overlap_tokens=5,
        **fields,
    )


def live_chunks(owner: psycopg.Connection) -> list[tuple[Any, ...]]:
    return owner.execute(
        "select position, chunk.start, chunk.stop, chunk.text, section_path, context"
        " from ragpg.chunk join ragpg.document using (tenant_id, document_id) order by key, position"
    ).fetchall()


async def test_a_document_becomes_chunks_that_are_verbatim_slices_with_their_sections(
    client, owner
):
    handbook = client.collection(tenant="acme", name="handbook")
    await handbook.create(recipe())
    report = await handbook.ingest([leave()])
    assert (report.created, report.failed, report.chunks) == (("hr/leave.md",), (), 3)
    rows = live_chunks(owner)
    assert [LEAVE[start:stop] for _, start, stop, *_ in rows] == [row[3] for row in rows]
    assert "".join(row[3] for row in rows) == LEAVE
    assert [row[4] for row in rows] == [
        ["Leave"],
        ["Leave", "Carrying over"],
        ["Leave", "Sick leave"],
    ]
    assert {row[5] for row in rows} == {"Leave"}
    assert owner.execute("select count(*) from ragpg.staged_document").fetchone() == (0,)


class CountingEmbedder(testing.HashEmbedder):
    """Keeps what it was asked to embed."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        self.asked += texts
        return await super().embed(texts, purpose=purpose)


class CountingWriter(testing.FirstSentenceContextWriter):
    """Keeps the positions that it was asked to write for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def write(
        self, document: Document, chunks: Sequence[Chunk]
    ) -> AsyncIterator[WrittenContext]:
        self.asked += [chunk.position for chunk in chunks]
        async for written in super().write(document, chunks):
            yield written


async def test_the_same_document_again_calls_no_provider_and_touches_no_row(database, owner):
    embedder, writer = CountingEmbedder(), CountingWriter()
    async with client_on(database, embedder=embedder, context_writer=writer) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.create(recipe())
        await handbook.ingest([leave()])
        calls = (len(embedder.asked), len(writer.asked))
        before = owner.execute("select xmin::text, ctid::text from ragpg.chunk").fetchall()
        report = await handbook.ingest([leave()])
        assert (report.unchanged, report.created, report.updated) == (("hr/leave.md",), (), ())
        assert (len(embedder.asked), len(writer.asked)) == calls
        assert owner.execute("select xmin::text, ctid::text from ragpg.chunk").fetchall() == before


async def test_an_edit_pays_for_the_changed_section_alone_and_keeps_the_other_chunks(
    database, owner
):
    embedder, writer = CountingEmbedder(), CountingWriter()
    async with client_on(database, embedder=embedder, context_writer=writer) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.create(recipe())
        await handbook.ingest([leave()])
        ids = dict(owner.execute("select position, chunk_id from ragpg.chunk").fetchall())
        embedder.asked.clear()
        writer.asked.clear()
        report = await handbook.ingest([leave(LEAVE.replace("Five days", "Eight days"))])
        assert (report.updated, report.chunks, report.reused_chunks) == (("hr/leave.md",), 3, 2)
        assert writer.asked == [1]
        assert len(embedder.asked) == 1
        assert "Eight days" in embedder.asked[0]
        after = dict(owner.execute("select position, chunk_id from ragpg.chunk").fetchall())
        assert (after[0], after[2]) == (ids[0], ids[2])
        assert after[1] != ids[1]
        assert (await handbook.retrieve("eight carried", k=1)).hits[0].chunk_id == after[1]
        assert all("Five days" not in row[3] for row in live_chunks(owner))


async def test_a_shorter_version_leaves_no_old_chunk_behind(client, owner):
    handbook = client.collection(tenant="acme", name="handbook")
    await handbook.create(recipe())
    await handbook.ingest([leave()])
    await handbook.ingest([leave("# Leave\n\nAsk the people team.\n")])
    assert [row[3] for row in live_chunks(owner)] == ["# Leave\n\nAsk the people team.\n"]
    assert owner.execute("select revision from ragpg.document").fetchall() == [(2,)]
    assert owner.execute("select count(*) from ragpg.embedding").fetchone() == (1,)
    assert owner.execute("select count(*) from ragpg.lexeme_vector").fetchone() == (1,)


async def test_changed_metadata_reaches_filters_without_embedding_again(database):
    embedder = CountingEmbedder()
    async with client_on(database, embedder=embedder) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.ingest([leave(metadata={"year": 2025})])
        embedder.asked.clear()
        await handbook.ingest([leave(metadata={"year": 2026})])
        assert embedder.asked == []
        new = await handbook.retrieve("leave", where=ragpg.field("year") == 2026)
        assert {hit.document_key for hit in new} == {"hr/leave.md"}
        assert not await handbook.retrieve("leave", where=ragpg.field("year") == 2025)


async def test_a_deleted_document_is_gone_from_every_table_at_once(client, owner):
    handbook = client.collection(tenant="acme", name="handbook")
    await handbook.ingest([leave()])
    assert await handbook.delete("hr/leave.md") is True
    assert await handbook.delete("hr/leave.md") is False
    for table in ("document", "chunk", "embedding", "lexeme_vector"):
        assert owner.execute(f"select count(*) from ragpg.{table}").fetchone() == (0,)
    assert not await handbook.retrieve("leave")
    with pytest.raises(errors.DocumentNotFound, match=r"hr/leave\.md"):
        await handbook.document("hr/leave.md")


async def test_a_document_comes_back_as_it_was_given(client):
    handbook = client.collection(tenant="acme", name="handbook")
    given = leave(
        title="Leave",
        source="wiki",
        tags=("hr", "policy"),
        metadata={"year": 2026, "nested": {"a": [1, None, True]}},
        modified_at=dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC),
        owner="people",
        review_by=dt.date(2027, 1, 1),
    )
    await handbook.ingest([given])
    assert await handbook.document("hr/leave.md") == given


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "no_text"), (" \n\t\n", "no_text"), ("\u200b\u200b", "no_text")],
)
async def test_a_document_without_text_is_told_apart_and_its_neighbours_go_on(
    client, owner, text, reason
):
    handbook = client.collection(tenant="acme", name="handbook")
    report = await handbook.ingest([Document(key="empty.md", text=text), leave()])
    assert report.created == ("hr/leave.md",)
    assert [(failure.key, failure.reason) for failure in report.failed] == [("empty.md", reason)]
    assert owner.execute("select key, status from ragpg.staged_document").fetchall() == [
        ("empty.md", "no_text")
    ]
    assert owner.execute("select key from ragpg.document").fetchall() == [("hr/leave.md",)]


async def test_nul_characters_are_removed_everywhere_and_counted(client):
    handbook = client.collection(tenant="acme", name="handbook")
    dirty = Document(
        key="scan.txt",
        text="Page 1\0\0 of the scan.",
        title="Scan\0",
        metadata={"produ\0cer": "Acme\0"},
        media_type="text",
    )
    report = await handbook.ingest([dirty])
    assert (report.created, report.nul_characters_removed) == (("scan.txt",), 5)
    stored = await handbook.document("scan.txt")
    assert (stored.text, stored.title, stored.metadata) == (
        "Page 1 of the scan.",
        "Scan",
        {"producer": "Acme"},
    )


async def test_a_nul_that_a_model_writes_into_a_context_is_removed(database, owner):
    class NulWriter(testing.FirstSentenceContextWriter):
        async def write(self, document, chunks):
            async for written in super().write(document, chunks):
                yield replace(written, context="con\0text")

    async with client_on(database, context_writer=NulWriter()) as client:
        await client.collection(tenant="acme", name="handbook").ingest([leave()])
    assert {row[5] for row in live_chunks(owner)} == {"context"}


async def test_a_context_that_failed_is_a_visible_gap_and_is_retried(database, owner):
    class FailingWriter(testing.FirstSentenceContextWriter):
        fails = True

        async def write(self, document, chunks):
            async for written in super().write(document, chunks):
                if self.fails and written.position == 1:
                    yield WrittenContext(position=1, context=None, error="refused by the model")
                else:
                    yield written

    writer = FailingWriter()
    async with client_on(database, context_writer=writer) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.create(recipe())
        report = await handbook.ingest([leave()])
        assert (report.created, report.contexts_failed) == (("hr/leave.md",), 1)
        gaps = "select position, context_error from ragpg.chunk where context is null"
        assert owner.execute(gaps).fetchall() == [(1, "refused by the model")]
        writer.fails = False
        report = await handbook.ingest([leave(title="Leave")])
        assert report.contexts_failed == 0
        assert owner.execute(gaps).fetchall() == []


class BadEmbedder(testing.HashEmbedder):
    """Gives a bad vector for every text that holds the word poison."""

    def __init__(self, bad: Sequence[float]) -> None:
        super().__init__()
        self.bad = bad

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        good = await super().embed(texts, purpose=purpose)
        return replace(
            good,
            vectors=[
                self.bad if "poison" in text else vector
                for text, vector in zip(texts, good.vectors, strict=True)
            ],
        )


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ([0.0] * 256, "only zeros"),
        ([math.nan] + [0.1] * 255, "NaN or infinity"),
        ([math.inf] + [0.1] * 255, "NaN or infinity"),
        ([1e-9] * 256, "largest value of 1e-09"),
        ([1e6] * 256, "largest value of 1e+06"),
        ([], "length 0 instead of 256"),
        ([0.1] * 255, "length 255 instead of 256"),
    ],
)
async def test_a_bad_vector_fails_its_document_by_name_and_no_other(database, owner, bad, why):
    async with client_on(database, embedder=BadEmbedder(bad)) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        documents = [Document(key=f"{n}.md", text=f"Note {n} on pumps.") for n in range(15)]
        documents.insert(7, Document(key="bad.md", text="A poison note."))
        report = await handbook.ingest(documents)
    assert len(report.created) == 15
    (failure,) = report.failed
    assert failure.key == "bad.md"
    assert "chunk 0 of document 'bad.md'" in failure.message
    assert why in failure.message
    assert owner.execute("select count(*) from ragpg.document").fetchone() == (15,)
    assert owner.execute("select key, status from ragpg.staged_document").fetchall() == [
        ("bad.md", "failed")
    ]


async def test_fewer_vectors_than_texts_store_nothing_and_name_both_counts(database, owner):
    class ShortEmbedder(testing.HashEmbedder):
        async def embed(self, texts, *, purpose):
            good = await super().embed(texts, purpose=purpose)
            return replace(good, vectors=good.vectors[:-1])

    async with client_on(database, embedder=ShortEmbedder()) as client:
        report = await client.collection(tenant="acme", name="handbook").ingest([leave()])
    assert [failure.reason for failure in report.failed] == ["provider"]
    assert "returned 0 vectors for 1 texts" in report.failed[0].message
    assert owner.execute("select count(*) from ragpg.document").fetchone() == (0,)


async def test_a_wrong_key_stops_the_ingest_and_keeps_what_was_staged(database, owner):
    class LockedEmbedder(testing.HashEmbedder):
        async def embed(self, texts, *, purpose):
            raise errors.ProviderRejected(
                "401 from the vendor", provider="testing", model=self.model, status=401
            )

    async with client_on(database, embedder=LockedEmbedder()) as client:
        with pytest.raises(errors.ProviderRejected, match="401 from the vendor"):
            await client.collection(tenant="acme", name="handbook").ingest([leave()])
    assert owner.execute("select count(*) from ragpg.document").fetchone() == (0,)
    assert owner.execute("select status, last_error from ragpg.staged_document").fetchall() == [
        ("failed", "401 from the vendor")
    ]


async def test_what_was_paid_for_before_a_failure_is_not_paid_for_again(database):
    writer = CountingWriter()
    broken = BadEmbedder([0.0] * 256)
    text = LEAVE.replace("Tell your lead", "Tell your poison lead")
    async with client_on(database, embedder=broken, context_writer=writer) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.create(recipe())
        assert (await handbook.ingest([leave(text)])).failed
    embedder = CountingEmbedder()
    written = len(writer.asked)
    async with client_on(database, embedder=embedder, context_writer=writer) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        report = await handbook.ingest([leave(text)])
        assert report.created == ("hr/leave.md",)
    assert len(writer.asked) == written
    assert len(embedder.asked) == 1


async def test_a_key_given_twice_is_taken_once_and_reported(client):
    handbook = client.collection(tenant="acme", name="handbook")
    report = await handbook.ingest([leave(), leave("Another text.")])
    assert report.created == ("hr/leave.md",)
    assert [(failure.key, failure.reason) for failure in report.failed] == [
        ("hr/leave.md", "duplicate_key")
    ]
    assert (await handbook.document("hr/leave.md")).text == LEAVE


async def test_another_recipe_is_refused_with_the_way_out(client):
    handbook = client.collection(tenant="acme", name="handbook")
    await handbook.create(recipe())
    with pytest.raises(errors.RecipeMismatch, match=r"max_tokens 20 .wanted 400.*swap the alias"):
        await handbook.create(replace(recipe(), max_tokens=400))


async def test_another_embedding_model_is_refused_before_anything_is_embedded(database):
    async with client_on(database) as client:
        await client.collection(tenant="acme", name="handbook").ingest([leave()])
    other = testing.HashEmbedder(dimensions=64)
    async with client_on(database, embedder=other) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        with pytest.raises(errors.RecipeMismatch, match=r"hash-256 256.*hash-64 64"):
            await handbook.ingest([Document(key="b.md", text="More text.")])
        with pytest.raises(errors.RecipeMismatch):
            await handbook.retrieve("leave")


async def test_readers_see_the_old_version_then_the_new_one_and_nothing_between(database):
    import anyio

    versions = [
        f"# Plan\n\nVersion {n}.\n\n## Detail\n\nDetail of version {n}.\n" for n in range(8)
    ]
    seen: set[tuple[str, ...]] = set()
    done = anyio.Event()

    async def read() -> None:
        async with await psycopg.AsyncConnection.connect(
            database.owner_url, autocommit=True
        ) as conn:
            while not done.is_set():
                cursor = await conn.execute(
                    "select array_agg(text order by position) from ragpg.chunk"
                )
                row = await cursor.fetchone()
                if row is not None and row[0] is not None:
                    seen.add(tuple(row[0]))

    async with client_on(database) as client:
        plans = client.collection(tenant="acme", name="plans")
        await plans.create(recipe())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for text in versions:
                await plans.ingest([Document(key="plan.md", text=text)])
                await anyio.sleep(0.02)
            done.set()
    assert {"".join(chunks) for chunks in seen} <= set(versions)
    assert len(seen) > 2


async def test_no_transaction_is_open_while_a_provider_works(database, owner):
    open_transactions: list[int] = []

    class LookingEmbedder(testing.HashEmbedder):
        async def embed(self, texts, *, purpose):
            row = owner.execute(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and state like 'idle in transaction%'"
            ).fetchone()
            open_transactions.append(row[0])
            return await super().embed(texts, purpose=purpose)

    async with client_on(database, embedder=LookingEmbedder()) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.ingest([leave()])
        await handbook.search("leave")
    assert open_transactions == [0, 0]


async def test_files_and_folders_are_ingested_with_their_path_as_key(client, tmp_path: Path):
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "pump.md").write_text("# Pump\n\nTurn the valve.\n")
    (tmp_path / "note.txt").write_text("A plain note.")
    (tmp_path / "blob.bin").write_bytes(bytes(range(256)))
    (tmp_path / "empty.md").write_text("")
    handbook = client.collection(tenant="acme", name="files")
    report = await handbook.ingest_files([tmp_path])
    assert report.created == ("guides/pump.md", "note.txt")
    assert [(failure.key, failure.reason) for failure in report.failed] == [("empty.md", "no_text")]
    # Another time of modification alone is no change.
    import os

    os.utime(tmp_path / "note.txt", (1, 1))
    again = await handbook.ingest_files([tmp_path])
    assert again.unchanged == ("guides/pump.md", "note.txt")


async def test_an_expired_document_is_not_found(client):
    handbook = client.collection(tenant="acme", name="handbook")
    past = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    await handbook.ingest([leave(expires_at=past), Document(key="b.md", text="Leave of absence.")])
    hits = await handbook.retrieve("leave")
    assert {hit.document_key for hit in hits} == {"b.md"}


async def test_an_alias_moves_readers_to_another_recipe_at_once(client):
    first = client.collection(tenant="acme", name="handbook-1")
    second = client.collection(tenant="acme", name="handbook-2")
    await first.ingest([leave()])
    await second.create(recipe())
    await second.ingest([leave("# Leave\n\nThe new handbook.\n")])
    await first.set_alias("handbook")
    assert len(await client.collection(tenant="acme", name="handbook").retrieve("handbook")) == 1
    await second.set_alias("handbook")
    hits = await client.collection(tenant="acme", name="handbook").retrieve("handbook")
    assert [hit.text for hit in hits] == ["# Leave\n\nThe new handbook.\n"]
    with pytest.raises(errors.CollectionExists, match="is a collection, not an alias"):
        await first.set_alias("handbook-2")
