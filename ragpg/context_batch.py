"""A batch of contexts that a vendor writes within a day at a lower price: the values and the door.

The rows that make a batch survive a restart are `ragpg.batches` and `ragpg.batches.results`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ragpg.errors import ProviderError
from ragpg.types import Chunk, Document, Usage

# How the requests of a document share what the vendor caches of it: the first of each window goes
# ahead ("seed") and the others follow when it has written it ("warm"), or all are sent at once.
Sharing = Literal["seed", "warm", "at once"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """What asks for the context of the chunk at `position`; `size` is its bytes in a batch.

    Requests of one `prefix` share a cached beginning; None shares nothing.
    """

    position: int
    params: Mapping[str, Any]
    size: int
    prefix: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """Whether a batch has ended; until then `processing` is all of it and the others are 0."""

    ended: bool
    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int

    @property
    def requests(self) -> int:
        """How many requests the batch has."""
        return self.processing + self.succeeded + self.errored + self.canceled + self.expired


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The context asked for under `custom_id`, or the error that left it without one.

    `retryable` says whether the same request may succeed in another batch, `refused` that it would
    fail again whenever it is asked.
    """

    custom_id: str
    context: str | None
    error: str | None = None
    retryable: bool = False
    refused: bool = False
    usage: tuple[Usage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """Where a batch is whose submission was interrupted: its vendor id, or None if nowhere.

    `undecided` means that a batch which has not ended may be it.
    """

    vendor_id: str | None
    undecided: bool


class BatchContextWriter(Protocol):
    """A ContextWriter that can be asked for many contexts at once and answers later.

    `max_requests` and `max_bytes` are what one batch should hold.
    """

    provider: str
    model: str
    max_requests: int
    max_bytes: int

    def requests(
        self, document: Document, chunks: Sequence[Chunk], *, sharing: Sharing = "at once"
    ) -> list[ContextRequest]:
        """One request per chunk that is not blank, also of those that are to be sent later."""
        ...

    async def submit(self, requests: Mapping[str, ContextRequest]) -> str:
        """The vendor's id of a new batch of `requests` by custom id, of 1 to 64 [a-zA-Z0-9_-].

        Raises ProviderError; unless `was_refused` says otherwise, the batch may exist.
        """
        ...

    async def status(self, vendor_id: str) -> BatchStatus:
        """How far a batch is. Raises ProviderError, of status 404 for one that is not there."""
        ...

    def results(self, vendor_id: str) -> AsyncGenerator[BatchResult, None]:
        """One result per request of a batch that has ended, in any order, read as a stream.

        Raises ProviderError, also after some results.
        """
        ...

    async def find(
        self, prefix: str, *, requests: int, since: dt.datetime, known: Collection[str]
    ) -> BatchSearch:
        """The batch since then of so many requests whose custom ids begin with `prefix`.

        Batches of the vendor ids in `known` are others. Raises ProviderError.
        """
        ...


def was_refused(error: ProviderError) -> bool:
    """Whether a failed submission certainly left no batch behind.

    A broken connection, a timeout or another 5xx may come after the vendor accepted it.
    """
    return error.status is not None and (error.status < 500 or error.status in {503, 529})  # noqa: PLR2004
