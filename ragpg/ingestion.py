"""Stages 1 to 3 put together: documents in groups, from text to live, each on its own transaction.

No transaction is open while a provider works, so a crash loses at most the calls in flight.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import anyio
import anyio.to_thread

from ragpg import parse
from ragpg.contextualize import contextualize
from ragpg.errors import ConflictError, DocumentError, InputError, ProviderError, RagpgError
from ragpg.fanout import fan_out
from ragpg.index import index
from ragpg.ingest import changed, publish, reload, split_document, stage, stage_failure
from ragpg.protocols import ContextWriter, Embedder
from ragpg.staging import Staged, Transaction
from ragpg.types import Document, DocumentFailure, IngestReport, Recipe, Span, Usage

# A group shares embedding batches. Its size bounds memory; the text of a group is held at once.
GROUP_DOCUMENTS = 64
GROUP_CHARACTERS = 4_000_000
DOCUMENTS_AT_ONCE = 4

Outcome = Literal["created", "updated", "unchanged", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestProgress:
    """One document is done: its outcome, and counts so far."""

    key: str
    outcome: Outcome
    documents: int
    chunks: int


@dataclass(slots=True)
class _Tally:
    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: list[DocumentFailure] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    chunks: int = 0
    kept_chunks: int = 0
    contexts_failed: int = 0
    nul_characters: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    usage: list[Usage] = field(default_factory=list)

    def add_time(self, stage_name: str, started: float) -> None:
        elapsed = time.perf_counter() - started
        self.timings[stage_name] = self.timings.get(stage_name, 0.0) + elapsed

    def report(self) -> IngestReport:
        return IngestReport(
            created=tuple(self.created),
            updated=tuple(self.updated),
            unchanged=tuple(self.unchanged),
            failed=tuple(self.failed),
            chunks=self.chunks,
            reused_chunks=self.kept_chunks,
            contexts_failed=self.contexts_failed,
            nul_characters_removed=self.nul_characters,
            timings_s=dict(self.timings),
            usage=tuple(self.usage),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingestion:
    """One ingest into one collection.

    `given_spans`, by document key, stand in for the recipe's splitter where passages are given.
    """

    transaction: Transaction
    collection: str
    collection_id: int
    recipe: Recipe
    embedder: Embedder
    context_writer: ContextWriter | None
    from_files: bool
    given_spans: Mapping[str, Sequence[Span]] | None = None
    progress: Callable[[IngestProgress], None] | None = None
    _tally: _Tally = field(default_factory=_Tally)

    async def run(self, documents: AsyncIterator[Document | DocumentFailure]) -> IngestReport:
        """Ingest everything; a document that fails is reported and the others go on.

        Raises ProviderError or DatabaseError when nothing can go on.
        """
        group: list[Document] = []
        characters = 0
        async for item in documents:
            if isinstance(item, DocumentFailure):
                await self._fail(item, claim=None)
                continue
            document = await self._cleaned(item)
            if document is None:
                continue
            group.append(document)
            characters += len(document.text)
            if len(group) >= GROUP_DOCUMENTS or characters >= GROUP_CHARACTERS:
                await self._run_group(group)
                group, characters = [], 0
        if group:
            await self._run_group(group)
        return self._tally.report()

    async def _cleaned(self, document: Document) -> Document | None:
        if document.key in self._tally.seen:
            await self._fail(
                DocumentFailure(
                    key=document.key,
                    reason="duplicate_key",
                    message=f"document {document.key!r} was given twice in one ingest;"
                    " the first was taken, give each document its own key",
                ),
                claim=None,
                remember=False,
            )
            return None
        self._tally.seen.add(document.key)
        try:
            cleaned, removed = parse.clean(document)
        except RagpgError as exc:
            await self._fail(_failure(document.key, exc), claim=None)
            return None
        self._tally.nul_characters += removed
        return cleaned

    async def _run_group(self, group: Sequence[Document]) -> None:
        started = time.perf_counter()
        async with self.transaction() as conn:
            different, live = await changed(
                conn, self.collection_id, group, from_files=self.from_files
            )
        changed_keys = {document.key for document in different}
        for document in group:
            if document.key not in changed_keys:
                self._tally.unchanged.append(document.key)
                self._tell(document.key, "unchanged")
        staged = [one for document in different if (one := await self._stage(document)) is not None]
        self._tally.add_time("ingest", started)
        started = time.perf_counter()
        staged = await self._contextualize(staged)
        self._tally.add_time("contextualize", started)
        started = time.perf_counter()
        ready = await self._index(staged)
        self._tally.add_time("index", started)
        started = time.perf_counter()
        for one in ready:
            await self._publish(one, is_new=one.document.key not in live)
        self._tally.add_time("publish", started)

    async def _stage(self, document: Document) -> Staged | None:
        try:
            spans = (
                await split_document(document, self.recipe, embed=self._embed_sentences)
                if self.given_spans is None
                else self.given_spans[document.key]
            )
            async with self.transaction() as conn:
                return await stage(conn, self.collection_id, document, spans)
        except DocumentError as exc:
            await self._fail(_failure(document.key, exc), claim=None)
            return None

    async def _embed_sentences(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        embedded = await self.embedder.embed(texts, purpose="document")
        self._tally.usage += embedded.usage
        return embedded.vectors

    async def _contextualize(self, documents: Sequence[Staged]) -> list[Staged]:
        writer = self.context_writer
        if writer is None:
            return list(documents)

        async def write(staged: Staged) -> Staged:
            report = await contextualize(self.transaction, self.collection_id, staged, writer)
            self._tally.contexts_failed += len(report.failed)
            self._tally.usage += report.usage
            async with self.transaction() as conn:
                return await reload(conn, self.collection_id, staged)

        return await fan_out(
            [partial(write, staged) for staged in documents],
            anyio.CapacityLimiter(DOCUMENTS_AT_ONCE),
        )

    async def _index(self, documents: Sequence[Staged]) -> list[Staged]:
        report = await index(self.transaction, self.collection_id, documents, self.embedder)
        self._tally.usage += report.usage
        ready = []
        for staged in documents:
            error = report.failed.get(staged.document.key)
            if error is None:
                ready.append(staged)
            else:
                await self._fail(_failure(staged.document.key, error), claim=staged)
        return ready

    async def _publish(self, staged: Staged, *, is_new: bool) -> None:
        key = staged.document.key
        try:
            async with self.transaction() as conn:
                published = await publish(conn, self.collection, staged)
        except ConflictError as exc:
            await self._fail(_failure(key, exc), claim=staged)
            return
        (self._tally.created if is_new else self._tally.updated).append(key)
        self._tally.chunks += published.chunks
        self._tally.kept_chunks += published.kept_chunks
        self._tell(key, "created" if is_new else "updated")

    async def _fail(
        self, failure: DocumentFailure, *, claim: Staged | None, remember: bool = True
    ) -> None:
        self._tally.failed.append(failure)
        if remember:
            async with self.transaction() as conn:
                await stage_failure(
                    conn,
                    self.collection_id,
                    failure.key,
                    status="no_text" if failure.reason == "no_text" else "failed",
                    message=failure.message,
                    claim=None if claim is None else claim.claim,
                )
        self._tell(failure.key, "failed")

    def _tell(self, key: str, outcome: Outcome) -> None:
        if self.progress is not None:
            tally = self._tally
            documents = sum(
                len(keys) for keys in (tally.created, tally.updated, tally.unchanged, tally.failed)
            )
            self.progress(
                IngestProgress(key=key, outcome=outcome, documents=documents, chunks=tally.chunks)
            )


def _failure(key: str, exc: RagpgError) -> DocumentFailure:
    reason = (
        exc.reason
        if isinstance(exc, DocumentError)
        else "provider"
        if isinstance(exc, ProviderError)
        else "conflict"
        if isinstance(exc, ConflictError)
        else "input"
    )
    return DocumentFailure(key=key, reason=reason, message=str(exc), retryable=exc.retryable)


async def given(documents: Iterable[Document]) -> AsyncIterator[Document]:
    """These documents, one after the other. Raises InputError for anything else."""
    for document in documents:
        if not isinstance(document, Document):
            raise InputError(f"{type(document).__name__} is no ragpg.Document; build one")
        yield document


async def parsed(
    files: Sequence[parse.SourceFile],
) -> AsyncIterator[Document | DocumentFailure]:
    """The document of each file, read in a thread, or why there is none."""
    for file in files:
        try:
            yield await anyio.to_thread.run_sync(_parse, file)
        except DocumentError as exc:
            yield DocumentFailure(key=file.key, reason=exc.reason, message=str(exc))
        except RagpgError as exc:
            yield DocumentFailure(key=file.key, reason="input", message=str(exc))


def _parse(file: parse.SourceFile) -> Document:
    return parse.parse_file(file.path, key=file.key)
