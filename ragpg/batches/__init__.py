"""Stage 2 of 7, the cheap way: staged chunks without a context -> batches at the vendor.

What a batch asks for is in rows before the vendor is called, so that nothing else is needed to go
on after a restart; `ragpg.batches.results` stores what comes back.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio.to_thread

from ragpg.context_batch import BatchContextWriter, ContextRequest, Sharing, was_refused
from ragpg.database import Connection, fetch_all, fetch_rows, statements
from ragpg.errors import ProviderError
from ragpg.staging import Transaction
from ragpg.types import Chunk, Document

STATEMENTS = statements("batches")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitReport:
    """How many batches were submitted, and the contexts that they ask for.

    `held` wait for what a request sent ahead writes to the vendor's cache.
    """

    batches: int
    requests: int
    held: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A request and the staged chunk that it is for."""

    key: str
    text_hash: bytes
    request: ContextRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missing:
    """A staged chunk without a context."""

    position: int
    start: int
    stop: int
    text: str
    section_path: list[str]
    table_header: str
    text_hash: bytes

    def chunk(self) -> Chunk:
        return Chunk(
            position=self.position,
            start=self.start,
            stop=self.stop,
            text=self.text,
            section_path=tuple(self.section_path),
            table_header=self.table_header,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """A document with chunks to ask for, and what batches have done, as the statement says."""

    key: str
    held: bool
    seeded: bool
    warm: bool

    def sharing(self, *, seed: bool) -> Sharing:
        if self.warm or self.held:
            return "warm"
        return "seed" if seed and not self.seeded else "at once"


@dataclass(slots=True, kw_only=True)
class _Load:
    """What the next batch will ask for."""

    writer: BatchContextWriter
    asked: list[_Asked] = field(default_factory=list)
    size: int = 0

    def holds(self, more: Sequence[_Asked]) -> bool:
        """Whether these fit in with what there is; an empty batch holds anything."""
        size = self.size + sum(one.request.size for one in more)
        count = len(self.asked) + len(more)
        within = count <= self.writer.max_requests and size <= self.writer.max_bytes
        return within or not self.asked

    def add(self, one: _Asked) -> None:
        self.asked.append(one)
        self.size += one.request.size


async def submit_missing_contexts(
    transaction: Transaction,
    collection_id: int,
    writer: BatchContextWriter,
    *,
    seed: bool = False,
) -> SubmitReport:
    """Ask for the context of every staged chunk that has none and that no batch asks for.

    With `seed` the first chunk of a long text goes ahead, once; call again when its batch has been
    collected, within the hour, and the others read from the cache what it wrote there. Documents
    stay together in a batch where they fit. Raises ProviderError; batches submitted
    before that are in rows, and one whose fate is not known is looked for by `collect_contexts`.
    """
    async with transaction() as conn:
        rows = await fetch_rows(
            conn, STATEMENTS["keys_without_context"], {"collection_id": collection_id}
        )
    load = _Load(writer=writer)
    submitted: list[int] = []
    held = 0
    for row in rows:
        stage = _Stage(**row)
        missing = await _requests(transaction, collection_id, writer, stage, seed=seed)
        of_document = _sent_now(missing, stage, seed=seed)
        held += len(missing) - len(of_document)
        if not load.holds(of_document):
            submitted.append(await _submit(transaction, collection_id, writer, load.asked))
            load = _Load(writer=writer)
        for one in of_document:
            if not load.holds([one]):
                submitted.append(await _submit(transaction, collection_id, writer, load.asked))
                load = _Load(writer=writer)
            load.add(one)
    if load.asked:
        submitted.append(await _submit(transaction, collection_id, writer, load.asked))
    return SubmitReport(batches=sum(n > 0 for n in submitted), requests=sum(submitted), held=held)


def _sent_now(asked: Sequence[_Asked], stage: _Stage, *, seed: bool) -> list[_Asked]:
    """All, or without those of a prefix that is being written, or that its first is to write."""
    if not stage.held and stage.sharing(seed=seed) != "seed":
        return list(asked)
    first = {} if stage.held else {one.request.prefix: one for one in reversed(asked)}
    return [
        one for one in asked if one.request.prefix is None or one is first.get(one.request.prefix)
    ]


async def _requests(
    transaction: Transaction,
    collection_id: int,
    writer: BatchContextWriter,
    stage: _Stage,
    *,
    seed: bool,
) -> list[_Asked]:
    key = stage.key
    parameters = {"collection_id": collection_id, "key": key}
    async with transaction() as conn:
        texts = await fetch_rows(conn, STATEMENTS["staged_text"], parameters)
        missing = await fetch_all(
            conn, STATEMENTS["chunks_without_context"], parameters, row_type=_Missing
        )
    if not texts:
        # Published or deleted since the keys were read.
        return []
    document = Document(key=key, title=texts[0]["title"], text=texts[0]["text"])
    hashes = {chunk.position: bytes(chunk.text_hash) for chunk in missing}
    chunks = [chunk.chunk() for chunk in missing]
    # Windows are found by counting tokens of the whole text, which is CPU work.
    requests = await anyio.to_thread.run_sync(
        lambda: writer.requests(document, chunks, sharing=stage.sharing(seed=seed))
    )
    return [
        _Asked(key=key, text_hash=hashes[request.position], request=request) for request in requests
    ]


async def _submit(
    transaction: Transaction,
    collection_id: int,
    writer: BatchContextWriter,
    asked: Sequence[_Asked],
) -> int:
    """How many contexts a new batch asks for; 0 when others have asked for all of them."""
    batch_id = uuid.uuid4()
    async with transaction() as conn:
        numbers = await _intend(conn, collection_id, writer, batch_id, asked)
    if not numbers:
        return 0
    requests = {f"{batch_id.hex}-{number}": asked[number].request for number in numbers}
    try:
        vendor_id = await writer.submit(requests)
    except ProviderError as error:
        async with transaction() as conn:
            if was_refused(error):
                await finish(conn, batch_id, "dropped", str(error))
            else:
                await conn.execute(
                    STATEMENTS["batch_error"], {"batch_id": batch_id, "last_error": str(error)}
                )
        raise
    async with transaction() as conn:
        await mark_submitted(conn, batch_id, vendor_id)
    return len(numbers)


async def _intend(
    conn: Connection,
    collection_id: int,
    writer: BatchContextWriter,
    batch_id: uuid.UUID,
    asked: Sequence[_Asked],
) -> list[int]:
    """Write what the batch will ask for; the places in `asked` that no other batch has."""
    parameters: dict[str, Any] = {"batch_id": batch_id, "collection_id": collection_id}
    await conn.execute(
        STATEMENTS["intend_batch"],
        parameters | {"provider": writer.provider, "model": writer.model, "requests": len(asked)},
    )
    rows = await fetch_rows(
        conn,
        STATEMENTS["intend_items"],
        parameters
        | {
            "numbers": list(range(len(asked))),
            "document_keys": [one.key for one in asked],
            "positions": [one.request.position for one in asked],
            "text_hashes": [one.text_hash for one in asked],
        },
    )
    numbers = sorted(row["number"] for row in rows)
    if not numbers:
        await finish(conn, batch_id, "dropped", "other batches ask for all of it")
    await conn.execute(STATEMENTS["set_requests"], {"batch_id": batch_id, "requests": len(numbers)})
    return numbers


async def mark_submitted(conn: Connection, batch_id: uuid.UUID, vendor_id: str) -> None:
    """Write the vendor's id of a batch that was intended."""
    await conn.execute(STATEMENTS["submitted"], {"batch_id": batch_id, "vendor_id": vendor_id})


async def finish(conn: Connection, batch_id: uuid.UUID, status: str, error: str | None) -> int:
    """Close a batch as collected or dropped; how many requests got no answer and are free again."""
    rows = await fetch_rows(
        conn,
        STATEMENTS["finish_batch"],
        {"batch_id": batch_id, "status": status, "last_error": error},
    )
    return int(rows[0]["dropped"])
