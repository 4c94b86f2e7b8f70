"""CPU of a benchmark's client and its server, which is what a shared machine leaves comparable."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psycopg


def postmaster_of(conn: psycopg.Connection[Any]) -> int:
    """The number of the server's first process, the parent of all others."""
    row = conn.execute("select pg_read_file('postmaster.pid', 0, 20)::text").fetchone()
    return int(str(row[0]).split()[0]) if row else 0


def cpu_seconds(conn: psycopg.Connection[Any]) -> float:
    """CPU used so far by this process and by the server with all its processes, past ones too."""
    # A backend that has just ended is in neither account until the postmaster has seen it end.
    time.sleep(0.2)
    postmaster = postmaster_of(conn)
    tick = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(entry.name) == postmaster:
            total += sum(map(int, fields[11:15])) / tick
        elif int(fields[1]) == postmaster:
            total += sum(map(int, fields[11:13])) / tick
    return total + time.process_time()
