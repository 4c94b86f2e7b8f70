"""How fast a vendor may be called: requests and tokens a minute, learned from its answers.

One limiter per vendor, model and key, shared by all calls of the process through `LIMITERS`;
`retry` alone asks it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import inf

import anyio

from ragpg.errors import RateLimited
from ragpg.providers.failures import Vendor
from ragpg.providers.prices import RateLimits, rate_limits

_logger = logging.getLogger("ragpg")
_MINUTE_S = 60.0
# A minute of success adds a tenth of the start.
_GROWTH = 0.1
# Higher tiers have 2 to 8 times the lowest, whose numbers we know; configured limits are not left.
_MOST_TIMES_DOCUMENTED = 8.0
# Of a configured limit, a tenth may pass at once and nine tenths follow within the minute.
_CONFIGURED_BURST = 0.1
# Two readings of a clock may differ by less than a float can add to it.
_LEAST_WAIT_S = 0.001


class Limiter:
    """Two buckets that fill by the minute; threads and event loops may share one.

    A 429 halves the limits, empties the buckets and stops every call for as long as it asks; of
    calls that were in flight together only the first halves. A minute of success grows limits that
    are below `start`, or that held calls back, up to `most` times it. `limits` are those of now.

    A bucket holds `burst` of a minute. Full ones fill at the limit's own rate, as vendors' do, and
    let nearly twice the limit pass in their first minute; smaller ones fill slower by as much, so
    that no minute has more calls than the limit.
    """

    def __init__(
        self,
        name: str,
        start: RateLimits,
        *,
        most: float,
        burst: float = 1.0,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.limits = start
        self._name = name
        self._start, self._most = start, most
        self._burst, self._rate = burst, 1.0 if burst == 1 else 1.0 - burst
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        full = start.times(burst)
        self._requests, self._tokens = full.requests, full.tokens
        self._filled_at = self._changed_at = clock()
        self._halved_at = -inf
        self._held_back = False

    async def turn(self, *, patience_s: float) -> float:
        """The moment at which a call may begin; `limited` wants it back.

        Raises RateLimited at once where it would be more than `patience_s` from now.
        """
        began = self._clock()
        while (wait_s := self._take()) > 0:
            if self._clock() - began + wait_s >= patience_s:
                provider, _, model = self._name.partition(" ")
                raise RateLimited(
                    f"{self._name} is held to {self.limits.requests:.0f} requests and "
                    f"{self.limits.tokens:.0f} tokens a minute, and the next call may begin in "
                    f"{wait_s:.1f} s; try again then or allow more time",
                    provider=provider,
                    model=model,
                    retry_after_s=wait_s,
                    status=None,
                )
            await self._sleep(max(wait_s, _LEAST_WAIT_S))
        return self._clock()

    def succeeded(self, tokens: int) -> None:
        """Charge a call's tokens, into debt if need be: what it reads is known only afterwards."""
        with self._lock:
            self._fill()
            self._tokens -= tokens
            now = self._clock()
            if now - self._changed_at < _MINUTE_S:
                return
            share = self.limits.requests / self._start.requests
            if share < 1.0 or self._held_back:
                self._change(self._start.times(min(share + _GROWTH, self._most)), "of success")
            self._changed_at, self._held_back = now, False

    def limited(self, began: float, wait_s: float) -> None:
        """Slow down after a 429 that asks for `wait_s`, to a call that began at `began`."""
        with self._lock:
            self._fill()
            now = self._clock()
            if began > self._halved_at:
                self._change(self.limits.times(0.5), "of a 429")
                self._halved_at, self._held_back = now, False
            self._changed_at = now + wait_s
            self._requests = min(self._requests, 0.0)
            self._tokens = min(self._tokens, 0.0)
            # The buckets begin to fill when the wait is over, so that calls come back one by one.
            self._filled_at = max(self._filled_at, now + wait_s)

    def _take(self) -> float:
        """0 when a call may begin, which is taken from the bucket; else seconds to wait."""
        with self._lock:
            self._fill()
            paused_s = max(0.0, self._filled_at - self._clock())
            minutes = max(
                (1.0 - self._requests) / (self.limits.requests * self._rate),
                -self._tokens / (self.limits.tokens * self._rate),
            )
            wait_s = paused_s + max(0.0, minutes) * _MINUTE_S
            if wait_s == 0:
                self._requests -= 1.0
            elif paused_s == 0:
                self._held_back = True
            return wait_s

    def _fill(self) -> None:
        now = self._clock()
        minutes = max(0.0, now - self._filled_at) / _MINUTE_S
        filled = minutes * self._rate
        most = self.limits.times(self._burst)
        self._requests = min(most.requests, self._requests + filled * self.limits.requests)
        self._tokens = min(most.tokens, self._tokens + filled * self.limits.tokens)
        self._filled_at = max(self._filled_at, now)

    def _change(self, limits: RateLimits, why: str) -> None:
        before, self.limits = self.limits, limits
        if limits != before:
            _logger.warning(
                "%s: %.0f requests and %.0f tokens a minute because %s, before %.0f and %.0f",
                *(self._name, limits.requests, limits.tokens, why),
                *(before.requests, before.tokens),
                extra={"limiter": self._name, "requests_per_minute": limits.requests},
            )


@dataclass(slots=True, kw_only=True)
class Limiters:
    """The limiters of a process. `configured` limits, by provider and model, replace documented.

    The model '' stands for each model of the provider that has no limit of its own. Calls that the
    vendor limits apart have their pool's name in the model's place.
    """

    configured: dict[tuple[str, str], RateLimits] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    _made: dict[tuple[str, str, str], Limiter] = field(default_factory=dict, repr=False)

    def configure(self, limits: Mapping[tuple[str, str], RateLimits]) -> None:
        """Hold calls to these from their next turn on; the same limits again change nothing."""
        changed = {
            provider
            for (provider, model), rates in limits.items()
            if self.configured.get((provider, model)) != rates
        }
        self.configured |= limits
        for made in [made for made in self._made if made[0] in changed]:
            self._made.pop(made, None)

    def of(self, vendor: Vendor) -> Limiter:
        """The one limiter of this vendor, model and key, made when first asked for."""
        provider, model = vendor.provider, vendor.pool or vendor.model
        configured = self.configured.get((provider, model), self.configured.get((provider, "")))
        made = Limiter(
            f"{provider} {model}",
            configured or rate_limits(provider, model),
            most=1.0 if configured else _MOST_TIMES_DOCUMENTED,
            burst=_CONFIGURED_BURST if configured else 1.0,
            clock=self.clock,
            sleep=self.sleep,
        )
        # setdefault, so that two threads get the same one.
        return self._made.setdefault((provider, model, vendor.api_key), made)


LIMITERS = Limiters()
