"""What an ingest counts while it runs, and what it tells of its progress."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass, field
from typing import Literal

from ragpg.staging import Staged
from ragpg.types import DocumentFailure, IngestReport, Usage

Outcome = Literal["created", "updated", "unchanged", "failed", "contextualized", "waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestProgress:
    """One document is done, or has its contexts: the outcome, and counts and cost so far.

    `documents` counts those that are done. `waiting` tells of no document but of batches:
    `waiting_contexts` are not written yet.
    """

    key: str
    outcome: Outcome
    documents: int
    chunks: int
    cost_usd: float = 0.0
    waiting_contexts: int = 0


@dataclass(slots=True)
class Tally:
    """Counts of one ingest while it runs."""

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: list[DocumentFailure] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    chunks: int = 0
    kept_chunks: int = 0
    contexts_failed: int = 0
    oldest_reused: dt.datetime | None = None
    nul_characters: int = 0
    notices: list[str] = field(default_factory=list)
    cost_usd: float = 0.0
    costed: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    usage: list[Usage] = field(default_factory=list)

    def add_time(self, stage_name: str, started: float) -> None:
        """Add the seconds since `started` to a stage."""
        elapsed = time.perf_counter() - started
        self.timings[stage_name] = self.timings.get(stage_name, 0.0) + elapsed

    def cost(self) -> float:
        """US dollars so far; each call is added once, however often this is asked."""
        self.cost_usd += sum(call.cost_usd or 0.0 for call in self.usage[self.costed :])
        self.costed = len(self.usage)
        return self.cost_usd

    def reused(self, staged: Staged) -> None:
        """Remember the oldest context that a live chunk hands on."""
        written = [
            chunk.contextualized_at
            for chunk in staged.chunks
            if chunk.live and chunk.contextualized_at is not None
        ]
        if self.oldest_reused is not None:
            written.append(self.oldest_reused)
        self.oldest_reused = min(written, default=None)

    def _in_order(self, keys: list[str]) -> tuple[str, ...]:
        """As the documents were given, though several transactions publish at once."""
        return tuple(sorted(keys, key=lambda key: self.seen.get(key, len(self.seen))))

    def report(self) -> IngestReport:
        """What has been counted so far."""
        return IngestReport(
            created=self._in_order(self.created),
            updated=self._in_order(self.updated),
            unchanged=self._in_order(self.unchanged),
            failed=tuple(self.failed),
            waiting=self._in_order(self.waiting),
            chunks=self.chunks,
            reused_chunks=self.kept_chunks,
            contexts_failed=self.contexts_failed,
            oldest_reused_context=self.oldest_reused,
            nul_characters_removed=self.nul_characters,
            notices=tuple(self.notices),
            timings_s=dict(self.timings),
            usage=tuple(self.usage),
        )
