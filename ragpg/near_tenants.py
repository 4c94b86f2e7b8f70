"""Whom an operator may have meant who mistyped a tenant's key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from ragpg.database import Connection, fetch_rows, statements
from ragpg.errors import TenantNotFound

Door = Callable[[str | None], AbstractAsyncContextManager[Connection]]


async def near_tenants(transaction: Door, key: str) -> tuple[str, ...]:
    """Up to three keys of tenants that look like this one, most alike first; never itself.

    `transaction` is the client's, which takes a tenant. What comes back names other tenants: it is
    for who runs the service.
    """
    async with transaction(None) as conn:
        rows = await fetch_rows(conn, statements("client")["near_tenants"], {"key": key})
    return tuple(row["near_key"] for row in rows)


async def with_near(exc: TenantNotFound, transaction: Door, key: str) -> TenantNotFound:
    """The same error with `near`, and a note of it, which a traceback shows and `str` does not."""
    exc.near = await near_tenants(transaction, key)
    if exc.near:
        exc.add_note(f"tenants of a similar key: {', '.join(map(repr, exc.near))}")
    return exc
