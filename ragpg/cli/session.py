"""What the commands of the command line share: their options, and a client for one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragpg.errors import TenantNotFound

if TYPE_CHECKING:
    from ragpg.client import AsyncClient
    from ragpg.collection import AsyncCollection

Tenant = Annotated[str, typer.Option("--tenant", "-t", help="Key of the tenant.")]
Collection = Annotated[str, typer.Option("--collection", "-c", help="Name or alias.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]

# Of the one command that this process runs.
_command = {"goes_on": False}


def will_go_on() -> None:
    """Say of this command that, interrupted, it goes on where it stopped when it is run again."""
    _command["goes_on"] = True


def interrupted() -> str:
    """What a command that was interrupted says."""
    more = "; the same command goes on where it stopped" if _command["goes_on"] else ""
    return f"interrupted{more}"


def with_client(
    run: Callable[[AsyncClient], Coroutine[Any, Any, Any]], *, tenant: str | None = None
) -> Any:
    """What `run` returns, with a client as the environment says.

    Where the `tenant` that it works for is not there, the error names those of similar keys.
    """
    from ragpg.client import AsyncClient as Connected
    from ragpg.near_tenants import with_near
    from ragpg.settings import Settings

    async def inside() -> Any:
        async with Connected(Settings.from_env()) as client:
            try:
                return await run(client)
            except TenantNotFound as exc:
                if tenant is None or exc.near:
                    raise
                raise await with_near(exc, client.transaction, tenant) from exc

    return asyncio.run(inside())


def with_collection(
    tenant: str,
    collection: str,
    run: Callable[[AsyncCollection], Coroutine[Any, Any, Any]],
    *,
    fills: bool = False,
) -> Any:
    """What `run` returns, with a handle on this collection.

    Where `run` fills the collection of a new tenant, and there are tenants of similar keys, that is
    told first on standard error.
    """

    async def inside(client: AsyncClient) -> Any:
        if fills and client.settings.create_tenants:
            await _tell_near(client, tenant)
        return await run(client.collection(tenant=tenant, name=collection))

    return with_client(inside, tenant=tenant)


async def _tell_near(client: AsyncClient, tenant: str) -> None:
    from ragpg.near_tenants import near_tenants

    try:
        async with client.transaction(tenant):
            return
    except TenantNotFound:
        near = await near_tenants(client.transaction, tenant)
    if near:
        others = ", ".join(map(repr, near))
        typer.echo(f"tenant {tenant!r} is new; of a similar key there is {others}", err=True)
