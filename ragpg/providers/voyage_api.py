"""Calls of the Voyage SDK (0.5): its transport, its quirks, its errors as ragpg's."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import aiohttp
import anyio
import voyageai

from ragpg.errors import ProviderError, ProviderRejected
from ragpg.providers import prices
from ragpg.providers.failures import Vendor, failed, invalid, timed_out
from ragpg.providers.retry import Retry
from ragpg.types import Operation, Usage

# Untyped in an SDK that says it is typed.
_sdk = cast("Any", voyageai)
# "The max allowed tokens per submitted batch is ..", "Input exceeds the maximum context length".
_SIZE_WORDS = ("token", "too long", "too large", "too many", "context length")
_KEEP_CONNECTION_S = 60.0
_NO_DATA = "the answer holds no data, as that of an overloaded server (529)"


class TooLarge(ProviderRejected):
    """The request holds more than the vendor takes; half of it may pass."""


@dataclass(slots=True)
class _Session:
    """A pool of connections that belongs to one event loop, made at the first call."""

    loop: asyncio.AbstractEventLoop | None = None
    client: aiohttp.ClientSession | None = None

    def get(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self.client is None or self.client.closed or self.loop is not loop:
            self.loop = loop
            self.client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(keepalive_timeout=_KEEP_CONNECTION_S),
                trust_env=True,
            )
        return self.client

    async def close(self) -> None:
        if self.client is not None:
            await self.client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class VoyageApi:
    """One model of Voyage: requests with retries, and what they used. Close it with `aclose`.

    A call's `estimate` is how many tokens it may have, which its rate limit is charged beforehand.
    """

    model: str
    api_key: str = field(repr=False)
    base_url: str | None
    timeout_s: float
    deadline_s: float
    concurrency: int
    limiter: anyio.CapacityLimiter = field(init=False, repr=False)
    vendor: Vendor = field(init=False, repr=False)
    _session: _Session = field(init=False, repr=False, default_factory=_Session)

    def __post_init__(self) -> None:
        vendor = Vendor(
            provider="voyage",
            model=self.model,
            key_variable="VOYAGE_API_KEY",
            api_key=self.api_key,
        )
        object.__setattr__(self, "vendor", vendor)
        object.__setattr__(self, "limiter", anyio.CapacityLimiter(self.concurrency))

    async def embeddings(self, *, estimate: int, **params: Any) -> tuple[Any, Usage]:
        """The parsed answer of /embeddings and its usage. Raises ProviderError."""
        return await self._call(_sdk.Embedding, "embed", params, estimate)

    async def contextualized_embeddings(self, *, estimate: int, **params: Any) -> tuple[Any, Usage]:
        """The parsed answer of /contextualizedembeddings and its usage. Raises ProviderError."""
        return await self._call(_sdk.ContextualizedEmbedding, "embed", params, estimate)

    async def rerank(self, *, estimate: int, **params: Any) -> tuple[Any, Usage]:
        """The parsed answer of /rerank and its usage. Raises ProviderError."""
        return await self._call(_sdk.Reranking, "rerank", params, estimate)

    async def aclose(self) -> None:
        """Close the kept connections."""
        await self._session.close()

    async def _call(
        self, resource: Any, operation: Operation, params: dict[str, Any], estimate: int
    ) -> tuple[Any, Usage]:
        started = time.monotonic()
        retry = Retry(vendor=self.vendor, timeout_s=self.timeout_s, deadline_s=self.deadline_s)
        attempt = partial(self._attempt, resource, params)
        answer = await retry(attempt, tokens=_tokens, estimate=estimate)
        tokens = _tokens(answer)
        return answer, Usage(
            provider="voyage",
            model=self.model,
            operation=operation,
            input_tokens=tokens,
            cost_usd=prices.voyage_cost_usd(self.model, tokens),
            duration_s=time.monotonic() - started,
        )

    async def _attempt(self, resource: Any, params: dict[str, Any]) -> Any:
        # Without a session of ours the SDK opens, and closes, one for each call.
        token = voyageai.aiosession.set(self._session.get())
        try:
            # The resource and not AsyncClient: the client drops `index`, so that an answer in
            # another order would go unseen, and sends some model names to a local backend.
            answer = await resource.acreate(
                api_key=self.api_key,
                base_url=self.base_url and self.base_url.rstrip("/"),
                request_timeout=self.timeout_s,
                model=self.model,
                **params,
            )
        except (voyageai.error.VoyageError, aiohttp.ClientError) as error:
            raise self._failed(error) from error
        except AttributeError as error:
            # A 529 or another 5xx that the SDK does not know passes as a success without `data`.
            raise failed(self.vendor, None, _NO_DATA) from error
        except ValueError as error:
            # binascii.Error and numpy's complaint about a buffer of another size are ValueErrors.
            raise invalid(self.vendor, f"returned an unreadable vector ({error})") from error
        finally:
            voyageai.aiosession.reset(token)
        if "data" not in answer:
            raise failed(self.vendor, None, _NO_DATA)
        return answer

    def _failed(self, error: Exception) -> ProviderError:
        if isinstance(error, voyageai.error.Timeout):
            return timed_out(self.vendor, self.timeout_s)
        status = getattr(error, "http_status", None)
        message = getattr(error, "user_message", None) or str(error) or type(error).__name__
        if status is None and isinstance(error, voyageai.error.AuthenticationError):
            status = 401
        ours = failed(self.vendor, status, message, headers=getattr(error, "headers", None))
        about_size = any(word in message.lower() for word in _SIZE_WORDS)
        if status == 413 or (status in {400, 422} and about_size):  # noqa: PLR2004
            return TooLarge(str(ours), provider="voyage", model=self.model, status=status)
        return ours


def _tokens(answer: Any) -> int:
    return (answer.get("usage") or {}).get("total_tokens") or 0
