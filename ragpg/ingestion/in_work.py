"""What is said of the documents in work while an ingest has them, and when it lets go of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from ragpg.database import statements
from ragpg.errors import ClientClosed, DatabaseError, RagpgError
from ragpg.staging import Staged, Transaction

STATEMENTS = statements("ingest")
# ragpg.pending calls a document interrupted that was not touched for five minutes.
TOUCH_EVERY_S = 60.0
INTERRUPTED = (
    "the ingest was interrupted before this document was live; run it again, or queue what it has"
    " with `ragpg retry`"
)


@asynccontextmanager
async def in_work(
    transaction: Transaction,
    collection_id: int,
    staged: Sequence[Staged],
    *,
    keep_error: bool,
    touch_every_s: float = TOUCH_EVERY_S,
) -> AsyncIterator[None]:
    """Touch these documents every minute; with `keep_error` say why work on them ended too early.

    Those that are not live then count as failed; one that waits for a batch goes on waiting. A
    process that is killed says nothing: then the touching ends.
    """
    held: dict[str, Any] = {
        "collection_id": collection_id,
        "keys": [one.document.key for one in staged],
        "claims": [one.claim for one in staged],
    }

    async def touch() -> None:
        while True:
            await asyncio.sleep(touch_every_s)
            with suppress(DatabaseError):
                async with transaction() as conn:
                    await conn.execute(STATEMENTS["touch_staged"], held)

    # A task and no task group: what goes wrong in the block is to come through as it is.
    touching = asyncio.create_task(touch())
    try:
        yield
    except BaseException as exc:
        message = str(exc) if isinstance(exc, RagpgError) else INTERRUPTED
        if keep_error:
            with anyio.CancelScope(shield=True), suppress(DatabaseError, ClientClosed):
                async with transaction() as conn:
                    await conn.execute(STATEMENTS["leave_staged"], held | {"last_error": message})
        raise
    finally:
        touching.cancel()
        with suppress(asyncio.CancelledError):
            await touching
