"""A collection made to mirror a folder: renames, then additions and changes, then removals.

Only documents that a sync of the same folder made are removed or renamed; others are left alone.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from ragpg import parse
from ragpg.database import fetch_rows, statements
from ragpg.errors import ConflictError, InputError, NotFoundError
from ragpg.ingestion.plan import REMOVAL_SHARE, Plan
from ragpg.inputs import without_middle
from ragpg.json_form import JsonForm
from ragpg.staging import Transaction, hold_collection
from ragpg.types import DocumentFailure, IngestReport, StrPath

STATEMENTS = statements("sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport(JsonForm):
    """What a sync did: `renamed` by old key, `removed`, and `foreign` documents, left alone.

    `ingested` is what came of the documents that are in the folder; unchanged ones are in it.
    """

    ingested: IngestReport
    renamed: dict[str, str]
    removed: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    failed: tuple[DocumentFailure, ...] = ()


def folder_root(folder: StrPath) -> str:
    """What the sync of a folder goes by: its absolute path. Raises InputError for what is none."""
    path = parse.as_path(folder)
    if not os.path.isdir(path):  # noqa: PTH112  Path.is_dir raises where a folder above is shut
        raise InputError(
            f"{without_middle(path)} is not a folder; sync a folder, or ingest single files"
        )
    return str(path.resolve())


def check_removals(plan: Plan, *, allowed: bool) -> None:
    """Raises InputError for a plan that removes more than a tenth without being allowed to."""
    removed = len(plan.keys("remove"))
    if plan.removes_much and not allowed:
        raise InputError(
            f"the sync of {plan.root} would remove {removed} of {plan.live} live documents, more"
            f" than {REMOVAL_SHARE:.0%}; check the folder, then allow it with --yes"
            " (allow_removals=True)"
        )


async def apply(
    plan: Plan,
    found: parse.FoundFiles,
    *,
    transaction: Transaction,
    collection: str,
    collection_id: int,
    ingest: Callable[[Sequence[parse.SourceFile]], Awaitable[IngestReport]],
) -> SyncReport:
    """Carry a plan out; `ingest` makes the files live that the plan adds, updates or fails.

    Each document changes at once and on its own, so a sync that is interrupted is finished by the
    next one. What changed since the plan was made is left for the next sync and reported.
    """
    home = {"collection": collection, "collection_id": collection_id, "root": plan.root}
    failed: list[DocumentFailure] = []
    renamed: dict[str, str] = {}
    for document in plan.documents:
        if document.action != "rename" or document.from_key is None:
            continue
        moved = home | {"from_key": document.from_key, "to_key": document.key}
        try:
            async with transaction() as conn:
                await conn.execute(STATEMENTS["rename_document"], moved)
        except (ConflictError, NotFoundError) as exc:
            wanted = moved | {"content_hash": plan.hashes[document.from_key]}
            async with transaction() as conn:
                rows = await fetch_rows(conn, STATEMENTS["is_renamed"], wanted)
            if not rows[0]["done"]:
                failed.append(_conflict(document.key, str(exc)))
                continue
        renamed[document.from_key] = document.key
    in_folder = [file.key for file in found.files]
    async with transaction() as conn:
        await hold_collection(conn, collection_id)
        await conn.execute(STATEMENTS["own_keys"], home | {"keys": in_folder})
    changed = set(plan.keys("add", "update", "fail"))
    report = await ingest([file for file in found.files if file.key in changed])
    removed = []
    for key in plan.keys("remove"):
        doomed = home | {"key": key, "content_hash": plan.hashes[key]}
        async with transaction() as conn:
            rows = await fetch_rows(conn, STATEMENTS["delete_version"], doomed)
        if rows[0]["gone"]:
            removed.append(key)
        else:
            failed.append(
                _conflict(key, f"document {key!r} is another than the plan saw; sync again")
            )
    left = {failure.key for failure in failed}
    unseen = {"keys": [*in_folder, *left], "folders": [failure.key for failure in found.failed]}
    async with transaction() as conn:
        await conn.execute(STATEMENTS["disown_keys"], home | unseen)
    unchanged = (*plan.keys("unchanged"), *report.unchanged)
    return SyncReport(
        ingested=replace(
            report,
            unchanged=unchanged,
            failed=(*found.failed, *report.failed),
            passed_over=found.passed_over,
        ),
        renamed=renamed,
        removed=tuple(removed),
        foreign=tuple(plan.keys("foreign")),
        failed=tuple(failed),
    )


def _conflict(key: str, message: str) -> DocumentFailure:
    return DocumentFailure(key=key, reason="conflict", message=message, retryable=True)
