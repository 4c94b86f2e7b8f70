"""The blocking client in a process: interrupted, forked, never closed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import psycopg
import pytest

BEGIN = """
import asyncio, os, signal, sys, threading, time
import ragpg
from ragpg import testing
from ragpg.settings import Settings

class Slow(testing.HashEmbedder):
    async def embed(self, texts, *, purpose):
        if purpose == "document" and any("slow" in text for text in texts):
            await asyncio.sleep(60)
        return await super().embed(texts, purpose=purpose)

client = ragpg.Client(
    Settings(database_url=os.environ["URL"]), embedder=Slow(),
    context_writer=testing.FirstSentenceContextWriter(), reranker=testing.OverlapReranker(),
    generator=testing.QuotingGenerator(),
)
client.__enter__()
docs = client.collection(tenant="acme", name="docs")
docs.ingest([ragpg.Document(key="leave.md", text="Everybody has 30 days of leave.")])
"""


def run(database, then: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(then)],
        env={**os.environ, "URL": database.service_url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_process_that_never_closes_its_client_ends(database):
    ended = run(database, "print(len(docs.search('leave')))\nsys.exit(3)")
    assert (ended.stdout, ended.returncode) == ("1\n", 3), ended.stderr


def test_ctrl_c_ends_the_call_and_what_it_had_in_work(database, owner: psycopg.Connection):
    ended = run(
        database,
        """
        threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        try:
            docs.ingest([ragpg.Document(key="slow.md", text="A slow one.")])
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - started < 30, client.status(tenant="acme"))
        print(len(docs.search("leave")))
        client.close()
        """,
    )
    assert ended.stdout.startswith("interrupted True"), ended.stderr
    assert ended.stdout.endswith("\n1\n")
    assert ended.returncode == 0, ended.stderr
    rows = owner.execute("select key, last_error from ragpg.staged_document").fetchall()
    assert [key for key, _ in rows] == ["slow.md"]
    assert "the ingest was interrupted" in str(rows[0][1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_after_a_fork_is_told_to_open_its_own_client(database):
    ended = run(
        database,
        """
        if os.fork() == 0:
            try:
                docs.search("leave")
            except ragpg.errors.InputError as exc:
                print("child:", exc)
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        print("parent:", len(docs.search("leave")))
        client.close()
        """,
    )
    assert "child: the client was opened in process" in ended.stdout, ended.stderr
    assert "open one in each process, after the fork" in ended.stdout
    assert ended.stdout.endswith("parent: 1\n")
    assert ended.returncode == 0, ended.stderr


def test_an_async_client_after_a_fork_says_so_too(database):
    ended = run(
        database,
        """
        inner = client.inner
        if os.fork() == 0:
            try:
                asyncio.run(inner.collection(tenant="acme", name="docs").retrieve("leave"))
            except ragpg.errors.InputError as exc:
                print("child:", exc)
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        client.close()
        """,
    )
    assert "which would share its connections; open one in each process" in ended.stdout
    assert ended.returncode == 0, ended.stderr
