"""The command line as its user runs it: output, exit codes, one-sentence errors."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import ragpg as library
from ragpg.embedded import data_directory, embedded_state

EXAMPLES = Path(__file__).parents[2] / "examples"
# A suite that a shell started with & ignores SIGINT, and so would what it starts.
INTERRUPTIBLE = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    " os.execv(sys.executable, [sys.executable, '-m', 'ragpg', *sys.argv[1:]])"
)


class CommandLine:
    """Runs `ragpg` in a process of its own with a database and no vendor key."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("RAGPG_")
        } | environment

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "ragpg", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done


@pytest.fixture
def ragpg(database) -> CommandLine:
    return CommandLine(
        {
            "RAGPG_DATABASE_URL": database.service_url,
            "RAGPG_OWNER_DATABASE_URL": database.owner_url,
        }
    )


def test_the_main_job_from_the_command_line(ragpg):
    assert "nothing to do: the schema is at revision" in ragpg("migrate").stdout
    first = ragpg("ingest", str(EXAMPLES), "--tenant", "acme").stdout
    assert first.startswith("3 created, 0 updated, 0 unchanged, 0 failed;")
    report = json.loads(ragpg("ingest", str(EXAMPLES), "--tenant", "acme", "--json").stdout)
    assert len(report["unchanged"]) == 3
    hits = json.loads(
        ragpg("search", "incident 2025-05-18", "-t", "acme", "-k", "3", "--json").stdout
    )
    assert len(hits["hits"]) == 3
    assert hits["hits"][0]["section_path"][-1].startswith("5.2 Incident 2025-05-18")
    assert hits["hits"][0]["lexical_rank"] == 1
    answered = ragpg("ask", "What happened on 2025-05-18?", "-t", "acme").stdout
    assert "[1] warehouse-cost-runbook.md, Warehouse cost runbook > 5. Incidents" in answered
    assert "no model wrote this" in answered
    answer = json.loads(
        ragpg("ask", "What is the parental leave policy?", "-t", "acme", "--json").stdout
    )
    assert (answer["supported"], answer["citations"]) == (False, [])
    only = json.loads(
        ragpg(
            "search", "incident", "-t", "acme", "--json", "--where", '{"tags": {"any": ["cost"]}}'
        ).stdout
    )
    assert {hit["document_key"] for hit in only["hits"]} == {"warehouse-cost-runbook.md"}
    rows = json.loads(
        ragpg(
            "sql", "select key, chunks from ragpg.document_overview", "-t", "acme", "--json"
        ).stdout
    )
    assert {row["key"] for row in rows} == {path.name for path in EXAMPLES.glob("*.md")}
    typed = r"select 1009::numeric as n, '\x00ff'::bytea as b, '[1,2]'::halfvec as v"
    assert json.loads(ragpg("sql", typed, "-t", "acme", "--json").stdout) == [
        {"n": 1009, "b": r"\x00ff", "v": [1.0, 2.0]}
    ]
    wide = ragpg("sql", "select repeat('x', 150) as x, repeat('y', 150) as y", "-t", "acme").stdout
    assert wide.splitlines()[1].split() == ["x" * 150, "y" * 150]
    assert json.loads(ragpg("index", "plan", "--json").stdout)["changes"] == []
    findings = json.loads(ragpg("doctor", "--json").stdout)
    # A server with an old pgvector has warnings of its own.
    assert {finding["state"] for finding in findings if finding["name"] != "pgvector"} == {"ok"}


def test_documents_that_fail_are_named_and_the_exit_code_says_so(ragpg, tmp_path):
    (tmp_path / "good.md").write_text("# Pumps\n\nTurn the valve.\n")
    (tmp_path / "empty.md").write_text(" \n")
    (tmp_path / "blob.txt").write_bytes(bytes(range(256)) * 4)
    done = ragpg("ingest", str(tmp_path), code=1)
    assert done.stdout.startswith("1 created, 0 updated, 0 unchanged, 2 failed;")
    assert "empty.md" in done.stdout
    assert "(no_text)" in done.stdout
    assert "blob.txt" in done.stdout
    assert "(binary)" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["search", "x", "-t", "nobody"], 2, "there is no tenant 'nobody'"),
        (["search", "   "], 2, "the query holds no text; ask something"),
        (["search", "x", "--where", '{"year": {"gte": 3}}'], 2, "'year' has no operator 'gte'"),
        (["search", "x", "--where", "year=3"], 2, "--where is not JSON"),
        (["ingest", "/does/not/exist"], 2, "/does/not/exist"),
        (["evaluate", "/does/not/exist"], 2, "/does/not/exist"),
    ],
)
def test_a_wrong_argument_is_one_sentence_and_exit_code_2(ragpg, arguments, code, sentence):
    done = ragpg(*arguments, code=code)
    assert done.stderr.startswith("ragpg: ")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_the_version_is_that_of_the_installed_package(ragpg):
    version = importlib.metadata.version("ragpg")
    assert ragpg("--version").stdout == f"ragpg {version}\n"
    assert library.__version__ == version


def until(true: Callable[[], bool]) -> None:
    """Return when it is true; fails after a minute."""
    give_up = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_interrupted_says_so_in_one_line_and_lets_go_of_its_statement(
    ragpg, owner, number, code
):
    owner.execute("select ragpg.create_tenant('acme')")
    sleeping = "select 1 from pg_stat_activity where query = 'select pg_sleep(50)'"
    running = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "sql", "select pg_sleep(50)", "-t", "acme"],
        env=ragpg.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: owner.execute(sleeping).fetchone() is not None)
    running.send_signal(number)
    said = running.communicate(timeout=60)
    assert said == ("", "interrupted\n")
    assert running.returncode == code
    until(lambda: owner.execute(sleeping).fetchone() is None)


def test_sigterm_to_the_only_holder_of_the_embedded_server_stops_it():
    # A short path: that of a Unix socket is limited to about 100 characters.
    with tempfile.TemporaryDirectory(prefix="ragpg-") as home:
        ragpg = CommandLine({"RAGPG_HOME": home})
        ragpg("ingest", str(EXAMPLES / "data-quality-runbook.md"))
        assert embedded_state(Path(home)).pid is None
        running = subprocess.Popen(
            [sys.executable, "-m", "ragpg", "sql", "select pg_sleep(50)"],
            env=ragpg.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        url = f"postgresql://postgres@/ragpg?host={data_directory(Path(home))}"
        sleeping = "select 1 from pg_stat_activity where query = 'select pg_sleep(50)'"

        def works() -> bool:
            with suppress(psycopg.OperationalError), psycopg.connect(url) as conn:
                return conn.execute(sleeping).fetchone() is not None
            return False

        until(works)
        running.terminate()
        _, said = running.communicate(timeout=60)
        assert (running.returncode, said.splitlines()[-1]) == (
            143,
            "interrupted",
        )
        assert embedded_state(Path(home)).pid is None


def test_an_unknown_collection_is_named(ragpg):
    ragpg("ingest", str(EXAMPLES / "data-quality-runbook.md"))
    done = ragpg("ask", "x", "-c", "handbok", code=2)
    assert "the tenant has no collection 'handbok'" in done.stderr


def test_a_dead_database_is_exit_code_4_and_shows_no_password(ragpg):
    ragpg.environment["RAGPG_DATABASE_URL"] = "postgresql://app:secret-word@127.0.0.1:1/ragpg"
    done = ragpg("search", "x", code=4)
    assert "the database cannot be reached" in done.stderr
    assert "check RAGPG_DATABASE_URL" in done.stderr
    assert "secret-word" not in done.stderr


def test_a_superuser_as_the_service_is_exit_code_3(ragpg, database):
    ragpg.environment["RAGPG_DATABASE_URL"] = database.owner_url
    done = ragpg("search", "x", code=3)
    assert "which is a superuser" in done.stderr


def test_a_missing_key_names_its_variable_before_any_work(ragpg):
    ragpg.environment["RAGPG_GENERATE_PROVIDER"] = "claude"
    ragpg("ingest", str(EXAMPLES / "data-quality-runbook.md"))
    done = ragpg("ask", "x", code=3)
    assert "needs ANTHROPIC_API_KEY, which is not set" in done.stderr
    ragpg.environment["RAGPG_RERANK_PROVIDER"] = "cohere"
    assert "needs CO_API_KEY" in ragpg("search", "x", code=3).stderr


def test_a_wrong_setting_is_named(ragpg):
    ragpg.environment["RAGPG_POOL_MAX_SIZE"] = "many"
    assert "RAGPG_POOL_MAX_SIZE is wrong" in ragpg("search", "x", code=3).stderr


def test_an_evaluation_of_ones_own_data_prints_the_ladder_and_leaves_nothing_behind(
    ragpg, tmp_path, owner
):
    texts = {
        "pump": "The pump ERR-77 stops when the valve is shut.",
        "leave": "Everybody has thirty days of leave a year.",
        "credit": "One warehouse credit costs three dollars.",
    }
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items())
    )
    (tmp_path / "queries.jsonl").write_text(
        json.dumps({"_id": "q1", "text": "What does ERR-77 mean?"})
        + "\n"
        + json.dumps({"_id": "q2", "text": "How many days of leave?"})
        + "\n"
    )
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tpump\t1\nq2\tleave\t1\n")
    result = json.loads(ragpg("evaluate", str(tmp_path), "--json").stdout)
    assert [rung["name"] for rung in result["rungs"]] == [
        "dense",
        "+ contexts",
        "+ contextual BM25",
        "+ rerank",
    ]
    assert result["rungs"][-1]["measures"]["mean"]["pass@5"] == 1.0
    assert result["judged"][0]["ranks"]["+ rerank"] == 1
    shown = ragpg("evaluate", str(tmp_path)).stdout
    assert "1-recall@20" in shown
    assert "One query is worth 50.00 points." in shown
    assert "0 of 2 judgements are not in the first 5 of the last rung" in shown
    assert owner.execute("select count(*) from ragpg.collection").fetchone() == (0,)
    assert owner.execute("select count(*) from ragpg.lexeme_vector").fetchone() == (0,)


def test_an_evaluation_names_what_is_missed_and_takes_choices_of_the_recipe(ragpg, tmp_path):
    (tmp_path / "corpus.jsonl").write_text(
        "".join(
            json.dumps({"_id": f"car{number}", "text": f"A parking space for {number} cars."})
            + "\n"
            for number in range(8)
        )
        + json.dumps({"_id": "menu", "text": "Rindfleischsuppen und Knödel."})
        + "\n"
    )
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "q1", "text": "parking space"}\n{"_id": "q2", "text": "Rindfleischsuppe"}\n'
    )
    (tmp_path / "qrels.tsv").write_text("q1\tmenu\t1\nq2\tmenu\t1\n")
    shown = ragpg("evaluate", str(tmp_path), "--misses").stdout
    assert "1 of 2 judgements are not in the first 5 of the last rung\n" in shown
    missed = [line.split() for line in shown.splitlines() if line.startswith("q1 ")]
    assert [(words[:4], words[-1][:3]) for words in missed] == [
        (["q1", "parking", "space", "menu"], "car")
    ]

    def lexical_rank(*options: str) -> Any:
        found = json.loads(ragpg("evaluate", str(tmp_path), "--json", *options).stdout)
        return found["judged"][1]["ranks"]["BM25 alone, with contexts"]

    assert lexical_rank() is None
    assert lexical_rank("--language", "german", "--splitter", "whole") == 1
    refused = ragpg("evaluate", str(tmp_path), "--splitter", "hole", code=2).stderr
    assert refused.startswith("ragpg: splitter is 'hole'; it may be 'section'")


def test_a_search_is_paged_and_an_empty_path_is_not_the_working_directory(ragpg):
    ragpg("ingest", str(EXAMPLES), "--tenant", "acme")

    def found(*options: str) -> list[tuple[int, int]]:
        done = ragpg("search", "days of leave", "--tenant", "acme", "--json", *options)
        return [(hit["rank"], hit["chunk_id"]) for hit in json.loads(done.stdout)["hits"]]

    (first, second) = found("-k", "2")
    assert found("-k", "1", "--after", str(first[1])) == [second]
    assert len(found("-k", "1", "--depth", "1")) == 1
    for command in ("ingest", "enqueue", "sync"):
        refused = ragpg(command, "", "--tenant", "acme", code=2).stderr
        assert refused.startswith("ragpg: '' is no path; name a file or a folder, '.' for the curr")
