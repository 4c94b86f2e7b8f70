"""One tenant's collection: every stage, with the tenant bound so that it cannot be forgotten."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio.to_thread

from ragpg import care, evaluate, generate, parse, rerank, retrieve
from ragpg.care import StaleDocument
from ragpg.collection_sync import How, SyncedCollection
from ragpg.database import Connection, fetch_rows
from ragpg.errors import DocumentNotFound
from ragpg.evaluate import Measures
from ragpg.filters import Filter
from ragpg.handle import Known
from ragpg.ingest import STATEMENTS as INGEST
from ragpg.ingest_sources import given, parsed
from ragpg.ingest_tally import IngestProgress
from ragpg.protocols import Generator
from ragpg.queued import enqueue, requeue
from ragpg.retrieve import Weights
from ragpg.staging import record_usage
from ragpg.types import (
    Answer,
    AnswerDelta,
    Document,
    DocumentFailure,
    Enqueued,
    Expansion,
    Hits,
    IngestReport,
    Qrel,
)


class AsyncCollection(SyncedCollection):
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

        The tenant and the collection are made, under the default recipe, if they are not there. A
        document that fails is in `report.failed` and the others go on. `recontextualize` writes
        new contexts for all chunks of the documents that changed. `batch` has contexts written at
        half the price within a day; without `wait`, or after an interruption, call it again or
        `resume`. Raises InputError (the recipe writes no batches), ProviderError or DatabaseError
        when nothing can go on; what was paid for by then is kept.
        """
        how = How(recontextualize=recontextualize, batch=batch, wait=wait, progress=progress)
        return await self._ingest(given(documents), how, from_files=False)

    async def ingest_files(
        self,
        paths: Sequence[Path],
        *,
        recontextualize: bool = False,
        batch: bool = False,
        wait: bool = True,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> IngestReport:
        """The same for files and whole folders; a document's key is its path below the folder."""
        found = await anyio.to_thread.run_sync(parse.find_files, paths)
        how = How(recontextualize=recontextualize, batch=batch, wait=wait, progress=progress)
        return await self._ingest(parsed(found), how, from_files=True)

    async def enqueue(
        self, documents: Iterable[Document], *, conn: Connection | None = None
    ) -> Enqueued:
        """Keep these documents for a worker (`ragpg worker`), which makes them live.

        `conn` is your own psycopg connection: documents and jobs are there when its transaction
        commits and not when it rolls back; the collection must exist. Without it they are written
        64 at a time. A newer version of a waiting document takes its place.
        """
        return await self._enqueue(given(documents), conn=conn, from_files=False)

    async def enqueue_files(self, paths: Sequence[Path]) -> Enqueued:
        """The same for files and whole folders, which are read and parsed here."""
        found = await anyio.to_thread.run_sync(parse.find_files, paths)
        return await self._enqueue(parsed(found), conn=None, from_files=True)

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

        Their last error stays until they succeed.
        """
        async with self.transaction() as conn:
            return await requeue(conn, self.name, keys)

    async def document(self, key: str) -> Document:
        """The live document of this key, with its full text. Raises DocumentNotFound."""
        async with self.transaction() as conn:
            rows = await fetch_rows(conn, INGEST["document"], {"collection": self.name, "key": key})
        if not rows:
            raise DocumentNotFound(f"collection {self.name!r} has no document {key!r}")
        row = rows[0]
        row["tags"], row["page_starts"] = tuple(row["tags"]), tuple(row["page_starts"])
        return Document(**row)

    async def delete(self, key: str) -> bool:
        """Delete a document with all its chunks, at once; False when there was none."""
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
        async with self.transaction() as conn:
            return await care.delete_expired(conn, self.name)

    async def retrieve(
        self,
        query: str,
        *,
        where: Filter | None = None,
        k: int = 150,
        weights: Weights = Weights(),  # noqa: B008  frozen
        exclude: Sequence[int] = (),
        after: int | None = None,
        deduplicate: bool = False,
        conn: Connection | None = None,
    ) -> Hits:
        """The `k` best hits of both arms, fused, best first; not reranked, not logged.

        `after` is the chunk id of the last hit of the page before. `deduplicate` gives each text
        once, the others as `Hit.duplicates`. `conn` is your own psycopg connection, whose
        transaction is used. Raises EmptyQueryError, FilterError, InputError (`after` is not in
        this search's list), NotFoundError, ProviderError (the query could not be embedded).
        """
        return (
            await self._retrieve(
                query,
                where=where,
                k=k,
                weights=weights,
                exclude=exclude,
                after=after,
                deduplicate=deduplicate,
                conn=conn,
            )
        )[0]

    async def _retrieve(
        self,
        query: str,
        *,
        where: Filter | None,
        k: int,
        weights: Weights,
        exclude: Sequence[int],
        after: int | None,
        deduplicate: bool,
        conn: Connection | None,
    ) -> tuple[Hits, Sequence[float], Known]:
        query = retrieve.checked_query(query)
        known = await self._load(conn)
        embedder = self._runtime.providers.embedder(known.recipe, self.name)
        started = time.perf_counter()
        embedded = await embedder.embed([query], purpose="query")
        embed_s = time.perf_counter() - started
        started = time.perf_counter()
        async with self.transaction(conn=conn) as inside:
            await record_usage(inside, known.collection_id, embedded.usage)
            hits = await retrieve.retrieve(
                inside,
                query,
                collection=known.name,
                embedding=embedded.vectors[0],
                dimensions=known.recipe.dimensions,
                where=where,
                k=k,
                weights=weights,
                exclude=exclude,
                after=after,
                deduplicate=deduplicate,
            )
        timings = {"embed": embed_s, "retrieve": time.perf_counter() - started}
        hits = replace(hits, timings_s=timings, usage=embedded.usage)
        return hits, embedded.vectors[0], known

    async def rerank(self, query: str, hits: Hits, *, k: int = 20) -> Hits:
        """The `k` best of these hits by the reranker, or the fused order with `degraded` set."""
        if hits.query != query:
            hits = replace(hits, query=query)
        reranker = self._runtime.providers.reranker()
        if reranker is None or not hits:
            return replace(hits, hits=hits.hits[:k])
        reranked = await rerank.rerank(
            hits, reranker, k=k, timeout_s=self._runtime.settings.rerank_timeout_s
        )
        new = reranked.usage[len(hits.usage) :]
        if new:
            known = await self._load()
            async with self.transaction() as conn:
                await record_usage(conn, known.collection_id, new)
        return reranked

    async def expand(self, hits: Hits, unit: Expansion = "neighbours") -> Hits:
        """Every hit followed by the chunks around it, each chunk once, as hits of their own.

        `neighbours` are the chunk before and after, `section` the chunks under the same headings,
        at most 20 before and 20 after. `Hit.expanded_from` tells an added chunk. Raises InputError.
        """
        async with self.transaction() as conn:
            return await retrieve.expand(conn, hits, collection=self.name, unit=unit)

    async def search(
        self,
        query: str,
        *,
        where: Filter | None = None,
        k: int = 20,
        depth: int = 150,
        expand: Expansion | None = None,
        deduplicate: bool = False,
    ) -> Hits:
        """The `k` best hits: `depth` retrieved and fused, then reranked; logged with its reasons.

        `deduplicate` gives each text once, before reranking; `expand` adds what stands around the
        `k` hits, after it.
        """
        candidates, embedding, known = await self._retrieve(
            query,
            where=where,
            k=max(k, depth),
            weights=Weights(),
            exclude=(),
            after=None,
            deduplicate=deduplicate,
            conn=None,
        )
        shown = await self.rerank(candidates.query, candidates, k=k)
        if expand is not None:
            async with self.transaction() as conn:
                shown = await retrieve.expand(conn, shown, collection=known.name, unit=expand)
        if not self._runtime.settings.log_searches:
            return shown
        async with self.transaction() as conn:
            search_id = await retrieve.log_search(
                conn,
                collection_id=known.collection_id,
                candidates=candidates,
                shown=shown,
                embedding=embedding,
                where=where,
                k=k,
            )
        return replace(shown, search_id=search_id)

    async def generate(self, query: str, hits: Hits) -> Answer:
        """An answer from these hits alone, its citations verified. Raises ProviderError."""
        answer = await generate.generate(query, hits, await self._generator())
        await self._record_answer(answer)
        return answer

    async def stream(self, query: str, hits: Hits) -> AsyncIterator[AnswerDelta | Answer]:
        """The same as it is written: deltas, then the whole Answer."""
        async for item in generate.stream(query, hits, await self._generator()):
            if isinstance(item, Answer):
                await self._record_answer(item)
            yield item

    async def ask(
        self,
        query: str,
        *,
        where: Filter | None = None,
        k: int = 20,
        expand: Expansion | None = None,
        deduplicate: bool = False,
    ) -> Answer:
        """Search, then generate."""
        hits = await self.search(query, where=where, k=k, expand=expand, deduplicate=deduplicate)
        return await self.generate(query, hits)

    async def evaluate(
        self,
        queries: Mapping[str, str],
        qrels: Iterable[Qrel],
        *,
        measures: Sequence[str] = ("ndcg@10", "recall@20", "rr"),
    ) -> Measures:
        """Measures of this collection's search on your own queries (text by id) and judgements.

        A qrel's id is a document key; a document counts at the rank of its first chunk.
        """
        run: dict[str, list[str]] = {}
        for query_id, query in queries.items():
            hits = await self.search(query, k=150)
            run[query_id] = list(dict.fromkeys(hit.document_key for hit in hits))
        return evaluate.evaluate(qrels, run, measures)

    async def _generator(self) -> Generator:
        known = await self._load()
        providers = self._runtime.providers
        return providers.generator(providers.embedder(known.recipe, self.name))

    async def _record_answer(self, answer: Answer) -> None:
        known = await self._load()
        async with self.transaction() as conn:
            await record_usage(conn, known.collection_id, answer.usage)
            if answer.hits.search_id is not None:
                # A passage that was added around a hit counts for the hit, which is in the log.
                found = {hit.chunk_id: hit.expanded_from or hit.chunk_id for hit in answer.hits}
                cited = [found[citation.chunk_id] for citation in answer.citations]
                await retrieve.log_citations(conn, answer.hits.search_id, cited)
