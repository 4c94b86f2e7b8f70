"""Memory of a database server with all its processes, at its most while something runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROCESSES = Path("/proc")


def server_memory(postmaster: int) -> tuple[float, int, str]:
    """Megabytes of the server's processes now, how many they are, and by what they were counted.

    `Pss` shares a page out among those that map it, so its sum is what the server takes. Where it
    may not be read, `RssAnon + RssShmem` is summed, which counts shared buffers once for each
    process that has touched them: more than there is. A server on another machine is 0 processes.
    """
    kilobytes = {"Pss": 0, "RssAnon + RssShmem": 0}
    processes = 0
    readable = True
    for entry in PROCESSES.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "status").read_text()
            parent = int(re.findall(r"^PPid:\s+(\d+)", status, re.MULTILINE)[0])
            if postmaster not in (int(entry.name), parent):
                continue
            processes += 1
            resident = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+)", status, re.MULTILINE)
            kilobytes["RssAnon + RssShmem"] += sum(map(int, resident))
            rollup = (entry / "smaps_rollup").read_text()
            kilobytes["Pss"] += int(re.findall(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError:
            readable = False
    counted_by = "Pss" if readable else "RssAnon + RssShmem"
    return kilobytes[counted_by] * 1024 / 1e6, processes, counted_by


@contextmanager
def peak_memory(
    postmaster: int, phase: str, rows: list[dict[str, Any]], *, every_s: float = 2
) -> Iterator[None]:
    """Append one row to `rows` when the phase ends: its name and the largest sum that was seen.

    A look at 20 processes takes some 20 ms of processor time, hence not more often.
    """
    seen = [server_memory(postmaster)]
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(every_s):
            seen.append(server_memory(postmaster))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()
        seen.append(server_memory(postmaster))
    megabytes, processes, counted_by = max(seen)
    rows.append(
        {
            "phase": phase,
            "server_mb": megabytes,
            "processes": processes,
            "counted_by": counted_by,
        }
    )
