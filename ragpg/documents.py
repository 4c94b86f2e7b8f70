"""The live documents of a collection as a list."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ragpg.database import Connection, fetch_all, statements
from ragpg.inputs import checked_count, checked_key
from ragpg.json_form import JsonForm

STATEMENTS = statements("ingest")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOverview(JsonForm):
    """A live document without its text, as the view `ragpg.document_overview` has it.

    That view shows expired documents too, until they are deleted, and says so.

    `characters` of its text; `without_context` of its chunks lack one. `pages_without_text` of a
    PDF are scanned, or blank; they count from 1.
    """

    key: str
    title: str | None
    revision: int
    media_type: str
    tags: Sequence[str]
    modified_at: dt.datetime | None
    owner: str | None
    review_by: dt.date | None
    expires_at: dt.datetime | None
    updated_at: dt.datetime
    characters: int
    chunks: int
    without_context: int
    pages_without_text: Sequence[int]


async def list_documents(
    conn: Connection, collection: str, *, key_prefix: str | None, after: str | None, limit: int
) -> list[DocumentOverview]:
    """Up to `limit` documents by key, behind `after`. Raises CollectionNotFound, InputError."""
    wanted: dict[str, Any] = {
        "collection": collection,
        "key_prefix": None if key_prefix is None else checked_key(key_prefix),
        "after": None if after is None else checked_key(after),
        "limit": checked_count("limit", limit),
    }
    rows = await fetch_all(conn, STATEMENTS["documents"], wanted, row_type=DocumentOverview)
    return [
        replace(row, tags=tuple(row.tags), pages_without_text=tuple(row.pages_without_text))
        for row in rows
    ]
