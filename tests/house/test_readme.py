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
from tests.conftest import TestDatabase

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


PAGES = {path.relative_to(ROOT).as_posix(): path for path in [*ROOT.glob("docs/**/*.md")]}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run(program: str, database: TestDatabase) -> str:
    """What a program prints that is pasted into a file of its own; it must end well."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RAGPG_")
    } | {"RAGPG_DATABASE_URL": database.service_url}
    printed = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert printed.returncode == 0, printed.stderr
    return printed.stdout


def statements_of(block: str) -> list[str]:
    return [each for each in re.sub(r"--[^\n]*", "", block).split(";") if each.strip()]


def test_every_python_block_runs_as_it_stands_and_every_sql_block_finds_the_same(database):
    programs = blocks("python")
    assert len(programs) == 4
    printed = [run(program, database) for program in programs]
    assert "Everybody has 30 days." in printed[0]
    assert "hr/leave.md 9 31 Everybody has 30 days." in printed[0]
    # The first block's question, as the log has it.
    assert printed[2].splitlines()[0] == "hr/leave.md 1 1 1 True"
    # Nothing has a year.
    assert printed[3] == "()\n"
    (block,) = blocks("sql")
    with psycopg.connect(database.service_url) as conn:
        conn.execute("select ragpg.use_tenant('acme')")
        statements = statements_of(block)
        assert len(statements) >= 8
        for statement in statements:
            rows = conn.execute(statement).fetchall()
            if "search_lexical" in statement or "search_log" in statement:
                assert len(rows) == 1, statement


@pytest.mark.parametrize(
    "page", [name for name, path in PAGES.items() if "```sql" in path.read_text("utf-8")]
)
def test_the_sql_of_every_page_runs(database, owner, page):
    owner.execute("select ragpg.create_tenant('acme')")
    for block in blocks("sql", PAGES[page].read_text("utf-8")):
        with owner.transaction(force_rollback=True):
            for statement in statements_of(block):
                owner.execute(statement)


def test_the_handler_answers_over_http_and_says_what_is_wrong_with_a_request(database):
    (handler,) = [block for block in blocks("python") if "BaseHTTPRequestHandler" in block]
    with ragpg.Client(Settings(database_url=SecretStr(database.service_url))) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        handbook.ingest([ragpg.Document(key="leave.md", text="Everybody has 30 days of leave.")])
        names: dict[str, Any] = {"handbook": handbook}
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


def test_the_example_of_the_log_says_why(database):
    (example,) = [block for block in blocks("python") if "search_log" in block]
    settings = Settings(database_url=SecretStr(database.service_url))
    with ragpg.Client(settings) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        handbook.ingest([ragpg.Document(key="leave.md", text="Everybody has 30 days of leave.")])
        handbook.ask("days of leave")
    printed = run(example, database).splitlines()
    assert printed[0] == "leave.md 1 1 1 True"
    assert printed[1].startswith("it was shown and is cited: dense rank 1")


def commands() -> dict[str, set[str]]:
    """The options of every command of the command line, `index plan` under its two words."""
    found: dict[str, set[str]] = {}
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        inner = {f"{name} {sub}": each for sub, each in getattr(command, "commands", {}).items()}
        for full, each in (inner or {name: command}).items():
            found[full] = {option for parameter in each.params for option in parameter.opts}
    return found


def named(text: str) -> list[tuple[list[str], str]]:
    """Each use of `ragpg` in a page: the commands that it names, and all of it with its options."""
    code = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    uses = [line for kind, block in code if kind in {"", "sh"} for line in block.splitlines()]
    uses += re.findall(
        r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    )
    found = []
    for use in (" ".join(each.split("\n")) for each in uses):
        match = re.match(r"ragpg ([a-z][a-z-]*)((?: [a-z]+(?: \| [a-z]+)*)?)(?=\s|$)", use)
        if match is not None:
            name, more = match[1], match[2].split(" | ") if match[2].strip() else []
            inner = [f"{name} {sub.strip()}" for sub in more if name == "index"]
            found.append((inner or [name], use))
    return found


def test_every_command_of_the_command_line_is_in_the_readme_and_no_other_is_in_any_page():
    known = commands()
    assert len(known) >= 20
    in_readme = {name for names, _ in named(README) for name in names}
    assert set(known) - in_readme == set()
    for page in (README, *(path.read_text("utf-8") for path in PAGES.values())):
        for names, use in named(page):
            for name in names:
                # `index` commands in general.
                inner = [options for full, options in known.items() if full.split()[0] == name]
                assert name in known or (name == "index" and inner), use
                taken = known.get(name) or set.union(*inner)
                assert set(OPTION.findall(use)) <= taken, use


def test_every_option_that_the_readme_names_alone_is_one_of_some_command():
    options = set.union(*commands().values())
    alone = [use for use in re.findall(r"`([^`\n]+)`", README) if use.startswith("--")]
    assert len(alone) >= 5
    for use in alone:
        assert set(OPTION.findall(use)) <= options, use


def test_the_commands_without_json_are_those_that_the_readme_says():
    (sentence,) = re.findall(r"All take `--json` but (.*?);", README, flags=re.DOTALL)
    without = {name for name, options in commands().items() if "--json" not in options}
    assert set(re.findall(r"`([\w-]+)`", sentence)) == without


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
