"""The README tells the truth: its Python and SQL run, its names exist, its commands are the CLI's."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer
from pydantic import SecretStr

import ragpg
from ragpg.cli import app
from ragpg.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_ten_lines_of_python_and_ten_of_sql_run_and_find_the_same(database):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RAGPG_")
    } | {"RAGPG_DATABASE_URL": database.service_url}
    printed = subprocess.run(
        [sys.executable, "-c", blocks("python")[0]],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert printed.returncode == 0, printed.stderr
    assert "Everybody has 30 days." in printed.stdout
    assert "hr/leave.md 9 31 Everybody has 30 days." in printed.stdout
    with psycopg.connect(database.service_url) as conn:
        conn.execute("select ragpg.use_tenant('acme')")
        statements = [s for s in re.sub(r"--[^\n]*", "", blocks("sql")[0]).split(";") if s.strip()]
        assert len(statements) >= 8
        for statement in statements:
            rows = conn.execute(statement).fetchall()
            if "search_lexical" in statement:
                assert len(rows) == 1


def test_the_handler_answers_over_http_and_says_what_is_wrong_with_a_request(database):
    (handler,) = [block for block in blocks("python") if "BaseHTTPRequestHandler" in block]
    with ragpg.Client(Settings(database_url=SecretStr(database.service_url))) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        handbook.ingest([ragpg.Document(key="leave.md", text="Everybody has 30 days of leave.")])
        names: dict[str, Any] = {"handbook": handbook, "http": http, "json": json, "urllib": urllib}
        exec(handler, names)  # noqa: S102
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), names["Answers"]) as server:
            threading.Thread(target=server.serve_forever).start()
            try:
                asked = f"http://127.0.0.1:{server.server_port}/?q=How+many+days+of+leave"
                with urllib.request.urlopen(asked) as response:
                    answer = ragpg.Answer.from_json(json.load(response))
                with pytest.raises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(f"{asked}&where=%7B%22year%22:%7B%22~%22:1%7D%7D")  # noqa: S310
                error = json.load(refused.value)["error"]
                refused.value.close()
            finally:
                server.shutdown()
    assert [citation.quote for citation in answer.citations] == ["Everybody has 30 days of leave."]
    assert refused.value.code == 400
    assert "year" in error


def test_the_example_of_the_log_runs(database):
    (example,) = [block for block in blocks("python") if "search_log" in block]
    settings = Settings(database_url=SecretStr(database.service_url))
    with ragpg.Client(settings) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        handbook.ingest([ragpg.Document(key="leave.md", text="Everybody has 30 days of leave.")])
        handbook.ask("days of leave")
    printed = subprocess.run(
        [sys.executable, "-c", f"import ragpg\n{example}"],
        env={**os.environ, "RAGPG_DATABASE_URL": database.service_url},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.splitlines()
    assert printed[0] == "leave.md 1 1 1 True"
    assert printed[1].startswith("it was shown and is cited: dense rank 1")


def test_every_command_of_the_command_line_is_in_the_readme():
    group = typer.main.get_command(app)
    commands = getattr(group, "commands", {})
    assert len(commands) >= 8
    for name in commands:
        assert re.search(rf"^ragpg {name}\b", README, flags=re.MULTILINE), name


def test_every_runtime_dependency_has_its_reason_in_the_readme():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    table = README[README.index("## Dependencies") : README.index("## Limits")]
    for requirement in project["dependencies"]:
        name = re.split(r"[\[<>=]", requirement)[0]
        assert re.search(rf"\b{re.escape(name)}\b", table), name


def test_every_link_and_file_that_the_readme_names_exists():
    for name in re.findall(
        r"`((?:docs|docker|ragpg|examples|benchmarks|migrations)/[\w./-]*)`", README
    ):
        assert (ROOT / name).exists(), name
