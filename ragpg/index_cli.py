"""The command line of vector index maintenance: ragpg index plan | apply | recall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ragpg.dense_index import IndexPlan
    from ragpg.dense_recall import RecallCheck
    from ragpg.settings import Settings

app = typer.Typer(
    help="Vector indexes of large collections; small ones need none.", no_args_is_help=True
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Memory = Annotated[
    int | None,
    typer.Option("--memory-mb", min=1, max=2_000_000, help="maintenance_work_mem of the builds."),
]


@contextmanager
def owner_url(settings: Settings) -> Iterator[str]:
    """The URL of a role that may migrate; the embedded server runs while it is in use."""
    from ragpg.embedded import start_embedded, stop_embedded

    url = settings.owner_database_url or settings.database_url
    if url is not None:
        yield url.get_secret_value()
        return
    embedded = start_embedded(settings.home)
    try:
        yield embedded.owner_url
    finally:
        stop_embedded(embedded)


@app.command()
def plan(memory_mb: Memory = None, as_json: AsJson = False) -> None:
    """Say which indexes would be built or dropped, with memory and time."""
    from ragpg import dense_index, terminal
    from ragpg.settings import Settings

    with owner_url(Settings.from_env()) as url:
        found = dense_index.plan(url, memory_mb=memory_mb)
    typer.echo(terminal.to_json(found)) if as_json else _print_plan(found)


@app.command()
def apply(memory_mb: Memory = None, as_json: AsJson = False) -> None:
    """Build and drop them; readers and writers are not blocked."""
    from ragpg import dense_index, terminal
    from ragpg.settings import Settings

    with owner_url(Settings.from_env()) as url, terminal.progress_bar() as bar:
        task = bar.add_task("planning", total=None)
        done = dense_index.apply(
            url,
            memory_mb=memory_mb,
            progress=lambda now: bar.update(
                task,
                description=f"{now.change.collection}: {now.notice or now.phase}",
                completed=now.done,
                total=now.total or None,
            ),
        )
    typer.echo(terminal.to_json(done)) if as_json else _print_plan(done)


@app.command()
def recall(
    queries: Annotated[int, typer.Option(min=1, max=1000, help="Queries per collection.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Compare the dense arm with the exact scan; the result is in ragpg.index_health."""
    from ragpg import dense_recall, terminal
    from ragpg.settings import Settings

    with owner_url(Settings.from_env()) as url:
        found = list(dense_recall.recall(url, queries=queries))
    checks = [check for check in found if isinstance(check, dense_recall.RecallCheck)]
    failures = [one for one in found if isinstance(one, dense_recall.RecallFailure)]
    if as_json:
        typer.echo(terminal.to_json(found))
    else:
        _print_recall(checks)
    for failure in failures:
        typer.echo(f"failed: {failure.advice}", err=True)
    if failures:
        raise typer.Exit(1)


def _print_recall(checks: Sequence[RecallCheck]) -> None:
    from ragpg import terminal

    terminal.print_table(
        ("tenant", "collection", "queries", "plans", "mean recall", "lowest", "advice"),
        [
            (
                check.tenant,
                check.collection,
                f"{check.queries} {check.query_source}",
                ", ".join(check.modes),
                f"{check.mean_recall:.4f}",
                f"{check.lowest_recall:.4f}",
                check.advice,
            )
            for check in checks
        ],
    )


def _print_plan(found: IndexPlan) -> None:
    from ragpg import terminal

    if not found.changes:
        typer.echo("nothing to do: every collection has the index that its size wants")
    else:
        terminal.print_table(
            ("", "tenant", "collection", "rows", "memory MB", "seconds", "index"),
            [
                (
                    change.action,
                    change.tenant,
                    change.collection,
                    change.rows,
                    -(-change.memory_bytes // 1024**2),
                    f"{change.seconds:.0f}",
                    change.index_name,
                )
                for change in found.changes
            ],
        )
    for warning in found.warnings:
        typer.echo(f"warning: {warning}", err=True)
