"""One tenant's collection: every stage, with the tenant bound so that it cannot be forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import anyio.to_thread

from ragpg import care, evaluate, parse, retention
from ragpg.care import StaleDocument
from ragpg.collection.search import SearchedCollection
from ragpg.collection.sync import How, SyncedCollection
from ragpg.database import Connection, fetch_rows, statements
from ragpg.documents import DocumentOverview, list_documents
from ragpg.errors import DocumentNotFound, InputError
from ragpg.evaluate import Measures
from ragpg.ingest import STATEMENTS as INGEST
from ragpg.ingestion.queued import enqueue, requeue
from ragpg.ingestion.sources import given, parsed
from ragpg.ingestion.tally import IngestProgress
from ragpg.inputs import checked_key, checked_texts, shown
from ragpg.types import (
    Document,
    DocumentFailure,
    Enqueued,
    IngestReport,
    Qrel,
    StrPath,
)

SYNC = statements("sync")


class AsyncCollection(SyncedCollection, SearchedCollection):
    """One tenant's collection; the tenant cannot be forgotten, since it is bound here."""

    async def ingest(
        self,
        documents: Iterable[Document],
        *,
        recontextualize: bool = False,
        batch: bool = False,
        wait: bool = True,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> IngestReport:
        """Make these documents live, each whole and at once; unchanged ones cost nothing.

        The collection is made, under the default recipe, if it is not there, and so is the tenant
        unless `Settings.create_tenants` is off. A document that fails is in `report.failed` and the
        others go on. `recontextualize` writes new contexts for all chunks of the documents that
        changed. `batch` has contexts written at half the price within a day; without `wait`, or
        after an interruption, call it again or `resume`. Raises InputError (the recipe writes no
        batches), TenantNotFound, ProviderError or DatabaseError when nothing can go on; what was
        paid for by then is kept.
        """
        how = How(recontextualize=recontextualize, batch=batch, wait=wait, progress=progress)
        return await self._ingest(given(documents), how, from_files=False)

    async def ingest_files(
        self,
        paths: StrPath | Iterable[StrPath],
        *,
        recontextualize: bool = False,
        batch: bool = False,
        wait: bool = True,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> IngestReport:
        """The same for files and whole folders; a document's key is its path below the folder.

        `report.passed_over` names what is not read; a folder that cannot be read is a failure.
        """
        found = await anyio.to_thread.run_sync(parse.find_files, paths)
        how = How(recontextualize=recontextualize, batch=batch, wait=wait, progress=progress)
        report = await self._ingest(parsed(found.files), how, from_files=True)
        return replace(
            report, failed=(*found.failed, *report.failed), passed_over=found.passed_over
        )

    async def enqueue(
        self, documents: Iterable[Document], *, conn: Connection | None = None
    ) -> Enqueued:
        """Keep these documents for a worker (`ragpg worker`), which makes them live.

        `conn` is your own psycopg connection: documents and jobs are there when its transaction
        commits and not when it rolls back; the collection must exist. Without it they are written
        64 at a time. A newer version of a waiting document takes its place.
        """
        return await self._enqueue(given(documents), conn=conn, from_files=False)

    async def enqueue_files(self, paths: StrPath | Iterable[StrPath]) -> Enqueued:
        """The same for files and whole folders, which are read and parsed here."""
        found = await anyio.to_thread.run_sync(parse.find_files, paths)
        done = await self._enqueue(parsed(found.files), conn=None, from_files=True)
        return replace(done, failed=(*found.failed, *done.failed), passed_over=found.passed_over)

    async def _enqueue(
        self,
        documents: AsyncIterator[Document | DocumentFailure],
        *,
        conn: Connection | None,
        from_files: bool,
    ) -> Enqueued:
        if conn is None:
            await self.create()
        known = await self._load(conn)
        transaction = partial(self.transaction, conn=conn)
        return await enqueue(
            transaction, known.name, known.collection_id, documents, from_files=from_files
        )

    async def retry(self, keys: Sequence[str] | None = None) -> int:
        """How many documents that failed wait for a worker again; without keys, all of them.

        Their last error stays until they succeed. Raises InputError for keys that are no list.
        """
        keys = None if keys is None else checked_texts("keys", keys)
        async with self.transaction() as conn:
            return await requeue(conn, self.name, keys)

    async def document(self, key: str) -> Document:
        """The live document of this key, with its full text.

        Raises DocumentNotFound, also for one that has expired, which no search finds either.
        """
        checked_key(key)
        async with self.transaction() as conn:
            rows = await fetch_rows(conn, INGEST["document"], {"collection": self.name, "key": key})
        if not rows:
            raise DocumentNotFound(
                f"collection {self.name!r} has no document {key!r}; documents() lists what is live"
            )
        row = rows[0]
        if row.pop("expired"):
            raise DocumentNotFound(
                f"document {key!r} of collection {self.name!r} expired at"
                f" {row['expires_at'].isoformat()}; ingest it with another time to have it back"
            )
        row["tags"], row["page_starts"] = tuple(row["tags"]), tuple(row["page_starts"])
        return Document(**row)

    async def documents(
        self, *, key_prefix: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[DocumentOverview]:
        """Live documents by key, without their texts, at most `limit` (1 to 1000).

        One that has expired is not among them, though not yet deleted. `after` is the key of the
        last one of the page before. Raises CollectionNotFound.
        """
        async with self.transaction(pipelined=True) as conn:
            return await list_documents(
                conn, self.name, key_prefix=key_prefix, after=after, limit=limit
            )

    async def rename(self, key: str, to: str) -> None:
        """Give a live document another key; it keeps its chunks, and no vendor is called.

        Raises DocumentNotFound, ConflictError where `to` is the key of another one, DocumentError
        where it can be none.
        """
        keys = {"from_key": checked_key(key), "to_key": to}
        parse.check_key(to)
        async with self.transaction() as conn:
            await conn.execute(SYNC["rename_document"], {"collection": self.name, **keys})

    async def delete(self, key: str) -> bool:
        """Delete a document with all its chunks, at once; False when there was none."""
        checked_key(key)
        async with self.transaction() as conn:
            rows = await fetch_rows(
                conn, INGEST["delete_document"], {"collection": self.name, "key": key}
            )
        return bool(rows[0]["deleted"])

    async def stale(self, *, unmodified_days: int | None = None) -> list[StaleDocument]:
        """Documents whose `review_by` has passed, longest overdue first.

        `unmodified_days` adds those that were last modified so many days ago or earlier.
        """
        async with self.transaction() as conn:
            return await care.stale_documents(conn, self.name, unmodified_days=unmodified_days)

    async def expire(self) -> tuple[str, ...]:
        """Delete the documents whose `expires_at` has come; their keys."""
        return await retention.delete_expired(self.transaction, self.name)

    async def evaluate(
        self,
        queries: Mapping[str, str],
        qrels: Iterable[Qrel],
        *,
        measures: Sequence[str] = ("ndcg@10", "recall@20", "rr"),
    ) -> Measures:
        """Measures of this collection's search on your own queries (text by id) and judgements.

        A qrel's id is a document key; a document counts at the rank of its first chunk. Raises
        InputError where a judgement is about a query that is not among them.
        """
        if not isinstance(queries, Mapping):
            raise InputError(
                f"queries is {shown(queries)}; give texts by id, such as {{'q1': 'How long?'}}"
            )
        qrels = tuple(qrels)
        unknown = [
            qrel for qrel in qrels if isinstance(qrel, Qrel) and qrel.query_id not in queries
        ]
        if unknown:
            raise InputError(
                f"{shown(unknown[0])} is about a query that is not given; add it, or leave it out"
            )
        run: dict[str, list[str]] = {}
        for query_id, query in queries.items():
            hits = await self.search(query, k=150)
            run[query_id] = list(dict.fromkeys(hit.document_key for hit in hits))
        return evaluate.evaluate(qrels, run, measures)
