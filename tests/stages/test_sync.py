"""Sync of a folder on a real Postgres: the plan, what it writes, what it pays for, what it leaves."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

import ragpg
from ragpg import errors, testing
from ragpg.ingestion.corpus_sync import SyncReport
from ragpg.types import Document, Embedded, PassedOver, Purpose, WrittenContext
from tests.conftest import client_on
from tests.stages.test_ingest import CountingEmbedder, CountingWriter, recipe
from tests.without_rights import without_rights

pytestmark = pytest.mark.anyio

GUIDE = """# Pumps

The pump moves water through the plant.

## Starting

Open the inlet valve before the pump is started.

## Stopping

Close the outlet valve after the pump has stopped.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve notes and a guide of three chunks."""
    root = tmp_path / "docs"
    (root / "guides").mkdir(parents=True)
    (root / "guides" / "pump.md").write_text(GUIDE)
    for number in range(12):
        (root / f"note-{number:02}.md").write_text(f"Note {number} is about valve {number}.\n")
    return root


class Costs:
    """A collection and the fakes that count what they were asked."""

    def __init__(self, client: Any, embedder: CountingEmbedder, writer: CountingWriter) -> None:
        self.collection = client.collection(tenant="acme", name="docs")
        self.embedder = embedder
        self.writer = writer

    def calls(self) -> tuple[int, int]:
        """Texts embedded and contexts written since the last time."""
        counted = (len(self.embedder.asked), len(self.writer.asked))
        self.embedder.asked.clear()
        self.writer.asked.clear()
        return counted


@pytest.fixture
async def docs(database):
    embedder, writer = CountingEmbedder(), CountingWriter()
    async with client_on(database, embedder=embedder, context_writer=writer) as client:
        costs = Costs(client, embedder, writer)
        await costs.collection.create(recipe())
        yield costs


def versions(owner: psycopg.Connection) -> dict[str, list[tuple[str, ...]]]:
    """Every row version of every table of the schema."""
    tables = owner.execute(
        "select relname from pg_class where relnamespace = 'ragpg'::regnamespace"
        " and relkind in ('r', 'p')"
    ).fetchall()
    return {
        name: owner.execute(
            f"select xmin::text, ctid::text from ragpg.{name} order by 1, 2"
        ).fetchall()
        for (name,) in tables
    }


def changed_tables(
    before: dict[str, list[tuple[str, ...]]], after: dict[str, list[tuple[str, ...]]]
) -> set[str]:
    return {name for name in after if before.get(name) != after[name]}


def keys(owner: psycopg.Connection) -> list[str]:
    return [key for (key,) in owner.execute("select key from ragpg.document order by key")]


async def test_a_first_sync_brings_every_file_and_a_second_one_costs_nothing(docs, folder, owner):
    report = await docs.collection.sync(folder)
    assert len(report.ingested.created) == 13
    assert (report.renamed, report.removed, report.foreign, report.failed) == ({}, (), (), ())
    assert docs.calls() == (15, 15)
    before = versions(owner)
    again = await docs.collection.sync(folder)
    assert len(again.ingested.unchanged) == 13
    assert docs.calls() == (0, 0)
    assert changed_tables(before, versions(owner)) == set()


async def test_an_edit_pays_for_the_changed_chunk_and_names_the_age_of_what_it_keeps(
    docs, folder, owner
):
    await docs.collection.sync(folder)
    docs.calls()
    owner.execute(
        "update ragpg.chunk set contextualized_at = '2026-01-05T00:00:00Z' where position = 2"
    )
    (folder / "guides" / "pump.md").write_text(GUIDE.replace("inlet valve", "inlet valve slowly"))
    plan = await docs.collection.plan(folder)
    assert plan.counts == {"update": 1, "unchanged": 12}
    (changed,) = [document for document in plan.documents if document.action == "update"]
    assert (changed.key, changed.chunks, changed.kept_chunks) == ("guides/pump.md", 3, 2)
    assert plan.oldest_reused_context == dt.datetime(2026, 1, 5, tzinfo=dt.UTC)
    report = await docs.collection.sync(folder)
    assert report.ingested.updated == ("guides/pump.md",)
    assert docs.calls() == (1, 1)
    assert report.ingested.oldest_reused_context == dt.datetime(2026, 1, 5, tzinfo=dt.UTC)


async def test_a_moved_file_keeps_its_chunks_and_is_found_under_its_new_key_for_nothing(
    docs, folder, owner
):
    await docs.collection.sync(folder)
    docs.calls()
    rows = "select chunk_id, context, contextualized_at, text from ragpg.chunk order by chunk_id"
    vectors = "select chunk_id, embedding::text, attributes ->> '@key' from ragpg.embedding"
    chunks, embedded = owner.execute(rows).fetchall(), owner.execute(vectors).fetchall()
    (folder / "manuals").mkdir()
    (folder / "guides" / "pump.md").rename(folder / "manuals" / "pumps.md")
    plan = await docs.collection.plan(folder)
    assert [(one.key, one.from_key) for one in plan.documents if one.action == "rename"] == [
        ("manuals/pumps.md", "guides/pump.md")
    ]
    report = await docs.collection.sync(folder)
    assert report.renamed == {"guides/pump.md": "manuals/pumps.md"}
    assert (report.removed, report.ingested.created) == ((), ())
    assert docs.calls() == (0, 0)
    assert owner.execute(rows).fetchall() == chunks
    assert owner.execute(
        "select document_key, former_key from ragpg.document_history where action = 'renamed'"
    ).fetchall() == [("manuals/pumps.md", "guides/pump.md")]
    assert {row[:2] for row in owner.execute(vectors).fetchall()} == {row[:2] for row in embedded}
    assert owner.execute(
        "select distinct attributes ->> '@key' from ragpg.embedding"
        " where document_key = 'manuals/pumps.md'"
    ).fetchall() == [("manuals/pumps.md",)]
    moved = await docs.collection.retrieve("inlet valve pump", where=ragpg.key.prefix("manuals/"))
    assert {hit.document_key for hit in moved} == {"manuals/pumps.md"}
    assert not await docs.collection.retrieve("pump", where=ragpg.key.prefix("guides/"))
    assert (await docs.collection.sync(folder)).renamed == {}
    assert docs.calls()[1] == 0


async def test_two_files_of_one_content_are_moved_each_to_one_key(docs, folder, owner):
    (folder / "a.md").write_text("The same words.\n")
    (folder / "b.md").write_text("The same words.\n")
    await docs.collection.sync(folder)
    (folder / "a.md").rename(folder / "c.md")
    (folder / "b.md").rename(folder / "d.md")
    (folder / "e.md").write_text("The same words.\n")
    report = await docs.collection.sync(folder)
    assert report.renamed == {"a.md": "c.md", "b.md": "d.md"}
    assert report.ingested.created == ("e.md",)


async def test_a_plan_writes_nothing_and_makes_no_tenant_and_no_collection(database, folder, owner):
    embedder, writer = CountingEmbedder(), CountingWriter()
    async with client_on(database, embedder=embedder, context_writer=writer) as client:
        before = versions(owner)
        fresh = client.collection(tenant="nobody", name="docs")
        plan = await fresh.plan(folder)
        assert plan.counts == {"add": 13}
        assert plan.live == 0
        assert changed_tables(before, versions(owner)) == set()
        docs = client.collection(tenant="acme", name="docs")
        await docs.sync(folder)
        embedder.asked.clear()
        writer.asked.clear()
        (folder / "note-00.md").unlink()
        (folder / "note-01.md").rename(folder / "moved.md")
        (folder / "note-02.md").write_text("Another text.\n")
        (folder / "new.md").write_text("New.\n")
        (folder / "empty.md").write_text("")
        before = versions(owner)
        plan = await docs.plan(folder)
        assert plan.counts == {
            "add": 1,
            "update": 1,
            "rename": 1,
            "remove": 1,
            "fail": 1,
            "unchanged": 10,
        }
        assert [one.reason for one in plan.documents if one.key == "empty.md"] == [
            "empty.md is empty; add text, or leave it out."
        ]
        files = await docs.plan_files([folder])
        assert files.counts == {"add": 2, "update": 1, "fail": 1, "unchanged": 10}
        assert changed_tables(before, versions(owner)) == set()
        assert (embedder.asked, writer.asked) == ([], [])


async def test_a_plan_says_just_what_is_embedded_and_written_afterwards(docs, folder):
    plan = await docs.collection.plan(folder)
    assert sum(one.chunks for one in plan.documents) == 15
    assert [(one.operation, one.provider, one.model) for one in plan.usage] == [
        ("context", "testing", "first-sentence"),
        ("embed", "testing", "hash-256"),
    ]
    # Nobody knows what the fakes cost, so the sum is not known and the notes say why.
    assert plan.cost_usd is None
    assert "the price of testing hash-256 is not known" in plan.notes[1]
    report = await docs.collection.sync(folder, plan=plan)
    assert report.ingested.chunks == 15


async def test_removing_more_than_a_tenth_needs_consent_and_a_refusal_changes_nothing(
    docs, folder, owner
):
    await docs.collection.sync(folder)
    (folder / "note-00.md").unlink()
    assert (await docs.collection.sync(folder)).removed == ("note-00.md",)
    (folder / "note-01.md").unlink()
    (folder / "note-02.md").unlink()
    (folder / "new.md").write_text("New.\n")
    before = versions(owner)
    with pytest.raises(errors.InputError, match=r"would remove 2 of 12 live documents.*--yes"):
        await docs.collection.sync(folder)
    assert changed_tables(before, versions(owner)) == set()
    report = await docs.collection.sync(folder, allow_removals=True)
    assert report.removed == ("note-01.md", "note-02.md")
    assert report.ingested.created == ("new.md",)
    for table in ("document", "synced_key"):
        assert owner.execute(f"select count(*) from ragpg.{table}").fetchone() == (11,)


async def test_documents_from_elsewhere_stay_and_are_named(docs, folder, tmp_path, owner):
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.md").write_text("A letter from another folder.\n")
    await docs.collection.ingest([Document(key="api.md", text="From the API.")])
    await docs.collection.sync(other)
    report = await docs.collection.sync(folder)
    assert report.foreign == ("api.md", "letter.md")
    assert report.removed == ()
    assert {"api.md", "letter.md"} < set(keys(owner))
    # One whose key the folder has is the folder's from then on.
    (folder / "api.md").write_text("From the folder.\n")
    assert (await docs.collection.sync(folder)).ingested.updated == ("api.md",)
    (folder / "api.md").unlink()
    assert (await docs.collection.sync(folder)).removed == ("api.md",)


async def test_a_document_deleted_and_given_again_by_hand_is_nobodys_to_remove(docs, folder, owner):
    await docs.collection.sync(folder)
    (folder / "note-00.md").unlink()
    await docs.collection.delete("note-00.md")
    await docs.collection.ingest([Document(key="note-00.md", text="By hand.")])
    report = await docs.collection.sync(folder)
    assert (report.removed, report.foreign) == ((), ("note-00.md",))


async def test_a_file_that_cannot_be_read_any_more_keeps_its_live_version(docs, folder, owner):
    await docs.collection.sync(folder)
    (folder / "note-00.md").write_bytes(bytes(range(256)) * 4)
    report = await docs.collection.sync(folder)
    assert [failure.key for failure in report.ingested.failed] == ["note-00.md"]
    assert report.removed == ()
    assert (await docs.collection.document("note-00.md")).text == "Note 0 is about valve 0.\n"


async def test_what_changed_after_the_plan_is_left_for_the_next_sync(docs, folder, owner):
    await docs.collection.sync(folder)
    (folder / "note-00.md").unlink()
    (folder / "note-01.md").rename(folder / "moved.md")
    plan = await docs.collection.plan(folder)
    await docs.collection.ingest([Document(key="note-00.md", text="Edited meanwhile.")])
    await docs.collection.ingest([Document(key="moved.md", text="Taken meanwhile.")])
    report: SyncReport = await docs.collection.sync(folder, plan=plan)
    assert [(failure.key, failure.reason) for failure in report.failed] == [
        ("moved.md", "conflict"),
        ("note-00.md", "conflict"),
    ]
    assert (await docs.collection.document("note-00.md")).text == "Edited meanwhile."
    assert {"moved.md", "note-00.md", "note-01.md"} < set(keys(owner))


async def test_two_syncs_of_one_plan_both_see_their_removals_and_renames_done(docs, folder, owner):
    await docs.collection.sync(folder)
    (folder / "note-00.md").unlink()
    (folder / "note-01.md").rename(folder / "moved.md")
    first, second = [await docs.collection.plan(folder) for _ in range(2)]
    for plan in (first, second):
        report = await docs.collection.sync(folder, plan=plan)
        assert report.removed == ("note-00.md",)
        assert report.renamed == {"note-01.md": "moved.md"}
        assert report.failed == ()
    assert "moved.md" in keys(owner)
    assert owner.execute("select count(*) from ragpg.synced_key").fetchone() == (12,)


async def test_two_syncs_at_once_that_remove_the_same_documents_fail_for_none(docs, folder, owner):
    await docs.collection.sync(folder)
    for number in range(10):
        (folder / f"note-{number:02}.md").unlink()
    reports: list[SyncReport] = []

    async def again() -> None:
        reports.append(await docs.collection.sync(folder, allow_removals=True))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(again)
    assert [report.failed for report in reports] == [(), (), ()]
    assert keys(owner) == ["guides/pump.md", "note-10.md", "note-11.md"]


async def test_a_subfolder_that_cannot_be_read_fails_and_nothing_below_it_is_removed(
    docs, folder, owner
):
    await docs.collection.sync(folder)
    before = keys(owner)
    (folder / "note-00.md").unlink()
    with without_rights(folder / "guides"):
        plan = await docs.collection.plan(folder)
        report = await docs.collection.sync(folder, plan=plan)
    assert plan.keys("fail") == ["guides/"]
    assert (plan.keys("remove"), plan.keys("foreign")) == (["note-00.md"], [])
    assert report.removed == ("note-00.md",)
    (failure,) = report.ingested.failed
    assert (failure.key, failure.reason) == ("guides/", "unreadable")
    assert keys(owner) == [key for key in before if key != "note-00.md"]
    assert owner.execute("select count(*) from ragpg.staged_document").fetchone() == (0,)
    # It is the sync's own still, and goes when its file does.
    (folder / "guides" / "pump.md").unlink()
    assert (await docs.collection.sync(folder)).removed == ("guides/pump.md",)


async def test_what_is_passed_over_is_named_by_the_plan_and_by_every_report(docs, folder, tmp_path):
    (tmp_path / "secret.txt").write_text("a word from outside\n")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "blob.bin").write_bytes(b"\0")
    expected = (
        PassedOver(key="blob.bin", reason="other_kind"),
        PassedOver(key="link.txt", reason="link"),
    )
    assert (await docs.collection.plan(folder)).passed_over == expected
    assert (await docs.collection.sync(folder)).ingested.passed_over == expected
    assert (await docs.collection.plan_files([folder])).passed_over == expected
    assert (await docs.collection.ingest_files([folder])).passed_over == expected
    assert (await docs.collection.enqueue_files([folder])).passed_over == expected
    with pytest.raises(errors.DocumentNotFound):
        await docs.collection.document("link.txt")


async def test_a_folder_may_be_given_as_text(docs, folder):
    assert len((await docs.collection.plan(str(folder))).keys("add")) == 13
    assert len((await docs.collection.plan_files(str(folder))).keys("add")) == 13
    assert len((await docs.collection.ingest_files(str(folder))).created) == 13
    assert len((await docs.collection.enqueue_files([str(folder)])).unchanged) == 13
    assert len((await docs.collection.sync(str(folder))).ingested.unchanged) == 13


async def test_a_path_that_is_no_folder_is_refused(docs, folder):
    with pytest.raises(errors.InputError, match=r"note-00.md is not a folder; sync a folder"):
        await docs.collection.sync(folder / "note-00.md")
    with pytest.raises(errors.InputError, match="missing is not a folder"):
        await docs.collection.plan(folder / "missing")


async def test_a_plan_of_another_folder_is_refused(docs, folder, tmp_path):
    (tmp_path / "other").mkdir()
    plan = await docs.collection.plan(tmp_path / "other")
    with pytest.raises(errors.InputError, match=r"the plan is of .*/other, not of .*/docs"):
        await docs.collection.sync(folder, plan=plan)


async def test_a_file_that_has_expired_is_not_paid_for_again(docs, folder):
    (folder / "old.md").write_text("---\nexpires: 2020-01-01\n---\nAn old offer.\n")
    plan = await docs.collection.plan(folder)
    assert plan.keys("expired") == ["old.md"]
    assert "old.md" not in (await docs.collection.sync(folder)).ingested.created


async def test_a_rename_refuses_a_key_that_is_taken_and_a_document_that_is_not_there(docs, folder):
    await docs.collection.sync(folder)
    rename = "select ragpg.rename_document('docs', %s, %s)"
    with pytest.raises(errors.ConflictError, match=r"has a document 'note-01.md' already"):
        async with docs.collection.transaction() as conn:
            await conn.execute(rename, ["note-00.md", "note-01.md"])
    with pytest.raises(errors.DocumentNotFound, match=r"no document 'missing.md'"):
        async with docs.collection.transaction() as conn:
            await conn.execute(rename, ["missing.md", "b.md"])


async def test_recontextualize_writes_all_contexts_of_changed_documents_alone(docs, folder, owner):
    await docs.collection.sync(folder)
    docs.calls()
    (folder / "guides" / "pump.md").write_text(GUIDE.replace("inlet valve", "inlet valve slowly"))
    plan = await docs.collection.plan(folder, recontextualize=True)
    assert [one.kept_chunks for one in plan.documents if one.action == "update"] == [0]
    before = dict(owner.execute("select chunk_id, contextualized_at from ragpg.chunk").fetchall())
    report = await docs.collection.sync(folder, recontextualize=True)
    assert docs.calls() == (3, 3)
    assert report.ingested.oldest_reused_context is None
    after = dict(owner.execute("select chunk_id, contextualized_at from ragpg.chunk").fetchall())
    assert sum(before.get(number) == written for number, written in after.items()) == 12


async def test_the_recipe_may_tie_contexts_to_the_whole_document(database):
    embedder, writer = CountingEmbedder(), CountingWriter()
    async with client_on(database, embedder=embedder, context_writer=writer) as client:
        docs = client.collection(tenant="acme", name="strict")
        await docs.create(replace(recipe(), context_reuse="document"))
        assert (await client.collection(tenant="acme", name="strict").recipe()).context_reuse == (
            "document"
        )
        await docs.ingest([Document(key="pump.md", text=GUIDE)])
        writer.asked.clear()
        embedder.asked.clear()
        await docs.ingest([Document(key="pump.md", text=GUIDE, tags=("water",))])
        assert (writer.asked, embedder.asked) == ([], [])
        await docs.ingest([Document(key="pump.md", text=GUIDE.replace("plant", "house"))])
        assert sorted(writer.asked) == [0, 1, 2]


class DyingEmbedder(testing.HashEmbedder):
    """Refuses everything with a wrong key, until it is mended."""

    mended = False

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        if not self.mended:
            raise errors.ProviderRejected("401", provider="testing", model=self.model, status=401)
        return await super().embed(texts, purpose=purpose)


async def test_new_contexts_that_were_paid_for_before_an_interruption_are_not_paid_for_again(
    database,
):
    embedder, writer = DyingEmbedder(), CountingWriter()
    embedder.mended = True
    async with client_on(database, embedder=embedder, context_writer=writer) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.create(recipe())
        await docs.ingest([Document(key="pump.md", text=GUIDE)])
        writer.asked.clear()
        edited = Document(key="pump.md", text=GUIDE.replace("plant", "house"))
        embedder.mended = False
        with pytest.raises(errors.ProviderRejected):
            await docs.ingest([edited], recontextualize=True)
        assert sorted(writer.asked) == [0, 1, 2]
        embedder.mended = True
        report = await docs.ingest([edited], recontextualize=True)
        assert report.updated == ("pump.md",)
        assert sorted(writer.asked) == [0, 1, 2]


async def test_the_recipe_may_hold_a_document_back_of_which_a_context_failed(database, owner):
    class FailingWriter(CountingWriter):
        fails = True

        async def write(self, document, chunks):
            async for written in super().write(document, chunks):
                if self.fails and written.position == 1:
                    yield WrittenContext(position=1, context=None, error="refused by the model")
                else:
                    yield written

    writer = FailingWriter()
    async with client_on(database, context_writer=writer) as client:
        docs = client.collection(tenant="acme", name="strict")
        await docs.create(replace(recipe(), failed_contexts="hold"))
        report = await docs.ingest(
            [Document(key="pump.md", text=GUIDE), Document(key="note.md", text="A note.")]
        )
        assert report.created == ("note.md",)
        assert report.contexts_failed == 0
        (failure,) = report.failed
        assert (failure.key, failure.reason, failure.retryable) == ("pump.md", "context", True)
        assert "1 of its 3 contexts failed, the first of chunk 1 (refused by the model)" in (
            failure.message
        )
        assert owner.execute("select key, status from ragpg.staged_document").fetchall() == [
            ("pump.md", "failed")
        ]
        assert keys(owner) == ["note.md"]
        writer.fails = False
        writer.asked.clear()
        assert (await docs.ingest([Document(key="pump.md", text=GUIDE)])).created == ("pump.md",)
        assert writer.asked == [1]


async def test_another_tenant_cannot_rename_and_does_not_see_what_a_sync_owns(
    docs, database, folder
):
    await docs.collection.sync(folder)
    async with client_on(database) as client:
        other = client.collection(tenant="globex", name="docs")
        await other.create(recipe())
        with pytest.raises(errors.DocumentNotFound):
            async with other.transaction() as conn:
                await conn.execute("select ragpg.rename_document('docs', 'note-00.md', 'x.md')")
        async with other.transaction() as conn:
            cursor = await conn.execute("select count(*) from ragpg.synced_key")
            assert await cursor.fetchone() == (0,)
