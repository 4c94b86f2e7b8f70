"""What an ingest counts while it runs, and what it tells of its progress."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ragpg.staging import Staged
from ragpg.types import DocumentFailure, IngestReport, Usage

Outcome = Literal[
    "created",
    "updated",
    "unchanged",
    "failed",
    "staged",
    "contextualized",
    "embedded",
    "waiting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestProgress:
    """Something is stored: a document is done, or some of its chunks are a step further.

    `key` is the document's, and of several the last one's. `documents` counts those that are
    done, and `chunks` those of created and updated ones. `staged` chunks were cut in this run;
    `contextualized` ones had a context written, or failed to, and `embedded` ones a vector.
    `cost_usd` is what all calls cost that were answered so far.

    `work` counts the steps of the documents `taken` so far, of which `work_done` are done: a
    missing context, a missing vector and the document itself are a step each. `waiting` tells of no
    document but of batches: `waiting_contexts` are not written yet.
    """

    key: str
    outcome: Outcome
    documents: int
    chunks: int
    cost_usd: float = 0.0
    waiting_contexts: int = 0
    staged: int = 0
    contextualized: int = 0
    embedded: int = 0
    taken: int = 0
    work: int = 0
    work_done: int = 0


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
    staged: int = 0
    contextualized: int = 0
    embedded: int = 0
    taken: int = 0
    work: int = 0
    work_done: int = 0
    # Steps that the chunks of a document in work still need, by its key.
    steps: dict[str, int] = field(default_factory=dict)

    def add_time(self, stage_name: str, started: float) -> None:
        """Add the seconds since `started` to a stage."""
        elapsed = time.perf_counter() - started
        self.timings[stage_name] = self.timings.get(stage_name, 0.0) + elapsed

    def cost(self) -> float:
        """US dollars so far; each call is added once, however often this is asked."""
        self.cost_usd += sum(call.cost_usd or 0.0 for call in self.usage[self.costed :])
        self.costed = len(self.usage)
        return self.cost_usd

    def take(self, staged: Staged, *, contexts: bool) -> None:
        """Count a staged document, its steps and the oldest context that a live chunk hands on.

        With `contexts` missing ones are written.
        """
        lacking = [
            contexts and chunk.context is None and not chunk.context_refused
            for chunk in staged.chunks
        ]
        vectors = sum(
            lacks or not chunk.embedded for lacks, chunk in zip(lacking, staged.chunks, strict=True)
        )
        steps = sum(lacking) + vectors
        self.steps[staged.document.key] = steps
        self.taken += 1
        self.work += 1 + steps
        self.staged += len(staged.chunks)
        written = [
            chunk.contextualized_at
            for chunk in staged.chunks
            if chunk.live and chunk.contextualized_at is not None
        ]
        if self.oldest_reused is not None:
            written.append(self.oldest_reused)
        self.oldest_reused = min(written, default=None)

    def step(self, keys: Sequence[str], usage: Sequence[Usage]) -> None:
        """A context or vector of a chunk of each of these documents was settled, by these calls."""
        self.usage += usage
        for key, settled in Counter(keys).items():
            steps = min(settled, self.steps.get(key, 0))
            self.work_done += steps
            if steps:
                self.steps[key] -= steps

    def end(self, key: str) -> None:
        """A document is done; steps of it that nobody takes any more count as done."""
        if key not in self.steps:
            self.taken += 1
            self.work += 1
        self.work_done += 1 + self.steps.pop(key, 0)

    def progress(self, key: str, outcome: Outcome, waiting_contexts: int) -> IngestProgress:
        """What has been counted so far, as callers are told."""
        done = (self.created, self.updated, self.unchanged, self.failed)
        return IngestProgress(
            key=key,
            outcome=outcome,
            documents=sum(len(documents) for documents in done),
            chunks=self.chunks,
            cost_usd=self.cost(),
            waiting_contexts=waiting_contexts,
            staged=self.staged,
            contextualized=self.contextualized,
            embedded=self.embedded,
            taken=self.taken,
            work=self.work,
            work_done=self.work_done,
        )

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
