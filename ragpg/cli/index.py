"""The command line of index maintenance: ragpg index plan | apply | recall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ragpg.cli.session import AsJson, will_go_on

if TYPE_CHECKING:
    from ragpg.settings import Settings
    from ragpg.upkeep import UpkeepPlan
    from ragpg.upkeep.dense_recall import RecallCheck

app = typer.Typer(
    help="Vector indexes of large collections, and the state of BM25 indexes.", no_args_is_help=True
)
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
    """Say which indexes would be built, dropped, rebuilt or compacted, why, and for how long."""
    from ragpg import terminal, upkeep
    from ragpg.settings import Settings

    with owner_url(Settings.from_env()) as url:
        found = upkeep.plan(url, memory_mb=memory_mb)
    typer.echo(terminal.to_json(found)) if as_json else _print_plan(found)


@app.command()
def apply(memory_mb: Memory = None, as_json: AsJson = False) -> None:
    """Do what `plan` says; searches are not blocked. Run again, it goes on where it stopped."""
    from ragpg import terminal, upkeep
    from ragpg.settings import Settings

    will_go_on()
    with owner_url(Settings.from_env()) as url, terminal.progress_bar() as bar:
        task = bar.add_task("planning", total=None)
        done = upkeep.apply(
            url,
            memory_mb=memory_mb,
            progress=lambda now: bar.update(
                task,
                description=f"{now.change.collection}: {now.doing}",
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
    from ragpg import terminal
    from ragpg.settings import Settings
    from ragpg.upkeep import dense_recall

    with owner_url(Settings.from_env()) as url:
        found = list(dense_recall.recall(url, queries=queries))
    checks = [check for check in found if isinstance(check, dense_recall.RecallCheck)]
    failures = [one for one in found if isinstance(one, dense_recall.RecallFailure)]
    if as_json:
        typer.echo(terminal.to_json(found))
    elif not found:
        typer.echo("nothing to measure: no collection holds vectors")
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


def _print_plan(found: UpkeepPlan) -> None:
    from ragpg import terminal

    if not found.lexical and not found.changes:
        typer.echo(
            "nothing to do: every collection has the vector index that its size wants, and BM25"
            " indexes are good"
        )
    if found.lexical:
        terminal.print_table(
            ("bm25", "tenant", "collection", "chunks", "done", "seconds", "writers wait", "why"),
            [
                (
                    change.action,
                    change.tenant,
                    change.collection,
                    change.chunks,
                    change.done,
                    f"{change.seconds:.0f}",
                    f"{change.writers_wait_s:.0f}",
                    change.reason,
                )
                for change in found.lexical
            ],
        )
    if found.changes:
        terminal.print_table(
            ("vectors", "tenant", "collection", "rows", "memory MB", "seconds", "index"),
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
