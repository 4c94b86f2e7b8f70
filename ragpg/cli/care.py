"""The command line of corpus care and of the log: ragpg stale | expire | log | prune-log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragpg.cli.session import AsJson, Collection, Tenant, will_go_on, with_client, with_collection
from ragpg.inputs import MAX_LOG_DAYS

if TYPE_CHECKING:
    from ragpg.client import AsyncClient
    from ragpg.search_explanation import ChunkExplanation
    from ragpg.search_log import LoggedSearch, SearchOverview

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

    will_go_on()
    keys = with_collection(tenant, collection, lambda handle: handle.expire())
    if as_json:
        typer.echo(terminal.to_json(keys))
        return
    for key in keys:
        typer.echo(terminal.printable(key))
    typer.echo(f"{len(keys)} deleted", err=True)


@app.command()
def log(
    search_id: Annotated[
        int | None, typer.Argument(min=1, help="One search, with every candidate.")
    ] = None,
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Why that search found this chunk_id, or did not.")
    ] = None,
    tenant: Tenant = "default",
    collection: Annotated[
        str | None, typer.Option("--collection", "-c", help="Of this one alone; name or alias.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many are listed.")] = 20,
    after: Annotated[
        int | None, typer.Option(min=1, help="The next page: the last number of the page before.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List a tenant's logged searches, newest first, or say what became of one and why."""
    from ragpg import terminal
    from ragpg.errors import InputError

    if chunk is not None and search_id is None:
        raise InputError("--chunk is about one search; give its number, as `ragpg log` lists it")

    async def run(client: AsyncClient) -> Any:
        if search_id is None:
            return await client.search_log(
                tenant=tenant, collection=collection, after=after, limit=limit
            )
        if chunk is None:
            return await client.logged_search(search_id, tenant=tenant)
        return await client.explain_search(search_id, chunk, tenant=tenant)

    found = with_client(run, tenant=tenant)
    if as_json:
        typer.echo(terminal.to_json(found))
    elif search_id is None:
        _print_log(found)
    elif chunk is None:
        _print_search(found)
    else:
        _print_explanation(found)


def _print_log(searches: list[SearchOverview]) -> None:
    from ragpg import terminal

    if not searches:
        typer.echo("no search is logged")
        return
    terminal.print_table(
        ("search", "at", "collection", "query", "candidates", "shown", "cited"),
        [
            (
                one.search_id,
                one.searched_at.isoformat(sep=" ", timespec="seconds"),
                one.collection,
                terminal.shortened(one.query, 60),
                one.candidates,
                one.shown,
                one.cited,
            )
            for one in searches
        ],
    )


def _print_search(logged: LoggedSearch) -> None:
    from ragpg import terminal

    _print_log([logged.search])
    for sentence in (*logged.search.notices, *logged.search.degraded):
        typer.echo(terminal.printable(sentence))
    terminal.print_table(
        ("chunk", "document", "dense", "lexical", "fused", "reranked", "shown", "cited", "text"),
        [
            (
                hit.chunk_id,
                hit.document_key,
                hit.dense_rank,
                hit.lexical_rank,
                hit.fused_rank,
                hit.rerank_rank,
                "yes" if hit.shown else None,
                "yes" if hit.cited else None,
                None if hit.beginning is None else terminal.shortened(hit.beginning, 40),
            )
            for hit in logged.hits
        ],
    )


def _print_explanation(why: ChunkExplanation) -> None:
    from ragpg import terminal

    typer.echo(terminal.printable(f"{why.outcome}: {why.reason}"))
    if why.lexemes:
        terminal.print_table(("word", "adds to BM25"), why.lexemes.items())


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
    from ragpg import terminal
    from ragpg.errors import InputError

    async def run(client: AsyncClient) -> int:
        days = older_than if older_than is not None else client.settings.search_log_days or None
        if days is None:
            raise InputError(
                "RAGPG_SEARCH_LOG_DAYS is 0, which keeps the log; give --older-than DAYS"
            )
        return await client.prune_log(tenant=tenant, older_than_days=days)

    will_go_on()
    pruned = with_client(run, tenant=tenant)
    if as_json:
        typer.echo(terminal.to_json({"deleted": pruned}))
    else:
        typer.echo(f"{pruned} searches deleted")
