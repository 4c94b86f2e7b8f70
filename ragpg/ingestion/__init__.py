"""Stages 1 to 3 put together: documents in groups, from text to live, each on its own transaction.

No transaction is open while a provider works, so a crash loses at most the calls in flight.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import (
    AsyncIterator,
    Callable,
    Container,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
import anyio.to_thread

from ragpg import parse
from ragpg.contextualize import contextualize
from ragpg.database import Connection
from ragpg.errors import DocumentError, InvalidProviderResponse, PartlyEmbedded, RagpgError
from ragpg.fanout import fan_out, work_ahead
from ragpg.faults import faults_named
from ragpg.index import index
from ragpg.ingest import (
    ContextsKept,
    SplitDocument,
    batched_keys,
    changed,
    claim_batched,
    contexts_kept,
    live_keys,
    publish_documents,
    reload,
    split_document,
    stage_documents,
    stage_failure,
    superseded,
)
from ragpg.ingestion.failures import conflict, failure, held_back
from ragpg.ingestion.in_work import in_work
from ragpg.ingestion.tally import IngestProgress, Outcome, Tally
from ragpg.protocols import ContextWriter, Embedder
from ragpg.staging import Staged, Transaction, record_usage
from ragpg.types import Document, DocumentFailure, IngestReport, Recipe, Span, Usage

# A group shares embedding batches. Its size bounds memory; the text of a group is held at once.
GROUP_DOCUMENTS = 64
GROUP_CHARACTERS = 4_000_000
# One group is split and staged while another is embedded and published; a third only costs memory.
GROUPS_AT_ONCE = 2
DOCUMENTS_AT_ONCE = 4
# Documents go live in transactions of so many chunks: one document each would spend a third of the
# time on commits, and a long transaction holds its locks for long.
PUBLISH_CHUNKS = 250
PUBLISHES_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingestion:
    """One ingest into one collection.

    `given_spans`, by document key, stand in for the recipe's splitter where passages are given.
    `claims`, by document key, are those under which documents were taken from staging.
    `recontextualize` writes new contexts for all chunks of changed documents, and asks again for
    those that were refused of unchanged ones. With `batched`,
    documents that lack contexts are staged and left to batches, see `ragpg.ingestion.batch_mode`.
    """

    transaction: Transaction
    collection: str
    collection_id: int
    recipe: Recipe
    embedder: Embedder
    context_writer: ContextWriter | None
    from_files: bool
    given_spans: Mapping[str, Sequence[Span]] | None = None
    claims: Mapping[str, uuid.UUID] = field(default_factory=dict)
    progress: Callable[[IngestProgress], None] | None = None
    recontextualize: bool = False
    batched: bool = False
    _tally: Tally = field(default_factory=Tally)
    _contextualizing: anyio.CapacityLimiter = field(
        default_factory=lambda: anyio.CapacityLimiter(DOCUMENTS_AT_ONCE)
    )
    _publishing: anyio.CapacityLimiter = field(
        default_factory=lambda: anyio.CapacityLimiter(PUBLISHES_AT_ONCE)
    )

    async def run(self, documents: AsyncIterator[Document | DocumentFailure]) -> IngestReport:
        """Ingest everything; a document that fails is reported and the others go on.

        Raises ProviderError or DatabaseError when nothing can go on.
        """
        await work_ahead(self._groups(documents), self._run_group, GROUPS_AT_ONCE)
        return self._tally.report()

    async def _groups(
        self, documents: AsyncIterator[Document | DocumentFailure]
    ) -> AsyncIterator[Sequence[Document]]:
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
                yield group
                group, characters = [], 0
        if group:
            yield group

    async def _cleaned(self, document: Document) -> Document | None:
        try:
            parse.check_key(document.key)
        except DocumentError as exc:
            await self._fail(failure(str(document.key), exc), claim=None)
            return None
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
        self._tally.seen[document.key] = len(self._tally.seen)
        try:
            cleaned, removed = parse.clean(document)
        except RagpgError as exc:
            await self._fail(failure(document.key, exc), claim=None)
            return None
        self._tally.nul_characters += removed
        self._tally.notices += parse.notices(cleaned)
        return cleaned

    async def _run_group(self, group: Sequence[Document]) -> None:
        started = time.perf_counter()
        async with self.transaction() as conn:
            different, live = await changed(
                conn,
                self.collection_id,
                group,
                from_files=self.from_files,
                ask_refused=self.recontextualize,
            )
        changed_keys = {document.key for document in different}
        for document in group:
            if document.key not in changed_keys:
                self._tally.unchanged.append(document.key)
                self._tally.end(document.key)
                self._tell(document.key, "unchanged")
        staged = await self._stage(different)
        self._tally.add_time("ingest", started)
        async with self._in_work(staged):
            if not self.batched:
                started = time.perf_counter()
                staged = await self._contextualize(staged)
                self._tally.add_time("contextualize", started)
            await self._make_live(staged, live)

    def _in_work(self, staged: Sequence[Staged]) -> AbstractAsyncContextManager[None]:
        # Whoever took documents under claims says itself what became of them.
        return in_work(self.transaction, self.collection_id, staged, keep_error=not self.claims)

    async def _make_live(self, documents: Sequence[Staged], live: Container[str]) -> None:
        """Embed and publish the documents that await no context; `live` are the keys known."""
        settled = [one for one in documents if await self._settled(one)]
        started = time.perf_counter()
        ready = await self._index(settled)
        self._tally.add_time("index", started)
        started = time.perf_counter()
        await fan_out(
            [partial(self._publish, batch, live) for batch in _publish_batches(ready)],
            self._publishing,
        )
        self._tally.add_time("publish", started)

    async def _settled(self, staged: Staged) -> bool:
        """Whether a document may go live: no batch writes a context of it, and no gap holds it."""
        if self.context_writer is None:
            return True
        gaps = [chunk for chunk in staged.chunks if chunk.context is None]
        if any(chunk.waiting or (self.batched and chunk.context_error is None) for chunk in gaps):
            self._tally.waiting.append(staged.document.key)
            return False
        if gaps and self.recipe.failed_contexts == "hold":
            await self._fail(held_back(staged, gaps), claim=staged.claim)
            return False
        self._tally.contexts_failed += len(gaps)
        return True

    async def publish_batched(self) -> None:
        """Make those documents live of which all contexts have come, from any process's batches."""
        async with self.transaction() as conn:
            keys = await batched_keys(conn, self.collection_id)
        ready = [key for key, is_ready in keys.items() if is_ready]
        for start in range(0, len(ready), GROUP_DOCUMENTS):
            group = []
            async with self.transaction() as conn:
                live = await live_keys(
                    conn, self.collection_id, ready[start : start + GROUP_DOCUMENTS]
                )
                for key in ready[start : start + GROUP_DOCUMENTS]:
                    staged = await claim_batched(conn, self.collection_id, key)
                    if staged is not None:
                        group.append(staged)
            async with self._in_work(group):
                await self._make_live(group, live)
        async with self.transaction() as conn:
            self._tally.waiting[:] = await batched_keys(conn, self.collection_id)

    def context_settled(self, keys: Sequence[str], usage: Sequence[Usage]) -> None:
        """Count and tell contexts that were stored, or failed, of these documents' chunks."""
        self._tally.contextualized += len(keys)
        self._tally.step(keys, usage)
        self._tell(keys[-1] if keys else "", "contextualized")

    def _vectors_settled(self, keys: Sequence[str], usage: Sequence[Usage]) -> None:
        self._tally.embedded += len(keys)
        self._tally.step(keys, usage)
        self._tell(keys[-1] if keys else "", "embedded")

    def collected(self, *, nul_characters: int, waiting_contexts: int) -> None:
        """Count what was left out of batches, and tell how many contexts they still write."""
        self._tally.nul_characters += nul_characters
        self._tell("", "waiting", waiting_contexts=waiting_contexts)

    def report(self) -> IngestReport:
        """What has been done so far."""
        return self._tally.report()

    async def _stage(self, documents: Sequence[Document]) -> list[Staged]:
        cut = [one for document in documents if (one := await self._split(document)) is not None]
        if not cut:
            return []
        async with self.transaction() as conn:
            cut = [replace(one, kept=await self._kept(conn, one.document)) for one in cut]
            staged = await stage_documents(conn, self.collection_id, cut)
        held = {one.document.key for one in staged}
        for one in cut:
            if one.document.key not in held:
                error = failure(one.document.key, superseded(one.document.key))
                await self._fail(error, claim=one.claim)
        for each in staged:
            self._tally.take(each, contexts=self.context_writer is not None)
        if staged:
            self._tell(staged[-1].document.key, "staged")
        return staged

    async def _kept(self, conn: Connection, document: Document) -> ContextsKept:
        return await contexts_kept(
            conn,
            self.collection_id,
            document,
            self.recipe,
            recontextualize=self.recontextualize,
        )

    async def _split(self, document: Document) -> SplitDocument | None:
        claim = self.claims.get(document.key)
        try:
            spans = (
                await split_document(document, self.recipe, embed=self._embed_sentences)
                if self.given_spans is None
                else self.given_spans[document.key]
            )
        except DocumentError as exc:
            await self._fail(failure(document.key, exc), claim=claim)
            return None
        return SplitDocument(document=document, spans=spans, claim=claim, batched=self.batched)

    async def _embed_sentences(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        try:
            with faults_named(self.embedder):
                embedded = await self.embedder.embed(texts, purpose="document")
        except PartlyEmbedded as exc:
            await self._paid(exc.usage)
            raise
        await self._paid(embedded.usage)
        return embedded.vectors

    async def _paid(self, usage: Sequence[Usage]) -> None:
        """Count and record calls of which nothing else is stored."""
        self._tally.usage += usage
        async with self.transaction() as conn:
            await record_usage(conn, self.collection_id, usage)
        self._tell("", "embedded")

    async def _contextualize(self, documents: Sequence[Staged]) -> list[Staged]:
        writer = self.context_writer
        if writer is None or not documents:
            return list(documents)

        async def write(staged: Staged) -> Staged | None:
            try:
                report = await contextualize(
                    self.transaction,
                    self.collection_id,
                    staged,
                    writer,
                    settled=self.context_settled,
                )
            except InvalidProviderResponse as exc:
                await self._fail(failure(staged.document.key, exc), claim=staged.claim)
                return None
            self._tally.nul_characters += report.nul_characters
            return staged

        done = await fan_out(
            [partial(write, staged) for staged in documents], self._contextualizing
        )
        written = [staged for staged in done if staged is not None]
        async with self.transaction() as conn:
            return await reload(conn, self.collection_id, written)

    async def _index(self, documents: Sequence[Staged]) -> list[Staged]:
        report = await index(
            self.transaction,
            self.collection_id,
            documents,
            self.embedder,
            dimensions=self.recipe.dimensions,
            settled=self._vectors_settled,
        )
        ready = []
        for staged in documents:
            error = report.failed.get(staged.document.key)
            if error is None:
                ready.append(staged)
            else:
                await self._fail(failure(staged.document.key, error), claim=staged.claim)
        return ready

    async def _publish(self, batch: Sequence[Staged], live: Container[str]) -> None:
        async with self.transaction() as conn:
            published = await publish_documents(conn, self.collection, batch)
        for staged, done in zip(batch, published, strict=True):
            if done.state != "published":
                await self._fail(failure(done.key, conflict(done)), claim=staged.claim)
                continue
            is_new = done.key not in live
            (self._tally.created if is_new else self._tally.updated).append(done.key)
            self._tally.chunks += done.chunks or 0
            self._tally.kept_chunks += done.kept_chunks or 0
            self._tally.end(done.key)
            self._tell(done.key, "created" if is_new else "updated")

    async def _fail(
        self, failure: DocumentFailure, *, claim: uuid.UUID | None, remember: bool = True
    ) -> None:
        self._tally.failed.append(failure)
        self._tally.end(failure.key)
        if remember:
            async with self.transaction() as conn:
                await stage_failure(
                    conn,
                    self.collection_id,
                    failure.key,
                    status="no_text" if failure.reason == "no_text" else "failed",
                    message=failure.message,
                    claim=claim,
                )
        self._tell(failure.key, "failed")

    def _tell(self, key: str, outcome: Outcome, *, waiting_contexts: int = 0) -> None:
        if self.progress is not None:
            self.progress(self._tally.progress(key, outcome, waiting_contexts))


def _publish_batches(staged: Sequence[Staged]) -> Iterator[list[Staged]]:
    """The documents in order, in runs of about PUBLISH_CHUNKS chunks."""
    batch: list[Staged] = []
    chunks = 0
    for one in staged:
        if batch and chunks + len(one.chunks) > PUBLISH_CHUNKS:
            yield batch
            batch, chunks = [], 0
        batch.append(one)
        chunks += len(one.chunks)
    if batch:
        yield batch
