"""`ragpg stale` and `ragpg expire` as their user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_commands import CommandLine


@pytest.fixture
def ragpg(database) -> CommandLine:
    return CommandLine({"RAGPG_DATABASE_URL": database.service_url, "RAGPG_ACTOR": "kim"})


def test_what_is_due_is_listed_and_what_is_over_is_deleted(ragpg, tmp_path: Path, owner):
    (tmp_path / "due.md").write_text("---\nowner: people\nreview_by: 2020-01-01\n---\n\nLeave.\n")
    (tmp_path / "over.md").write_text("---\nexpires_at: 2020-01-01\n---\n\nOld leave.\n")
    (tmp_path / "fresh.md").write_text("New leave.\n")
    ragpg("ingest", str(tmp_path), "-t", "acme")
    lines = ragpg("stale", "-t", "acme").stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].split()[:3] == ["due.md", "people", "2020-01-01"]
    everything = json.loads(ragpg("stale", "-t", "acme", "--unmodified-days", "0", "--json").stdout)
    assert [one["document_key"] for one in everything] == ["due.md", "fresh.md"]
    gone = ragpg("expire", "-t", "acme")
    assert (gone.stdout, gone.stderr) == ("over.md\n", "1 deleted\n")
    assert json.loads(ragpg("expire", "-t", "acme", "--json").stdout) == []
    assert owner.execute(
        "select document_key, actor from ragpg.document_history where action = 'expired'"
    ).fetchall() == [("over.md", "kim")]


def test_nothing_due_is_said_in_a_sentence(ragpg, tmp_path: Path):
    (tmp_path / "fresh.md").write_text("New leave.\n")
    ragpg("ingest", str(tmp_path))
    assert ragpg("stale").stdout == "nothing to review\n"
    assert "has no collection 'other'" in ragpg("stale", "-c", "other", code=2).stderr


def test_the_log_is_pruned_by_days_or_by_the_setting(ragpg, database, tmp_path: Path, owner):
    (tmp_path / "leave.md").write_text("Everybody has thirty days of leave.\n")
    ragpg("ingest", str(tmp_path), "-t", "acme")
    for _ in range(3):
        ragpg("search", "leave", "-t", "acme")
    owner.execute(
        "update ragpg.search set searched_at = now() - make_interval(days =>"
        " case search_id when 1 then 100 when 2 then 60 else 0 end)"
    )
    assert ragpg("prune-log", "-t", "acme").stdout == "1 searches deleted\n"
    pruned = ragpg("prune-log", "-t", "acme", "--older-than", "60", "--json").stdout
    assert json.loads(pruned) == {"deleted": 1}
    for_ever = CommandLine(
        {"RAGPG_DATABASE_URL": database.service_url, "RAGPG_SEARCH_LOG_DAYS": "0"}
    )
    assert "give --older-than DAYS" in for_ever("prune-log", "-t", "acme", code=2).stderr
    assert ragpg("prune-log", "-t", "acme", "--older-than", "0").stdout == "1 searches deleted\n"


def test_the_log_lists_searches_and_says_why_a_chunk_was_found_or_not(ragpg, tmp_path: Path):
    (tmp_path / "leave.md").write_text("Everybody has thirty days of leave.\n")
    (tmp_path / "pump.md").write_text("Turn the valve.\n")
    assert "there is no tenant 'acme'" in ragpg("log", "-t", "acme", code=2).stderr
    ragpg("ingest", str(tmp_path), "-t", "acme")
    assert ragpg("log", "-t", "acme").stdout == "no search is logged\n"
    for query in ("leave", "valve"):
        ragpg("search", query, "-t", "acme", "-k", "1")
    listed = ragpg("log", "-t", "acme").stdout.splitlines()
    assert listed[0].split() == [
        "search",
        "at",
        "collection",
        "query",
        "candidates",
        "shown",
        "cited",
    ]
    assert [line.split()[-4:] for line in listed[1:]] == [
        ["valve", "2", "1", "0"],
        ["leave", "2", "1", "0"],
    ]
    (older,) = json.loads(ragpg("log", "-t", "acme", "--after", "2", "--json").stdout)
    assert (older["search_id"], older["query"], older["filter"]) == (1, "leave", None)
    assert older["searched_at"].endswith("+00:00")

    one = ragpg("log", "1", "-t", "acme").stdout.splitlines()
    assert one[2].split()[:2] == ["chunk", "document"]
    assert one[3].split()[1:] == [
        "leave.md",
        "1",
        "1",
        "1",
        "1",
        "yes",
        "Everybody",
        "has",
        "thirty",
        "days",
        "of",
        "leave.",
    ]
    (shown, other) = json.loads(ragpg("log", "1", "-t", "acme", "--json").stdout)["hits"]
    why = ragpg("log", "1", "--chunk", str(other["chunk_id"]), "-t", "acme").stdout
    assert why.startswith("not_shown: it was found (dense rank 2, not found by the lexical arm,")
    why = ragpg("log", "1", "--chunk", str(shown["chunk_id"]), "-t", "acme").stdout.splitlines()
    assert why[0].startswith("shown: it was shown: dense rank 1, lexical rank 1,")
    assert why[2].split()[0] == "leav"
    assert "has no search 9" in ragpg("log", "9", "-t", "acme", code=2).stderr
    assert "--chunk is about one search" in ragpg("log", "--chunk", "1", code=2).stderr
