"""One streamed message of Claude, read event by event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

from ragpg.errors import ProviderUnavailable
from ragpg.providers.claude_api import SDK_ERRORS, ClaudeApi
from ragpg.providers.claude_sources import Citer
from ragpg.types import AnswerDelta, Citation


@dataclass(slots=True)
class Block:
    """A text block as it grows."""

    text: str = ""
    citations: list[Citation] = field(default_factory=list)


class Stream:
    """The deltas of a message and, when they have ended, its blocks, stop reason and usage.

    Raw events, because the SDK's own accumulator fails with a bare AssertionError on a stream
    whose first event it did not see, and reports a stream that ends early as a whole message.
    """

    def __init__(self, api: ClaudeApi, response: Any, citer: Citer) -> None:
        self.citer = citer
        self.stop_reason: str | None = None
        self.refusal: str | None = None
        self.usage: Any = None
        self.request_id: str | None = response.response.headers.get("request-id")
        self._api = api
        self._response = response
        self._events: AsyncIterator[Any] = response.__aiter__()
        self._blocks: dict[int, Block] = {}

    @classmethod
    async def begin(
        cls, api: ClaudeApi, params: dict[str, Any], citer: Citer
    ) -> tuple[Stream, AnswerDelta | None]:
        """A stream that has begun to answer, and its first delta; None if it ended without one.

        Raises ProviderError, and nothing was shown then.
        """
        try:
            response = await api.client.messages.create(**params, stream=True)
        except SDK_ERRORS as error:
            raise api.failed(error) from error
        stream = cls(api, response, Citer(vendor=citer.vendor, sources=citer.sources))
        begun = False
        try:
            first = await stream.next_delta()
            begun = True
        except SDK_ERRORS as error:
            raise api.failed(error) from error
        finally:
            if not begun:
                await stream.close()
        return stream, first

    @property
    def text_blocks(self) -> list[Block]:
        """The text blocks in their order."""
        return [self._blocks[index] for index in sorted(self._blocks)]

    async def next_delta(self) -> AnswerDelta | None:
        """The next piece of text or citation, None after the message's proper end.

        Raises the SDK's or the transport's error, InvalidProviderResponse for a bad citation, and
        ProviderUnavailable when the stream ends without `message_stop`, which the SDK passes over.
        """
        async for event in self._events:
            if event.type == "message_stop":
                return None
            delta = self._take(event)
            if delta is not None:
                return delta
        raise ProviderUnavailable(
            f"claude {self._api.model} ended its stream before the end of the message; try again",
            provider="claude",
            model=self._api.model,
            request_id=self.request_id,
            retryable=True,
        )

    async def close(self) -> None:
        """Give the connection back."""
        await self._response.close()

    def _take(self, event: Any) -> AnswerDelta | None:
        """Note what an event says; unknown kinds of events and blocks are passed over."""
        if event.type == "message_start":
            self.usage = event.message.usage
        elif event.type == "message_delta":
            self.stop_reason = event.delta.stop_reason
            self.refusal = getattr(event.delta.stop_details, "category", None)
            # The counters are cumulative; those that are absent keep what the start said.
            for name, value in event.usage.to_dict().items():
                if value is not None and isinstance(value, int):
                    setattr(self.usage, name, value)
        elif event.type == "content_block_start" and event.content_block.type == "text":
            self._blocks[event.index] = Block()
            text = cast("str", event.content_block.text)
            return self._text(event.index, text) if text else None
        elif event.type == "content_block_delta" and event.index in self._blocks:
            if event.delta.type == "text_delta":
                return self._text(event.index, event.delta.text)
            if event.delta.type == "citations_delta":
                citation = self.citer.cite(event.delta.citation)
                self._blocks[event.index].citations.append(citation)
                return AnswerDelta(citation=citation)
        return None

    def _text(self, index: int, text: str) -> AnswerDelta:
        self._blocks[index].text += text
        return AnswerDelta(text=text)
