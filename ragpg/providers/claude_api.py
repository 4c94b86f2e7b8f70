"""Calls of the Anthropic SDK (2.14, wire version 2026-10-21): transport, errors and usage."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import anthropic
import anyio
import httpx2
from anthropic.types import Message

from ragpg.errors import ProviderError
from ragpg.providers import prices
from ragpg.providers.failures import Vendor, failed, invalid, timed_out
from ragpg.providers.retry import Retry
from ragpg.types import Operation, Usage

# An error inside a stream comes with status 200; these are the statuses its types have elsewhere.
_STATUS_OF_TYPE = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "authentication_error": 401,
    "permission_error": 403,
}
# No other request would fare better: the key, the account, the model's name.
_HOPELESS = frozenset({401, 402, 403, 404})
# A spending limit that the user has set is a 400, as is an account without money: "You have reached
# your specified API usage limits", "Your credit balance is too low".
_ABOUT_THE_ACCOUNT = ("usage limit", "credit balance")
_ABOUT_THE_TEXT = {"invalid_request_error": 400, "request_too_large": 413}
# Models that know no `effort`.
_WITHOUT_EFFORT = ("claude-haiku-4-5", "claude-sonnet-4-5")
# Claude 4.7 and later count about 30 % more tokens than earlier ones, which are near WordPiece
# (platform.claude.com, models/haiku-5-5/migration-guide, October 2026).
TOKENS_PER_TOKEN = 1.3

SDK_ERRORS = (anthropic.APIError, httpx2.TransportError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What `usage` of an answer counts; the vendor leaves out or nulls all but two of them."""

    input_tokens: int
    output_tokens: int
    write_5m_tokens: int
    write_1h_tokens: int
    read_tokens: int

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            write_5m_tokens=self.write_5m_tokens + other.write_5m_tokens,
            write_1h_tokens=self.write_1h_tokens + other.write_1h_tokens,
            read_tokens=self.read_tokens + other.read_tokens,
        )


class ClaudeApi:
    """One Claude model: requests with retries, and what they used. Close it with `aclose`."""

    def __init__(
        self,
        *,
        api_key: str,
        model: str,
        base_url: str | None,
        timeout_s: float,
        deadline_s: float,
        concurrency: int,
    ) -> None:
        self.model = model
        self.vendor = Vendor(
            provider="claude", model=model, key_variable="ANTHROPIC_API_KEY", api_key=api_key
        )
        self.retry = Retry(vendor=self.vendor, timeout_s=timeout_s, deadline_s=deadline_s)
        self.limiter = anyio.CapacityLimiter(concurrency)
        # The key is passed always: without one the SDK looks for credential files on the disk.
        self.client = anthropic.AsyncAnthropic(
            api_key=api_key, base_url=base_url, timeout=timeout_s, max_retries=0
        )

    async def create(
        self, operation: Operation, params: dict[str, Any], *, estimate: int
    ) -> tuple[Message, Usage]:
        """A whole message and its usage. Raises ProviderError.

        `estimate` is how many tokens may count toward the limit a minute, as `limited_tokens` does.
        """
        started = time.monotonic()
        message = await self.retry(
            partial(self._create, params),
            tokens=lambda answer: limited_tokens(answer.usage),
            estimate=estimate,
        )
        usage = self.usage(
            operation,
            counters(message.usage),
            duration_s=time.monotonic() - started,
            request_id=message._request_id,  # noqa: SLF001 - public, by the SDK's README
        )
        return message, usage

    async def aclose(self) -> None:
        """Close the kept connections."""
        await self.client.close()

    def usage(
        self,
        operation: Operation,
        counted: Counters,
        *,
        duration_s: float,
        request_id: str | None,
        batch: bool = False,
    ) -> Usage:
        """The counters as a Usage with its cost; input is what no cache counter holds."""
        return Usage(
            provider="claude",
            model=self.model,
            operation=operation,
            input_tokens=counted.input_tokens,
            output_tokens=counted.output_tokens,
            cache_write_tokens=counted.write_5m_tokens + counted.write_1h_tokens,
            cache_read_tokens=counted.read_tokens,
            cost_usd=prices.claude_cost_usd(
                self.model,
                input_tokens=counted.input_tokens,
                output_tokens=counted.output_tokens,
                write_5m_tokens=counted.write_5m_tokens,
                write_1h_tokens=counted.write_1h_tokens,
                read_tokens=counted.read_tokens,
                batch=batch,
            ),
            duration_s=duration_s,
            request_id=request_id,
        )

    def failed(self, error: Exception) -> ProviderError:
        """What an error of the SDK or of its transport, httpx2, becomes."""
        if isinstance(error, anthropic.APITimeoutError | httpx2.TimeoutException):
            return timed_out(self.vendor, self.retry.timeout_s)
        if isinstance(error, anthropic.APIStatusError):
            status = error.status_code
            if status < 400:  # noqa: PLR2004
                status = _STATUS_OF_TYPE.get(error.type or "", 400)
            message = getattr(error, "api_message", None) or error.message
            # An account's own spending limit is a 429 that no waiting helps.
            spent = getattr(error, "error_code", None) == "enforced_spend_limit_reached"
            return failed(
                self.vendor,
                status,
                message,
                headers=error.response.headers,
                retryable=False if spent else None,
            )
        if isinstance(error, anthropic.APIResponseValidationError):
            return invalid(self.vendor, "returned a body that is no message")
        reason = error.__cause__ or error
        return failed(self.vendor, None, str(reason) or type(reason).__name__)

    async def _create(self, params: dict[str, Any]) -> Message:
        try:
            answer = await self.client.messages.create(**params)
        except SDK_ERRORS as error:
            raise self.failed(error) from error
        if not isinstance(answer, Message):
            # The SDK hands a 200 that is no JSON through as text.
            raise invalid(self.vendor, "returned a body that is no message")
        return answer


def is_hopeless(error: ProviderError) -> bool:
    """Whether no other text would fare better with this key and model."""
    return error.status in _HOPELESS or (error.status == 400 and _is_of_account(str(error)))  # noqa: PLR2004


def refuses_text(error: ProviderError) -> bool:
    """Whether the vendor found the request itself at fault, so that it would do so again."""
    return error.status in _ABOUT_THE_TEXT.values() and not is_hopeless(error)


def kind_refuses_text(kind: str, message: str) -> bool:
    """The same by the type of an error, as a batch has it."""
    return kind in _ABOUT_THE_TEXT and not _is_of_account(message)


def _is_of_account(message: str) -> bool:
    return any(words in message.lower() for words in _ABOUT_THE_ACCOUNT)


def effort(model: str, level: str) -> dict[str, Any]:
    """The `output_config` parameter that asks for this effort; empty for a model without."""
    return {} if model.startswith(_WITHOUT_EFFORT) else {"output_config": {"effort": level}}


def counters(usage: Any) -> Counters:
    """The counters of a message's usage, those that are null or absent as 0.

    Without a split by lifetime all cache writes count as those of five minutes.
    """
    written = usage.cache_creation_input_tokens or 0
    split = getattr(usage, "cache_creation", None)
    hour = (getattr(split, "ephemeral_1h_input_tokens", 0) or 0) if split else 0
    return Counters(
        input_tokens=usage.input_tokens or 0,
        output_tokens=usage.output_tokens or 0,
        write_5m_tokens=written - hour,
        write_1h_tokens=hour,
        read_tokens=usage.cache_read_input_tokens or 0,
    )


def limited_tokens(usage: Any) -> int:
    """The tokens of a message that count toward the limit a minute: cached reads do not."""
    counted = counters(usage)
    return counted.input_tokens + counted.write_5m_tokens + counted.write_1h_tokens
