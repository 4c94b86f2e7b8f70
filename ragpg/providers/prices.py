"""What a call costs in US dollars, and the limits of models that decide how to call them.

Prices are dollars per million tokens, read on 2026-11-30 from the vendors' pages. A model that is
not listed, or whose price no vendor page states, has no price: its cost is None, never a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
) -> float | None:
    """Dollars of one request; `input_tokens` are those that no cache counter holds."""
    known = claude_model(model)
    if known is None:
        return None
    prices = known.prices
    total = input_tokens + write_5m_tokens + write_1h_tokens + read_tokens
    if known.above_step and known.step_tokens is not None and total > known.step_tokens:
        prices = known.above_step
    written = 1.25 * write_5m_tokens + 2 * write_1h_tokens
    return (
        prices.input * (input_tokens + written)
        + prices.cache_read * read_tokens
        + prices.output * output_tokens
    ) / _MILLION


def voyage_cost_usd(model: str, tokens: int) -> float | None:
    """Dollars of `tokens` billed tokens of an embedding or rerank model."""
    price = _VOYAGE.get(model)
    return None if price is None else price * tokens / _MILLION
