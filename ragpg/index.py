"""Stage 3 of 7: staged chunks without an embedding -> embeddings, stored batch by batch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread

from ragpg.database import statements
from ragpg.errors import (
    InvalidProviderResponse,
    PartlyEmbedded,
    ProviderError,
    ProviderRejected,
    TextsRejected,
)
from ragpg.fanout import fan_out
from ragpg.faults import faults_named
from ragpg.protocols import DocumentEmbedder, Embedder, WindowedEmbedder
from ragpg.staging import Settled, Staged, StagedChunk, Transaction, record_usage
from ragpg.types import Embedded, Usage
from ragpg.vectors import HalfVectors, storable

SET_EMBEDDINGS = statements("index")["set_embeddings"]
# A batch is stored as a whole, so this is also what a crash loses at most, times those in flight.
BATCH_CHUNKS = 256
BATCHES_IN_FLIGHT = 4
# The key, the account or the model's name: no other text would fare better.
HOPELESS_STATUS = frozenset({401, 402, 403, 404})


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """How many vectors were stored, which documents failed and why."""

    stored: int
    failed: dict[str, ProviderError]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    staged: Staged
    position: int
    text: str


async def index(
    transaction: Transaction,
    collection_id: int,
    documents: Sequence[Staged],
    embedder: Embedder,
    *,
    dimensions: int,
    settled: Settled,
) -> IndexReport:
    """Embed and store every chunk of these documents that has no vector yet.

    `dimensions` is the length that the collection's recipe says; no other vector is stored.
    `settled` is told of each batch once it is stored, and of calls of which nothing could be.

    No transaction is open while the embedder works. A batch that is refused is halved until the one
    chunk that is at fault stands alone; its document fails, its neighbours go on. Raises
    ProviderError when nothing can be embedded: a wrong key, a vendor that is down.
    """
    work = _Work(transaction, collection_id, embedder, dimensions, settled)
    if isinstance(embedder, DocumentEmbedder):
        for staged in documents:
            # Chunks are embedded in sight of each other, so one new chunk means its window anew.
            if any(not chunk.embedded or chunk.window_hash for chunk in staged.chunks):
                await work.embed_document(staged, embedder)
    else:
        pending = [
            _item(staged, chunk.position)
            for staged in documents
            for chunk in staged.chunks
            if not chunk.embedded
        ]
        await work.embed(pending)
    return IndexReport(stored=work.stored, failed=work.failed)


def _item(staged: Staged, position: int) -> _Item:
    text = staged.chunks[position].contextualized
    return _Item(staged=staged, position=position, text=text)


class _Work:
    """One call of `index`: where it writes, who embeds, and what has come of it so far."""

    def __init__(
        self,
        transaction: Transaction,
        collection_id: int,
        embedder: Embedder,
        dimensions: int,
        settled: Settled,
    ) -> None:
        self._transaction = transaction
        self._collection_id = collection_id
        self._embedder = embedder
        self._dimensions = dimensions
        self._settled = settled
        self.stored = 0
        self.failed: dict[str, ProviderError] = {}

    async def embed(self, items: Sequence[_Item]) -> None:
        starts = range(0, len(items), BATCH_CHUNKS)
        await fan_out(
            [partial(self._embed_isolating, items[at : at + BATCH_CHUNKS]) for at in starts],
            anyio.CapacityLimiter(BATCHES_IN_FLIGHT),
        )

    async def embed_document(self, staged: Staged, embedder: DocumentEmbedder) -> None:
        """Embed the windows of a document that no earlier try has embedded as they are now.

        Each is stored as soon as it is answered, so that the next try pays for the others alone.
        """
        items = [_item(staged, chunk.position) for chunk in staged.chunks]
        texts = [item.text for item in items]
        windows: Sequence[range] = [range(len(items))]
        if isinstance(embedder, WindowedEmbedder):
            windows = await anyio.to_thread.run_sync(embedder.windows, texts)
        hashes = [_window_hash(texts[window.start : window.stop]) for window in windows]
        missing = [
            partial(self._embed_window, items[window.start : window.stop], made_of, embedder)
            for window, made_of in zip(windows, hashes, strict=True)
            if any(not _is_of(staged.chunks[place], made_of) for place in window)
        ]
        try:
            await fan_out(missing, anyio.CapacityLimiter(BATCHES_IN_FLIGHT))
        except PartlyEmbedded as exc:
            self._fail_document(staged, exc.reason)
        except (ProviderRejected, InvalidProviderResponse) as exc:
            self._fail_document(staged, exc)

    async def _embed_window(
        self, items: Sequence[_Item], made_of: bytes, embedder: DocumentEmbedder
    ) -> None:
        try:
            with faults_named(self._embedder):
                embedded = await embedder.embed_document([item.text for item in items])
        except (PartlyEmbedded, TextsRejected) as exc:
            # A part of a window is not the window that the next try looks for, but was paid.
            await self._record(exc.usage)
            raise
        await self._store(items, embedded, window_hash=made_of)

    def _fail_document(self, staged: Staged, exc: ProviderError) -> None:
        if not _is_about_text(exc):
            raise exc
        self.failed[staged.document.key] = exc

    async def _embed_isolating(self, items: Sequence[_Item]) -> None:
        try:
            texts = [item.text for item in items]
            with faults_named(self._embedder):
                embedded = await self._embedder.embed(texts, purpose="document")
            await self._store(items, embedded)
        except TextsRejected as exc:
            await self._store_accepted(items, exc)
        except PartlyEmbedded as exc:
            await self._store_at(items, exc.vectors, exc.usage)
            left = [item for place, item in enumerate(items) if place not in exc.vectors]
            await self._isolate(left, exc.reason)
        except (ProviderRejected, InvalidProviderResponse) as exc:
            await self._isolate(items, exc)

    async def _isolate(self, items: Sequence[_Item], exc: ProviderError) -> None:
        """Halve what an error was about, until it is about one chunk; other errors are raised."""
        if not _is_about_text(exc):
            raise exc
        if len(items) == 1:
            item = items[0]
            self.failed.setdefault(item.staged.document.key, _named(exc, item))
            return
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            await self._embed_isolating(half)

    async def _store_accepted(self, items: Sequence[_Item], refused: TextsRejected) -> None:
        """Keep what the vendor accepted and was paid for; fail the documents of the others."""
        for place, reason in refused.failed.items():
            named = ProviderRejected(
                reason, provider=refused.provider, model=refused.model, status=refused.status
            )
            self.failed.setdefault(items[place].staged.document.key, _named(named, items[place]))
        if refused.vectors:
            await self._store_at(items, refused.vectors, refused.usage)

    async def _store_at(
        self,
        items: Sequence[_Item],
        vectors: Mapping[int, Sequence[float]],
        usage: tuple[Usage, ...],
    ) -> None:
        places = sorted(vectors)
        embedded = Embedded(vectors=[vectors[place] for place in places], usage=usage)
        await self._store([items[place] for place in places], embedded)

    async def _record(self, usage: tuple[Usage, ...]) -> None:
        async with self._transaction() as conn:
            await record_usage(conn, self._collection_id, usage)
        self._settled((), usage)

    async def _store(
        self, items: Sequence[_Item], embedded: Embedded, *, window_hash: bytes | None = None
    ) -> None:
        embedder = self._embedder
        matrix = storable(embedded.vectors, count=len(items), dimensions=self._dimensions)
        if isinstance(matrix, str):
            # Nothing of it can be kept, but it was paid for.
            await self._record(embedded.usage)
            raise InvalidProviderResponse(
                f"{embedder.provider} {embedder.model} {matrix}; nothing of this batch was stored,"
                " try again",
                provider=embedder.provider,
                model=embedder.model,
            )
        keys = [item.staged.document.key for item in items]
        async with self._transaction() as conn:
            await record_usage(conn, self._collection_id, embedded.usage)
            await conn.execute(
                SET_EMBEDDINGS,
                {
                    "collection_id": self._collection_id,
                    "keys": keys,
                    "claims": [item.staged.claim for item in items],
                    "positions": [item.position for item in items],
                    "embeddings": HalfVectors(matrix),
                    "window_hash": window_hash,
                },
            )
        self.stored += len(items)
        self._settled(keys, embedded.usage)


def _window_hash(texts: Sequence[str]) -> bytes:
    # No stored text holds NUL, so no two windows share the joined one.
    return hashlib.sha256("\0".join(texts).encode()).digest()


def _is_of(chunk: StagedChunk, made_of: bytes) -> bool:
    """Whether a chunk's vector was made in this window."""
    return chunk.embedded and chunk.window_hash == made_of


def _is_about_text(exc: ProviderError) -> bool:
    """Whether other texts may fare better than those that it is about."""
    about = isinstance(exc, ProviderRejected | InvalidProviderResponse)
    return about and exc.status not in HOPELESS_STATUS


def _named(exc: ProviderError, item: _Item) -> ProviderError:
    """The same error, saying which chunk it is about."""
    document = item.staged.document
    chunk = item.staged.chunks[item.position]
    where = f"chunk {item.position} of document {document.key!r} ({chunk.start} to {chunk.stop})"
    return type(exc)(
        f"{where} was not embedded: {exc}",
        provider=exc.provider,
        model=exc.model,
        status=exc.status,
        request_id=exc.request_id,
    )
