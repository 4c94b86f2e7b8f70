from __future__ import annotations

import pytest

from ragpg.providers.prices import claude_cost_usd, claude_model, voyage_cost_usd

MILLION = 1_000_000


def test_each_counter_has_its_own_price():
    assert claude_cost_usd(
        "claude-sonnet-5-5",
        input_tokens=MILLION,
        output_tokens=MILLION,
        write_5m_tokens=MILLION,
        write_1h_tokens=MILLION,
        read_tokens=MILLION,
    ) == pytest.approx(2 + 10 + 2.5 + 4 + 0.10)


def test_above_100k_tokens_of_input_a_haiku_request_is_five_times_as_dear():
    below = claude_cost_usd(
        "claude-haiku-5-5", input_tokens=1_000, output_tokens=100, read_tokens=99_000
    )
    above = claude_cost_usd(
        "claude-haiku-5-5", input_tokens=1_001, output_tokens=100, read_tokens=99_000
    )
    assert below == pytest.approx((1_000 * 0.10 + 99_000 * 0.01 + 100 * 0.50) / MILLION)
    assert above == pytest.approx((1_001 * 0.50 + 99_000 * 0.05 + 100 * 2.50) / MILLION)


def test_a_dated_model_has_the_price_of_its_family_and_an_unknown_one_has_none():
    assert claude_model("claude-haiku-4-5-20251001") == claude_model("claude-haiku-4-5")
    assert claude_model("claude-haiku-4-5") is not None
    assert claude_cost_usd("claude-fable-5-2", input_tokens=1, output_tokens=1) is None
    assert voyage_cost_usd("voyage-4", 500_000) == pytest.approx(0.03)
    assert voyage_cost_usd("rerank-3", 500_000) is None
