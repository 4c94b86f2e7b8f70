"""The log of searches: what was asked, and what each step made of every candidate."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ragpg.database import Connection, fetch_rows, statements
from ragpg.errors import SearchNotFound
from ragpg.inputs import MAX_CHUNK_ID, checked_count, checked_name
from ragpg.json_form import JsonForm
from ragpg.types import Json, Mode

STATEMENTS = statements("log")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOverview(JsonForm):
    """A logged search. `candidates` counts what was fused, `shown` what the caller got of it.

    `filter` is as `Filter.from_json` reads it, None without one; `k` is what was asked for.
    """

    search_id: int
    searched_at: dt.datetime
    collection: str
    query: str
    filter: Mapping[str, Json] | None
    k: int
    mode: Mode
    dense_mode: str | None
    lexical_mode: str | None
    reranker: str | None
    notices: tuple[str, ...]
    degraded: tuple[str, ...]
    timings_s: Mapping[str, float]
    candidates: int
    shown: int
    cited: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedHit(JsonForm):
    """A candidate of a logged search, with the rank and score that each step gave it.

    A rank is None where that arm did not return it, `rerank_rank` also where it was not shown.
    `section_path` and `beginning`, the first 80 characters, are None once the chunk is gone; key,
    `start` and `stop` stay, but for searches before revision 0017.
    """

    chunk_id: int
    document_key: str | None
    start: int | None
    stop: int | None
    section_path: tuple[str, ...] | None
    beginning: str | None
    dense_rank: int | None
    dense_score: float | None
    lexical_rank: int | None
    lexical_score: float | None
    fused_rank: int
    fused_score: float
    rerank_rank: int | None
    rerank_score: float | None
    shown: bool
    cited: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSearch(JsonForm):
    """A logged search and its candidates: those that were shown, then the others as fused."""

    search: SearchOverview
    hits: tuple[LoggedHit, ...]


async def list_searches(
    conn: Connection, *, collection: str | None, after: int | None, limit: int
) -> list[SearchOverview]:
    """Up to `limit` searches of the tenant, newest first. Raises CollectionNotFound, InputError."""
    return await _overviews(
        conn,
        collection=None if collection is None else checked_name("collection", collection),
        after=None if after is None else checked_count("after", after, greatest=MAX_CHUNK_ID),
        limit=checked_count("limit", limit),
    )


async def logged_search(conn: Connection, search_id: int) -> LoggedSearch:
    """One search with its candidates. Raises SearchNotFound, InputError."""
    checked_count("search_id", search_id, greatest=MAX_CHUNK_ID)
    found = await _overviews(conn, search_id=search_id, limit=1)
    if not found:
        raise SearchNotFound(
            f"the log has no search {search_id} of this tenant; it was deleted, or has its"
            " collection, or is another tenant's"
        )
    rows = await fetch_rows(conn, STATEMENTS["candidates"], {"search_id": search_id})
    return LoggedSearch(search=found[0], hits=tuple(_hit(row) for row in rows))


async def _overviews(
    conn: Connection,
    *,
    limit: int,
    collection: str | None = None,
    search_id: int | None = None,
    after: int | None = None,
) -> list[SearchOverview]:
    wanted = {"collection": collection, "search_id": search_id, "after": after, "limit": limit}
    return [
        SearchOverview(
            **{each.name: row[each.name] for each in fields(SearchOverview) if each.name in row}
            | {
                "notices": tuple(row["notices"]),
                "degraded": tuple(row["degraded"]),
                "timings_s": {stage: ms / 1000 for stage, ms in row["timings_ms"].items()},
            }
        )
        for row in await fetch_rows(conn, STATEMENTS["searches"], wanted)
    ]


def _hit(row: Mapping[str, Any]) -> LoggedHit:
    path = row["section_path"]
    return LoggedHit(**{**row, "section_path": None if path is None else tuple(path)})
