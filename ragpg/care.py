"""Corpus care: documents that somebody should review. `ragpg.retention` deletes what is over."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from ragpg.database import Connection, fetch_all, statements
from ragpg.inputs import checked_count
from ragpg.json_form import JsonForm

STATEMENTS = statements("care")
# A thousand years, which the calendar of Postgres can go back.
MAX_DAYS = 365_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleDocument(JsonForm):
    """A live document that is due: `overdue_days` after `review_by`, None where that is not passed.

    `age_days` are full days since `modified_at`, None where that is not known.
    """

    document_key: str
    title: str | None
    owner: str | None
    review_by: dt.date | None
    overdue_days: int | None
    modified_at: dt.datetime | None
    age_days: int | None
    expires_at: dt.datetime | None


async def stale_documents(
    conn: Connection, collection: str, *, unmodified_days: int | None
) -> list[StaleDocument]:
    """Documents whose `review_by` has passed, longest overdue first; expired ones are left out.

    `unmodified_days` adds those that were last modified so many days ago or earlier. Raises
    CollectionNotFound, InputError.
    """
    if unmodified_days is not None:
        checked_count("unmodified_days", unmodified_days, least=0, greatest=MAX_DAYS)
    return await fetch_all(
        conn,
        STATEMENTS["stale_documents"],
        {"collection": collection, "unmodified_days": unmodified_days},
        row_type=StaleDocument,
    )
