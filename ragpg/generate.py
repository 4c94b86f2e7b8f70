"""Stage 6 of 7: hits -> an answer whose every citation stands, verbatim, in what was sent."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace

from ragpg.errors import InvalidProviderResponse
from ragpg.faults import faults_named
from ragpg.protocols import Generator
from ragpg.types import Answer, AnswerDelta, Hits


async def generate(query: str, hits: Hits, generator: Generator) -> Answer:
    """The generator's answer, its citations verified. Raises ProviderError."""
    started = time.perf_counter()
    with faults_named(generator):
        answer = await generator.generate(query, hits)
    return _finished(answer, hits, started)


async def stream(
    query: str, hits: Hits, generator: Generator
) -> AsyncIterator[AnswerDelta | Answer]:
    """Deltas as they come, then the whole answer, its citations verified. Raises ProviderError."""
    started = time.perf_counter()
    with faults_named(generator):
        async for item in generator.stream(query, hits):
            yield _finished(item, hits, started) if isinstance(item, Answer) else item


def _finished(answer: Answer, hits: Hits, started: float) -> Answer:
    verify_citations(answer, hits)
    timings = {**hits.timings_s, "generate": time.perf_counter() - started}
    return replace(answer, mode=hits.mode, timings_s=timings)


def verify_citations(answer: Answer, hits: Hits) -> None:
    """Check that every citation quotes a chunk that was sent, at the offsets that it names.

    Raises InvalidProviderResponse for the first that does not.
    """
    sent = {hit.chunk_id: hit for hit in hits}
    for citation in answer.citations:
        hit = sent.get(citation.chunk_id)
        if hit is None:
            fault = "names a chunk that was not sent"
        elif not hit.start <= citation.start < citation.stop <= hit.stop:
            fault = f"lies outside its chunk's characters {hit.start} to {hit.stop}"
        elif hit.text[citation.start - hit.start : citation.stop - hit.start] != citation.quote:
            fault = "quotes words that do not stand there"
        else:
            continue
        raise InvalidProviderResponse(
            f"citation {citation.number} of {answer.provider} {answer.model}"
            f" ({citation.document_key!r}, {citation.start} to {citation.stop}) {fault};"
            " the answer was withheld, ask again",
            provider=answer.provider,
            model=answer.model,
        )
