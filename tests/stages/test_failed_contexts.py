"""Contexts that a vendor did not write: they are gaps, and the same call again fills just those."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import stamina
from pydantic import SecretStr

from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.settings import Settings
from ragpg.types import Document, Recipe
from tests.cli.test_commands import CommandLine
from tests.vendor_stub import Call, Reply, Scripted, VendorStub
from tests.vendor_stub_rules import claude_error

pytestmark = pytest.mark.anyio

GUIDE = """# Boiler

The boiler heats the water of the plant.

## Igniting

Purge the chamber before the burner is lit.

## Descaling

Rinse the heat exchanger with citric acid.
"""
GAPS = "select position from ragpg.chunk where context is null order by position"


BUSY = Reply(529, claude_error("overloaded_error", "come back later"))


class Failing(VendorStub):
    """Answers `reply` where the context of the chunk with these words is asked for, until None."""

    words: str | None = "citric acid"
    reply = BUSY

    def begin(self, call: Call) -> Scripted | None:
        scripted = super().begin(call)
        if self.words and call.path == "/v1/messages":
            asked = str(call.body["messages"][-1]["content"][-1])
            if self.words in asked:
                return self.reply
        return scripted

    def asked(self) -> tuple[int, int]:
        """Contexts answered or refused and texts embedded since the last time."""
        texts = [text for call in self.calls("/embeddings") for text in call.body["input"]]
        contexts = sum(call.status != BUSY.status for call in self.calls("/v1/messages"))
        self.log.clear()
        return contexts, len(texts)


@pytest.fixture
def stub() -> Iterator[Failing]:
    with Failing() as server, stamina.set_testing(True, attempts=2):
        yield server


RECIPE = Recipe(
    embedding_provider="voyage",
    embedding_model="voyage-4",
    dimensions=256,
    context_provider="claude",
    context_model="claude-haiku-4-5",
    max_tokens=30,
    overlap_tokens=0,
)


@pytest.fixture
async def client(database, stub) -> AsyncIterator[AsyncClient]:
    settings = Settings(
        database_url=SecretStr(database.service_url),
        voyage_api_key=SecretStr("pa-test"),
        voyage_base_url=stub.voyage_url,
        anthropic_api_key=SecretStr("sk-ant-test"),
        anthropic_base_url=stub.anthropic_url,
    )
    async with AsyncClient(settings) as opened:
        yield opened


@pytest.fixture
async def docs(client: AsyncClient) -> AsyncCollection:
    docs = client.collection(tenant="acme", name="docs")
    await docs.create(RECIPE)
    return docs


async def test_the_same_file_again_pays_for_the_context_that_failed_and_its_vector_alone(
    docs, stub, owner, tmp_path
):
    (tmp_path / "boiler.md").write_text(GUIDE)
    report = await docs.ingest_files([tmp_path])
    assert (report.created, report.chunks, report.contexts_failed) == (("boiler.md",), 3, 1)
    assert stub.asked() == (2, 3)
    assert owner.execute(GAPS).fetchall() == [(2,)]
    kept = "select chunk_id, context from ragpg.chunk where position < 2 order by position"
    before = owner.execute(kept).fetchall()
    stub.words = None

    plan = await docs.plan_files([tmp_path])
    assert [(one.action, one.chunks, one.kept_chunks) for one in plan.documents] == [
        ("update", 3, 2)
    ]
    assert [one.operation for one in plan.usage] == ["context", "embed"]
    assert stub.asked() == (0, 0)

    report = await docs.ingest_files([tmp_path])
    assert (report.updated, report.reused_chunks, report.contexts_failed) == (("boiler.md",), 2, 0)
    assert stub.asked() == (1, 1)
    assert owner.execute(GAPS).fetchall() == []
    assert owner.execute(kept).fetchall() == before

    assert (await docs.ingest_files([tmp_path])).unchanged == ("boiler.md",)
    assert (await docs.plan_files([tmp_path])).keys("unchanged") == ["boiler.md"]
    assert stub.asked() == (0, 0)


async def test_a_sync_a_document_of_the_callers_and_a_queue_fill_the_gap_as_well(
    docs, stub, owner, tmp_path
):
    (tmp_path / "boiler.md").write_text(GUIDE)
    assert (await docs.sync(tmp_path)).ingested.contexts_failed == 1
    stub.words = None
    assert (await docs.plan(tmp_path)).keys("update") == ["boiler.md"]
    assert (await docs.enqueue_files([tmp_path])).queued == ("boiler.md",)
    assert (await docs.sync(tmp_path)).ingested.updated == ("boiler.md",)
    assert owner.execute(GAPS).fetchall() == []

    stub.words = "citric acid"
    note = Document(key="note.md", text="Use citric acid.")
    assert (await docs.ingest([note])).contexts_failed == 1
    stub.words = None
    assert (await docs.ingest([note])).updated == ("note.md",)
    assert owner.execute(GAPS).fetchall() == []


async def test_a_context_that_fails_again_stays_a_gap_and_keeps_every_vector(
    docs, stub, owner, tmp_path
):
    (tmp_path / "boiler.md").write_text(GUIDE)
    await docs.ingest_files([tmp_path])
    ids = owner.execute("select chunk_id from ragpg.chunk order by position").fetchall()
    stub.asked()
    report = await docs.ingest_files([tmp_path])
    assert (report.updated, report.contexts_failed) == (("boiler.md",), 1)
    assert stub.asked() == (0, 0)
    assert owner.execute("select chunk_id from ragpg.chunk order by position").fetchall() == ids


def test_missing_contexts_are_exit_code_1_until_the_same_command_has_filled_them(
    database, stub, tmp_path
):
    (tmp_path / "boiler.md").write_text("# Boiler\n\nRinse it with citric acid.\n")
    ragpg = CommandLine(
        {
            "RAGPG_DATABASE_URL": database.service_url,
            "VOYAGE_API_KEY": "pa-test",
            "ANTHROPIC_API_KEY": "sk-ant-test",
            "RAGPG_VOYAGE_BASE_URL": stub.voyage_url,
            "RAGPG_ANTHROPIC_BASE_URL": stub.anthropic_url,
            "RAGPG_PROVIDER_DEADLINE_S": "0.5",
        }
    )
    done = ragpg("ingest", str(tmp_path), code=1)
    assert "1 chunks have no context" in done.stdout
    assert "1 chunks have no context" in ragpg("sync", str(tmp_path), code=1).stdout
    stub.words = None
    assert "0 created, 1 updated" in ragpg("ingest", str(tmp_path)).stdout
