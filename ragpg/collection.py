"""One tenant's collection: every stage, with the tenant bound so that it cannot be forgotten."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import anyio.to_thread
from psycopg.types.json import Jsonb

from ragpg import evaluate, generate, parse, rerank, retrieve
from ragpg.database import Connection, fetch_rows, statements
from ragpg.errors import (
    CollectionExists,
    CollectionNotFound,
    DocumentNotFound,
    RecipeMismatch,
)
from ragpg.evaluate import Measures
from ragpg.filters import Filter
from ragpg.ingest import STATEMENTS as INGEST
from ragpg.ingestion import Ingestion, IngestProgress, given, parsed
from ragpg.protocols import Generator
from ragpg.retrieve import Weights
from ragpg.runtime import Runtime
from ragpg.staging import record_usage
from ragpg.types import (
    Answer,
    AnswerDelta,
    Document,
    DocumentFailure,
    Expansion,
    Hits,
    IngestReport,
    Qrel,
    Recipe,
)

STATEMENTS = statements("client")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is stored of a collection, read once per handle."""

    collection_id: int
    recipe: Recipe


class AsyncCollection:
    """One tenant's collection; the tenant cannot be forgotten, since it is bound here."""

    def __init__(self, runtime: Runtime, *, tenant: str, name: str) -> None:
        self._runtime = runtime
        self.tenant = tenant
        self.name = name
        self._known: _Known | None = None

    async def create(self, recipe: Recipe | None = None) -> Recipe:
        """Make the tenant, if need be, and the collection under `recipe`, or the default one.

        A collection that exists under the same recipe is left as it is. Raises RecipeMismatch when
        it exists under another, CollectionExists when the name is an alias.
        """
        async with self._runtime.transaction(None) as conn:
            await conn.execute(STATEMENTS["create_tenant"], {"key": self.tenant})
        wanted = recipe or self._runtime.providers.default_recipe()
        try:
            async with self.transaction() as conn:
                await conn.execute(
                    STATEMENTS["create_collection"],
                    {"name": self.name, "recipe": Jsonb(asdict(wanted))},
                )
        except CollectionExists:
            stored = (await self._load()).recipe
            if recipe is not None and stored != wanted:
                raise _other_recipe(self.name, stored, wanted) from None
            return stored
        return wanted

    async def recipe(self) -> Recipe:
        """The recipe of this collection. Raises CollectionNotFound."""
        return (await self._load()).recipe

    async def number(self) -> int:
        """The number by which SQL knows this collection. Raises CollectionNotFound."""
        return (await self._load()).collection_id

    async def set_alias(self, alias: str) -> None:
        """Make `alias` mean this collection from now on."""
        async with self.transaction() as conn:
            await conn.execute(STATEMENTS["set_alias"], {"alias": alias, "collection": self.name})

    async def drop(self) -> None:
        """Delete this collection with everything in it."""
        async with self.transaction() as conn:
            await conn.execute(STATEMENTS["delete_collection"], {"collection": self.name})
        self._known = None

    async def ingest(
        self,
        documents: Iterable[Document],
        *,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> IngestReport:
        """Make these documents live, each whole and at once; unchanged ones cost nothing.

        The tenant and the collection are made, under the default recipe, if they are not there. A
        document that fails is in `report.failed` and the others go on. Raises ProviderError or
        DatabaseError when nothing can go on; what was paid for by then is kept.
        """
        return await self._ingest(given(documents), progress=progress, from_files=False)

    async def ingest_files(
        self,
        paths: Sequence[Path],
        *,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> IngestReport:
        """The same for files and whole folders; a document's key is its path below the folder."""
        found = await anyio.to_thread.run_sync(parse.find_files, paths)
        return await self._ingest(parsed(found), progress=progress, from_files=True)

    async def _ingest(
        self,
        documents: AsyncIterator[Document | DocumentFailure],
        *,
        progress: Callable[[IngestProgress], None] | None,
        from_files: bool,
    ) -> IngestReport:
        await self.create()
        known = await self._load()
        providers = self._runtime.providers
        ingestion = Ingestion(
            transaction=self.transaction,
            collection=self.name,
            collection_id=known.collection_id,
            recipe=known.recipe,
            embedder=providers.embedder(known.recipe, self.name),
            context_writer=providers.context_writer(known.recipe, self.name),
            from_files=from_files,
            progress=progress,
        )
        return await ingestion.run(documents)

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
    ) -> tuple[Hits, Sequence[float]]:
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
                collection=self.name,
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
        return hits, embedded.vectors[0]

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
        candidates, embedding = await self._retrieve(
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
            shown = await self.expand(shown, expand)
        if not self._runtime.settings.log_searches:
            return shown
        known = await self._load()
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

    @asynccontextmanager
    async def transaction(self, *, conn: Connection | None = None) -> AsyncIterator[Connection]:
        """A psycopg connection in a transaction in which this collection's tenant is set."""
        async with self._runtime.transaction(self.tenant, conn=conn) as inside:
            yield inside

    async def _load(self, conn: Connection | None = None) -> _Known:
        if self._known is None:
            async with self.transaction(conn=conn) as inside:
                rows = await fetch_rows(inside, STATEMENTS["collection"], {"collection": self.name})
            if not rows:
                raise CollectionNotFound(f"tenant {self.tenant!r} has no {self.name!r}")
            row = rows[0]
            row["facets"] = tuple(row["facets"])
            names = [each.name for each in fields(Recipe)]
            self._known = _Known(
                collection_id=row["collection_id"],
                recipe=Recipe(**{name: row[name] for name in names}),
            )
        return self._known


def _other_recipe(name: str, stored: Recipe, wanted: Recipe) -> RecipeMismatch:
    different = [
        f"{each.name} {getattr(stored, each.name)!r} (wanted {getattr(wanted, each.name)!r})"
        for each in fields(Recipe)
        if getattr(stored, each.name) != getattr(wanted, each.name)
    ]
    return RecipeMismatch(
        f"collection {name!r} was made with {', '.join(different)}; a changed recipe is a new"
        " collection: make one, ingest into it and swap the alias"
    )
