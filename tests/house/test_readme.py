"""The README tells the truth: its Python and SQL run, its names exist, its commands are the CLI's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import typer

from ragpg.cli import app

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
