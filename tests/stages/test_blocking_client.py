"""The blocking client in a process: interrupted, forked, never closed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import psycopg
import pytest
from pydantic import SecretStr

import ragpg
from ragpg import testing
from ragpg.settings import Settings
from tests.vendor_stub import Reply, VendorStub
from tests.vendor_stub_rules import claude_error

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
        # A suite that a shell started with & ignores SIGINT, and this process inherited that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
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


@pytest.fixture
def writing(database):
    """A collection of one document whose answers Claude writes, and the stand-in for its host."""
    with VendorStub() as stub:
        settings = Settings(
            database_url=SecretStr(database.service_url),
            anthropic_api_key=SecretStr("key"),
            anthropic_base_url=stub.anthropic_url,
        )
        with ragpg.Client(
            settings,
            embedder=testing.HashEmbedder(),
            context_writer=testing.FirstSentenceContextWriter(),
        ) as client:
            docs = client.collection(tenant="acme", name="docs")
            docs.ingest([ragpg.Document(key="leave.md", text="Everybody has 30 days of leave.")])
            yield docs, stub


def test_a_stream_of_a_vendor_ends_with_the_whole_answer_however_often_it_is_read(writing):
    docs, _ = writing
    for _ in range(10):
        *deltas, answer = docs.stream("days of leave", docs.ground("days of leave"))
        assert isinstance(answer, ragpg.Answer)
        assert [citation.quote for citation in answer.citations] == [
            "Everybody has 30 days of leave."
        ]
        assert "".join(delta.text for delta in deltas) == answer.text


def test_a_stream_that_is_left_early_gives_its_place_to_the_next_and_the_client_closes(writing):
    docs, _ = writing
    hits = docs.ground("days of leave")
    # More than the places that there are for calls in flight.
    for _ in range(12):
        stream = docs.stream("days of leave", hits)
        assert isinstance(next(stream), ragpg.AnswerDelta)
        stream.close()
    assert docs.ask("days of leave").citations[0].document_key == "leave.md"


def test_what_a_vendor_refuses_is_raised_by_the_stream_and_not_lost(writing):
    docs, stub = writing
    hits = docs.ground("days of leave")
    stub.push(Reply(status=400, body=claude_error("invalid_request_error", "no")))
    with pytest.raises(ragpg.errors.ProviderRejected):
        list(docs.stream("days of leave", hits))
