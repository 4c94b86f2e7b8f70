"""Ingest the documents in examples/ and ask three questions, offline; `make demo` runs it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import ragpg
from ragpg import terminal
from ragpg.parse import find_files

HERE = Path(__file__).parent


def main() -> None:
    """Print hits, answer, citations and times for each question."""
    started = time.perf_counter()
    out = terminal.console()
    out.print("[bold]starting the embedded Postgres and migrating it[/bold]")
    with ragpg.Client.from_env() as client:
        runbooks = client.collection(tenant="demo", name="runbooks")
        files = find_files([HERE.parent / "examples"]).files
        out.print(f"[bold]ingesting {len(files)} documents[/bold]")
        with terminal.progress_bar() as bar:
            task = bar.add_task("ingesting", total=len(files))
            report = runbooks.ingest_files(
                [HERE.parent / "examples"],
                progress=lambda done: bar.update(task, completed=done.documents),
            )
        terminal.print_report(report)
        for question in json.loads((HERE / "questions.json").read_text("utf-8")):
            out.print()
            out.rule(f"[bold]{question['query']}[/bold]", align="left")
            out.print(f"[dim]{question['demonstrates']}[/dim]")
            answer = runbooks.ask(question["query"])
            terminal.print_hits(answer.hits, limit=6)
            terminal.print_answer(answer)
    out.print(f"\n[dim]{time.perf_counter() - started:.1f} s in all[/dim]")


if __name__ == "__main__":
    main()
