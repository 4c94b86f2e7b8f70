"""Stage 3 of 7: staged chunks without an embedding -> embeddings, stored batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio
import numpy as np
from pgvector import HalfVector

from ragpg.database import statements
from ragpg.errors import InvalidProviderResponse, ProviderError, ProviderRejected
from ragpg.protocols import DocumentEmbedder, Embedder
from ragpg.staging import Staged, Transaction, record_usage
from ragpg.types import Embedded, Usage

SET_EMBEDDINGS = statements("index")["set_embeddings"]
# Largest finite value of IEEE 754 half precision, in which vectors are stored.
HALF_MAX = 65_504.0
# A batch is stored as a whole, so this is also what a crash loses at most, times those in flight.
BATCH_CHUNKS = 256
BATCHES_IN_FLIGHT = 4
# The key, the account or the model's name: no other text would fare better.
HOPELESS_STATUS = frozenset({401, 402, 403, 404})


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """How many vectors were stored, which documents failed and why, and what it used."""

    stored: int
    failed: dict[str, ProviderError]
    usage: tuple[Usage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    staged: Staged
    position: int
    text: str


@dataclass(slots=True)
class _Progress:
    stored: int
    failed: dict[str, ProviderError]
    usage: list[Usage]


async def index(
    transaction: Transaction,
    collection_id: int,
    documents: Sequence[Staged],
    embedder: Embedder,
) -> IndexReport:
    """Embed and store every chunk of these documents that has no vector yet.

    No transaction is open while the embedder works. A batch that is refused is halved until the one
    chunk that is at fault stands alone; its document fails, its neighbours go on. Raises
    ProviderError when nothing can be embedded: a wrong key, a vendor that is down.
    """
    progress = _Progress(stored=0, failed={}, usage=[])
    if isinstance(embedder, DocumentEmbedder):
        for staged in documents:
            # Chunks are embedded in sight of each other, so one new chunk means all anew.
            if any(not chunk.embedded for chunk in staged.chunks):
                items = [_item(staged, chunk.position) for chunk in staged.chunks]
                vectors = await embedder.embed_document([item.text for item in items])
                await _store(transaction, collection_id, items, vectors, embedder, progress)
    else:
        pending = [
            _item(staged, chunk.position)
            for staged in documents
            for chunk in staged.chunks
            if not chunk.embedded
        ]
        limiter = anyio.CapacityLimiter(BATCHES_IN_FLIGHT)

        async def embed_batch(batch: Sequence[_Item]) -> None:
            async with limiter:
                await _embed(transaction, collection_id, batch, embedder, progress)

        async with anyio.create_task_group() as group:
            for start in range(0, len(pending), BATCH_CHUNKS):
                group.start_soon(embed_batch, pending[start : start + BATCH_CHUNKS])
    return IndexReport(
        stored=progress.stored, failed=progress.failed, usage=tuple(progress.usage)
    )


def _item(staged: Staged, position: int) -> _Item:
    chunk = staged.chunks[position].chunk()
    return _Item(staged=staged, position=position, text=chunk.contextualized)


async def _embed(
    transaction: Transaction,
    collection_id: int,
    items: Sequence[_Item],
    embedder: Embedder,
    progress: _Progress,
) -> None:
    try:
        embedded = await embedder.embed([item.text for item in items], purpose="document")
        await _store(transaction, collection_id, items, embedded, embedder, progress)
    except (ProviderRejected, InvalidProviderResponse) as exc:
        if exc.status in HOPELESS_STATUS:
            raise
        if len(items) == 1:
            item = items[0]
            progress.failed.setdefault(item.staged.document.key, _named(exc, item))
            return
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            await _embed(transaction, collection_id, half, embedder, progress)


async def _store(  # noqa: PLR0913  one step of the loops above
    transaction: Transaction,
    collection_id: int,
    items: Sequence[_Item],
    embedded: Embedded,
    embedder: Embedder,
    progress: _Progress,
) -> None:
    progress.usage += embedded.usage
    matrix = checked_vectors(
        embedded.vectors,
        count=len(items),
        dimensions=embedder.dimensions,
        provider=embedder.provider,
        model=embedder.model,
    )
    async with transaction() as conn:
        await conn.execute(
            SET_EMBEDDINGS,
            {
                "collection_id": collection_id,
                "keys": [item.staged.document.key for item in items],
                "claims": [item.staged.claim for item in items],
                "positions": [item.position for item in items],
                "embeddings": [HalfVector(row) for row in matrix],
            },
        )
        await record_usage(conn, collection_id, embedded.usage)
    progress.stored += len(items)


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


def checked_vectors(
    vectors: Sequence[Sequence[float]], *, count: int, dimensions: int, provider: str, model: str
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """The vectors as a float32 matrix of (count, dimensions), each finite and not zero.

    Raises InvalidProviderResponse naming the first vector that is not, counted from 0.
    """

    def refused(what: str) -> InvalidProviderResponse:
        return InvalidProviderResponse(
            f"{provider} {model} {what}; nothing of this batch was stored, try again",
            provider=provider,
            model=model,
        )

    if len(vectors) != count:
        raise refused(f"gave {len(vectors)} vectors for {count} texts")
    for number, vector in enumerate(vectors):
        if len(vector) != dimensions:
            raise refused(f"gave vector {number} with {len(vector)} of {dimensions} dimensions")
    matrix = np.asarray(vectors, dtype=np.float32).reshape(count, dimensions)
    for number, bad in enumerate(~np.isfinite(matrix).all(axis=1)):
        if bad:
            raise refused(f"gave vector {number} with a value that is not finite")
    for number, row in enumerate(matrix):
        largest = float(np.abs(row).max())
        # Below the smallest half-precision number everything would be stored as zero.
        if not 6e-8 <= largest <= HALF_MAX:
            raise refused(f"gave vector {number} whose largest value is {largest:g}")
    return matrix
