"""`ragpg status` and `ragpg worker` as their user sees them."""

from __future__ import annotations

import json
import os

import pytest

import ragpg as ragpg_library
from ragpg import testing
from ragpg.client import AsyncClient
from ragpg.settings import Settings
from ragpg.types import Document, Recipe
from tests.cli.test_commands import CommandLine
from tests.unit.parse_fixtures import pdf
from tests.vendor_stub import VendorStub

BATCHED = Recipe(
    embedding_provider="testing",
    embedding_model="hash-256",
    dimensions=256,
    context_provider="claude",
    context_model="claude-haiku-5-5",
)


@pytest.fixture
def ragpg(database) -> CommandLine:
    return CommandLine({"RAGPG_DATABASE_URL": database.service_url})


@pytest.mark.anyio
async def test_status_lists_open_batches_with_their_id_and_since_when(ragpg, database, owner):
    with VendorStub() as stub:
        settings = Settings(
            database_url=database.service_url,
            anthropic_api_key="key",
            anthropic_base_url=stub.anthropic_url,
        )
        async with AsyncClient(settings, embedder=testing.HashEmbedder()) as client:
            docs = client.collection(tenant="acme", name="docs")
            await docs.create(BATCHED)
            pages = [Document(key=f"{name}.md", text=f"About {name}.") for name in ("a", "b")]
            await docs.ingest(pages, batch=True, wait=False)
        (batch,) = stub.batches.batches
    found = json.loads(ragpg("status", "-t", "acme", "--json").stdout)
    assert [(row["in_work"], row["batched"]) for row in found["collections"]] == [(0, 2)]
    (row,) = found["batches"]
    assert (row["collection"], row["vendor_id"]) == ("docs", batch)
    assert (row["documents"], row["contexts"], row["last_error"]) == (2, 2, None)
    since = owner.execute("select created_at from ragpg.context_batch").fetchone()
    assert since is not None
    assert row["since"].replace("T", " ")[:19] == since[0].strftime("%Y-%m-%d %H:%M:%S")
    table = ragpg("status", "-t", "acme").stdout
    assert batch in table
    assert os.linesep in table


def test_retry_says_which_files_must_be_ingested_again_and_which_keys_wait_for_nothing(
    ragpg, tmp_path, owner
):
    (tmp_path / "good.md").write_text("About valves.\n")
    (tmp_path / "blob.txt").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "empty.md").write_text(" \n")
    ragpg("ingest", str(tmp_path), "-t", "acme", "-c", "docs", code=1)
    arguments = ("-t", "acme", "-c", "docs")
    assert ragpg("retry", *arguments).stdout.splitlines() == [
        "0 queued again",
        "1 failed before their text was stored, so ingest their files again: blob.txt",
    ]
    assert ragpg("retry", "blob.txt", "good.md", *arguments).stdout.splitlines() == [
        "0 queued again",
        "1 failed before their text was stored, so ingest their files again: blob.txt",
        "1 of these keys wait for nothing; `ragpg status` lists what failed",
    ]
    assert json.loads(ragpg("retry", *arguments, "--json").stdout) == {
        "queued": 0,
        "without_text": ["blob.txt"],
    }


def test_a_key_that_moves_the_cursor_is_written_out_by_retry(ragpg, tmp_path):
    (tmp_path / "blob\x1b[2J.txt").write_bytes(bytes(range(256)) * 4)
    ragpg("ingest", str(tmp_path), code=1)
    assert ragpg("retry").stdout.splitlines()[1].endswith(" again: blob\\x1b[2J.txt")


def test_status_shows_all_collections_or_one_by_its_name_or_alias(ragpg, tmp_path):
    (tmp_path / "blob.txt").write_bytes(bytes(range(256)) * 4)
    for name in ("docs-1", "docs-2"):
        ragpg("ingest", str(tmp_path), "-t", "acme", "-c", name, code=1)
    ragpg("sql", "select ragpg.set_alias('docs', 'docs-2')", "-t", "acme")

    def shown(*arguments: str) -> tuple[list[str], list[str]]:
        found = json.loads(ragpg("status", "-t", "acme", "--json", *arguments).stdout)
        return (
            [row["collection"] for row in found["collections"]],
            [row["collection"] for row in found["problems"]],
        )

    assert shown() == (["docs-1", "docs-2"], ["docs-1", "docs-2"])
    assert shown("-c", "docs") == (["docs-2"], ["docs-2"])
    assert shown("-c", "docs-1", "--problems", "0") == (["docs-1"], [])
    refused = ragpg("status", "-t", "acme", "-c", "dosc", code=2)
    assert "the tenant has no collection 'dosc'" in refused.stderr


def test_a_document_that_nobody_works_on_is_interrupted_and_retry_queues_it(ragpg, database, owner):
    settings = Settings(database_url=database.service_url)
    with ragpg_library.Client(settings) as client:
        docs = client.collection(tenant="acme", name="docs")
        docs.create()
        docs.enqueue([Document(key="a.md", text="About valves.")])
    # What a worker that was killed leaves.
    owner.execute(
        "update ragpg.staged_document set status = 'staged', updated_at = now() - interval '1 hour'"
    )
    found = json.loads(ragpg("status", "-t", "acme", "--json").stdout)
    assert [(row["in_work"], row["interrupted"]) for row in found["collections"]] == [(0, 1)]
    (problem,) = found["problems"]
    assert (problem["key"], problem["status"]) == ("a.md", "interrupted")
    assert "ended without a word; ingest it again, or `ragpg retry`" in problem["last_error"]
    assert ragpg("retry", "-t", "acme", "-c", "docs").stdout == "1 queued again\n"
    found = json.loads(ragpg("status", "-t", "acme", "--json").stdout)
    assert [(row["queued"], row["interrupted"]) for row in found["collections"]] == [(1, 0)]


def test_pages_without_text_are_named_when_a_file_is_ingested_and_by_status_later(ragpg, tmp_path):
    words = [(11, 700, "Load the paper into the lower tray first.")]
    (tmp_path / "scan.pdf").write_bytes(pdf(words, [], [], words))
    for command in ("ingest", "ingest", "enqueue"):
        shown = " ".join(ragpg(command, str(tmp_path), "-t", "acme").stdout.split())
        assert "notice: scan.pdf holds no text on pages 2-3 of 4; if they are scans" in shown
    report = json.loads(ragpg("ingest", str(tmp_path), "-t", "acme", "--json").stdout)
    assert report["notices"][0].startswith("scan.pdf holds no text on pages 2-3 of 4")
    ragpg("ingest", str(tmp_path), "-t", "acme", "-c", "other")
    blank = {"collection": "default", "key": "scan.pdf", "pages_without_text": [2, 3]}
    found = json.loads(ragpg("status", "-t", "acme", "-c", "default", "--json").stdout)
    assert found["pages_without_text"] == [blank]
    table = ragpg("status", "-t", "acme").stdout
    assert table.count("[2, 3]") == 2
    assert "[2, 3]" not in ragpg("status", "-t", "acme", "--problems", "0").stdout
