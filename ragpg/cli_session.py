"""What the commands of the command line share: their options, and a client for one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ragpg.client import AsyncClient
    from ragpg.collection import AsyncCollection

Tenant = Annotated[str, typer.Option("--tenant", "-t", help="Key of the tenant.")]
Collection = Annotated[str, typer.Option("--collection", "-c", help="Name or alias.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def with_client(run: Callable[[AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
    """What `run` returns, with a client as the environment says."""
    from ragpg.client import AsyncClient as Connected
    from ragpg.settings import Settings

    async def inside() -> Any:
        async with Connected(Settings.from_env()) as client:
            return await run(client)

    return asyncio.run(inside())


def with_collection(
    tenant: str, collection: str, run: Callable[[AsyncCollection], Coroutine[Any, Any, Any]]
) -> Any:
    """What `run` returns, with a handle on this collection."""
    return with_client(lambda client: run(client.collection(tenant=tenant, name=collection)))
