"""What has had its time, deleted a part in each transaction: expired documents, and the old log.

A part takes some tenths of a second, so no backlog runs into the time limit of a statement, and
what was deleted before an error stays deleted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ragpg.database import fetch_rows, statements
from ragpg.errors import DatabaseError, DatabaseUnavailable, NotFoundError
from ragpg.inputs import MAX_LOG_DAYS, checked_count

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from ragpg.database import Connection
    from ragpg.staging import Transaction

STATEMENTS = statements("care")
# About 0.3 s each (500 took 0.08 s), for as long as a writer may wait for a row and vacuum is
# held back.
MOST_CHUNKS = 2_000
# Of 150 hits each.
MOST_SEARCHES = 500
_logger = logging.getLogger("ragpg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """How much was deleted, of all tenants."""

    documents: int
    searches: int


async def delete_expired(transaction: Transaction, collection: str) -> tuple[str, ...]:
    """The keys of the documents that were deleted because their `expires_at` has come.

    Searches left them out already. Raises CollectionNotFound.
    """
    named = {"collection": collection, "most_chunks": MOST_CHUNKS}
    keys: list[str] = []
    while True:
        async with transaction() as conn:
            rows = await fetch_rows(conn, STATEMENTS["delete_expired"], named)
        if not rows:
            return tuple(keys)
        keys += [row["key"] for row in rows]


async def prune_log(transaction: Transaction, *, older_than_days: int) -> int:
    """How many searches of a tenant were deleted, logged so many days ago or earlier.

    0 days mean the whole log. Raises InputError.
    """
    checked_count("older_than_days", older_than_days, least=0, greatest=MAX_LOG_DAYS)
    named = {"older_than_days": older_than_days, "most": MOST_SEARCHES}
    pruned = 0
    while True:
        async with transaction() as conn:
            rows = await fetch_rows(conn, STATEMENTS["prune_log"], named)
        found = int(rows[0]["pruned"])
        pruned += found
        if found < MOST_SEARCHES:
            return pruned


async def delete_overdue(
    transaction: Callable[[str | None], AbstractAsyncContextManager[Connection]],
    *,
    log_days: int | None,
) -> Deleted:
    """Delete what is overdue of all tenants: expired documents, searches older than `log_days`.

    `transaction` is the client's, which takes a tenant. `log_days` None keeps the log. A collection
    that fails is logged and holds up no other. Raises DatabaseUnavailable.
    """
    async with transaction(None) as conn:
        rows = await fetch_rows(conn, STATEMENTS["overdue"], {"log_days": log_days})
    documents = searches = 0
    pruned: set[str] = set()
    for row in rows:
        tenant, collection = row["tenant"], row["collection"]
        of_tenant = partial(transaction, tenant)
        try:
            if row["expired"]:
                documents += len(await delete_expired(of_tenant, collection))
            if row["old_log"] and log_days is not None and tenant not in pruned:
                searches += await prune_log(of_tenant, older_than_days=log_days)
                pruned.add(tenant)
        except NotFoundError:
            continue  # Deleted meanwhile, with all that was overdue.
        except DatabaseUnavailable:
            raise
        except DatabaseError as exc:
            _logger.warning(
                "what is overdue in collection %r of tenant %r was not all deleted and is tried"
                " again: %s",
                collection,
                tenant,
                exc,
            )
    return Deleted(documents=documents, searches=searches)
