"""A handle on one tenant's collection: its recipe and number, and transactions for its tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields, replace

from psycopg.types.json import Jsonb

from ragpg.database import Connection, fetch_rows, statements
from ragpg.errors import CollectionExists, CollectionNotFound, RecipeMismatch, TenantNotFound
from ragpg.inputs import checked_name, checked_recipe
from ragpg.near_tenants import with_near
from ragpg.runtime import Runtime
from ragpg.types import Recipe

STATEMENTS = statements("client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a handle's name means at one moment; an alias may mean another collection at the next.

    `name` is the collection's own; a call goes on with it, so that its recipe and its rows agree.
    """

    collection_id: int
    name: str
    recipe: Recipe


class CollectionHandle:
    """One tenant's collection; the tenant cannot be forgotten, since it is bound here."""

    def __init__(self, runtime: Runtime, *, tenant: str, name: str) -> None:
        self._runtime = runtime
        self.tenant = checked_name("tenant", tenant)
        self.name = checked_name("collection", name)
        self._known: Known | None = None

    async def create(self, recipe: Recipe | None = None) -> Recipe:
        """Make the tenant, if `Settings.create_tenants`, and the collection under its recipe.

        A collection that exists under the same recipe is left as it is; an alias counts as the
        collection that it means. Raises InputError for a recipe that cannot be, RecipeMismatch for
        one that this client's providers do not serve, and when the collection exists under another
        recipe; another `whole_corpus_tokens` alone is set, since it changes answers and nothing
        that is stored, and one that is None is left as it is. Raises TenantNotFound where tenants
        are made by `create_tenant` alone. Returns the recipe of the collection.
        """
        wanted = self._runtime.providers.default_recipe() if recipe is None else recipe
        checked_recipe(wanted)
        if recipe is not None:
            self._runtime.providers.require(recipe, self.name)
        await self._have_tenant()
        try:
            async with self.transaction() as conn:
                await conn.execute(
                    STATEMENTS["create_collection"],
                    {"name": self.name, "recipe": Jsonb(asdict(wanted))},
                )
        except CollectionExists:
            stored = (await self._load()).recipe
            if recipe is None:
                return stored
            if wanted.whole_corpus_tokens is None:
                wanted = replace(wanted, whole_corpus_tokens=stored.whole_corpus_tokens)
            tokens = wanted.whole_corpus_tokens
            if replace(stored, whole_corpus_tokens=tokens) != wanted:
                raise _other_recipe(self.name, stored, wanted) from None
            if stored != wanted and tokens is not None:
                await self._set_whole_corpus_tokens(tokens)
            return wanted
        return (await self._load()).recipe

    async def recipe(self) -> Recipe:
        """The recipe of this collection. Raises CollectionNotFound."""
        return (await self._load()).recipe

    async def number(self) -> int:
        """The number by which SQL knows this collection. Raises CollectionNotFound."""
        return (await self._load()).collection_id

    async def set_alias(self, alias: str) -> None:
        """Make `alias` mean this collection from now on."""
        checked_name("alias", alias)
        async with self.transaction() as conn:
            await conn.execute(STATEMENTS["set_alias"], {"alias": alias, "collection": self.name})

    async def drop(self) -> None:
        """Delete this collection with everything in it, history too; an alias means its own.

        Nothing brings it back. Raises CollectionNotFound.
        """
        async with self.transaction() as conn:
            await conn.execute(STATEMENTS["without_time_limit"])
            await conn.execute(STATEMENTS["delete_collection"], {"collection": self.name})

    @asynccontextmanager
    async def transaction(
        self, *, conn: Connection | None = None, pipelined: bool = False
    ) -> AsyncIterator[Connection]:
        """A psycopg connection in a transaction in which this collection's tenant is set.

        `pipelined` sends statements without waiting for each, see `Database.transaction`.
        """
        async with self._runtime.transaction(self.tenant, conn=conn, pipelined=pipelined) as inside:
            yield inside

    async def _have_tenant(self) -> None:
        runtime = self._runtime
        if runtime.settings.create_tenants:
            async with runtime.transaction(None) as conn:
                await conn.execute(STATEMENTS["create_tenant"], {"key": self.tenant})
            return
        try:
            async with self.transaction():
                return
        except TenantNotFound:
            unknown = TenantNotFound(
                f"there is no tenant {self.tenant!r}, and RAGPG_CREATE_TENANTS is false; check the"
                " key, or make it with `ragpg create-tenant` or client.create_tenant"
            )
        raise await with_near(unknown, runtime.transaction, self.tenant)

    async def _set_whole_corpus_tokens(self, tokens: int) -> None:
        async with self.transaction() as conn:
            await conn.execute(
                STATEMENTS["set_whole_corpus_tokens"], {"collection": self.name, "tokens": tokens}
            )

    async def _last_known(self, conn: Connection | None = None) -> Known:
        """What was read last, if anything was; for calls that compare it in their transaction."""
        return self._known or await self._load(conn)

    async def _load(self, conn: Connection | None = None) -> Known:
        async with self.transaction(conn=conn, pipelined=True) as inside:
            return await self._read(inside)

    async def _read(self, inside: Connection) -> Known:
        """What the name means now, in a transaction of this tenant. Raises CollectionNotFound."""
        rows = await fetch_rows(inside, STATEMENTS["collection"], {"collection": self.name})
        if not rows:
            raise CollectionNotFound(
                f"tenant {self.tenant!r} has no collection or alias {self.name!r}; check the name,"
                " or make it with create() or the first ingest"
            )
        row = rows[0]
        names = [each.name for each in fields(Recipe)]
        self._known = Known(
            collection_id=row["collection_id"],
            name=row["name"],
            recipe=Recipe(**{name: row[name] for name in names}),
        )
        return self._known


def _other_recipe(name: str, stored: Recipe, wanted: Recipe) -> RecipeMismatch:
    different = [
        f"{each.name} {getattr(stored, each.name)!r} (wanted {getattr(wanted, each.name)!r})"
        for each in fields(Recipe)
        if getattr(stored, each.name) != getattr(wanted, each.name)
    ]
    return RecipeMismatch(
        f"collection {name!r} was made with {', '.join(different)}; a changed recipe is a new"
        " collection: make one, ingest into it and swap the alias"
    )
