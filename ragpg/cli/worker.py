"""The command line of background ingestion: ragpg enqueue | worker | status | retry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragpg.cli.session import AsJson, Collection, Tenant, will_go_on, with_client, with_collection

if TYPE_CHECKING:
    from ragpg.client import AsyncClient
    from ragpg.collection import AsyncCollection

app = typer.Typer()


@app.command()
def enqueue(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Files, or folders to take whole.")
    ],
    tenant: Tenant = "default",
    collection: Collection = "default",
    as_json: AsJson = False,
) -> None:
    """Keep documents for a worker; unchanged ones are left out."""
    from ragpg import terminal

    will_go_on()
    done = with_collection(
        tenant, collection, lambda handle: handle.enqueue_files(paths), fills=True
    )
    if as_json:
        typer.echo(terminal.to_json(done))
    else:
        typer.echo(
            f"{len(done.queued)} queued, {len(done.unchanged)} unchanged, {len(done.failed)} failed"
        )
        terminal.print_passed_over(done.passed_over)
        terminal.print_notices(done.notices)
        for failure in done.failed:
            typer.echo(terminal.printable(f"failed: {failure.message}"), err=True)
    if done.failed:
        raise typer.Exit(1)


@app.command()
def worker(
    concurrency: Annotated[int, typer.Option(min=1, help="Documents at once.")] = 4,
    drain: Annotated[
        bool, typer.Option("--drain", help="End when nothing can be begun now.")
    ] = False,
    no_batch: Annotated[
        bool,
        typer.Option(
            "--no-batch", help="Leave Message Batches to others: `ragpg ingest --resume`."
        ),
    ] = False,
) -> None:
    """Make waiting documents of all tenants live; several may run. SIGTERM stops it gently.

    It also deletes expired documents and searches that were logged RAGPG_SEARCH_LOG_DAYS ago
    (default 90; 0 keeps them), every ten minutes, and collects open Message Batches, every
    RAGPG_BATCH_POLL_S; what waits in one is not paid for again. With RAGPG_OWNER_DATABASE_URL set
    to a role that may act as ragpg_owner it maintains the indexes of both arms at
    RAGPG_INDEX_CRON (default "17 * * * *", UTC) and measures recall at RAGPG_RECALL_CRON (default
    "47 3 * * *"), each time one worker alone; an empty value means never.
    """
    from ragpg.jobs import WorkerLimits, work

    will_go_on()
    limits = WorkerLimits(concurrency=concurrency)
    with_client(lambda client: work(client, limits=limits, drain=drain, batches=not no_batch))


@app.command()
def status(
    tenant: Tenant = "default",
    collection: Annotated[
        str | None, typer.Option("--collection", "-c", help="This one alone; name or alias.")
    ] = None,
    problems: Annotated[int, typer.Option(min=0, help="How many errors to list, and PDFs.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Count a tenant's documents by what became of them; batches, errors, pages without text."""
    from ragpg import terminal
    from ragpg.database import fetch_rows, statements

    async def run(client: AsyncClient) -> dict[str, list[dict[str, Any]]]:
        of_jobs = statements("jobs")
        async with client.transaction(tenant) as conn:
            named = {"collection": collection}
            own = await fetch_rows(conn, of_jobs["own_name"], named) if collection else None
            batches = await fetch_rows(conn, of_jobs["batches"])
            wrong = await fetch_rows(conn, of_jobs["problems"])
            blank = await fetch_rows(conn, of_jobs["pages_without_text"])
        found = {
            "collections": await client.status(tenant=tenant),
            "batches": batches,
            "problems": wrong,
            "pages_without_text": blank,
        }
        if own is not None:
            found = {
                name: [row for row in rows if row["collection"] == own[0]["name"]]
                for name, rows in found.items()
            }
        return found | {name: found[name][:problems] for name in ("problems", "pages_without_text")}

    found = with_client(run, tenant=tenant)
    if as_json:
        typer.echo(terminal.to_json(found))
        return
    for rows in found.values():
        if rows:
            terminal.print_table(list(rows[0]), [list(row.values()) for row in rows])


@app.command()
def retry(
    keys: Annotated[
        list[str] | None,
        typer.Argument(help="Document keys; without any, all that failed or were interrupted."),
    ] = None,
    tenant: Tenant = "default",
    collection: Collection = "default",
    as_json: AsJson = False,
) -> None:
    """Queue documents again that failed; their last error stays until they succeed."""
    from ragpg import terminal
    from ragpg.database import fetch_rows, statements

    async def run(handle: AsyncCollection) -> tuple[int, list[str]]:
        queued = await handle.retry(keys)
        async with handle.transaction() as conn:
            named = {"collection": collection, "keys": keys}
            rows = await fetch_rows(conn, statements("jobs")["without_text"], named)
        return queued, [row["key"] for row in rows]

    queued, without_text = with_collection(tenant, collection, run)
    if as_json:
        typer.echo(terminal.to_json({"queued": queued, "without_text": without_text}))
        return
    typer.echo(f"{queued} queued again")
    if without_text:
        keys_of_these = terminal.printable(", ".join(without_text))
        typer.echo(
            f"{len(without_text)} failed before their text was stored, so ingest their files again:"
            f" {keys_of_these}"
        )
    others = len(set(keys or ())) - queued - len(without_text)
    if others > 0:
        typer.echo(f"{others} of these keys wait for nothing; `ragpg status` lists what failed")
