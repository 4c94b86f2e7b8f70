"""The options of `ragpg search` and `ragpg ask` that choose what stands in the list of hits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import CommandLine

# So long that Leave and Credit are two chunks each.
SECTIONS = {
    "Pumps": "The pump stops when its valve is shut. ",
    "Leave": "Everybody has thirty days of leave a year. ",
    "Credit": "One credit of a warehouse costs three dollars. ",
}
MANUAL = "\n\n".join(f"# {name}\n\n{(text * 40).strip()}" for name, text in SECTIONS.items())


@pytest.fixture
def ragpg(database, tmp_path: Path) -> CommandLine:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text(MANUAL)
    run = CommandLine({"RAGPG_DATABASE_URL": database.service_url})
    run("ingest", str(tmp_path))
    return run


def found(ragpg: CommandLine, command: str, *options: str) -> list[dict[str, Any]]:
    said = json.loads(ragpg(command, "days of leave", *options, "--json").stdout)
    hits: list[dict[str, Any]] = (said["hits"] if command == "ask" else said)["hits"]
    return hits


def places(hits: list[dict[str, Any]]) -> list[tuple[str, int, bool]]:
    return [(hit["document_key"], hit["start"], hit["expanded_from"] is not None) for hit in hits]


def test_each_text_once_with_what_stands_around_it(ragpg):
    assert places(found(ragpg, "search", "-k", "2")) == [
        ("a.md", 2568, False),
        ("b.md", 2568, False),
    ]
    one = ("-k", "1", "--deduplicate", "--expand")
    for command in ("search", "ask"):
        assert places(found(ragpg, command, *one, "neighbours")) == [
            ("a.md", 2568, False),
            ("a.md", 1570, True),
            ("a.md", 3300, True),
        ]
        assert places(found(ragpg, command, *one, "section")) == [
            ("a.md", 2568, False),
            ("a.md", 1570, True),
        ]
    lines = ragpg("search", "days of leave", *one, "neighbours").stdout.splitlines()
    assert lines[1].startswith("  1     1       3  0.0257 ")
    assert lines[1].endswith("  a.md, Leave, 2568-3300 (1 more of this text)")
    assert lines[2:4] == [
        "  +     -       -       -        -  a.md, Leave, 1570-2740",
        "  +     -       -       -        -  a.md, Credit, 3300-4579",
    ]


def test_excluded_chunks_make_room_for_others(ragpg):
    hits = found(ragpg, "search")
    numbers = [hit["chunk_id"] for hit in hits]
    assert len(numbers) == 10
    left = found(ragpg, "search", "--exclude", str(numbers[0]), "--exclude", str(numbers[3]))
    assert {hit["chunk_id"] for hit in left} == {*numbers} - {numbers[0], numbers[3]}


def test_what_is_no_unit_and_no_chunk_is_refused(ragpg):
    assert "neighbours" in ragpg("search", "leave", "--expand", "page", code=2).stderr
    refused = ragpg("search", "leave", "--exclude", "0", code=2).stderr
    assert refused.startswith("ragpg: exclude[0] is 0, it must be 1 to")
