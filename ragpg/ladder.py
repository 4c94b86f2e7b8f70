"""The evaluation ladder: the same queries on one configuration after another, each adding a part.

Works on collections of its own, which it deletes at the end.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio

from ragpg import retrieve
from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.evaluate import LADDER_MEASURES, Measures, evaluate, failure_reduction, rank_of
from ragpg.evaluation_data import EvaluationData, Query
from ragpg.fanout import fan_out
from ragpg.ingestion import Ingestion
from ragpg.ingestion.tally import IngestProgress
from ragpg.protocols import ContextWriter
from ragpg.retrieve import Weights
from ragpg.types import Chunk, Document, Hits, Recipe, Span, WrittenContext

Progress = Callable[[str, int, int], None]
# As deep as a list is read; the deepest measure of the ladder looks at 20.
KEPT = 150
AT_ONCE = 4
FUSED, RERANKED = "+ contextual BM25", "+ rerank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One configuration and its measures; `reduction` is of 1 - recall@20, against the first."""

    name: str
    measures: Measures
    reduction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A judgement, and the rank of its id by rung, None beyond 150; `first` leads the last rung."""

    query_id: str
    query: str
    id: str
    ranks: Mapping[str, int | None]
    first: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """All rungs, and what they were measured on. `beside` stand beside the ladder, not on it."""

    directory: str
    level: str
    queries: int
    documents: int
    embedder: str
    context_writer: str
    reranker: str
    rungs: tuple[Rung, ...]
    beside: tuple[Rung, ...]
    judged: tuple[Judged, ...]


class GivenContextWriter:
    """Hands out contexts that were written before, by document key and chunk position."""

    provider = "given"
    model = "contexts.jsonl"
    prompt_version = 1

    def __init__(self, contexts: Mapping[tuple[str, int], str]) -> None:
        self._contexts = contexts

    async def write(
        self, document: Document, chunks: Sequence[Chunk]
    ) -> AsyncIterator[WrittenContext]:
        """The given context of each chunk, or the error that there is none."""
        for chunk in chunks:
            context = self._contexts.get((document.key, chunk.position))
            error = None if context else f"contexts.jsonl has none for {document.key!r}"
            yield WrittenContext(position=chunk.position, context=context, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An evaluation set as collections see it: documents by tenant, and ids of what is ranked."""

    data: EvaluationData
    tenants: Mapping[str, tuple[Document, ...]]
    spans: Mapping[str, Sequence[Span]] | None
    chunk_ids: Mapping[tuple[str, int], str]
    contexts: Mapping[tuple[str, int], str] | None

    def tenant_of(self, query: Query) -> str:
        """Whose documents the query asks; empty where the data names no tenant."""
        return _tenant(query.metadata)

    def ids(self, hits: Hits) -> list[str]:
        """What judgements name of these hits, best first: chunk ids, or each document once."""
        if self.spans is None:
            return list(dict.fromkeys(hit.document_key for hit in hits))
        return [self.chunk_ids[hit.document_key, hit.position] for hit in hits]


async def climb(
    client: AsyncClient,
    data: EvaluationData,
    *,
    directory: Path,
    progress: Progress,
    recipe: Recipe,
    weights: Weights,
) -> Ladder:
    """The ladder of the data read from a folder, with the providers of this client.

    Contexts come from contexts.jsonl if the folder has it, else from the recipe's writer; `weights`
    are those of the rungs that fuse.
    """
    plan = plan_of(data)
    bare = replace(recipe, context_provider="none", context_model="none")
    contextual = _contextual(plan, recipe)
    made: list[AsyncCollection] = []
    try:
        runs: dict[str, dict[str, list[str]]] = {}
        vectors = await embed_queries(client, plan, bare)
        for made_by, rungs in (
            (bare, {"dense": Weights(lexical=0)}),
            (
                contextual,
                {
                    "+ contexts": Weights(lexical=0),
                    "BM25 alone, with contexts": Weights(dense=0),
                    FUSED: weights,
                },
            ),
        ):
            handles = await ingest(client, plan, made_by, made, progress)
            runner = _Runner(plan=plan, handles=handles, vectors=vectors, progress=progress)
            for name, weighed in rungs.items():
                reranked = RERANKED if name == FUSED else None
                runs |= await runner.run(name, weighed, reranked=reranked)
    finally:
        for handle in made:
            await handle.drop()
    return _ladder(client, directory, plan, contextual, runs)


def _tenant(metadata: Mapping[str, object]) -> str:
    tenant = metadata.get("tenant")
    return tenant if isinstance(tenant, str) else ""


def plan_of(data: EvaluationData) -> Plan:
    """The documents by tenant, and given chunks as spans of their documents."""
    tenants: dict[str, list[Document]] = defaultdict(list)
    for document in data.documents:
        metadata = {key: value for key, value in document.metadata.items() if key != "tenant"}
        tenants[_tenant(document.metadata)].append(replace(document, metadata=metadata))
    frozen = {tenant: tuple(documents) for tenant, documents in tenants.items()}
    if data.chunks is None or data.level == "document":
        return Plan(data=data, tenants=frozen, spans=None, chunk_ids={}, contexts=None)
    spans: dict[str, list[Span]] = defaultdict(list)
    ids: dict[tuple[str, int], str] = {}
    contexts: dict[tuple[str, int], str] = {}
    for given in data.chunks:
        place = (given.document_key, len(spans[given.document_key]))
        spans[given.document_key].append(Span(start=given.chunk.start, stop=given.chunk.stop))
        ids[place] = given.id
        if data.contexts is not None and given.id in data.contexts:
            contexts[place] = data.contexts[given.id]
    return Plan(
        data=data,
        tenants=frozen,
        spans=spans,
        chunk_ids=ids,
        contexts=None if data.contexts is None else contexts,
    )


def _contextual(plan: Plan, recipe: Recipe) -> Recipe:
    if plan.contexts is None:
        return recipe
    return replace(
        recipe,
        context_provider=GivenContextWriter.provider,
        context_model=GivenContextWriter.model,
        context_prompt_version=GivenContextWriter.prompt_version,
    )


def _writer(client: AsyncClient, plan: Plan, recipe: Recipe) -> ContextWriter | None:
    if recipe.context_provider == GivenContextWriter.provider and plan.contexts is not None:
        return GivenContextWriter(plan.contexts)
    return client.providers.context_writer(recipe, "evaluation")


async def ingest(
    client: AsyncClient,
    plan: Plan,
    recipe: Recipe,
    made: list[AsyncCollection],
    progress: Progress,
) -> dict[str, AsyncCollection]:
    """New collections of the recipe by tenant, filled with the documents; appended to `made`."""
    handles = {}
    total, done = len(plan.data.documents), 0
    step = f"ingesting, contexts: {recipe.context_provider}"
    for tenant, documents in plan.tenants.items():
        handle = client.collection(
            tenant=f"ragpg evaluate {tenant}".strip(), name=f"evaluation {uuid.uuid4()}"
        )
        await client.create_tenant(handle.tenant)
        await handle.create(recipe)
        made.append(handle)
        ingestion = Ingestion(
            transaction=handle.transaction,
            collection=handle.name,
            collection_id=await handle.number(),
            recipe=recipe,
            embedder=client.providers.embedder(recipe, handle.name),
            context_writer=_writer(client, plan, recipe),
            from_files=False,
            given_spans=plan.spans,
            progress=_counting(progress, step, done, total),
        )
        await ingestion.run(_aiter(documents))
        done += len(documents)
        handles[tenant] = handle
    return handles


def _counting(
    progress: Progress, step: str, before: int, total: int
) -> Callable[[IngestProgress], None]:
    return lambda one: progress(step, before + one.documents, total)


async def _aiter(documents: Sequence[Document]) -> AsyncIterator[Document]:
    for document in documents:
        yield document


async def embed_queries(
    client: AsyncClient, plan: Plan, recipe: Recipe
) -> dict[str, Sequence[float]]:
    """The vector of each query by its id."""
    queries = plan.data.queries
    embedder = client.providers.embedder(recipe, "evaluation")
    embedded = await embedder.embed([query.text for query in queries], purpose="query")
    return {query.id: vector for query, vector in zip(queries, embedded.vectors, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runner:
    """Runs all queries of a plan on the collections of one recipe."""

    plan: Plan
    handles: Mapping[str, AsyncCollection]
    vectors: Mapping[str, Sequence[float]]
    progress: Progress

    async def run(
        self, name: str, weights: Weights, *, reranked: str | None
    ) -> dict[str, dict[str, list[str]]]:
        """Ranked ids by query, by name; `reranked` names the same hits after the reranker."""
        runs: dict[str, dict[str, list[str]]] = {name: {}}
        if reranked is not None:
            runs[reranked] = {}

        async def one(query: Query) -> None:
            handle = self.handles.get(self.plan.tenant_of(query))
            if handle is None:
                return
            hits = await self._retrieve(handle, query, weights)
            runs[name][query.id] = self.plan.ids(hits)
            if reranked is not None:
                best = await handle.rerank(hits.query, hits, k=KEPT)
                runs[reranked][query.id] = self.plan.ids(best)
            self.progress(name, len(runs[name]), len(self.plan.data.queries))

        queries = self.plan.data.queries
        await fan_out([partial(one, query) for query in queries], anyio.CapacityLimiter(AT_ONCE))
        return runs

    async def _retrieve(self, handle: AsyncCollection, query: Query, weights: Weights) -> Hits:
        async with handle.transaction() as conn:
            return await retrieve.retrieve(
                conn,
                retrieve.checked_query(query.text),
                collection=handle.name,
                embedding=self.vectors[query.id],
                dimensions=len(self.vectors[query.id]),
                where=None,
                k=KEPT,
                weights=weights,
                exclude=(),
                after=None,
                deduplicate=False,
            )


def _ladder(
    client: AsyncClient,
    directory: Path,
    plan: Plan,
    recipe: Recipe,
    runs: Mapping[str, Mapping[str, Sequence[str]]],
) -> Ladder:
    data = plan.data
    measured = {
        name: evaluate(data.qrels, run, LADDER_MEASURES, twins=data.twins)
        for name, run in runs.items()
    }
    first = measured["dense"].mean["miss@20"]
    rungs = {
        name: Rung(
            name=name,
            measures=measures,
            reduction=failure_reduction(first, measures.mean["miss@20"]),
        )
        for name, measures in measured.items()
    }
    on_it = ("dense", "+ contexts", FUSED, RERANKED)
    reranker = client.providers.reranker()
    return Ladder(
        directory=str(directory),
        level=data.level,
        queries=measured["dense"].queries,
        documents=len(data.documents),
        embedder=f"{recipe.embedding_provider} {recipe.embedding_model}",
        context_writer=f"{recipe.context_provider} {recipe.context_model}",
        reranker="none" if reranker is None else f"{reranker.provider} {reranker.model}",
        rungs=tuple(rungs[name] for name in on_it),
        beside=tuple(rung for name, rung in rungs.items() if name not in on_it),
        judged=tuple(_judged(data, runs)),
    )


def _judged(
    data: EvaluationData, runs: Mapping[str, Mapping[str, Sequence[str]]]
) -> Iterator[Judged]:
    texts = {query.id: query.text for query in data.queries}
    for qrel in data.qrels:
        ranks = {
            name: rank_of(qrel.id, run.get(qrel.query_id, ()), twins=data.twins)
            for name, run in runs.items()
        }
        best = runs[RERANKED].get(qrel.query_id)
        yield Judged(
            query_id=qrel.query_id,
            query=texts[qrel.query_id],
            id=qrel.id,
            ranks=ranks,
            first=best[0] if best else None,
        )
