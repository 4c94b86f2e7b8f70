"""What stages 1 to 3 hand on: a document that is not live yet, and what its making used."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass

from psycopg.types.json import Jsonb

from ragpg.database import Connection, fetch_rows, statements
from ragpg.errors import CollectionNotFound
from ragpg.storable_text import storable_text
from ragpg.tokens import is_blank
from ragpg.types import Chunk, Document, Usage, contextualized

Transaction = Callable[[], AbstractAsyncContextManager[Connection]]
# Told after a transaction: the document keys of the contexts or vectors that it settled, one per
# chunk, and what those calls used.
Settled = Callable[[Sequence[str], Sequence[Usage]], None]
HOLD_COLLECTION = statements("client")["hold_collection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChunk:
    """A chunk of a version that is not live; `live` when it will keep a live chunk's number.

    `waiting` when its context is missing and a batch at the vendor is asked for it, and
    `context_refused` when the writer refused it for good. `window_hash` names the texts in sight
    of which the vector was made, see `ragpg.index`.
    """

    position: int
    start: int
    stop: int
    text: str
    section_path: list[str]
    table_header: str
    context: str | None
    embedded: bool
    live: bool
    contextualized_at: dt.datetime | None
    context_error: str | None
    context_refused: bool
    window_hash: bytes | None
    waiting: bool

    @property
    def contextualized(self) -> str:
        """What embedding and BM25 read of it."""
        return contextualized(self.context, self.table_header, self.text)

    def chunk(self) -> Chunk:
        """The same as the public value."""
        return Chunk(
            position=self.position,
            start=self.start,
            stop=self.stop,
            text=self.text,
            section_path=tuple(self.section_path),
            table_header=self.table_header,
            context=self.context,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A document that this ingest has claimed, with its chunks in order."""

    document: Document
    claim: uuid.UUID
    chunks: tuple[StagedChunk, ...]


async def hold_collection(conn: Connection, collection_id: int) -> None:
    """Keep a collection from being deleted until this transaction ends; its first statement.

    Raises CollectionNotFound when it was deleted meanwhile.
    """
    rows = await fetch_rows(conn, HOLD_COLLECTION, {"collection_id": collection_id})
    if not rows[0]["held"]:
        raise CollectionNotFound("there is no such collection any more; it was deleted")


async def record_usage(conn: Connection, collection_id: int | None, usage: Sequence[Usage]) -> None:
    """Write provider calls to ragpg.usage, in the transaction that stores what they paid for."""
    if not usage:
        return
    calls = [asdict(call) | {"duration_ms": call.duration_s * 1000} for call in usage]
    await conn.execute(
        statements("client")["insert_usage"],
        {"collection_id": collection_id, "calls": Jsonb(calls)},
    )


def storable_context(context: str | None) -> tuple[str | None, int]:
    """A written context as it is stored, and its NULs left out; None where no text is left."""
    if context is None:
        return None, 0
    text = storable_text(context)
    return None if is_blank(text) else text, context.count("\0")
