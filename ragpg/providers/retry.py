"""The one place that retries a vendor's call, and holds it back; the SDKs' own retries are off.

The three SDKs disagree on what is retried and obey `retry-after` without a cap or not at all, so
the policy is here, once: by `ProviderError.retryable`, exponential with jitter, within a deadline.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio
import stamina

from ragpg.errors import ProviderError, RateLimited
from ragpg.providers import limiter
from ragpg.providers.failures import Vendor, timed_out

T = TypeVar("T")

# Rate limits are per minute, so no vendor has a reason to ask for more than one.
MAX_WAIT_S = 60.0
_FIRST_WAIT_S = 1.0
_NAME = "ragpg"
_logger = logging.getLogger("ragpg")


def _is_not_ours(record: logging.LogRecord) -> bool:
    return record.__dict__.get("stamina.callable") != _NAME


# stamina logs each retry too, with the whole message of the error, which may quote a text.
logging.getLogger("stamina").addFilter(_is_not_ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Calls of `vendor`, each attempt within `timeout_s`, all of them within `deadline_s`.

    Each attempt waits for its turn at the limiter that all calls with this model and key share.
    """

    vendor: Vendor
    timeout_s: float
    deadline_s: float

    async def __call__(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        tokens: Callable[[T], int] | None = None,
        estimate: int = 0,
    ) -> T:
        """What `attempt` returns, called again while its ProviderError is retryable.

        A wait that would end after the deadline is not begun: the last error is raised instead.
        `tokens` says how many of the answer's count toward the vendor's tokens a minute, and
        `estimate` how many that may be, which each attempt is charged before it begins.
        """
        started = anyio.current_time()
        failures, waited_s = 0, 0.0

        def wait_before_next(error: Exception) -> bool | float:
            nonlocal failures, waited_s
            failures += 1
            if not isinstance(error, ProviderError) or not error.retryable:
                return False
            wait_s = _wait_s(error, failures)
            # Waits count even where none is made, so that tests without them end as real calls do.
            spent_s = max(anyio.current_time() - started, waited_s)
            if spent_s + wait_s >= self.deadline_s:
                return False
            waited_s += wait_s
            # The vendor's message may quote a text, so the line has the kind and status alone.
            _logger.warning(
                "%s %s: %s (status %s) at attempt %d, next in %.1f s",
                self.vendor.provider,
                self.vendor.model,
                type(error).__name__,
                error.status,
                failures,
                wait_s,
                extra={"provider": self.vendor.provider, "wait_s": wait_s, "attempt": failures},
            )
            return wait_s

        attempts = stamina.retry_context(on=wait_before_next, attempts=None, timeout=None)
        async for each in attempts.with_name(_NAME, (), {}):
            with each:
                spent_s = max(anyio.current_time() - started, waited_s)
                paced = limiter.LIMITERS.of(self.vendor)
                turn = await paced.turn(patience_s=self.deadline_s - spent_s, tokens=estimate)
                answer = await self._in_turn(paced, turn, attempt, started)
                paced.succeeded(turn, 0 if tokens is None else tokens(answer))
                return answer
        raise timed_out(self.vendor, self.deadline_s)

    async def _in_turn(
        self,
        paced: limiter.Limiter,
        turn: limiter.Turn,
        attempt: Callable[[], Awaitable[T]],
        started: float,
    ) -> T:
        try:
            return await self._within_time(attempt, started)
        except ProviderError as error:
            # Without a status nobody knows what the vendor has read.
            if error.status is not None:
                paced.refused(turn)
            # One that says that no waiting helps, as a spending limit does, is not about the rate.
            if isinstance(error, RateLimited) and error.retryable:
                paced.limited(turn, min(error.retry_after_s or 0.0, MAX_WAIT_S))
            raise

    async def _within_time(self, attempt: Callable[[], Awaitable[T]], started: float) -> T:
        left_s = self.deadline_s - (anyio.current_time() - started)
        seconds = min(self.timeout_s, max(left_s, 0.0))
        # fail_after's own TimeoutError is told apart from one that the attempt raises itself.
        with anyio.move_on_after(seconds):
            return await attempt()
        raise timed_out(self.vendor, seconds)


def _wait_s(error: ProviderError, failures: int) -> float:
    """Seconds until the next attempt: what the vendor asks for or 1, 2, 4, .., at most 60.

    Up to a second or a quarter is added so that calls that failed together do not return together.
    """
    if isinstance(error, RateLimited) and error.retry_after_s is not None:
        wait_s = min(error.retry_after_s, MAX_WAIT_S)
        return wait_s + random.uniform(0, 1)  # noqa: S311
    wait_s = min(_FIRST_WAIT_S * 2.0 ** min(failures - 1, 10), MAX_WAIT_S)
    return wait_s * random.uniform(1, 1.25)  # noqa: S311
