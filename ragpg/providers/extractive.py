"""Answers without a model: sentences of the best hits, word for word, with their citations."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragpg.providers.sentences import quotable
from ragpg.types import Answer, AnswerBlock, AnswerDelta, Citation, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ragpg.protocols import Embedder
    from ragpg.types import Hit, Hits

NO_ANSWER = "The documents do not answer this."

_HITS = 5
_SENTENCES = 3
_THRESHOLD = 0.45
_MARGIN = 0.08


class ExtractiveGenerator:
    """Quotes up to three sentences, table rows or code runs that answer the query; writes nothing.

    A sentence's score is its cosine to the query, read with the heading that it stands under.
    """

    provider = "extractive"
    model = "sentences-1"

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    async def generate(self, query: str, hits: Hits) -> Answer:
        """The best sentences, best first and joined by a space, each a block with its citation.

        `supported` is False, and the text says so, when no sentence reaches the threshold or there
        are no hits. Embeds the query and the sentences of the first five hits: about 0.2 s with
        the local model. Raises ProviderError when the embedder does.
        """
        started = time.perf_counter()
        quotes = _quotes(hits[:_HITS])
        usage: tuple[Usage, ...] = ()
        chosen: list[_Quote] = []
        if quotes:
            asked = await self._embedder.embed([query], purpose="query")
            read = await self._embedder.embed([each.read for each in quotes], purpose="document")
            usage = (*asked.usage, *read.usage)
            scores = [_cosine(asked.vectors[0], vector) for vector in read.vectors]
            chosen = _best(quotes, scores)
        citations = tuple(each.citation(number) for number, each in enumerate(chosen, start=1))
        blocks = tuple(
            AnswerBlock(text=(" " if each.number > 1 else "") + each.quote, citations=(each,))
            for each in citations
        ) or (AnswerBlock(text=NO_ANSWER),)
        own = Usage(
            provider=self.provider,
            model=self.model,
            operation="generate",
            cost_usd=0.0,
            duration_s=time.perf_counter() - started,
        )
        return Answer(
            query=query,
            text="".join(block.text for block in blocks),
            blocks=blocks,
            citations=citations,
            supported=bool(citations),
            extractive=True,
            provider=self.provider,
            model=self.model,
            stop_reason="end_turn",
            hits=hits,
            usage=(*usage, own),
        )

    async def stream(self, query: str, hits: Hits) -> AsyncIterator[AnswerDelta | Answer]:
        """Each sentence and then its citation, then the whole Answer; the first waits for all."""
        answer = await self.generate(query, hits)
        for block in answer.blocks:
            yield AnswerDelta(text=block.text)
            for citation in block.citations:
                yield AnswerDelta(citation=citation)
        yield answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quote:
    """A range of a hit's text; `read` is what the embedder reads of it."""

    hit: Hit
    start: int
    stop: int

    @property
    def text(self) -> str:
        return self.hit.text[self.start : self.stop]

    @property
    def read(self) -> str:
        heading = self.hit.section_path[-1] if self.hit.section_path else self.hit.document_title
        header = self.hit.table_header
        return f"{heading}: {self.text}" if heading else self.text

    def citation(self, number: int) -> Citation:
        return Citation(
            number=number,
            document_key=self.hit.document_key,
            document_title=self.hit.document_title,
            section_path=self.hit.section_path,
            page=self.hit.page,
            chunk_id=self.hit.chunk_id,
            start=self.hit.start + self.start,
            stop=self.hit.start + self.stop,
            quote=self.text,
        )


def _quotes(hits: Sequence[Hit]) -> list[_Quote]:
    """What can be quoted of the hits, each text once, in the order of the hits."""
    quotes: dict[str, _Quote] = {}
    for hit in hits:
        for start, stop in quotable(hit.text):
            quotes.setdefault(hit.text[start:stop], _Quote(hit=hit, start=start, stop=stop))
    return list(quotes.values())
