"""The async client. `ragpg.sync` is its blocking twin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self

from sqlalchemy.ext.asyncio import AsyncEngine

from ragpg import retention, search_log
from ragpg.collection import AsyncCollection
from ragpg.composition import Given, Providers
from ragpg.database import Connection, fetch_rows, statements
from ragpg.handle import STATEMENTS
from ragpg.inputs import checked_name
from ragpg.protocols import ContextWriter, Embedder, Generator, Reranker
from ragpg.runtime import Runtime
from ragpg.search_explanation import ChunkExplanation, explain_search
from ragpg.search_log import LoggedSearch, SearchOverview
from ragpg.settings import Settings


class AsyncClient:
    """A connection pool and the providers; use it as `async with AsyncClient.from_env() as client`.

    Without `engine` and without a database url in the settings, the embedded Postgres is started
    and migrated. Providers that are passed in are used as they are and not closed.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        engine: AsyncEngine | None = None,
        embedder: Embedder | None = None,
        context_writer: ContextWriter | None = None,
        reranker: Reranker | None = None,
        generator: Generator | None = None,
    ) -> None:
        given = Given(
            embedder=embedder,
            context_writer=context_writer,
            reranker=reranker,
            generator=generator,
        )
        self._runtime = Runtime(settings or Settings.from_env(), engine=engine, given=given)

    @classmethod
    def from_env(cls) -> Self:
        """A client as the environment says."""
        return cls(Settings.from_env())

    async def __aenter__(self) -> Self:
        await self._runtime.open()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the pool and the providers, and let go of the embedded Postgres."""
        await self._runtime.aclose()

    def collection(self, *, tenant: str, name: str) -> AsyncCollection:
        """A handle on a tenant's collection or alias; no I/O."""
        return AsyncCollection(self._runtime, tenant=tenant, name=name)

    async def create_tenant(self, key: str) -> None:
        """Make a tenant, if it is not there."""
        checked_name("tenant", key)
        async with self.transaction(None) as conn:
            await conn.execute(STATEMENTS["create_tenant"], {"key": key})

    async def delete_tenant(self, key: str) -> None:
        """Delete a tenant with everything of it: documents, history, log, usage, waiting jobs.

        Nothing brings it back. Raises TenantNotFound.
        """
        checked_name("tenant", key)
        async with self.transaction(None) as conn:
            await conn.execute(STATEMENTS["without_time_limit"])
            await conn.execute(STATEMENTS["delete_tenant"], {"key": key})

    async def collections(self, *, tenant: str) -> list[dict[str, Any]]:
        """Name, aliases, documents and chunks of each collection of a tenant, by name."""
        async with self.transaction(tenant) as conn:
            return await fetch_rows(conn, STATEMENTS["collections"])

    async def status(self, *, tenant: str) -> list[dict[str, Any]]:
        """Live, queued, retrying, in work, batched, interrupted, failed, no text: by collection."""
        async with self.transaction(tenant) as conn:
            return await fetch_rows(conn, statements("jobs")["status"])

    async def search_log(
        self,
        *,
        tenant: str,
        collection: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> list[SearchOverview]:
        """Logged searches of a tenant, or of one collection of it, newest first.

        At most `limit` (1 to 1000); `after` is the `search_id` of the last one of the page before.
        Raises TenantNotFound, CollectionNotFound, InputError.
        """
        async with self.transaction(tenant) as conn:
            return await search_log.list_searches(
                conn, collection=collection, after=after, limit=limit
            )

    async def logged_search(self, search_id: int, *, tenant: str) -> LoggedSearch:
        """A logged search (`Hits.search_id`) with the rank of each candidate in each arm.

        Raises SearchNotFound, also for a search of another tenant.
        """
        async with self.transaction(tenant) as conn:
            return await search_log.logged_search(conn, search_id)

    async def explain_search(
        self, search_id: int, chunk_id: int, *, tenant: str
    ) -> ChunkExplanation:
        """Why a logged search returned a chunk, or why it did not. Raises SearchNotFound."""
        async with self.transaction(tenant) as conn:
            return await explain_search(conn, search_id, chunk_id)

    async def prune_log(self, *, tenant: str, older_than_days: int) -> int:
        """Delete a tenant's searches that were logged so many days ago or earlier; how many.

        0 days mean the whole log. Workers do it by `Settings.search_log_days`. Raises InputError.
        """
        return await retention.prune_log(
            partial(self.transaction, tenant), older_than_days=older_than_days
        )

    @asynccontextmanager
    async def transaction(
        self, tenant: str | None, *, conn: Connection | None = None
    ) -> AsyncIterator[Connection]:
        """A psycopg connection in a transaction in which this tenant is set."""
        async with self._runtime.transaction(tenant, conn=conn) as inside:
            yield inside

    @property
    def settings(self) -> Settings:
        """The settings of this client."""
        return self._runtime.settings

    @property
    def providers(self) -> Providers:
        """The providers of this client."""
        return self._runtime.providers

    @property
    def url(self) -> str:
        """The service's database url; the embedded one's after the client is open."""
        return self._runtime.url

    @property
    def owner_url(self) -> str | None:
        """The url of a role that may act as ragpg_owner, if there is one; for maintenance."""
        return self._runtime.owner_url
