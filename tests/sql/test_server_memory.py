"""The benchmark sees what memory the server takes, and that of no other process."""

from __future__ import annotations

import os
from typing import Any

import psycopg

from benchmarks.server_cpu import postmaster_of
from benchmarks.server_memory import peak_memory, server_memory

HOLDS_200_MB = """
do $$
declare
    held text := repeat('x', 200000000);
begin
    perform pg_sleep(0.5);
end $$
"""


def test_the_memory_that_a_session_takes_for_a_moment_is_in_the_peak_of_its_phase(owner, database):
    postmaster = postmaster_of(owner)
    rows: list[dict[str, Any]] = []
    with psycopg.connect(database.service_url, autocommit=True) as conn:
        with peak_memory(postmaster, "idle", rows, every_s=0.05):
            conn.execute("select pg_sleep(0.2)")
        with peak_memory(postmaster, "busy", rows, every_s=0.05):
            conn.execute(HOLDS_200_MB)
        with peak_memory(postmaster, "idle again", rows, every_s=0.05):
            conn.execute("select pg_sleep(0.2)")
    assert [row["phase"] for row in rows] == ["idle", "busy", "idle again"]
    idle, busy, after = (row["server_mb"] for row in rows)
    assert busy - idle > 180
    assert busy - after > 180


def test_a_process_without_children_is_one_process_and_none_is_nothing():
    megabytes, processes, _ = server_memory(os.getpid())
    assert processes == 1
    assert megabytes > 10
    assert server_memory(2**22 + 1)[:2] == (0, 0)
