"""The command line of background ingestion: ragpg enqueue | worker | status | retry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragpg.cli_session import AsJson, Collection, Tenant, with_client, with_collection

if TYPE_CHECKING:
    from ragpg.client import AsyncClient

app = typer.Typer()


@app.command()
def enqueue(
    paths: Annotated[list[Path], typer.Argument(help="Files, or folders to take whole.")],
    tenant: Tenant = "default",
    collection: Collection = "default",
    as_json: AsJson = False,
) -> None:
    """Keep documents for a worker; unchanged ones are left out."""
    from ragpg import terminal

    done = with_collection(tenant, collection, lambda handle: handle.enqueue_files(paths))
    if as_json:
        typer.echo(terminal.to_json(done))
    else:
        typer.echo(
            f"{len(done.queued)} queued, {len(done.unchanged)} unchanged, {len(done.failed)} failed"
        )
        for failure in done.failed:
            typer.echo(f"failed: {failure.message}", err=True)
    if done.failed:
        raise typer.Exit(1)


@app.command()
def worker(
    concurrency: Annotated[int, typer.Option(min=1, help="Documents at once.")] = 4,
    drain: Annotated[
        bool, typer.Option("--drain", help="End when nothing can be begun now.")
    ] = False,
) -> None:
    """Make waiting documents of all tenants live; several may run. SIGTERM stops it gently."""
    from ragpg.jobs import WorkerLimits, work

    limits = WorkerLimits(concurrency=concurrency)
    with_client(lambda client: work(client, limits=limits, drain=drain))


@app.command()
def status(
    tenant: Tenant = "default",
    problems: Annotated[int, typer.Option(min=0, help="How many errors to list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Count a tenant's documents by what became of them, with the last errors."""
    from ragpg import terminal
    from ragpg.database import fetch_rows, statements

    async def run(client: AsyncClient) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        async with client.transaction(tenant) as conn:
            wrong = await fetch_rows(conn, statements("jobs")["problems"], {"limit": problems})
        return await client.status(tenant=tenant), wrong

    collections, wrong = with_client(run)
    if as_json:
        typer.echo(terminal.to_json({"collections": collections, "problems": wrong}))
        return
    for rows in (collections, wrong):
        if rows:
            terminal.print_table(list(rows[0]), [list(row.values()) for row in rows])


@app.command()
def retry(
    keys: Annotated[
        list[str] | None, typer.Argument(help="Document keys; without any, all that failed.")
    ] = None,
    tenant: Tenant = "default",
    collection: Collection = "default",
) -> None:
    """Queue documents again that failed; their last error stays until they succeed."""
    queued = with_collection(tenant, collection, lambda handle: handle.retry(keys))
    typer.echo(f"{queued} queued again")
