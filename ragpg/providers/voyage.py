"""Voyage: embeddings, contextualized embeddings of whole documents, reranking."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from ragpg.fanout import fan_out
from ragpg.providers.batches import batches, embed_batches
from ragpg.providers.checks import (
    checked_order,
    checked_vectors,
    require_query,
    rerank_texts,
)
from ragpg.providers.failures import invalid
from ragpg.providers.voyage_api import VoyageApi
from ragpg.tokens import count_tokens
from ragpg.types import Embedded, Hits, Purpose, Reranked, Usage

# Tokens a request by model: mongodb.com/docs/voyageai, October 2026.
_REQUEST_TOKENS = {
    "voyage-4": 320_000,
    "voyage-4-lite": 1_000_000,
    "voyage-code-4": 320_000,
    "voyage-3.5": 320_000,
    "voyage-3.5-lite": 1_000_000,
}
_LEAST_REQUEST_TOKENS = 120_000
# One document's chunks: 32K by the API reference; another page says that of the whole request.
CONTEXT_TOKENS = 32_000
RERANK_TOKENS = 600_000
# Voyage's own tokenizer is not in its SDK, and ours can count less than it does.
_MARGIN = 0.8
_WINDOW_TOKENS = int(_MARGIN * CONTEXT_TOKENS)

Dtype = Literal["float", "int8"]


class VoyageEmbedder:
    """An Embedder on Voyage's /embeddings; close it with `aclose`.

    A text that the model cannot take whole is refused (TextsRejected), never cut silently.
    """

    provider = "voyage"

    def __init__(
        self,
        *,
        api_key: str,
        model: str,
        dimensions: int,
        dtype: Dtype = "float",
        base_url: str | None = None,
        timeout_s: float = 60.0,
        deadline_s: float = 300.0,
        concurrency: int = 8,
    ) -> None:
        self.model = model
        self.dimensions = dimensions
        self._dtype = dtype
        self._api = VoyageApi(
            model=model,
            api_key=api_key,
            base_url=base_url,
            timeout_s=timeout_s,
            deadline_s=deadline_s,
            concurrency=concurrency,
        )

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        """One vector per text, in order, in as many requests as Voyage's limits need.

        Raises ProviderError; TextsRejected when only some texts are at fault.
        """
        limit = _REQUEST_TOKENS.get(self.model, _LEAST_REQUEST_TOKENS)
        request = partial(self._request, purpose)
        return await embed_batches(self._api, texts, request, max_tokens=int(_MARGIN * limit))

    async def aclose(self) -> None:
        """Close the kept connections."""
        await self._api.aclose()

    async def _request(
        self, purpose: Purpose, texts: Sequence[str], estimate: int
    ) -> tuple[list[list[float]], Usage]:
        answer, usage = await self._api.embeddings(
            estimate=round(estimate / _MARGIN),
            input=list(texts),
            input_type=purpose,
            truncation=False,
            output_dtype=self._dtype,
            output_dimension=self.dimensions,
        )
        return _vectors(self._api, answer["data"], len(texts), self.dimensions), usage


class VoyageContextEmbedder:
    """An Embedder and DocumentEmbedder on voyage-context-*; close it with `aclose`.

    The vector of a chunk knows the other chunks of its window, so no written context is needed.
    """

    provider = "voyage"

    def __init__(
        self,
        *,
        api_key: str,
        model: str,
        dimensions: int,
        dtype: Dtype = "float",
        base_url: str | None = None,
        timeout_s: float = 60.0,
        deadline_s: float = 300.0,
        concurrency: int = 8,
    ) -> None:
        self.model = model
        self.dimensions = dimensions
        self._dtype = dtype
        self._api = VoyageApi(
            model=model,
            api_key=api_key,
            base_url=base_url,
            timeout_s=timeout_s,
            deadline_s=deadline_s,
            concurrency=concurrency,
        )

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        """One vector per text, each read alone, in order. Raises ProviderError."""
        return await self._embed(texts, purpose, together=False)

    async def embed_document(self, chunks: Sequence[str]) -> Embedded:
        """One vector per chunk of one document, in order. Raises ProviderError.

        A document of more than 32K tokens is read in windows of whole consecutive chunks.
        """
        return await self._embed(chunks, "document", together=True)

    def windows(self, chunks: Sequence[str]) -> list[range]:
        """The runs of whole consecutive chunks that `embed_document` reads together."""
        tokens = [count_tokens(chunk) for chunk in chunks]
        return list(batches(tokens, max_tokens=_WINDOW_TOKENS))

    async def aclose(self) -> None:
        """Close the kept connections."""
        await self._api.aclose()

    async def _embed(self, texts: Sequence[str], purpose: Purpose, *, together: bool) -> Embedded:
        request = partial(self._request, purpose, together)
        return await embed_batches(self._api, texts, request, max_tokens=_WINDOW_TOKENS)

    async def _request(
        self,
        purpose: Purpose,
        together: bool,  # noqa: FBT001 - bound by partial in _embed
        texts: Sequence[str],
        estimate: int,
    ) -> tuple[list[list[float]], Usage]:
        inputs = [list(texts)] if together else [[text] for text in texts]
        answer, usage = await self._api.contextualized_embeddings(
            estimate=round(estimate / _MARGIN),
            inputs=inputs,
            input_type=purpose,
            output_dtype=self._dtype,
            output_dimension=self.dimensions,
        )
        documents = answer["data"]
        indices = [document["index"] for document in documents]
        checked_order(self._api.vendor, indices, count=len(inputs), what="documents")
        ordered = sorted(documents, key=lambda each: each["index"])
        vectors: list[list[float]] = []
        for document, chunks in zip(ordered, inputs, strict=True):
            vectors += _vectors(self._api, document["data"], len(chunks), self.dimensions)
        return vectors, usage


class VoyageReranker:
    """A Reranker on Voyage's /rerank; scores are 0..1 and comparable within one query only."""

    provider = "voyage"

    def __init__(
        self,
        *,
        api_key: str,
        model: str,
        base_url: str | None = None,
        timeout_s: float = 5.0,
        deadline_s: float = 5.0,
        concurrency: int = 8,
    ) -> None:
        self.model = model
        self._api = VoyageApi(
            model=model,
            api_key=api_key,
            base_url=base_url,
            timeout_s=timeout_s,
            deadline_s=deadline_s,
            concurrency=concurrency,
        )

    async def rerank(self, query: str, hits: Hits) -> Reranked:
        """One score per hit, in the order of `hits`; a blank hit is not sent and scores 0.

        More than 1,000 hits, or more tokens than a request takes, go out as several requests.
        Raises ProviderError.
        """
        require_query(query)
        places, texts = rerank_texts(hits)
        asked = count_tokens(query)
        tokens = [asked + count_tokens(text) for text in texts]
        spans = list(batches(tokens, max_tokens=int(_MARGIN * RERANK_TOKENS)))
        calls = [
            partial(
                self._request,
                query,
                [texts[i] for i in span],
                sum(tokens[i] for i in span),
            )
            for span in spans
        ]
        answers = await fan_out(calls, self._api.limiter)
        scores = [0.0] * len(hits)
        for span, (span_scores, _) in zip(spans, answers, strict=True):
            for i, score in zip(span, span_scores, strict=True):
                scores[places[i]] = score
        return Reranked(scores=tuple(scores), usage=tuple(usage for _, usage in answers))

    async def aclose(self) -> None:
        """Close the kept connections."""
        await self._api.aclose()

    async def _request(
        self, query: str, texts: list[str], estimate: int
    ) -> tuple[list[float], Usage]:
        answer, usage = await self._api.rerank(
            estimate=round(estimate / _MARGIN),
            query=query,
            documents=texts,
            top_k=None,
            truncation=True,
        )
        entries = answer["data"]
        indices = [entry["index"] for entry in entries]
        checked_order(self._api.vendor, indices, count=len(texts), what="scores")
        by_index = {entry["index"]: float(entry["relevance_score"]) for entry in entries}
        return [by_index[i] for i in range(len(texts))], usage


def _vectors(
    api: VoyageApi, entries: Sequence[Any], count: int, dimensions: int
) -> list[list[float]]:
    """The entries' vectors in the order of what was sent, whatever order they came in."""
    if len(entries) != count:
        raise invalid(api.vendor, f"returned {len(entries)} vectors for {count} texts")
    indices = [entry.get("index", place) for place, entry in enumerate(entries)]
    checked_order(api.vendor, indices, count=count, what="vectors")
    ordered = sorted(zip(indices, entries, strict=True), key=lambda pair: pair[0])
    return checked_vectors(
        api.vendor,
        [entry["embedding"] for _, entry in ordered],
        count=count,
        dimensions=dimensions,
    )
