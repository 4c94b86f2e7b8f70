"""The command line of corpus care: ragpg stale | expire | prune-log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ragpg.cli_session import AsJson, Collection, Tenant, with_client, with_collection
from ragpg.inputs import MAX_LOG_DAYS

if TYPE_CHECKING:
    from ragpg.client import AsyncClient

app = typer.Typer()


@app.command()
def stale(
    tenant: Tenant = "default",
    collection: Collection = "default",
    unmodified_days: Annotated[
        int | None,
        typer.Option(
            min=0, max=365_000, help="Also what was last modified so many days ago, or earlier."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the documents that somebody should review: their review_by has passed."""
    from ragpg import terminal

    found = with_collection(
        tenant, collection, lambda handle: handle.stale(unmodified_days=unmodified_days)
    )
    if as_json:
        typer.echo(terminal.to_json(found))
    elif not found:
        typer.echo("nothing to review")
    else:
        terminal.print_table(
            ("document", "owner", "review by", "days overdue", "days unmodified"),
            [
                (one.document_key, one.owner, one.review_by, one.overdue_days, one.age_days)
                for one in found
            ],
        )


@app.command()
def expire(
    tenant: Tenant = "default", collection: Collection = "default", as_json: AsJson = False
) -> None:
    """Delete the documents whose expires_at has come; no search finds them any more as it is."""
    from ragpg import terminal

    keys = with_collection(tenant, collection, lambda handle: handle.expire())
    if as_json:
        typer.echo(terminal.to_json(keys))
        return
    for key in keys:
        typer.echo(key)
    typer.echo(f"{len(keys)} deleted", err=True)


@app.command(name="prune-log")
def prune_log(
    tenant: Tenant = "default",
    older_than: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_LOG_DAYS,
            help="Days; 0 deletes the whole log. Default: RAGPG_SEARCH_LOG_DAYS.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete a tenant's logged searches of so many days ago or earlier, as workers do for all."""
    from functools import partial

    from ragpg import terminal
    from ragpg.errors import InputError
    from ragpg.retention import prune_log as prune

    async def run(client: AsyncClient) -> int:
        days = older_than if older_than is not None else client.settings.search_log_days or None
        if days is None:
            raise InputError(
                "RAGPG_SEARCH_LOG_DAYS is 0, which keeps the log; give --older-than DAYS"
            )
        return await prune(partial(client.transaction, tenant), older_than_days=days)

    pruned = with_client(run)
    if as_json:
        typer.echo(terminal.to_json({"deleted": pruned}))
    else:
        typer.echo(f"{pruned} searches deleted")
