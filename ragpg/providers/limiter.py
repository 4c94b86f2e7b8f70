"""How fast a vendor may be called: requests and tokens a minute, learned from its answers.

One limiter per vendor, model and key, shared by all calls of the process through `LIMITERS`;
`retry` alone asks it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
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
# A vendor may hold a limit of a minute by the second, so a minute's requests do not all go at once.
_STRICT_BURST = 0.1
# Two readings of a clock may differ by less than a float can add to it.
_LEAST_WAIT_S = 0.001


@dataclass(slots=True)
class Turn:
    """A call that may begin at `at`, a moment of the limiter's clock, and what it is charged."""

    at: float
    tokens: float


@dataclass(slots=True)
class _Bucket:
    """It fills by `a_minute`, up to `size`; `level` is that of the moment `at`, perhaps to come."""

    a_minute: float
    size: float
    level: float
    at: float

    def ready(self, at: float, amount: float) -> float:
        """The first moment from `at` on when it holds `amount`, or all that it can."""
        lacking = min(amount, self.size) - self._level(at)
        return at + max(0.0, lacking) / self.a_minute * _MINUTE_S

    def take(self, at: float, amount: float) -> None:
        self.level, self.at = self._level(at) - amount, at

    def _level(self, at: float) -> float:
        filled = max(0.0, at - self.at) / _MINUTE_S * self.a_minute
        return min(self.size, self.level + filled)


@dataclass(slots=True)
class _Minute:
    """The calls of the last minute and those to come, in order, of at most so many tokens."""

    most: float
    calls: deque[Turn] = field(default_factory=deque)

    def forget(self, before: float) -> None:
        while self.calls and self.calls[0].at <= before - _MINUTE_S:
            self.calls.popleft()

    def ready(self, at: float, tokens: float) -> float:
        """The first moment from `at` on when the minute before it has room; for more, none."""
        total = sum(call.tokens for call in self.calls) + max(tokens, 1.0)
        for call in self.calls:
            if total <= self.most:
                break
            total -= call.tokens
            at = max(at, call.at + _MINUTE_S)
        return at


class Limiter:
    """Requests and tokens a minute, in the order in which calls ask; threads may share one.

    A call is charged an estimate of its tokens before it begins, and settles it when it knows, so
    that what is in flight counts. A 429 halves the limits, empties the buckets and stops every call
    for as long as it asks; of calls that were in flight together only the first halves. A minute of
    success grows limits that are below `start`, or that held calls back, up to `most` times it.
    `limits` are those of now.

    Both are buckets of a minute that fill at the limit's own rate, as vendors' do, so nearly twice
    the limit passes in the first minute. A `strict` limit is kept in every minute: a tenth of the
    requests may pass at once and nine tenths follow, and a call waits until the tokens of the
    minute before it leave room for its own; one that has more than the limit goes alone.
    """

    def __init__(
        self,
        name: str,
        start: RateLimits,
        *,
        most: float,
        strict: bool = False,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.limits = start
        self._name = name
        self._start, self._most, self._strict = start, most, strict
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        now = clock()
        # Endless until `_fit`; the tokens of a strict limit stay so, since the minute counts them.
        self._requests, self._tokens = _Bucket(1.0, inf, inf, now), _Bucket(1.0, inf, inf, now)
        self._minute = _Minute(inf)
        self._fit()
        self._last = self._paused_until = self._changed_at = now
        self._halved_at = -inf
        self._limited_times = 0
        self._held_back = False

    async def turn(self, *, patience_s: float, tokens: float = 0) -> Turn:
        """A turn that has come, charged `tokens`, an estimate; `succeeded` and others want it.

        Raises RateLimited at once where it would come more than `patience_s` from now.
        """
        asked = self._clock()
        while True:
            turn, limited_times = self._reserve(tokens, latest=asked + patience_s)
            wait_s = turn.at - self._clock()
            if wait_s > 0:
                await self._sleep(max(wait_s, _LEAST_WAIT_S))
            # After a 429 everybody queues anew behind the wait that it asked for.
            if limited_times == self._limited_times:
                return turn

    def succeeded(self, turn: Turn, tokens: int) -> None:
        """Charge a call the tokens that it had, into debt if need be."""
        with self._lock:
            self._settle(turn, tokens)
            now = self._clock()
            if now - self._changed_at < _MINUTE_S:
                return
            share = self.limits.requests / self._start.requests
            if share < 1.0 or self._held_back:
                self._change(self._start.times(min(share + _GROWTH, self._most)), "of success")
            self._changed_at, self._held_back = now, False

    def refused(self, turn: Turn) -> None:
        """Take back what a call was charged that the vendor did not work on."""
        with self._lock:
            self._settle(turn, 0)

    def limited(self, turn: Turn, wait_s: float) -> None:
        """Slow down after a 429 that asks for `wait_s`, to a call of this turn."""
        with self._lock:
            now = self._clock()
            if turn.at > self._halved_at:
                self._change(self.limits.times(0.5), "of a 429")
                self._halved_at, self._held_back = now, False
            self._changed_at = now + wait_s
            self._paused_until = max(self._paused_until, now + wait_s)
            # The buckets begin to fill when the wait is over, so that calls come back one by one.
            for bucket in (self._requests, self._tokens):
                if bucket.size < inf:
                    bucket.level, bucket.at = min(bucket.level, 0.0), self._paused_until
            while self._minute.calls and self._minute.calls[-1].at > now:
                self._minute.calls.pop()
            self._last = self._paused_until
            self._limited_times += 1

    def _reserve(self, tokens: float, *, latest: float) -> tuple[Turn, int]:
        """The turn after all that were given, and how many 429s there were by now."""
        with self._lock:
            now = self._clock()
            first = max(now, self._last)
            self._minute.forget(first)
            at = self._requests.ready(first, 1.0)
            at = self._tokens.ready(at, tokens)
            at = self._minute.ready(at, tokens)
            if now < at >= latest:
                raise self._impatient(at - now)
            if self._paused_until <= now < at:
                self._held_back = True
            turn = Turn(at, tokens)
            self._requests.take(at, 1.0)
            self._tokens.take(at, tokens)
            if self._strict:
                self._minute.calls.append(turn)
            self._last = at
            return turn, self._limited_times

    def _settle(self, turn: Turn, tokens: float) -> None:
        self._tokens.level -= tokens - turn.tokens
        turn.tokens = tokens

    def _impatient(self, wait_s: float) -> RateLimited:
        provider, _, model = self._name.partition(" ")
        return RateLimited(
            f"{self._name} is held to {self.limits.requests:.0f} requests and "
            f"{self.limits.tokens:.0f} tokens a minute, and the next call may begin in "
            f"{wait_s:.1f} s; try again then or allow more time",
            provider=provider,
            model=model,
            retry_after_s=wait_s,
            status=None,
        )

    def _fit(self) -> None:
        """Give the buckets the rates and sizes of the limits of now."""
        burst = self.limits.times(_STRICT_BURST) if self._strict else self.limits
        rate = 1.0 - _STRICT_BURST if self._strict else 1.0
        self._requests.a_minute, self._requests.size = self.limits.requests * rate, burst.requests
        self._requests.level = min(self._requests.level, burst.requests)
        if self._strict:
            self._minute.most = self.limits.tokens
        else:
            self._tokens.a_minute, self._tokens.size = self.limits.tokens, self.limits.tokens
            self._tokens.level = min(self._tokens.level, self.limits.tokens)

    def _change(self, limits: RateLimits, why: str) -> None:
        before, self.limits = self.limits, limits
        self._fit()
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
            strict=configured is not None,
            clock=self.clock,
            sleep=self.sleep,
        )
        # setdefault, so that two threads get the same one.
        return self._made.setdefault((provider, model, vendor.api_key), made)


LIMITERS = Limiters()
