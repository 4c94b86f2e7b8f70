"""Batches of texts for Voyage's embedding calls, and the search for the text that spoils one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ragpg.errors import PartlyEmbedded, ProviderError, TextsRejected
from ragpg.fanout import fan_out
from ragpg.providers.checks import require_texts
from ragpg.providers.voyage_api import TooLarge, VoyageApi
from ragpg.tokens import count_tokens
from ragpg.types import Embedded, Usage

# Texts a request: mongodb.com/docs/voyageai, October 2026.
MAX_TEXTS = 1_000


@dataclass(slots=True)
class Outcome:
    """What has become of the texts of one call, by place."""

    vectors: dict[int, list[float]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    usage: list[Usage] = field(default_factory=list)

    def embedded(self, api: VoyageApi) -> Embedded:
        """The vectors in order, or TextsRejected with those that there are."""
        if not self.failed:
            ordered = [self.vectors[place] for place in sorted(self.vectors)]
            return Embedded(vectors=ordered, usage=tuple(self.usage))
        place = min(self.failed)
        raise TextsRejected(
            f"{len(self.failed)} of {len(self.failed) + len(self.vectors)} texts were refused, "
            f"first text {place}: {self.failed[place]}; split or shorten it",
            provider="voyage",
            model=api.model,
            failed=self.failed,
            vectors=self.vectors,
            usage=tuple(self.usage),
        )


# Takes texts and about how many tokens they have.
Request = Callable[[Sequence[str], int], Awaitable[tuple[list[list[float]], Usage]]]


async def _embed_or_halve(
    texts: Sequence[str],
    tokens: Sequence[int],
    span: range,
    request: Request,
    outcome: Outcome,
) -> None:
    """Put the vectors of `texts` at `span` into `outcome`; a text too long alone is its failure.

    A request that is too large is sent again as two halves, so one bad text among n costs at most
    2 log2(n) refused requests, and its neighbours get their vectors.
    """
    try:
        estimate = sum(tokens[place] for place in span)
        vectors, usage = await request([texts[place] for place in span], estimate)
    except TooLarge as error:
        if len(span) == 1:
            outcome.failed[span.start] = str(error)
            return
        middle = span.start + len(span) // 2
        for half in (range(span.start, middle), range(middle, span.stop)):
            await _embed_or_halve(texts, tokens, half, request, outcome)
        return
    outcome.vectors.update(zip(span, vectors, strict=True))
    outcome.usage.append(usage)


async def embed_batches(
    api: VoyageApi, texts: Sequence[str], request: Request, *, max_tokens: int
) -> Embedded:
    """The vectors of `texts` in order, by as many requests as the limits need, some at once.

    Raises ProviderError; TextsRejected when only some texts are at fault, PartlyEmbedded when an
    error came after answers that were paid for; InputError on a blank.
    """
    require_texts(texts)
    outcome = Outcome()
    tokens = [count_tokens(text) for text in texts]
    calls = [
        partial(_embed_or_halve, texts, tokens, span, request, outcome)
        for span in batches(tokens, max_tokens=max_tokens)
    ]
    try:
        await fan_out(calls, api.limiter)
    except ProviderError as error:
        if not outcome.vectors:
            raise
        raise PartlyEmbedded(error, vectors=outcome.vectors, usage=tuple(outcome.usage)) from error
    return outcome.embedded(api)


def batches(
    tokens: Sequence[int], *, max_tokens: int, max_texts: int = MAX_TEXTS
) -> Iterator[range]:
    """Consecutive ranges of texts that stay under both limits; one text alone may exceed tokens."""
    start, total = 0, 0
    for place, count in enumerate(tokens):
        if place > start and (total + count > max_tokens or place - start == max_texts):
            yield range(start, place)
            start, total = place, 0
        total += count
    if start < len(tokens):
        yield range(start, len(tokens))
