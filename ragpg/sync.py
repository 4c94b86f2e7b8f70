"""Blocking twins of the async client: the same names, no await.

A client runs an event loop in one thread of its own; open it after a fork. Ctrl-C cancels the call
that it interrupts. A client that is not closed is closed when the process ends. It cannot join a
transaction of your own blocking psycopg connection. `progress` is called in the client's thread.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Self

from sqlalchemy.ext.asyncio import AsyncEngine

from ragpg.blocking import LoopThread, blocking
from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.errors import ClientClosed
from ragpg.filters import Where
from ragpg.protocols import ContextWriter, Embedder, Generator, Reranker
from ragpg.retrieve import DEPTH, Weights
from ragpg.settings import Settings
from ragpg.types import Answer, AnswerDelta, Document, Enqueued, Hits


class Client:
    """Blocking twin of `AsyncClient`."""

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
        self._inner = AsyncClient(
            settings,
            engine=engine,
            embedder=embedder,
            context_writer=context_writer,
            reranker=reranker,
            generator=generator,
        )
        self._portal: LoopThread | None = None
        self._stack = ExitStack()

    @classmethod
    def from_env(cls) -> Self:
        """A client as the environment says."""
        return cls(Settings.from_env())

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = LoopThread()
            stack.callback(portal.close)
            stack.callback(lambda: portal.call(self._inner.aclose))
            portal.call(self._inner.__aenter__)
            self._portal = portal
            self._stack = stack.pop_all()
        atexit.register(self.close)
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Blocking twin of `AsyncClient.aclose`."""
        atexit.unregister(self.close)
        self._portal = None
        self._stack.close()

    def collection(self, *, tenant: str, name: str) -> Collection:
        """A handle on a tenant's collection or alias; no I/O."""
        return Collection(self, tenant=tenant, name=name)

    create_tenant = blocking(AsyncClient.create_tenant)
    delete_tenant = blocking(AsyncClient.delete_tenant)
    collections = blocking(AsyncClient.collections)
    status = blocking(AsyncClient.status)
    search_log = blocking(AsyncClient.search_log)
    logged_search = blocking(AsyncClient.logged_search)
    explain_search = blocking(AsyncClient.explain_search)
    prune_log = blocking(AsyncClient.prune_log)

    @property
    def settings(self) -> Settings:
        """The settings of this client."""
        return self._inner.settings

    @property
    def portal(self) -> LoopThread:
        """The thread that the event loop runs in. Raises ClientClosed."""
        if self._portal is None:
            raise ClientClosed(
                "the client is not open; use it as `with ragpg.Client(..) as client`"
            )
        return self._portal

    @property
    def inner(self) -> AsyncClient:
        """The async client beneath."""
        return self._inner


class Collection:
    """Blocking twin of `AsyncCollection`."""

    def __init__(self, client: Client, *, tenant: str, name: str) -> None:
        self._client = client
        self._inner = client.inner.collection(tenant=tenant, name=name)
        self.tenant = tenant
        self.name = name

    @property
    def portal(self) -> LoopThread:
        """The thread that the event loop runs in. Raises ClientClosed."""
        return self._client.portal

    @property
    def inner(self) -> AsyncCollection:
        """The async collection beneath."""
        return self._inner

    create = blocking(AsyncCollection.create)
    recipe = blocking(AsyncCollection.recipe)
    set_alias = blocking(AsyncCollection.set_alias)
    drop = blocking(AsyncCollection.drop)

    ingest = blocking(AsyncCollection.ingest)
    ingest_files = blocking(AsyncCollection.ingest_files)
    plan = blocking(AsyncCollection.plan)
    plan_files = blocking(AsyncCollection.plan_files)
    sync = blocking(AsyncCollection.sync)
    resume = blocking(AsyncCollection.resume)
    enqueue_files = blocking(AsyncCollection.enqueue_files)
    retry = blocking(AsyncCollection.retry)

    document = blocking(AsyncCollection.document)
    documents = blocking(AsyncCollection.documents)
    rename = blocking(AsyncCollection.rename)
    delete = blocking(AsyncCollection.delete)
    stale = blocking(AsyncCollection.stale)
    expire = blocking(AsyncCollection.expire)

    rerank = blocking(AsyncCollection.rerank)
    expand = blocking(AsyncCollection.expand)
    search = blocking(AsyncCollection.search)
    ground = blocking(AsyncCollection.ground)
    generate = blocking(AsyncCollection.generate)
    ask = blocking(AsyncCollection.ask)
    evaluate = blocking(AsyncCollection.evaluate)

    # These differ from their originals: a connection belongs to the loop that opened it.

    def enqueue(self, documents: Iterable[Document]) -> Enqueued:
        """Keep these documents for a worker (`ragpg worker`), which makes them live.

        They are written 64 at a time. A newer version of a waiting document takes its place.
        """
        return self.portal.call(self._inner.enqueue, documents)

    def retrieve(
        self,
        query: str,
        *,
        where: Where | None = None,
        k: int = 150,
        depth: int = DEPTH,
        weights: Weights = Weights(),  # noqa: B008  frozen
        exclude: Sequence[int] = (),
        after: int | None = None,
        deduplicate: bool = False,
    ) -> Hits:
        """The `k` best hits of both arms, fused; see `AsyncCollection.retrieve`, without `conn`."""
        return self.portal.call(
            lambda: self._inner.retrieve(
                query,
                where=where,
                k=k,
                depth=depth,
                weights=weights,
                exclude=exclude,
                after=after,
                deduplicate=deduplicate,
            )
        )

    def stream(self, query: str, hits: Hits) -> Iterator[AnswerDelta | Answer]:
        """The answer as it is written: deltas, then the whole Answer; a plain generator."""
        yield from self.portal.iterate(self._inner.stream(query, hits))
