"""Blocking twins of the async client: the same names, no await. Documentation is on the originals.

A client runs an event loop in one thread of its own; open it after a fork. Ctrl-C cancels the call
that it interrupts. A client that is not closed is closed when the process ends. It cannot join a
transaction of your own blocking psycopg connection.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from sqlalchemy.ext.asyncio import AsyncEngine

from ragpg.blocking import LoopThread
from ragpg.care import StaleDocument
from ragpg.client import AsyncClient
from ragpg.corpus_sync import SyncReport
from ragpg.documents import DocumentOverview
from ragpg.errors import ClientClosed
from ragpg.evaluate import Measures
from ragpg.ingest_tally import IngestProgress
from ragpg.plan import Plan
from ragpg.protocols import ContextWriter, Embedder, Generator, Reranker
from ragpg.settings import Settings
from ragpg.sync_search import SearchedCollection
from ragpg.types import (
    Document,
    Enqueued,
    IngestReport,
    Qrel,
    Recipe,
    StrPath,
)


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
        """Blocking twin."""
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
        """Blocking twin."""
        return Collection(self, tenant=tenant, name=name)

    def create_tenant(self, key: str) -> None:
        """Blocking twin."""
        self.portal.call(self._inner.create_tenant, key)

    def delete_tenant(self, key: str) -> None:
        """Blocking twin."""
        self.portal.call(self._inner.delete_tenant, key)

    def collections(self, *, tenant: str) -> list[dict[str, Any]]:
        """Blocking twin."""
        return self.portal.call(lambda: self._inner.collections(tenant=tenant))

    def status(self, *, tenant: str) -> list[dict[str, Any]]:
        """Blocking twin."""
        return self.portal.call(lambda: self._inner.status(tenant=tenant))

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


class Collection(SearchedCollection):
    """Blocking twin of `AsyncCollection`."""

    def __init__(self, client: Client, *, tenant: str, name: str) -> None:
        super().__init__(client.inner.collection(tenant=tenant, name=name))
        self._client = client
        self.tenant = tenant
        self.name = name

    @property
    def _portal(self) -> LoopThread:
        return self._client.portal

    def create(self, recipe: Recipe | None = None) -> Recipe:
        """Blocking twin."""
        return self._portal.call(self._inner.create, recipe)

    def recipe(self) -> Recipe:
        """Blocking twin."""
        return self._portal.call(self._inner.recipe)

    def set_alias(self, alias: str) -> None:
        """Blocking twin."""
        self._portal.call(self._inner.set_alias, alias)

    def drop(self) -> None:
        """Blocking twin."""
        self._portal.call(self._inner.drop)

    def ingest(
        self,
        documents: Iterable[Document],
        *,
        recontextualize: bool = False,
        batch: bool = False,
        wait: bool = True,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> IngestReport:
        """Blocking twin; `progress` is called in the client's thread."""
        return self._portal.call(
            lambda: self._inner.ingest(
                documents,
                recontextualize=recontextualize,
                batch=batch,
                wait=wait,
                progress=progress,
            )
        )

    def ingest_files(
        self,
        paths: StrPath | Iterable[StrPath],
        *,
        recontextualize: bool = False,
        batch: bool = False,
        wait: bool = True,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> IngestReport:
        """Blocking twin; `progress` is called in the client's thread."""
        return self._portal.call(
            lambda: self._inner.ingest_files(
                paths, recontextualize=recontextualize, batch=batch, wait=wait, progress=progress
            )
        )

    def plan(
        self,
        folder: StrPath,
        *,
        recontextualize: bool = False,
        batch: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Plan:
        """Blocking twin; `progress` is called in the client's thread."""
        return self._portal.call(
            lambda: self._inner.plan(
                folder, recontextualize=recontextualize, batch=batch, progress=progress
            )
        )

    def plan_files(
        self,
        paths: StrPath | Iterable[StrPath],
        *,
        recontextualize: bool = False,
        batch: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Plan:
        """Blocking twin; `progress` is called in the client's thread."""
        return self._portal.call(
            lambda: self._inner.plan_files(
                paths, recontextualize=recontextualize, batch=batch, progress=progress
            )
        )

    def sync(
        self,
        folder: StrPath,
        *,
        plan: Plan | None = None,
        allow_removals: bool = False,
        recontextualize: bool = False,
        batch: bool = False,
        wait: bool = True,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> SyncReport:
        """Blocking twin; `progress` is called in the client's thread."""
        return self._portal.call(
            lambda: self._inner.sync(
                folder,
                plan=plan,
                allow_removals=allow_removals,
                recontextualize=recontextualize,
                batch=batch,
                wait=wait,
                progress=progress,
            )
        )

    def resume(
        self,
        *,
        wait: bool = True,
        seed: bool = False,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> IngestReport:
        """Blocking twin; `progress` is called in the client's thread."""
        return self._portal.call(
            lambda: self._inner.resume(wait=wait, seed=seed, progress=progress)
        )

    def enqueue(self, documents: Iterable[Document]) -> Enqueued:
        """Blocking twin."""
        return self._portal.call(self._inner.enqueue, documents)

    def enqueue_files(self, paths: StrPath | Iterable[StrPath]) -> Enqueued:
        """Blocking twin."""
        return self._portal.call(self._inner.enqueue_files, paths)

    def retry(self, keys: Sequence[str] | None = None) -> int:
        """Blocking twin."""
        return self._portal.call(self._inner.retry, keys)

    def document(self, key: str) -> Document:
        """Blocking twin."""
        return self._portal.call(self._inner.document, key)

    def documents(
        self, *, key_prefix: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[DocumentOverview]:
        """Blocking twin."""
        return self._portal.call(
            lambda: self._inner.documents(key_prefix=key_prefix, after=after, limit=limit)
        )

    def rename(self, key: str, to: str) -> None:
        """Blocking twin."""
        self._portal.call(self._inner.rename, key, to)

    def delete(self, key: str) -> bool:
        """Blocking twin."""
        return self._portal.call(self._inner.delete, key)

    def stale(self, *, unmodified_days: int | None = None) -> list[StaleDocument]:
        """Blocking twin."""
        return self._portal.call(lambda: self._inner.stale(unmodified_days=unmodified_days))

    def expire(self) -> tuple[str, ...]:
        """Blocking twin."""
        return self._portal.call(self._inner.expire)

    def evaluate(
        self,
        queries: Mapping[str, str],
        qrels: Iterable[Qrel],
        *,
        measures: Sequence[str] = ("ndcg@10", "recall@20", "rr"),
    ) -> Measures:
        """Blocking twin."""
        return self._portal.call(lambda: self._inner.evaluate(queries, qrels, measures=measures))
