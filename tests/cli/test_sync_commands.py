"""`ragpg sync` and the plans of the command line as their user sees them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_commands import CommandLine


@pytest.fixture
def ragpg(database) -> CommandLine:
    return CommandLine(
        {
            "RAGPG_DATABASE_URL": database.service_url,
            "RAGPG_OWNER_DATABASE_URL": database.owner_url,
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "docs"
    root.mkdir()
    for number in range(5):
        (root / f"note-{number}.md").write_text(f"# Note {number}\n\nIt is about valve {number}.\n")
    return root


def test_a_folder_is_planned_synced_and_kept_in_sync(ragpg, folder, owner):
    planned = ragpg("sync", str(folder), "-t", "acme", "--dry-run").stdout
    assert planned.splitlines()[0].split() == ["action", "document", "chunks", "kept", "note"]
    assert planned.splitlines()[1].split() == ["add", "note-0.md", "1", "0"]
    assert planned.splitlines()[-1] == "plan: 5 add; about 0.0000 US dollars"
    assert owner.execute("select count(*) from ragpg.tenant").fetchone() == (0,)
    done = ragpg("sync", str(folder), "-t", "acme")
    assert done.stdout.splitlines()[:2] == [
        "0 renamed, 0 removed, 0 from elsewhere left alone",
        "5 created, 0 updated, 0 unchanged, 0 failed; 5 chunks (0 kept)",
    ]
    assert "plan: 5 add; about 0.0000 US dollars" in done.stderr
    (folder / "note-0.md").rename(folder / "first.md")
    (folder / "note-1.md").write_text("# Note 1\n\nIt is about another valve.\n")
    plan = json.loads(ragpg("sync", str(folder), "-t", "acme", "--dry-run", "--json").stdout)
    assert plan["counts"] == {"rename": 1, "update": 1, "unchanged": 3}
    assert plan["cost_usd"] == 0.0
    assert [usage["operation"] for usage in plan["usage"]] == ["context", "embed"]
    report = json.loads(ragpg("sync", str(folder), "-t", "acme", "--json").stdout)
    assert report["renamed"] == {"note-0.md": "first.md"}
    assert report["ingested"]["updated"] == ["note-1.md"]
    assert len(report["ingested"]["unchanged"]) == 3


def test_files_of_other_kinds_are_counted_and_links_out_of_the_folder_named(
    ragpg, folder, tmp_path
):
    (folder / "binary.bin").write_bytes(b"\0")
    (folder / "table.xlsx").write_bytes(b"PK")
    (tmp_path / "secret.txt").write_text("a word from outside\n")
    (folder / "link[1].txt").symlink_to(tmp_path / "secret.txt")
    said = [
        "2 files of other kinds passed over",
        "link passed over: link[1].txt leads to no file in the folder",
    ]
    for command in (
        ["sync", str(folder), "--dry-run"],
        ["sync", str(folder)],
        ["ingest", str(folder), "--dry-run"],
        ["ingest", str(folder)],
        ["enqueue", str(folder)],
    ):
        lines = ragpg(*command).stdout.splitlines()
        assert [line for line in lines if "passed over" in line] == said, command
    named = [
        {"key": "binary.bin", "reason": "other_kind"},
        {"key": "link[1].txt", "reason": "link"},
        {"key": "table.xlsx", "reason": "other_kind"},
    ]
    plan = json.loads(ragpg("sync", str(folder), "--dry-run", "--json").stdout)
    assert plan["passed_over"] == named
    assert json.loads(ragpg("ingest", str(folder), "--json").stdout)["passed_over"] == named


def test_a_large_removal_is_exit_code_2_without_yes_and_changes_nothing(ragpg, folder, owner):
    ragpg("sync", str(folder))
    (folder / "note-0.md").unlink()
    refused = ragpg("sync", str(folder), code=2)
    assert "would remove 1 of 5 live documents, more than 10%" in refused.stderr
    assert owner.execute("select count(*) from ragpg.document").fetchone() == (5,)
    assert "0 renamed, 1 removed" in ragpg("sync", str(folder), "--yes").stdout
    assert owner.execute("select count(*) from ragpg.document").fetchone() == (4,)


def on_a_terminal(ragpg: CommandLine, answer: str, *arguments: str) -> tuple[int, str]:
    """The exit code and output of a command whose standard input is a terminal."""
    controller, terminal = pty.openpty()
    os.write(controller, f"{answer}\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "ragpg", *arguments],
        env=ragpg.environment,
        stdin=terminal,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    os.close(controller)
    os.close(terminal)
    return done.returncode, done.stdout + done.stderr


def test_a_large_removal_asks_on_a_terminal(ragpg, folder, owner):
    ragpg("sync", str(folder))
    (folder / "note-0.md").unlink()
    code, output = on_a_terminal(ragpg, "n", "sync", str(folder))
    assert code == 2
    assert "1 of 5 live documents are no longer in" in output
    assert "nothing was changed: the removal was declined" in output
    assert owner.execute("select count(*) from ragpg.document").fetchone() == (5,)
    code, output = on_a_terminal(ragpg, "y", "sync", str(folder))
    assert code == 0
    assert "1 removed" in output
    assert owner.execute("select count(*) from ragpg.document").fetchone() == (4,)


def test_ingest_prints_the_same_plan_and_a_file_that_fails_is_exit_code_1(ragpg, folder, owner):
    (folder / "empty.md").write_text(" \n")
    done = ragpg("ingest", str(folder), "--dry-run", code=1)
    assert "fail    empty.md" in done.stdout
    assert done.stdout.splitlines()[-1] == "plan: 5 add, 1 fail; about 0.0000 US dollars"
    assert owner.execute("select count(*) from ragpg.tenant").fetchone() == (0,)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ingest"], "give files or folders to ingest, or --resume alone"),
        (["ingest", ".", "--resume"], "give files or folders to ingest, or --resume alone"),
        (["ingest", "--resume", "--dry-run"], "--resume has no --dry-run"),
        (["sync", "/does/not/exist"], "/does/not/exist is not a folder"),
        (["sync", "FOLDER", "--batch"], "come from 'rule', which writes no batches"),
        (["ingest", "FOLDER", "--batch", "--dry-run"], "come from 'rule', which writes no batches"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_exit_code_2(ragpg, folder, arguments, sentence):
    given = [str(folder) if argument == "FOLDER" else argument for argument in arguments]
    done = ragpg(*given, code=2)
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_plan_in_batches_shows_what_the_same_contexts_cost_at_once(ragpg, folder):
    (folder / "long.md").write_text("# Long\n\n" + "A line about pumps and valves.\n" * 400)
    ragpg.environment["ANTHROPIC_API_KEY"] = "key"
    shown = ragpg("sync", str(folder), "-t", "acme", "--dry-run", "--batch").stdout
    (note,) = [line for line in shown.splitlines() if line.startswith("note: the contexts cost")]
    assert " US dollars in batches and 0.00" in note
    assert " at once, so batches save " in note
    plan = json.loads(
        ragpg("sync", str(folder), "-t", "acme", "--dry-run", "--batch", "--json").stdout
    )
    assert 0 < plan["cost_usd"] < plan["at_once_usd"]
