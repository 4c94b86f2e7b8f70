"""The values that pass between stages: frozen, slotted, keyword-only.

Offsets are characters of `Document.text`, ranks start at 1, scores grow with quality, positions
start at 0, money is US dollars, durations are seconds.
"""

from __future__ import annotations

import bisect
import datetime as dt
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from ragpg.json_form import JsonForm

Json = Any
StrPath = str | os.PathLike[str]
Purpose = Literal["document", "query"]
MediaType = Literal["markdown", "text", "html", "pdf", "docx"]
Operation = Literal["embed", "context", "rerank", "generate"]
Expansion = Literal["neighbours", "section"]
Mode = Literal["retrieved", "whole_corpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document(JsonForm):
    """A source text under the caller's `key`; `text` is what was extracted and is stored.

    `page_starts` are the offsets at which pages begin (PDF only). `metadata` holds JSON values;
    a datetime in it is stored as ISO 8601.
    """

    key: str
    text: str
    title: str | None = None
    source: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Json] = field(default_factory=dict)
    modified_at: dt.datetime | None = None
    owner: str | None = None
    review_by: dt.date | None = None
    expires_at: dt.datetime | None = None
    media_type: MediaType = "markdown"
    page_starts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A passage of a document: `text[start:stop]`, the headings above it, a repeated table header.

    `table_header` is the header and delimiter row of the table that the passage continues, ending
    in a newline; it is not part of `text[start:stop]`. Empty where the passage needs none.
    """

    start: int
    stop: int
    section_path: tuple[str, ...] = ()
    table_header: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A verbatim passage: `text == document.text[start:stop]`."""

    position: int
    start: int
    stop: int
    text: str
    section_path: tuple[str, ...] = ()
    table_header: str = ""
    context: str | None = None

    @property
    def contextualized(self) -> str:
        """What embedding and BM25 read: context, blank line, table header, text."""
        return contextualized(self.context, self.table_header, self.text)


def contextualized(context: str | None, table_header: str, text: str) -> str:
    """Context, blank line, table header and text in one; the SQL twin is `ragpg.contextualized`."""
    return f"{context}\n\n{table_header}{text}" if context else f"{table_header}{text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a collection's documents become chunks, contexts and vectors; fixed for its life.

    Sizes are tokens as `ragpg.tokens.count_tokens` counts them. `overlap_tokens` applies to text
    that has no structure.

    `context_reuse`: an edited document keeps the contexts of the chunks whose text is the same
    (`chunk`), or is contextualized anew as a whole (`document`). `failed_contexts`: a document of
    which a context failed is published with a visible gap (`publish`) or held back (`hold`).

    `whole_corpus_tokens`: a generator that can read a whole small collection gets it instead of
    hits, while what the filter lets through has no more tokens; 0 means never. None leaves it as it
    is, which in a new collection is 20,000. This alone may change: `create` with another value sets
    it, and nothing is ingested anew.
    """

    embedding_provider: str = "local"
    embedding_model: str = "all-MiniLM-L6-v2-int8"
    dimensions: int = 384
    embedding_dtype: Literal["float", "int8"] = "float"
    context_provider: str = "rule"
    context_model: str = "rule-1"
    context_prompt_version: int = 1
    glossary: str = ""
    splitter: Literal["section", "fixed", "semantic", "whole"] = "section"
    max_tokens: int = 400
    overlap_tokens: int = 50
    language: str = "english"
    context_reuse: Literal["chunk", "document"] = "chunk"
    failed_contexts: Literal["publish", "hold"] = "publish"
    # See docs/decisions/0010-whole-corpus.md for what it costs.
    whole_corpus_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(JsonForm):
    """What one provider call used. `cost_usd` is None where the price is not known."""

    provider: str
    model: str
    operation: Operation
    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0
    cost_usd: float | None = None
    duration_s: float = 0.0
    request_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """One vector of the embedder's length per text, in the texts' order, and what they used."""

    vectors: Sequence[Sequence[float]]
    usage: tuple[Usage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenContext:
    """The context of the chunk at `position`, or the error that left it without one.

    `refused` says that the same text would fail again, so it is not asked for again.
    """

    position: int
    context: str | None
    error: str | None = None
    refused: bool = False
    usage: tuple[Usage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit(JsonForm):
    """A chunk that a search found, best first by `rank`.

    `dense_rank` and `lexical_rank` are None where that arm did not return the chunk; both scores
    are the chunk's true ones all the same (cosine -1 to 1, BM25 0 or more), or None without a query
    for that arm.
    `fused_score` is the sum of weight / (k + rank); comparable within one query only.
    `rerank_score` is None before reranking. `duplicates` are the chunks of the same text that were
    left out for this one, best first.
    A hit with `expanded_from` was not found: it stands around the hit of that chunk id, has that
    one's rank, a `fused_score` of 0 and no other score. Of a whole corpus, `rank` is the place in
    which the chunk is read, `fused_score` 0, and there is no other score.
    `page` is the page on which the chunk starts, `page_breaks` the offsets in the document at which
    further pages begin within it.
    """

    rank: int
    chunk_id: int
    document_key: str
    document_title: str | None
    source: str | None
    section_path: tuple[str, ...]
    position: int
    start: int
    stop: int
    page: int | None
    text: str
    table_header: str
    context: str | None
    tags: tuple[str, ...]
    metadata: Mapping[str, Json]
    modified_at: dt.datetime | None
    dense_rank: int | None
    dense_score: float | None
    lexical_rank: int | None
    lexical_score: float | None
    fused_score: float
    rerank_score: float | None = None
    duplicates: tuple[int, ...] = ()
    expanded_from: int | None = None
    page_breaks: tuple[int, ...] = ()

    def page_at(self, offset: int) -> int | None:
        """The page, from 1, of the character at `offset` of the document; None without pages."""
        return None if self.page is None else self.page + bisect.bisect(self.page_breaks, offset)

    @property
    def contextualized(self) -> str:
        """What embedding and BM25 read of this chunk."""
        return contextualized(self.context, self.table_header, self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits(JsonForm, Sequence[Hit]):
    """A list of hits with what happened on the way.

    `mode` is `retrieved`, or `whole_corpus` for all chunks of a small collection, in reading order.
    `dense_mode` and `lexical_mode` say which plan each arm took. `notices` are sentences about the
    query (no keyword in it, say); `degraded` are sentences about a part that failed and was left
    out. `timings_s` are seconds by stage.
    """

    hits: tuple[Hit, ...]
    query: str = ""
    mode: Mode = "retrieved"
    dense_mode: str | None = None
    lexical_mode: str | None = None
    reranker: str | None = None
    notices: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    timings_s: Mapping[str, float] = field(default_factory=dict)
    usage: tuple[Usage, ...] = ()
    search_id: int | None = None

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, index: int | slice) -> Hit | tuple[Hit, ...]:
        return self.hits[index]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranked:
    """One score per hit that was sent, in the same order; larger is better."""

    scores: tuple[float, ...]
    usage: tuple[Usage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation(JsonForm):
    """Words of a document that support a part of an answer: `document.text[start:stop] == quote`.

    `number` counts from 1 in order of first use in the answer.
    """

    number: int
    document_key: str
    document_title: str | None
    section_path: tuple[str, ...]
    page: int | None
    chunk_id: int
    start: int
    stop: int
    quote: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerBlock(JsonForm):
    """A run of the answer's text and the citations that support just this run."""

    text: str
    citations: tuple[Citation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(JsonForm):
    """A grounded answer. `text` is the blocks joined; `citations` are numbered, each once.

    `supported` is False when the documents hold no answer and the text says so. `extractive` is
    True when the text is verbatim sentences and no model wrote it. `mode` says what was read: the
    hits of a search (`retrieved`) or a whole small collection (`whole_corpus`).
    """

    query: str
    text: str
    blocks: tuple[AnswerBlock, ...]
    citations: tuple[Citation, ...]
    supported: bool
    extractive: bool
    provider: str
    model: str
    stop_reason: str | None
    hits: Hits
    mode: Mode = "retrieved"
    notices: tuple[str, ...] = ()
    timings_s: Mapping[str, float] = field(default_factory=dict)
    usage: tuple[Usage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDelta(JsonForm):
    """A piece of a streamed answer, to be shown as it comes."""

    text: str = ""
    citation: Citation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFailure(JsonForm):
    """A document that was not ingested, why, and whether trying again may help."""

    key: str
    reason: str
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver(JsonForm):
    """A file below a folder that was not read: of another kind, or a link out of the folder.

    A link to a folder, or to nothing, counts as `link` too.
    """

    key: str
    reason: Literal["other_kind", "link"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport(JsonForm):
    """What an ingest did, by document key. Chunks are counted for created and updated documents.

    `waiting` are not live yet: a batch writes their contexts. `contexts_failed` counts chunks of
    these documents that lack one; `contexts_refused` live chunks of the whole collection that will,
    since their text was refused, until somebody asks again. `notices` are sentences about
    documents of which a part has no text, unchanged ones included. `oldest_reused_context` is when
    the oldest context was written that an updated document kept. `timings_s` are seconds by stage,
    added up over groups of documents of which two are in work at once.
    """

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    failed: tuple[DocumentFailure, ...] = ()
    waiting: tuple[str, ...] = ()
    chunks: int = 0
    reused_chunks: int = 0
    contexts_failed: int = 0
    contexts_refused: int = 0
    oldest_reused_context: dt.datetime | None = None
    nul_characters_removed: int = 0
    notices: tuple[str, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()
    timings_s: Mapping[str, float] = field(default_factory=dict)
    usage: tuple[Usage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued(JsonForm):
    """The keys of documents that wait for a worker, or are live as they are, and what failed.

    `notices` are those of an IngestReport.
    """

    queued: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    failed: tuple[DocumentFailure, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Qrel:
    """A judgement: this document or chunk id answers this query, with this relevance (above 0)."""

    query_id: str
    id: str
    relevance: float = 1.0
