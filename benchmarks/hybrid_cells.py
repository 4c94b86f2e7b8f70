"""The cells of the hybrid benchmark; imports nothing, so that the peers' interpreter can."""

from __future__ import annotations

from typing import Any


def cell_of(question: dict[str, Any]) -> str:
    """The name of a question's cell; tenant t0 has half of the chunks, t1 has 1 %."""
    if question["tenant"] == "t1":
        return "1 % tenant"
    return "50 % tenant" if question["kind"] is None else "50 % tenant, filter 10 %"
