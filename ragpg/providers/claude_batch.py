"""Claude writes contexts in Message Batches: within a day, at half the price."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import anthropic
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse

from ragpg.context_batch import (
    BatchResult,
    BatchSearch,
    BatchStatus,
    ContextRequest,
    Sharing,
    was_refused,
)
from ragpg.errors import ProviderError, ProviderUnavailable
from ragpg.providers.claude_api import SDK_ERRORS, ClaudeApi, counters, kind_refuses_text
from ragpg.providers.claude_prompt import CONTEXT_PROMPT_VERSION, ContextPrompt, context_of
from ragpg.providers.failures import failed, invalid
from ragpg.providers.retry import Retry
from ragpg.tokens import is_blank
from ragpg.types import Chunk, Document

T = TypeVar("T")

# platform.claude.com build-with-claude/batch-processing, October 2026: 100,000 requests or 256 MB.
# A quarter of that, since each request repeats its document and the body is held in memory.
MAX_REQUESTS = 50_000
MAX_BYTES = 64_000_000
# An upload of 64 MB takes a minute and a half at 6 Mbit/s.
SUBMIT_TIMEOUT_S = 300.0
# A row may be older or newer than the vendor's clock says of its batch.
CLOCK_SKEW = dt.timedelta(minutes=5)
# Kinds of error that say nothing about the request.
_PASSING = frozenset({"api_error", "overloaded_error", "rate_limit_error", "timeout_error"})


class ClaudeBatchContextWriter:
    """A BatchContextWriter on Claude; close it with `aclose`.

    Raises ConfigurationError without a key or for a prompt version that this release lacks.
    """

    provider = "claude"
    max_requests = MAX_REQUESTS
    max_bytes = MAX_BYTES

    def __init__(
        self,
        *,
        api_key: str,
        model: str,
        prompt_version: int = CONTEXT_PROMPT_VERSION,
        glossary: str = "",
        base_url: str | None = None,
        timeout_s: float = 60.0,
        deadline_s: float = 300.0,
    ) -> None:
        self.model = model
        self.prompt_version = prompt_version
        self._prompt = ContextPrompt(model=model, version=prompt_version, glossary=glossary)
        self._api = ClaudeApi(
            api_key=api_key,
            model=model,
            base_url=base_url,
            timeout_s=timeout_s,
            deadline_s=deadline_s,
            concurrency=1,
        )
        # All models' batch calls have one limit of their own.
        vendor = replace(self._api.vendor, pool="message batches")
        self._retry = Retry(vendor=vendor, timeout_s=timeout_s, deadline_s=deadline_s)

    def requests(
        self, document: Document, chunks: Sequence[Chunk], *, sharing: Sharing = "at once"
    ) -> list[ContextRequest]:
        """One request per chunk that is not blank, those of one window with one cache mark.

        A hit is best effort inside a batch, and there is no warming up but a batch before it.
        """
        asked = []
        for number, prefix in enumerate(self._prompt.prefixes(document, chunks, sharing=sharing)):
            shared = _size(prefix.blocks)
            for chunk in prefix.chunks:
                if is_blank(chunk.text):
                    continue
                params = self._prompt.params(prefix, chunk)
                own = params["messages"][0]["content"][-1]
                size = shared + _size(own) + _size({**params, "messages": []})
                asked.append(
                    ContextRequest(
                        position=chunk.position,
                        params=params,
                        size=size,
                        prefix=number if prefix.ttl is not None else None,
                    )
                )
        return asked

    async def submit(self, requests: Mapping[str, ContextRequest]) -> str:
        """The vendor's id of a new batch of `requests` by custom id. Raises ProviderError.

        Only what the vendor has certainly refused is sent again: see `was_refused`.
        """
        body = [
            {"custom_id": custom_id, "params": dict(request.params)}
            for custom_id, request in requests.items()
        ]
        retry = replace(
            self._retry, timeout_s=2 * SUBMIT_TIMEOUT_S, deadline_s=2 * SUBMIT_TIMEOUT_S
        )
        answer = await retry(partial(self._create, body))
        if isinstance(answer, ProviderError):
            raise ProviderUnavailable(
                f"{answer}; the batch may have been accepted, so it is looked for before its "
                "contexts are asked for again",
                provider=self.provider,
                model=self.model,
                status=answer.status,
                request_id=answer.request_id,
                retryable=True,
            ) from answer
        return answer.id

    async def status(self, vendor_id: str) -> BatchStatus:
        """How far a batch is. Raises ProviderError, of status 404 for one that is not there."""
        batches = self._api.client.messages.batches
        return _status(await self._call(partial(batches.retrieve, vendor_id)))

    async def results(self, vendor_id: str) -> AsyncGenerator[BatchResult, None]:
        """One result per request of a batch that has ended, in any order, read as a stream.

        Raises ProviderError, also after some results and for a batch that has not ended.
        """
        batches = self._api.client.messages.batches
        lines = await self._call(partial(batches.results, vendor_id))
        try:
            async for line in lines:
                yield self._result(line)
        except SDK_ERRORS as error:
            raise self._api.failed(error) from error
        except json.JSONDecodeError as error:
            raise invalid(
                self._api.vendor, f"returned a result that is no JSON ({error})"
            ) from error
        finally:
            await lines.close()

    async def find(
        self, prefix: str, *, requests: int, since: dt.datetime, known: Collection[str]
    ) -> BatchSearch:
        """The batch since then of so many requests whose custom ids begin with `prefix`.

        The vendor's list shows no custom ids, and results come only when a batch has ended: until
        then any batch of the same length may be the one. Raises ProviderError.
        """
        undecided = False
        page = await self._call(partial(self._api.client.messages.batches.list, limit=100))
        while True:
            for batch in page.data:
                if batch.created_at < since - CLOCK_SKEW:
                    return BatchSearch(vendor_id=None, undecided=undecided)
                status = _status(batch)
                if batch.id in known or status.requests != requests:
                    continue
                if not status.ended:
                    undecided = True
                elif await self._begins_with(batch, prefix):
                    return BatchSearch(vendor_id=batch.id, undecided=False)
            if not page.has_next_page():
                return BatchSearch(vendor_id=None, undecided=undecided)
            page = await self._call(page.get_next_page)

    async def aclose(self) -> None:
        """Close the kept connections."""
        await self._api.aclose()

    async def _begins_with(self, batch: MessageBatch, prefix: str) -> bool:
        if batch.results_url is None:
            # Archived: its results are gone.
            return False
        async with aclosing(self.results(batch.id)) as results:
            async for result in results:
                return result.custom_id.startswith(prefix)
        return False

    async def _create(self, body: list[Any]) -> MessageBatch | ProviderError:
        """The batch, or as a value, which is not retried, an error that may have left one."""
        try:
            return await self._api.client.messages.batches.create(
                requests=body, timeout=SUBMIT_TIMEOUT_S
            )
        except SDK_ERRORS as error:
            failure = self._api.failed(error)
            if was_refused(failure):
                raise failure from error
            return failure

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        async def attempt() -> T:
            try:
                return await call()
            except SDK_ERRORS as error:
                raise self._api.failed(error) from error
            except anthropic.AnthropicError as error:
                # The SDK's own complaint that there are no results yet.
                raise failed(self._api.vendor, None, str(error), retryable=False) from error

        return await self._retry(attempt)

    def _result(self, line: MessageBatchIndividualResponse) -> BatchResult:
        result = line.result
        if result.type == "succeeded":
            context, error = context_of(result.message)
            usage = self._api.usage(
                "context",
                counters(result.message.usage),
                duration_s=0.0,
                request_id=result.message.id,
                batch=True,
            )
            return BatchResult(
                custom_id=line.custom_id,
                context=context,
                error=error,
                refused=context is None,
                usage=(usage,),
            )
        if result.type == "errored":
            kind, message = result.error.error.type, result.error.error.message
            return BatchResult(
                custom_id=line.custom_id,
                context=None,
                error=f"{self.model} answered {kind} in a batch: {message}",
                retryable=kind in _PASSING,
                refused=kind_refuses_text(kind, message),
            )
        return BatchResult(
            custom_id=line.custom_id,
            context=None,
            error=f"{self.model} did not get to it before the batch was over ({result.type})",
            retryable=True,
        )


def _status(batch: MessageBatch) -> BatchStatus:
    counts = batch.request_counts
    return BatchStatus(
        ended=batch.processing_status == "ended",
        processing=counts.processing,
        succeeded=counts.succeeded,
        errored=counts.errored,
        canceled=counts.canceled,
        expired=counts.expired,
    )


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())
