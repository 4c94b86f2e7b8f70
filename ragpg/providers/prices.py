"""What a call costs in US dollars, and the limits that decide how to call a model.

Prices are dollars per million tokens, read on 2026-11-30 from the vendors' pages. A model that is
not listed, or whose price no vendor page states, has no price: its cost is None, never a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudePrices:
    """Dollars per million tokens. Cache writes cost 1.25 (5 minutes) or 2 (1 hour) times input."""

    input: float
    output: float
    cache_read: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeModel:
    """Prices and limits of one model, in its own tokens.

    Above `step_tokens` of input, cached or not, the whole request is charged at `above_step`.
    """

    prices: ClaudePrices
    min_cacheable_tokens: int
    context_tokens: int = 1_000_000
    step_tokens: int | None = None
    above_step: ClaudePrices | None = None


def _model(
    input_price: float, output: float, read: float, minimum: int, *, context: int = 1_000_000
) -> ClaudeModel:
    prices = ClaudePrices(input=input_price, output=output, cache_read=read)
    return ClaudeModel(prices=prices, min_cacheable_tokens=minimum, context_tokens=context)


# platform.claude.com: about-claude/pricing, build-with-claude/prompt-caching, models/*/overview.
CLAUDE_MODELS: dict[str, ClaudeModel] = {
    "claude-haiku-5-5": ClaudeModel(
        prices=ClaudePrices(input=0.10, output=0.50, cache_read=0.01),
        min_cacheable_tokens=512,
        step_tokens=100_000,
        above_step=ClaudePrices(input=0.50, output=2.50, cache_read=0.05),
    ),
    "claude-sonnet-5-5": _model(2, 10, 0.10, 512),
    "claude-opus-5-5": _model(4, 20, 0.20, 512),
    "claude-fable-5-1": _model(10, 50, 0.25, 512),
    "claude-fable-5": _model(10, 50, 1.00, 512),
    "claude-opus-5": _model(5, 25, 0.50, 512),
    "claude-opus-4-8": _model(5, 25, 0.50, 1_024),
    "claude-opus-4-7": _model(5, 25, 0.50, 2_048),
    "claude-opus-4-6": _model(5, 25, 0.50, 4_096),
    "claude-opus-4-5": _model(5, 25, 0.50, 4_096, context=200_000),
    "claude-sonnet-5": _model(2, 10, 0.20, 1_024),
    "claude-sonnet-4-6": _model(3, 15, 0.30, 1_024, context=200_000),
    "claude-sonnet-4-5": _model(3, 15, 0.30, 1_024, context=200_000),
    "claude-haiku-4-5": _model(1, 5, 0.10, 4_096, context=200_000),
}
# The largest minimum and the smallest window of any listed model: safe for one that is not listed.
UNKNOWN_MIN_CACHEABLE_TOKENS = 4_096
UNKNOWN_CONTEXT_TOKENS = 200_000

# mongodb.com/docs/voyageai, October 2026; voyage-code-4 and rerank-3 have no price there.
_VOYAGE = {
    "voyage-4-large": 0.12,
    "voyage-4": 0.06,
    "voyage-4-lite": 0.02,
    "voyage-3-large": 0.18,
    "voyage-3.5": 0.06,
    "voyage-3.5-lite": 0.02,
    "voyage-code-3": 0.18,
    "voyage-finance-2": 0.12,
    "voyage-law-2": 0.12,
    "voyage-context-4": 0.12,
    "voyage-context-3": 0.18,
    "rerank-2.5": 0.05,
    "rerank-2.5-lite": 0.02,
}


def claude_model(model: str) -> ClaudeModel | None:
    """What is known of a model, found with or without a dated suffix."""
    return CLAUDE_MODELS.get(re.sub(r"-\d{8}$", "", model))


def claude_cost_usd(
    model: str,
    *,
    input_tokens: int,
    output_tokens: int,
    write_5m_tokens: int = 0,
    write_1h_tokens: int = 0,
    read_tokens: int = 0,
    batch: bool = False,
) -> float | None:
    """Dollars of one request; `input_tokens` are those that no cache counter holds.

    In a Message Batch every kind of token costs half.
    """
    known = claude_model(model)
    if known is None:
        return None
    prices = known.prices
    total = input_tokens + write_5m_tokens + write_1h_tokens + read_tokens
    if known.above_step and known.step_tokens is not None and total > known.step_tokens:
        prices = known.above_step
    written = 1.25 * write_5m_tokens + 2 * write_1h_tokens
    cost = (
        prices.input * (input_tokens + written)
        + prices.cache_read * read_tokens
        + prices.output * output_tokens
    ) / _MILLION
    return cost / 2 if batch else cost


def voyage_cost_usd(model: str, tokens: int) -> float | None:
    """Dollars of `tokens` billed tokens of an embedding or rerank model."""
    price = _VOYAGE.get(model)
    return None if price is None else price * tokens / _MILLION


def embedding_cost_usd(provider: str, model: str, tokens: int) -> float | None:
    """Dollars of embedding `tokens` tokens; 0 for the local model, None where it is not known."""
    if provider == "local":
        return 0.0
    return voyage_cost_usd(model, tokens) if provider == "voyage" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """Requests and tokens a minute; both are at least 1."""

    requests: float
    tokens: float

    def times(self, factor: float) -> RateLimits:
        """Both limits times `factor`, neither under 1."""
        return RateLimits(
            requests=max(1.0, self.requests * factor), tokens=max(1.0, self.tokens * factor)
        )


# More a minute than any process sends.
UNLIMITED = 1e12
# Lowest paid tiers, October 2026. platform.claude.com api/rate-limits: 1,000 requests and, on the
# models with the least, 500,000 tokens that were not read from the cache.
# mongodb.com/docs/voyageai; docs.cohere.com/docs/rate-limits, where requests alone are limited.
_RATE_LIMITS = {
    "claude": RateLimits(requests=1_000, tokens=500_000),
    "voyage": RateLimits(requests=2_000, tokens=3_000_000),
    "cohere": RateLimits(requests=1_000, tokens=UNLIMITED),
}
_VOYAGE_TOKENS_A_MINUTE = {
    "voyage-4": 8_000_000,
    "voyage-4-lite": 16_000_000,
    "voyage-code-4": 8_000_000,
    "voyage-3.5": 8_000_000,
    "voyage-3.5-lite": 16_000_000,
    "rerank-2.5": 2_000_000,
    "rerank-2.5-lite": 4_000_000,
}


def rate_limits(provider: str, model: str) -> RateLimits:
    """What the lowest paid tier of a vendor (`claude`, `voyage`, `cohere`) may send."""
    known = _RATE_LIMITS[provider]
    return replace(known, tokens=_VOYAGE_TOKENS_A_MINUTE.get(model, known.tokens))
