"""No splitting: one span."""

from __future__ import annotations

from ragpg.types import Span


def split_whole(text: str) -> list[Span]:
    """One span over all of `text` however long it is, none where it is empty."""
    return [Span(start=0, stop=len(text))] if text else []
