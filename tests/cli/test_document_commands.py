"""`ragpg documents` and `ragpg rename` as their user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_commands import CommandLine


@pytest.fixture
def ragpg(database) -> CommandLine:
    return CommandLine({"RAGPG_DATABASE_URL": database.service_url})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.md", "b c.md", "d.md"):
        (tmp_path / name).write_text(f"# About {name[0]}\n\nTurn the valve.\n")
    return tmp_path


def test_documents_are_listed_a_page_at_a_time(ragpg, folder):
    ragpg("ingest", str(folder), "-t", "acme", "-c", "docs")
    where = ("-t", "acme", "-c", "docs")
    first = ragpg("documents", *where, "--limit", "2")
    assert [" ".join(line.split()[:-2]) for line in first.stdout.splitlines()[1:]] == [
        "a.md About a 1 1 27",
        "b c.md About b 1 1 27",
    ]
    assert first.stderr == "there may be more: --after 'b c.md'\n"
    second = ragpg("documents", *where, "--limit", "2", "--after", "b c.md")
    assert [line.split()[0] for line in second.stdout.splitlines()] == ["document", "d.md"]
    assert second.stderr == ""
    rest = ragpg("documents", *where, "--after", "d.md")
    assert (rest.stdout, rest.stderr) == ("no further document\n", "")
    listed = json.loads(ragpg("documents", *where, "--key-prefix", "b", "--json").stdout)
    assert [(one["key"], one["title"], one["chunks"]) for one in listed] == [
        ("b c.md", "About b", 1)
    ]
    assert ragpg("documents", *where, "--key-prefix", "x").stdout == "no document\n"


def test_a_key_and_a_title_that_move_the_cursor_are_written_out(ragpg, tmp_path):
    (tmp_path / "a\x1b[2J.md").write_text("# Valve \x1b]0;owned\x07\n\nTurn it.\n")
    ragpg("ingest", str(tmp_path))
    done = ragpg("documents", "--limit", "1")
    assert "\x1b" not in done.stdout + done.stderr
    assert "a\\x1b[2J.md" in done.stdout
    assert "a\\x1b[2J.md" in done.stderr
    assert "owned\\x07" in done.stdout


def test_a_document_gets_another_key_and_keeps_its_chunks(ragpg, folder, owner):
    ragpg("ingest", str(folder), "-t", "acme", "-c", "docs")
    where = ("-t", "acme", "-c", "docs")
    chunks = (
        "select chunk_id, key from ragpg.chunk join ragpg.document using (tenant_id, document_id)"
    )
    before = dict(owner.execute(chunks).fetchall())
    done = ragpg("rename", "a.md", "n\x1b[2J.md", *where)
    assert done.stdout == "renamed: a.md is now n\\x1b[2J.md\n"
    done = ragpg("rename", "n\x1b[2J.md", "z.md", *where, "--json")
    assert json.loads(done.stdout) == {"renamed": {"n\x1b[2J.md": "z.md"}}
    renamed = {number: "z.md" if key == "a.md" else key for number, key in before.items()}
    assert dict(owner.execute(chunks).fetchall()) == renamed
    assert (
        "the collection has no document 'a.md'"
        in ragpg("rename", "a.md", "y.md", *where, code=2).stderr
    )
    taken = ragpg("rename", "z.md", "d.md", *where, code=2)
    assert "the collection has a document 'd.md' already" in taken.stderr
    refused = ragpg("rename", "z.md", " ", *where, code=2)
    assert "its key has 1 characters; give 1 to 1000, not all blank" in refused.stderr
