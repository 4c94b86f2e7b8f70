"""What somebody sees who waits for `ragpg sync` at a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_commands import CommandLine
from tests.vendor_stub import VendorStub

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FRAME = re.compile(
    r"(?P<documents>\d+)/12 documents, (?P<contexts>\d+) contexts and (?P<vectors>\d+) vectors of"
    r" (?P<chunks>\d+) chunks \((?P<rate>[\d.]+)/s\), \$(?P<dollars>[\d.]+), \S+\s.*?"
    r"(?P<percent>\d+)% +\d+:\d\d:\d\d +(?P<left>[\d:-]+)"
)
SENTENCE = "Valve {0}.{1} is closed before pump {1} of line {0} is opened. "
PART = "## Valve {0}.{1}\n\n" + 15 * SENTENCE + "\n\n"  # too long for two to share a chunk


@pytest.fixture
def stub() -> Iterator[VendorStub]:
    with VendorStub() as server:
        server.latency_s = 0.25
        yield server


def frames_of(ragpg: CommandLine, *arguments: str) -> list[dict[str, str]]:
    """The frames of the bar, in order, of a command whose standard error is a wide terminal."""
    controller, terminal = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "ragpg", *arguments],
        env=ragpg.environment | {"COLUMNS": "240", "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
    )
    os.close(terminal)
    seen = b""
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(controller)
    assert running.wait(timeout=60) == 0, seen.decode()
    return [match.groupdict() for match in FRAME.finditer(ESCAPE.sub("", seen.decode()))]


def test_the_bar_of_a_sync_moves_with_each_context_and_vector_and_ends_with_what_was_done(
    database, stub, tmp_path: Path, owner
):
    folder = tmp_path / "docs"
    folder.mkdir()
    for line in range(12):
        parts = "".join(PART.format(line, part) for part in range(4))
        (folder / f"line-{line:02}.md").write_text(f"# Line {line}\n\n{parts}")
    ragpg = CommandLine(
        {
            "RAGPG_DATABASE_URL": database.service_url,
            "ANTHROPIC_API_KEY": "sk-ant-test",
            "RAGPG_ANTHROPIC_BASE_URL": stub.anthropic_url,
            "VOYAGE_API_KEY": "pa-test",
            "RAGPG_VOYAGE_BASE_URL": stub.voyage_url,
            "RAGPG_EMBEDDING_DIMENSIONS": "256",
        }
    )
    frames = frames_of(ragpg, "sync", str(folder))
    ((chunks,),) = owner.execute("select count(*) from ragpg.chunk").fetchall()
    ((dollars,),) = owner.execute("select sum(cost_usd) from ragpg.usage").fetchall()
    # All twelve are published together, so whatever moved until then was not counted in documents.
    unpublished = [frame for frame in frames if frame["documents"] == "0"]
    contexts = sorted({int(frame["contexts"]) for frame in unpublished})
    assert len([some for some in contexts if 0 < some < chunks]) >= 5
    assert any(0 < float(frame["dollars"]) < float(dollars) for frame in unpublished)
    percents = [int(frame["percent"]) for frame in frames]
    assert percents == sorted(percents)
    assert len({int(frame["percent"]) for frame in unpublished}) >= 5
    assert any(re.fullmatch(r"\d+:\d\d:\d\d", frame["left"]) for frame in unpublished)
    last = frames[-1]
    assert (last["documents"], last["percent"], last["left"]) == ("12", "100", "0:00:00")
    assert {last[name] for name in ("contexts", "vectors", "chunks")} == {str(chunks)}
    assert last["dollars"] == f"{dollars:.4f}"
