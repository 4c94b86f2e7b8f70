"""How a collection is searched and answers: hits, or the whole of a small one, then an answer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import get_args

import anyio

from ragpg import generate, rerank, retrieve
from ragpg.database import Connection
from ragpg.database.connections import is_read_only
from ragpg.faults import faults_named
from ragpg.filters import Filter, Where, as_filter
from ragpg.handle import CollectionHandle, Known
from ragpg.inputs import (
    checked_choice,
    checked_chunk_ids,
    checked_count,
    checked_hits,
    checked_text,
)
from ragpg.protocols import CorpusGenerator, Generator
from ragpg.retrieve import DEPTH, Weights
from ragpg.staging import record_usage
from ragpg.types import Answer, AnswerDelta, Expansion, Hits

UNLOGGED = "the server takes no writes, so neither this search nor what it cost was logged"


class SearchedCollection(CollectionHandle):
    """The part of a collection's handle that finds and answers."""

    async def retrieve(
        self,
        query: str,
        *,
        where: Where | None = None,
        k: int = 150,
        depth: int = DEPTH,
        weights: Weights = Weights(),  # noqa: B008  frozen
        exclude: Sequence[int] = (),
        after: int | None = None,
        deduplicate: bool = False,
        conn: Connection | None = None,
    ) -> Hits:
        """The `k` best hits of both arms, fused, best first; not reranked, not logged.

        `depth` is how many hits each arm gives, 1 to 1000: their list has up to twice as many, and
        a `k` above it deepens the search. To page, repeat the call with `after`, the chunk id of
        the last hit of the page before; `k` may change, the rest may not. A page shorter than `k`
        is the last one; where the list ends because of the depth `Hits.notices` says so.
        `deduplicate` gives each text once, the others as `Hit.duplicates`. `conn` is your own
        psycopg connection, whose transaction is used. Raises EmptyQueryError, FilterError,
        InputError (`after` is not in this search's list, or `k` is above `depth` with it),
        NotFoundError, ProviderError (the query could not be embedded).
        """
        retrieve.check_list(k=k, depth=depth, weights=weights, after=after)
        return (
            await self._retrieve(
                query,
                where=as_filter(where),
                k=k,
                depth=depth,
                weights=weights,
                exclude=checked_chunk_ids("exclude", exclude),
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
        depth: int,
        weights: Weights,
        exclude: Sequence[int],
        after: int | None,
        deduplicate: bool,
        conn: Connection | None,
    ) -> tuple[Hits, Sequence[float], Known]:
        query = retrieve.checked_query(query)
        known = await self._last_known(conn)
        while True:
            embedder = self._runtime.providers.embedder(known.recipe, self.name)
            started = time.perf_counter()
            with faults_named(embedder):
                embedded = await embedder.embed([query], purpose="query")
            embed_s = time.perf_counter() - started
            started = time.perf_counter()
            async with self.transaction(conn=conn, pipelined=True) as inside:
                expected, known = known, await self._read(inside)
                read_only = is_read_only(inside)
                if not read_only:
                    await record_usage(inside, known.collection_id, embedded.usage)
                # An alias that means another collection since: its own model has to embed.
                if known == expected:
                    hits = await retrieve.retrieve(
                        inside,
                        query,
                        collection=known.name,
                        embedding=embedded.vectors[0],
                        dimensions=known.recipe.dimensions,
                        where=where,
                        k=k,
                        depth=depth,
                        weights=weights,
                        exclude=exclude,
                        after=after,
                        deduplicate=deduplicate,
                    )
                    break
        timings = {"embed": embed_s, "retrieve": time.perf_counter() - started}
        hits = replace(hits, timings_s=timings, usage=embedded.usage)
        if read_only:
            hits = _unlogged(hits)
        return hits, embedded.vectors[0], known

    async def rerank(self, query: str, hits: Hits, *, k: int = 20) -> Hits:
        """The `k` best of these hits by the reranker, or the fused order with `degraded` set."""
        reranked = await self._rerank(query, hits, k=k)
        new = reranked.usage[len(hits.usage) :]
        if new:
            async with self.transaction(pipelined=True) as conn:
                known = await self._read(conn)
                if not is_read_only(conn):
                    await record_usage(conn, known.collection_id, new)
        return reranked

    async def _rerank(self, query: str, hits: Hits, *, k: int) -> Hits:
        checked_count("k", k)
        # Some of a whole corpus are no longer the whole.
        hits = replace(checked_hits(hits), query=checked_text("query", query), mode="retrieved")
        reranker = self._runtime.providers.reranker()
        if reranker is None or not hits:
            return replace(hits, hits=hits.hits[:k])
        return await rerank.rerank(
            hits, reranker, k=k, timeout_s=self._runtime.settings.rerank_timeout_s
        )

    async def expand(self, hits: Hits, unit: Expansion = "neighbours") -> Hits:
        """Every hit followed by the chunks around it, each chunk once, as hits of their own.

        `neighbours` are the chunk before and after, `section` the chunks under the same headings,
        at most 20 before and 20 after. `Hit.expanded_from` tells an added chunk. Raises InputError.
        """
        async with self.transaction(pipelined=True) as conn:
            return await retrieve.expand(conn, checked_hits(hits), collection=self.name, unit=unit)

    async def search(
        self,
        query: str,
        *,
        where: Where | None = None,
        k: int = 20,
        depth: int = DEPTH,
        weights: Weights = Weights(),  # noqa: B008  frozen
        exclude: Sequence[int] = (),
        after: int | None = None,
        expand: Expansion | None = None,
        deduplicate: bool = False,
    ) -> Hits:
        """The `k` best hits: `depth` retrieved and fused, then reranked; logged with its reasons.

        To page, repeat the call with `after`, the chunk id of the last hit of the page before;
        `k` may change, the rest may not. The list has at most `depth` hits, and `Hits.notices` says
        where it ends because of that. Each page reranks the whole list, and costs as much as the
        first. `exclude` leaves chunks out before reranking, so that others take their places.
        `deduplicate` gives each text once, before reranking; `expand` adds what stands around the
        `k` hits, after it. Raises as `retrieve` does.
        """
        retrieve.check_list(k=k, depth=depth, weights=weights, after=after)
        where = as_filter(where)
        if expand is not None:
            checked_choice("expand", expand, get_args(Expansion))
        candidates, embedding, known = await self._retrieve(
            query,
            where=where,
            k=max(k, depth),
            depth=depth,
            weights=weights,
            exclude=checked_chunk_ids("exclude", exclude),
            after=None,
            deduplicate=deduplicate,
            conn=None,
        )
        if after is None:
            shown = await self._rerank(candidates.query, candidates, k=k)
        else:
            retrieve.check_listed(candidates, after)
            reranked = await self._rerank(candidates.query, candidates, k=len(candidates))
            shown = retrieve.page(reranked, after=after, k=k, depth=depth)
        shown = await self._logged(known, candidates, shown, embedding=embedding, where=where, k=k)
        if expand is None:
            return shown
        async with self.transaction(pipelined=True) as conn:
            return await retrieve.expand(conn, shown, collection=known.name, unit=expand)

    async def ground(
        self,
        query: str,
        *,
        where: Where | None = None,
        k: int = 20,
        expand: Expansion | None = None,
        deduplicate: bool = False,
    ) -> Hits:
        """What `ask` answers from, for `stream`: a small collection whole, or a search's hits.

        The whole (`Hits.mode`) where the generator is a CorpusGenerator and what `where` lets
        through has at most the recipe's `whole_corpus_tokens`. It is in the order of document key
        and position, always the same, so that the vendor's prompt cache holds it for the next
        query; nothing is embedded, searched or reranked, and `k`, `expand` and `deduplicate` do
        not matter. Logged. Raises as `search` does.
        """
        query, where = retrieve.checked_query(query), as_filter(where)
        checked_count("k", k)
        started = time.perf_counter()
        whole, known = await self._whole_corpus(query, where)
        if whole is None:
            return await self.search(
                query, where=where, k=k, expand=expand, deduplicate=deduplicate
            )
        whole = replace(whole, timings_s={"read": time.perf_counter() - started})
        return await self._logged(known, whole, whole, embedding=None, where=where, k=k)

    async def generate(self, query: str, hits: Hits) -> Answer:
        """An answer from these hits alone, its citations verified. Raises ProviderError."""
        query, hits = checked_text("query", query), checked_hits(hits)
        generator = self._generator(await self._last_known())
        answer = await generate.generate(query, hits, generator)
        await self._record_answer(answer)
        return answer

    async def stream(self, query: str, hits: Hits) -> AsyncIterator[AnswerDelta | Answer]:
        """The same as it is written: deltas, then the whole Answer."""
        query, hits = checked_text("query", query), checked_hits(hits)
        generator = self._generator(await self._last_known())
        async for item in generate.stream(query, hits, generator):
            if isinstance(item, Answer):
                await self._record_answer(item)
            yield item

    async def ask(
        self,
        query: str,
        *,
        where: Where | None = None,
        k: int = 20,
        expand: Expansion | None = None,
        deduplicate: bool = False,
    ) -> Answer:
        """Search, then generate; a small collection is read whole instead, see `ground`.

        `Answer.mode` says which.
        """
        hits = await self.ground(query, where=where, k=k, expand=expand, deduplicate=deduplicate)
        return await self.generate(query, hits)

    async def _whole_corpus(self, query: str, where: Filter | None) -> tuple[Hits | None, Known]:
        known = await self._last_known()
        generator = self._generator(known)
        if not isinstance(generator, CorpusGenerator):
            return None, known
        async with self.transaction(pipelined=True) as conn:
            known = await self._read(conn)
            if not known.recipe.whole_corpus_tokens:
                return None, known
            tokens = min(known.recipe.whole_corpus_tokens, generator.max_corpus_tokens)
            whole = await retrieve.whole_corpus(
                conn, query, collection=known.name, where=where, max_tokens=tokens
            )
            return whole, known

    async def _logged(
        self,
        known: Known,
        candidates: Hits,
        shown: Hits,
        *,
        embedding: Sequence[float] | None,
        where: Filter | None,
        k: int,
    ) -> Hits:
        """`shown` with its number in the log, if there is to be one; reranking is billed here."""
        new = shown.usage[len(candidates.usage) :]
        logs = self._runtime.settings.log_searches
        if not logs and not new:
            return shown
        async with self.transaction(pipelined=True) as conn:
            if is_read_only(conn):
                return _unlogged(shown)
            await record_usage(conn, known.collection_id, new)
            if not logs:
                return shown
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

    def _generator(self, known: Known) -> Generator:
        providers = self._runtime.providers
        return providers.generator(providers.embedder(known.recipe, self.name))

    async def _record_answer(self, answer: Answer) -> None:
        # It is paid for, and so recorded also where nobody waits for it any more.
        with anyio.CancelScope(shield=True):
            await self._write_answer(answer)

    async def _write_answer(self, answer: Answer) -> None:
        async with self.transaction(pipelined=True) as conn:
            if is_read_only(conn):
                return
            known = await self._read(conn)
            await record_usage(conn, known.collection_id, answer.usage)
            if answer.hits.search_id is not None:
                # A passage that was added around a hit counts for the hit, which is in the log.
                found = {hit.chunk_id: hit.expanded_from or hit.chunk_id for hit in answer.hits}
                cited = [found[citation.chunk_id] for citation in answer.citations]
                await retrieve.log_citations(conn, answer.hits.search_id, cited)


def _unlogged(hits: Hits) -> Hits:
    """The same hits, which say that the log holds nothing of them."""
    if UNLOGGED in hits.notices:
        return hits
    return replace(hits, notices=(*hits.notices, UNLOGGED))
