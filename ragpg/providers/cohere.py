"""Cohere: reranking by /v2/rerank."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import anyio
import cohere
import httpx
from cohere.core.api_error import ApiError

from ragpg.errors import ProviderError
from ragpg.fanout import fan_out
from ragpg.providers.checks import checked_order, require_query, rerank_texts
from ragpg.providers.failures import Vendor, failed, invalid, timed_out
from ragpg.providers.retry import Retry
from ragpg.types import Hits, Reranked, Usage

# docs.cohere.com/docs/rerank, November 2026: 10,000 documents at most, 1,000 recommended.
MAX_DOCUMENTS = 1_000
# Cohere's default, sent so that it is seen: longer texts are cut by Cohere. Our chunks are a tenth.
MAX_TOKENS_PER_DOC = 4_096


class CohereReranker:
    """A Reranker on Cohere; scores are 0..1 and comparable within one query only.

    Close it with `aclose`. `Usage.cost_usd` is None: search units have no public list price.
    """

    provider = "cohere"

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
        self._vendor = Vendor(
            provider="cohere", model=model, key_variable="CO_API_KEY", api_key=api_key
        )
        self._retry = Retry(vendor=self._vendor, timeout_s=timeout_s, deadline_s=deadline_s)
        self._limiter = anyio.CapacityLimiter(concurrency)
        # Our own transport, because the SDK's cannot be closed but through `async with`.
        self._transport = httpx.AsyncClient(timeout=timeout_s)
        self._client = cohere.AsyncClientV2(
            api_key=api_key,
            base_url=base_url,
            timeout=timeout_s,
            max_retries=0,
            httpx_client=self._transport,
        )

    async def rerank(self, query: str, hits: Hits) -> Reranked:
        """One score per hit, in the order of `hits`; a blank hit is not sent and scores 0.

        More than 1,000 hits go out as several requests. Raises ProviderError.
        """
        require_query(query)
        places, texts = rerank_texts(hits)
        spans = list(_spans(len(texts)))
        calls = [partial(self._request, query, [texts[i] for i in span]) for span in spans]
        answers = await fan_out(calls, self._limiter)
        scores = [0.0] * len(hits)
        for span, (span_scores, _) in zip(spans, answers, strict=True):
            for i, score in zip(span, span_scores, strict=True):
                scores[places[i]] = score
        return Reranked(scores=tuple(scores), usage=tuple(usage for _, usage in answers))

    async def aclose(self) -> None:
        """Close the kept connections."""
        await self._transport.aclose()

    async def _request(self, query: str, texts: list[str]) -> tuple[list[float], Usage]:
        started = time.monotonic()
        answer = await self._retry(partial(self._attempt, query, texts))
        entries = answer.results
        indices = [entry.index for entry in entries]
        checked_order(self._vendor, indices, count=len(texts), what="scores")
        by_index = {entry.index: float(entry.relevance_score) for entry in entries}
        billed = answer.meta.billed_units if answer.meta else None
        tokens = int(billed.input_tokens or 0) if billed else 0
        usage = Usage(
            provider="cohere",
            model=self.model,
            operation="rerank",
            input_tokens=tokens,
            duration_s=time.monotonic() - started,
            request_id=answer.id,
        )
        return [by_index[i] for i in range(len(texts))], usage

    async def _attempt(self, query: str, texts: list[str]) -> Any:
        try:
            return await self._client.rerank(
                model=self.model,
                query=query,
                documents=texts,
                max_tokens_per_doc=MAX_TOKENS_PER_DOC,
                request_options={"max_retries": 0},
            )
        except ApiError as error:
            raise self._failed(error) from error
        except httpx.TimeoutException as error:
            raise timed_out(self._vendor, self._retry.timeout_s) from error
        except httpx.HTTPError as error:
            # The SDK lets the transport's own errors through.
            raise failed(self._vendor, None, str(error) or type(error).__name__) from error

    def _failed(self, error: ApiError) -> ProviderError:
        body, status = error.body, error.status_code
        message = body.get("message") if isinstance(body, Mapping) else body
        if status is not None and status < 400:  # noqa: PLR2004
            # A proxy's page, say: the SDK makes an ApiError of a 200 that is no JSON.
            return invalid(self._vendor, f"answered {status} with a body that is no JSON")
        return failed(self._vendor, status, str(message or "no message"), headers=error.headers)


def _spans(count: int) -> Iterator[range]:
    for start in range(0, count, MAX_DOCUMENTS):
        yield range(start, min(start + MAX_DOCUMENTS, count))
