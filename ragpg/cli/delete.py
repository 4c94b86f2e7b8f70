"""The command line of tenants and of deletions: ragpg create-tenant | delete-tenant | delete .."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ragpg import errors
from ragpg.cli.session import AsJson, Collection, Tenant, with_client, with_collection
from ragpg.inputs import without_middle

if TYPE_CHECKING:
    from ragpg.client import AsyncClient
    from ragpg.collection import AsyncCollection

app = typer.Typer()
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")]


@app.command(name="create-tenant")
def create_tenant(
    key: Annotated[str, typer.Argument(help="Key of the tenant.")], as_json: AsJson = False
) -> None:
    """Make a tenant; one that is there is left as it is. Needed with RAGPG_CREATE_TENANTS=false."""
    from ragpg import terminal

    async def run(client: AsyncClient) -> bool:
        try:
            await client.collections(tenant=key)
        except errors.TenantNotFound:
            await client.create_tenant(key)
            return True
        return False

    is_new = with_client(run)
    if as_json:
        typer.echo(terminal.to_json({"tenant": key, "created": is_new}))
    else:
        typer.echo(f"tenant {key!r} is made" if is_new else f"tenant {key!r} is there already")


@app.command()
def delete(
    keys: Annotated[list[str], typer.Argument(help="Document keys.")],
    tenant: Tenant = "default",
    collection: Collection = "default",
    as_json: AsJson = False,
) -> None:
    """Delete documents with their chunks; what a folder still has, its next sync brings again."""
    from ragpg import terminal

    async def run(handle: AsyncCollection) -> dict[str, bool]:
        return {key: await handle.delete(key) for key in dict.fromkeys(keys)}

    deleted = with_collection(tenant, collection, run)
    missing = [key for key, was_there in deleted.items() if not was_there]
    gone = [key for key in deleted if key not in missing]
    if as_json:
        typer.echo(terminal.to_json({"deleted": gone, "missing": missing}))
    else:
        typer.echo(f"{len(gone)} deleted")
        for key in missing:
            typer.echo(
                f"there is no document {without_middle(repr(key))} in {collection!r}", err=True
            )
    if missing:
        raise typer.Exit(1)


@app.command(name="delete-collection")
def delete_collection(
    name: Annotated[str, typer.Argument(help="Its own name, not an alias.")],
    tenant: Tenant = "default",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a collection with its documents, history and log; nothing brings it back."""
    from ragpg import terminal

    async def run(client: AsyncClient) -> int:
        # An alias would name what somebody else reads.
        found = {row["name"]: row for row in await client.collections(tenant=tenant)}
        if name not in found:
            raise errors.CollectionNotFound(
                f"tenant {tenant!r} has no collection {name!r}; give its own name, not an alias"
            )
        documents: int = found[name]["documents"]
        _agree(f"collection {name!r} of tenant {tenant!r}, with {documents} documents", yes=yes)
        await client.collection(tenant=tenant, name=name).drop()
        return documents

    documents = with_client(run, tenant=tenant)
    if as_json:
        typer.echo(terminal.to_json({"deleted": name, "documents": documents}))
    else:
        typer.echo(f"collection {name!r} is deleted")


@app.command(name="delete-tenant")
def delete_tenant(
    key: Annotated[str, typer.Argument(help="Key of the tenant.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a tenant with everything of it, in every table; nothing brings it back."""
    from ragpg import terminal

    async def run(client: AsyncClient) -> dict[str, int]:
        found = await client.collections(tenant=key)
        documents = sum(row["documents"] for row in found)
        _agree(f"tenant {key!r}, with {len(found)} collections, {documents} documents", yes=yes)
        await client.delete_tenant(key)
        return {"collections": len(found), "documents": documents}

    counts = with_client(run, tenant=key)
    if as_json:
        typer.echo(terminal.to_json({"deleted": key, **counts}))
    else:
        typer.echo(f"tenant {key!r} is deleted")


def _agree(what: str, *, yes: bool) -> None:
    """Go on if somebody agreed; asks where somebody can answer. Raises InputError otherwise."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise errors.InputError(f"this would delete {what}; allow it with --yes")
    if not typer.confirm(f"Delete {what}?", err=True):
        raise errors.InputError("nothing was deleted: it was declined")
