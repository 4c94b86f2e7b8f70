"""Blocking twins of `ragpg.collection_search`: how a collection is searched and answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from ragpg.blocking import LoopThread
from ragpg.collection import AsyncCollection
from ragpg.filters import Where
from ragpg.retrieve import DEPTH, Weights
from ragpg.types import Answer, AnswerDelta, Expansion, Hits

_END = object()


class SearchedCollection(ABC):
    """The part of a blocking collection that finds and answers."""

    def __init__(self, inner: AsyncCollection) -> None:
        self._inner = inner

    @property
    @abstractmethod
    def _portal(self) -> LoopThread:
        """The thread that the event loop runs in."""

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
        """Blocking twin, without `conn`."""
        return self._portal.call(
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

    def rerank(self, query: str, hits: Hits, *, k: int = 20) -> Hits:
        """Blocking twin."""
        return self._portal.call(lambda: self._inner.rerank(query, hits, k=k))

    def expand(self, hits: Hits, unit: Expansion = "neighbours") -> Hits:
        """Blocking twin."""
        return self._portal.call(self._inner.expand, hits, unit)

    def search(
        self,
        query: str,
        *,
        where: Where | None = None,
        k: int = 20,
        depth: int = DEPTH,
        weights: Weights = Weights(),  # noqa: B008  frozen
        exclude: Sequence[int] = (),
        after: int | None = None,
        expand: Expansion | None = None,
        deduplicate: bool = False,
    ) -> Hits:
        """Blocking twin."""
        return self._portal.call(
            lambda: self._inner.search(
                query,
                where=where,
                k=k,
                depth=depth,
                weights=weights,
                exclude=exclude,
                after=after,
                expand=expand,
                deduplicate=deduplicate,
            )
        )

    def ground(
        self,
        query: str,
        *,
        where: Where | None = None,
        k: int = 20,
        expand: Expansion | None = None,
        deduplicate: bool = False,
    ) -> Hits:
        """Blocking twin."""
        return self._portal.call(
            lambda: self._inner.ground(
                query, where=where, k=k, expand=expand, deduplicate=deduplicate
            )
        )

    def generate(self, query: str, hits: Hits) -> Answer:
        """Blocking twin."""
        return self._portal.call(lambda: self._inner.generate(query, hits))

    def stream(self, query: str, hits: Hits) -> Iterator[AnswerDelta | Answer]:
        """Blocking twin: a plain generator."""
        iterator = self._inner.stream(query, hits)
        while True:
            item = self._portal.call(anext, iterator, _END)
            if item is _END:
                return
            yield item

    def ask(
        self,
        query: str,
        *,
        where: Where | None = None,
        k: int = 20,
        expand: Expansion | None = None,
        deduplicate: bool = False,
    ) -> Answer:
        """Blocking twin."""
        return self._portal.call(
            lambda: self._inner.ask(query, where=where, k=k, expand=expand, deduplicate=deduplicate)
        )
