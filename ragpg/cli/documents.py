"""The command line of what a collection holds: ragpg documents | rename."""

from __future__ import annotations

import datetime as dt
import shlex
from typing import Annotated

import typer

from ragpg.cli.session import AsJson, Collection, Tenant, with_collection

app = typer.Typer()


@app.command()
def documents(
    tenant: Tenant = "default",
    collection: Collection = "default",
    key_prefix: Annotated[
        str | None, typer.Option("--key-prefix", help="Only those whose keys begin so.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many are listed.")] = 100,
    after: Annotated[
        str | None, typer.Option(help="The next page: the last key of the page before.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the live documents of a collection by key, a page at a time."""
    from ragpg import terminal

    found = with_collection(
        tenant,
        collection,
        lambda handle: handle.documents(key_prefix=key_prefix, after=after, limit=limit),
    )
    if as_json:
        typer.echo(terminal.to_json(found))
        return
    if not found:
        typer.echo("no document" if after is None else "no further document")
        return
    terminal.print_table(
        (
            "document",
            "title",
            "revision",
            "chunks",
            "without context",
            "characters",
            "pages without text",
            "updated",
            "expires",
        ),
        [
            (
                one.key,
                None if one.title is None else terminal.shortened(one.title, 60),
                one.revision,
                one.chunks,
                one.without_context or None,
                one.characters,
                len(one.pages_without_text) or None,
                _second(one.updated_at),
                None if one.expires_at is None else _second(one.expires_at),
            )
            for one in found
        ],
    )
    if len(found) == limit:
        following = shlex.quote(found[-1].key)
        typer.echo(terminal.printable(f"there may be more: --after {following}"), err=True)


@app.command()
def rename(
    key: Annotated[str, typer.Argument(help="Key of a live document.")],
    to: Annotated[str, typer.Argument(help="The key that it gets.")],
    tenant: Tenant = "default",
    collection: Collection = "default",
    as_json: AsJson = False,
) -> None:
    """Give a document another key; its chunks stay. A sync goes by the names of files."""
    from ragpg import terminal

    with_collection(tenant, collection, lambda handle: handle.rename(key, to))
    if as_json:
        typer.echo(terminal.to_json({"renamed": {key: to}}))
    else:
        typer.echo(terminal.printable(f"renamed: {key} is now {to}"))


def _second(moment: dt.datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")
