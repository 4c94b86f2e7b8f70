"""Documents whose ingest ended too early: the reason is kept, and `retry` queues them again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from ragpg import errors, testing
from ragpg.client import AsyncClient
from ragpg.ingest import stage
from ragpg.ingestion.in_work import in_work
from ragpg.settings import Settings
from ragpg.types import Document, Span
from tests.cli.test_commands import INTERRUPTIBLE, CommandLine
from tests.conftest import client_on
from tests.vendor_stub import VendorStub

pytestmark = pytest.mark.anyio

PENDING = "select key, status, last_error from ragpg.pending order by key"
INTERRUPTED = (
    "the ingest was interrupted before this document was live; run it again, or queue what it has"
    " with `ragpg retry`"
)
NOTES = [Document(key=f"{n}.md", text=f"Note {n} on valves.") for n in range(3)]


@pytest.fixture
def stub() -> Iterator[VendorStub]:
    with VendorStub() as running:
        yield running


def seen(owner: psycopg.Connection, statement: str = PENDING) -> list[tuple[Any, ...]]:
    """The rows as the tenant acme sees them."""
    with owner.transaction():
        owner.execute("select ragpg.use_tenant('acme')")
        return owner.execute(statement).fetchall()


@pytest.mark.parametrize("name", ["voyage_api_key", "anthropic_api_key"])
async def test_a_wrong_key_is_the_last_error_of_every_document_of_the_group_and_no_secret(
    database, stub, owner, name
):
    keys = {
        "voyage_api_key": SecretStr("pa-voyage-word"),
        "anthropic_api_key": SecretStr("sk-ant-claude-word"),
    }
    base = {
        "database_url": SecretStr(database.service_url),
        "voyage_base_url": stub.voyage_url,
        "anthropic_base_url": stub.anthropic_url,
    }
    async with AsyncClient(Settings(**base | keys | {name: SecretStr("wrong")})) as client:
        docs = client.collection(tenant="acme", name="docs")
        with pytest.raises(errors.ProviderRejected) as caught:
            await docs.ingest(NOTES)
        (status,) = await client.status(tenant="acme")
        assert (status["in_work"], status["failed"], status["interrupted"]) == (0, 3, 0)
    assert seen(owner) == [(note.key, "failed", str(caught.value)) for note in NOTES]
    assert "401" in str(caught.value) or "KEY" in str(caught.value)
    for secret in ("pa-voyage-word", "sk-ant-claude-word"):
        assert secret not in str(seen(owner))
    async with AsyncClient(Settings(**base | keys)) as client:
        docs = client.collection(tenant="acme", name="docs")
        assert await docs.retry() == 3
        assert len((await docs.ingest(NOTES)).created) == 3
    assert seen(owner) == []


async def test_a_cancelled_ingest_says_so_and_retry_queues_its_documents(database, owner):
    entered = asyncio.Event()

    class Waiting(testing.HashEmbedder):
        async def embed(self, texts, *, purpose):
            entered.set()
            await asyncio.sleep(60)
            return await super().embed(texts, purpose=purpose)

    async with client_on(database, embedder=Waiting()) as client:
        docs = client.collection(tenant="acme", name="docs")
        running = asyncio.create_task(docs.ingest(NOTES))
        await entered.wait()
        assert [row[1] for row in seen(owner)] == ["staged"] * 3
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert seen(owner) == [(note.key, "failed", INTERRUPTED) for note in NOTES]
        assert await docs.retry() == 3


async def test_work_that_goes_on_is_touched_and_work_that_nobody_touches_is_interrupted(
    client, owner
):
    docs = client.collection(tenant="acme", name="docs")
    await docs.create()
    number = await docs.number()
    staged = []
    for note in NOTES[:2]:
        async with docs.transaction() as conn:
            span = Span(start=0, stop=len(note.text))
            staged.append(await stage(conn, number, note, [span]))
    owner.execute("update ragpg.staged_document set updated_at = now() - interval '6 minutes'")
    status = "select in_work, interrupted from ragpg.ingest_status"
    assert [row[:2] for row in seen(owner)] == [("0.md", "interrupted"), ("1.md", "interrupted")]
    assert seen(owner, status) == [(0, 2)]
    async with in_work(docs.transaction, number, staged[:1], keep_error=True, touch_every_s=0.05):
        while [row[1] for row in seen(owner)] != ["staged", "interrupted"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert seen(owner, status) == [(1, 1)]
    assert await docs.retry() == 1
    assert [row[:2] for row in seen(owner)] == [("0.md", "staged"), ("1.md", "queued")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_no_document_in_work(
    database, stub, owner, tmp_path: Path, number
):
    stub.latency_s = 30.0
    (tmp_path / "a.md").write_text("About valves.\n")
    ragpg = CommandLine(
        {
            "RAGPG_DATABASE_URL": database.service_url,
            "RAGPG_VOYAGE_BASE_URL": stub.voyage_url,
            "VOYAGE_API_KEY": "pa-test",
        }
    )
    running = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "ingest", str(tmp_path), "-t", "acme"],
        env=ragpg.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    give_up = time.monotonic() + 60
    while not stub.log:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    os.kill(running.pid, number)
    _, said = running.communicate(timeout=60)
    assert said == "interrupted; the same command goes on where it stopped\n"
    assert seen(owner) == [("a.md", "failed", INTERRUPTED)]
    assert "1 queued again" in ragpg("retry", "-t", "acme").stdout
