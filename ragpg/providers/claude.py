"""Claude writes contexts: document first and cached, one call to warm up, then the others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from ragpg.context_batch import Sharing
from ragpg.errors import ProviderError
from ragpg.providers.claude_api import ClaudeApi, Counters, is_hopeless, refuses_text
from ragpg.providers.claude_prompt import (
    CONTEXT_CHUNK,
    CONTEXT_PROMPT_VERSION,
    ContextPrompt,
    Prefix,
    claude_tokens,
    context_of,
)
from ragpg.tokens import is_blank
from ragpg.types import Chunk, Document, Usage, WrittenContext

# What an answer counts in an estimate of cost: the prompt asks for 50 to 100.
_EXPECTED_OUTPUT_TOKENS = 100


@dataclass(slots=True)
class _Outage:
    """How many calls in a row failed after all their retries, and the error that ends it all.

    It is raised only when the calls in flight have ended: their answers are paid for.
    """

    limit: int
    in_a_row: int = field(default=0)
    ended_by: ProviderError | None = field(default=None)

    def seen(self, error: ProviderError | None) -> None:
        """Count; the end is a hopeless call, or more failed in a row than are in flight at once."""
        self.in_a_row = self.in_a_row + 1 if error is not None and error.retryable else 0
        if error is not None and (is_hopeless(error) or self.in_a_row > self.limit):
            self.ended_by = self.ended_by or error


class ClaudeContextWriter:
    """A ContextWriter on Claude; close it with `aclose`.

    Raises ConfigurationError without a key or for a prompt version that this release lacks.
    """

    provider = "claude"

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
        concurrency: int = 8,
    ) -> None:
        self.model = model
        self.prompt_version = prompt_version
        self._concurrency = concurrency
        self._prompt = ContextPrompt(model=model, version=prompt_version, glossary=glossary)
        self._api = ClaudeApi(
            api_key=api_key,
            model=model,
            base_url=base_url,
            timeout_s=timeout_s,
            deadline_s=deadline_s,
            concurrency=concurrency,
        )

    async def write(
        self, document: Document, chunks: Sequence[Chunk]
    ) -> AsyncIterator[WrittenContext]:
        """One WrittenContext per chunk, each as soon as it is there; failed ones have `error`.

        One is `refused` when Claude found the request at fault, or answered it, and was paid for
        that, without a context: the same again would cost the same.

        The first call of a document, or of each window of a long one, is awaited before the
        others start, because a cache entry can be read only once the response that wrote it has
        begun. Raises ProviderError where no chunk can succeed: a refused key, a vendor that is
        down for longer than the deadline.
        """
        for prefix in self._prompt.prefixes(document, chunks):
            waiting = deque(prefix.chunks)
            cached = prefix.ttl is not None
            warm = not cached
            while waiting and not warm:
                written, error = await self._one(prefix, waiting.popleft(), cached=False)
                if error is not None and (error.retryable or is_hopeless(error)):
                    raise error
                yield written
                warm = bool(written.usage)
            # Tasks and not a task group: a generator that is left half-way is closed by another
            # task, and a cancel scope may not be left by another task than entered it.
            running: set[asyncio.Task[tuple[WrittenContext, ProviderError | None]]] = set()
            outage = _Outage(limit=self._concurrency)
            try:
                while running or (waiting and outage.ended_by is None):
                    while waiting and len(running) < self._concurrency and outage.ended_by is None:
                        one = self._one(prefix, waiting.popleft(), cached=cached)
                        running.add(asyncio.create_task(one))
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        written, error = task.result()
                        outage.seen(error)
                        yield written
                if outage.ended_by is not None:
                    raise outage.ended_by
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    def estimate(
        self, document: Document, chunks: Sequence[Chunk], *, batch: bool = False
    ) -> Usage:
        """What `write`, or a batch, would use and cost, without a call; tokens are estimates.

        Cache reads are assumed only where a cache mark is set, which is not below the model's
        minimum, and for all chunks of a window but its first; in batches those are sent ahead.
        """
        cost: float | None = 0.0
        total = Counters(
            input_tokens=0, output_tokens=0, write_5m_tokens=0, write_1h_tokens=0, read_tokens=0
        )
        sharing: Sharing | None = "seed" if batch else None
        for prefix in self._prompt.prefixes(document, chunks, sharing=sharing):
            for place, chunk in enumerate(prefix.chunks):
                cached = prefix.tokens if prefix.ttl else 0
                fresh = _own_tokens(chunk)
                counted = Counters(
                    input_tokens=fresh + prefix.tokens - cached,
                    output_tokens=_EXPECTED_OUTPUT_TOKENS,
                    write_5m_tokens=cached if place == 0 and prefix.ttl == "5m" else 0,
                    write_1h_tokens=cached if place == 0 and prefix.ttl == "1h" else 0,
                    read_tokens=cached if place > 0 else 0,
                )
                total = total + counted
                one = self._api.usage(
                    "context", counted, duration_s=0.0, request_id=None, batch=batch
                )
                cost = None if cost is None or one.cost_usd is None else cost + one.cost_usd
        return Usage(
            provider="claude",
            model=self.model,
            operation="context",
            input_tokens=total.input_tokens,
            output_tokens=total.output_tokens,
            cache_write_tokens=total.write_5m_tokens + total.write_1h_tokens,
            cache_read_tokens=total.read_tokens,
            cost_usd=cost,
        )

    async def aclose(self) -> None:
        """Close the kept connections."""
        await self._api.aclose()

    async def _one(
        self, prefix: Prefix, chunk: Chunk, *, cached: bool
    ) -> tuple[WrittenContext, ProviderError | None]:
        """The chunk's context or its error; with the error itself where the call failed.

        `cached` says that the prefix is read from the cache, which no limit counts.
        """
        if is_blank(chunk.text):
            error = f"chunk {chunk.position} is blank and needs no context"
            return WrittenContext(
                position=chunk.position, context=None, error=error, refused=True
            ), None
        try:
            async with self._api.limiter:
                message, usage = await self._api.create(
                    "context",
                    self._prompt.params(prefix, chunk),
                    estimate=_own_tokens(chunk) + (0 if cached else prefix.tokens),
                )
        except ProviderError as failure:
            written = WrittenContext(
                position=chunk.position,
                context=None,
                error=str(failure),
                refused=refuses_text(failure),
            )
            return written, failure
        context, reason = context_of(message)
        return WrittenContext(
            position=chunk.position,
            context=context,
            error=reason,
            refused=context is None,
            usage=(usage,),
        ), None


def _own_tokens(chunk: Chunk) -> int:
    """About how many tokens a call has besides its prefix."""
    return claude_tokens(CONTEXT_CHUNK + chunk.table_header + chunk.text)
