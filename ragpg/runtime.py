"""What a client holds: settings, providers, and the database that it opens when first needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from sqlalchemy.ext.asyncio import AsyncEngine

from ragpg.composition import Given, Providers
from ragpg.database import Connection, Database
from ragpg.database.migrate import migrate
from ragpg.embedded import EmbeddedPostgres, start_embedded, stop_embedded
from ragpg.errors import ClientClosed, InputError
from ragpg.inputs import checked_text
from ragpg.settings import Settings


class Runtime:
    """One pool and one set of providers, shared by all handles of a client."""

    def __init__(self, settings: Settings, *, engine: AsyncEngine | None, given: Given) -> None:
        self.settings = settings
        self._providers = Providers(settings, given)
        self._engine = engine
        self._database: Database | None = None
        self._embedded: EmbeddedPostgres | None = None
        self._opening = anyio.Lock()
        self._closed = False

    @property
    def providers(self) -> Providers:
        """Who embeds, writes, reranks and answers. Raises ClientClosed after `aclose`."""
        self._require_open()
        return self._providers

    @asynccontextmanager
    async def transaction(
        self, tenant: str | None, *, conn: Connection | None = None, pipelined: bool = False
    ) -> AsyncIterator[Connection]:
        """A psycopg connection in a transaction in which this tenant is set."""
        if tenant is not None:
            checked_text("tenant", tenant)
        database = await self._opened()
        async with database.transaction(tenant, conn=conn, pipelined=pipelined) as inside:
            yield inside

    async def open(self) -> Database:
        """The database; the embedded one is started and migrated when it is the one.

        What was closed is opened again.
        """
        self._closed = False
        return await self._opened()

    async def _opened(self) -> Database:
        """The same for a call, which opens what never was open and not what was closed."""
        async with self._opening:
            self._require_open()
            if self._database is None:
                self._database = await self._connect()
            return self._database

    def _require_open(self) -> None:
        if self._closed:
            raise ClientClosed(
                "the client is not open: it was closed; use it within"
                " `async with ragpg.AsyncClient(..) as client`"
            )

    async def _connect(self) -> Database:
        settings = self.settings
        if self._engine is not None:
            return Database(
                engine=self._engine,
                statement_timeout_ms=settings.statement_timeout_ms,
                actor=settings.actor,
            )
        if settings.database_url is None:
            embedded = await anyio.to_thread.run_sync(start_embedded, settings.home)
            self._embedded = embedded
            await anyio.to_thread.run_sync(migrate, embedded.owner_url)
        return Database(
            url=self.url,
            pool_max_size=settings.pool_max_size,
            statement_timeout_ms=settings.statement_timeout_ms,
            prepared_statements=settings.prepared_statements,
            actor=settings.actor,
        )

    @property
    def url(self) -> str:
        """The service's database url. Raises InputError when the engine is the caller's."""
        if self._embedded is not None:
            return self._embedded.service_url
        if self.settings.database_url is None:
            raise InputError("this client shares the caller's engine and has no url of its own")
        return self.settings.database_url.get_secret_value()

    @property
    def owner_url(self) -> str | None:
        """The url of a role that may act as ragpg_owner, if one is set or embedded."""
        if self._embedded is not None:
            return self._embedded.owner_url
        owner = self.settings.owner_database_url
        return None if owner is None else owner.get_secret_value()

    async def aclose(self) -> None:
        """Close the pool and the providers, and let go of the embedded Postgres."""
        self._closed = True
        # A call that is opening the pool comes first, so that it leaves none behind.
        with anyio.CancelScope(shield=True):
            async with self._opening:
                await self._providers.aclose()
                if self._database is not None:
                    await self._database.aclose()
                    self._database = None
                if self._embedded is not None:
                    await anyio.to_thread.run_sync(stop_embedded, self._embedded)
                    self._embedded = None
