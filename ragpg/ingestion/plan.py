"""What an ingest or a sync would do and cost: values, and the pass over the files that finds out.

Nothing is written and no vendor is called. Tokens are estimates, so cost is one as well.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

import anyio.to_thread
from psycopg.types.json import Jsonb

from ragpg import parse
from ragpg.database import Connection, fetch_rows, statements
from ragpg.errors import DocumentError, RagpgError
from ragpg.ingest import ContextsKept, SplitDocument, content_hash, contexts_kept, rows_of
from ragpg.ingestion.sources import parsed
from ragpg.protocols import ContextWriter, DocumentEmbedder, Embedder
from ragpg.providers.prices import embedding_cost_usd
from ragpg.split import split
from ragpg.staging import Transaction
from ragpg.tokens import count_tokens
from ragpg.types import Chunk, Document, DocumentFailure, PassedOver, Recipe, Span, Usage

STATEMENTS = statements("sync")
# What a context adds to a text that is embedded: the prompt asks for 50 to 100 tokens.
CONTEXT_TOKENS = 75
# Above this share of the live documents a removal needs consent: a wrong folder looks like one.
REMOVAL_SHARE = 0.1

Action = Literal["add", "update", "rename", "remove", "unchanged", "expired", "fail", "foreign"]


@runtime_checkable
class Estimating(Protocol):
    """A ContextWriter that knows what it would cost."""

    def estimate(
        self, document: Document, chunks: Sequence[Chunk], *, batch: bool = False
    ) -> Usage:
        """What writing these contexts would use and cost."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDocument:
    """What happens to one document.

    `kept_chunks` keep context and vector, the others of `chunks` are paid for. `from_key` is the
    old key of a rename. `reason` is why it fails. `expired` ones are not live and would not be
    found, so they are left out. `foreign` ones did not come from the folder and stay as they are.
    """

    key: str
    action: Action
    chunks: int = 0
    kept_chunks: int = 0
    from_key: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will happen, document by document, and `usage`, one per vendor, model and operation.

    `live` counts the documents of the collection as it is. `root` is the folder of a sync.
    `oldest_reused_context` is when the oldest context that an updated document keeps was written.
    `hashes` are what is live under the keys that a sync removes or renames. `at_once_usd`, of a
    plan in batches, is what its contexts would cost without them. A folder that cannot be read
    fails, by a key that ends in a slash; the live documents below it stay and are not in the plan.
    """

    documents: tuple[PlannedDocument, ...]
    usage: tuple[Usage, ...]
    live: int
    root: str | None = None
    oldest_reused_context: dt.datetime | None = None
    notes: tuple[str, ...] = ()
    hashes: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    at_once_usd: float | None = None
    passed_over: tuple[PassedOver, ...] = ()

    def keys(self, *actions: Action) -> list[str]:
        """The keys of the documents to which one of these happens."""
        return [document.key for document in self.documents if document.action in actions]

    @property
    def counts(self) -> dict[Action, int]:
        """How many documents by action."""
        return dict(Counter(document.action for document in self.documents))

    @property
    def cost_usd(self) -> float | None:
        """US dollars in all; None where the price of a part is not known."""
        costs = [one.cost_usd for one in self.usage]
        return None if None in costs else sum(cost or 0.0 for cost in costs)

    @property
    def removes_much(self) -> bool:
        """Whether more than a tenth of the live documents goes away."""
        return len(self.keys("remove")) > REMOVAL_SHARE * self.live


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A live document: what its content is, and the folder that a sync took it from.

    `gap` says that a context of it is missing and is asked for again.
    """

    content_hash: bytes
    root: str | None
    gap: bool


@dataclass(slots=True, kw_only=True)
class Planner:
    """One pass over files; `collection_id` is None while there is no collection."""

    transaction: Transaction
    collection_id: int | None
    recipe: Recipe
    embedder: Embedder
    context_writer: ContextWriter | None
    recontextualize: bool = False
    batched: bool = False
    progress: Callable[[int], None] | None = None
    _documents: list[PlannedDocument] = field(default_factory=list)
    _renamed: dict[str, bytes] = field(default_factory=dict)
    _usage: dict[tuple[str, str, str], Usage] = field(default_factory=dict)
    _oldest: dt.datetime | None = None
    _at_once_usd: float | None = None
    _notices: list[str] = field(default_factory=list)

    async def plan(self, found: parse.FoundFiles, *, root: str | None) -> Plan:
        """The plan for these files; with `root` for a sync of that folder, which may remove."""
        live = await self._live()
        in_folder = {file.key for file in found.files}
        in_folder |= {key for key in live if found.hides(key)}
        gone = {
            key: known
            for key, known in sorted(live.items())
            if root is not None and known.root == root and key not in in_folder
        }
        done = 0
        self._documents += [_failed(one.key, one.message) for one in found.failed]
        async for item in parsed(found.files):
            await self._one(item, live, gone)
            done += 1
            if self.progress is not None:
                self.progress(done)
        self._documents += [PlannedDocument(key=key, action="remove") for key in gone]
        if root is not None:
            self._documents += [
                PlannedDocument(key=key, action="foreign")
                for key, known in sorted(live.items())
                if key not in in_folder and known.root != root
            ]
        return Plan(
            documents=tuple(self._documents),
            usage=tuple(self._usage[name] for name in sorted(self._usage)),
            live=len(live),
            root=root,
            oldest_reused_context=self._oldest,
            notes=self._notes(),
            hashes=self._renamed | {key: known.content_hash for key, known in gone.items()},
            at_once_usd=self._at_once_usd,
            passed_over=found.passed_over,
        )

    async def _live(self) -> dict[str, Live]:
        if self.collection_id is None:
            return {}
        async with self.transaction() as conn:
            wanted = {"collection_id": self.collection_id, "ask_refused": self.recontextualize}
            rows = await fetch_rows(conn, STATEMENTS["live_versions"], wanted)
        return {
            row["key"]: Live(content_hash=row["content_hash"], root=row["root"], gap=row["gap"])
            for row in rows
        }

    async def _one(
        self, item: Document | DocumentFailure, live: Mapping[str, Live], gone: dict[str, Live]
    ) -> None:
        if isinstance(item, DocumentFailure):
            self._documents.append(_failed(item.key, item.message))
            return
        try:
            document, _ = parse.clean(item)
            self._notices += parse.notices(document)
            known = live.get(document.key)
            digest = content_hash(document)
            if known is not None and known.content_hash == digest and not known.gap:
                planned = PlannedDocument(key=document.key, action="unchanged")
            elif known is None and (old := _first_of(gone, digest)) is not None:
                self._renamed[old] = gone.pop(old).content_hash
                planned = PlannedDocument(key=document.key, action="rename", from_key=old)
            elif known is None and _has_expired(document):
                planned = PlannedDocument(key=document.key, action="expired")
            else:
                planned = await self._changed(document, "add" if known is None else "update")
        except RagpgError as exc:
            if not isinstance(exc, ValueError):
                raise
            planned = _failed(item.key, str(exc))
        self._documents.append(planned)

    async def _changed(self, document: Document, action: Action) -> PlannedDocument:
        spans = await anyio.to_thread.run_sync(self._spans, document)
        known = await self._known(document, spans)
        chunks = [
            Chunk(
                position=position,
                start=span.start,
                stop=span.stop,
                text=document.text[span.start : span.stop],
                section_path=span.section_path,
                table_header=span.table_header,
                context=known[position].context,
            )
            for position, span in enumerate(spans)
        ]
        lacking = [c for c in chunks if c.context is None and not known[c.position].refused]
        without = [] if self.context_writer is None else lacking
        missing = {chunk.position for chunk in without}
        unembedded = [c for c in chunks if c.position in missing or not known[c.position].embedded]
        unpaid = [chunk for chunk in without if not known[chunk.position].waiting]
        if unpaid and self.context_writer is not None:
            self._add(await self._contexts(document, unpaid, self.context_writer))
        if unembedded and isinstance(self.embedder, DocumentEmbedder):
            # Chunks are embedded in sight of each other, so one new chunk means all anew.
            unembedded = chunks
        if unembedded:
            self._add(self._embedding(unembedded, missing))
        ages = [one.reused_from for one in known if one.reused_from is not None]
        self._oldest = min(ages if self._oldest is None else [*ages, self._oldest], default=None)
        return PlannedDocument(
            key=document.key,
            action=action,
            chunks=len(chunks),
            kept_chunks=len(chunks) - len(unembedded),
        )

    def _spans(self, document: Document) -> list[Span]:
        recipe = self.recipe
        # The semantic splitter embeds sentences; sections of the same size stand in for it here.
        splitter = "section" if recipe.splitter == "semantic" else recipe.splitter
        spans = split(
            document,
            splitter=splitter,
            max_tokens=recipe.max_tokens,
            overlap_tokens=recipe.overlap_tokens,
        )
        if not spans:
            raise DocumentError(
                f"document {document.key!r} holds no text that could be found", reason="no_text"
            )
        return spans

    async def _known(self, document: Document, spans: Sequence[Span]) -> list[_KnownChunk]:
        if self.collection_id is None:
            return [_KnownChunk()] * len(spans)
        async with self.transaction() as conn:
            kept = await contexts_kept(
                conn,
                self.collection_id,
                document,
                self.recipe,
                recontextualize=self.recontextualize,
            )
            return await _known_chunks(conn, self.collection_id, document, spans, kept)

    async def _contexts(
        self, document: Document, chunks: Sequence[Chunk], writer: ContextWriter
    ) -> Usage:
        if isinstance(writer, Estimating):
            if self.batched:
                at_once = await anyio.to_thread.run_sync(writer.estimate, document, chunks)
                self._at_once_usd = (self._at_once_usd or 0.0) + (at_once.cost_usd or 0.0)
            return await anyio.to_thread.run_sync(
                lambda: writer.estimate(document, chunks, batch=self.batched)
            )
        return Usage(
            provider=writer.provider,
            model=writer.model,
            operation="context",
            cost_usd=0.0 if writer.provider == "rule" else None,
        )

    def _embedding(self, chunks: Sequence[Chunk], without_context: set[int]) -> Usage:
        tokens = sum(
            count_tokens(chunk.contextualized)
            + (CONTEXT_TOKENS if chunk.position in without_context else 0)
            for chunk in chunks
        )
        provider, model = self.embedder.provider, self.embedder.model
        return Usage(
            provider=provider,
            model=model,
            operation="embed",
            input_tokens=tokens,
            cost_usd=embedding_cost_usd(provider, model, tokens),
        )

    def _add(self, more: Usage) -> None:
        name = (more.operation, more.provider, more.model)
        known = self._usage.get(name)
        if known is None:
            self._usage[name] = more
            return
        costs = (known.cost_usd, more.cost_usd)
        self._usage[name] = replace(
            known,
            input_tokens=known.input_tokens + more.input_tokens,
            output_tokens=known.output_tokens + more.output_tokens,
            cache_write_tokens=known.cache_write_tokens + more.cache_write_tokens,
            cache_read_tokens=known.cache_read_tokens + more.cache_read_tokens,
            cost_usd=None if None in costs else sum(cost or 0.0 for cost in costs),
        )

    def _notes(self) -> tuple[str, ...]:
        notes = [
            f"the price of {one.provider} {one.model} is not known, so the cost in all is not"
            for one in self._usage.values()
            if one.cost_usd is None
        ]
        batched = [one.cost_usd for one in self._usage.values() if one.operation == "context"]
        if self._at_once_usd and batched[0] is not None:
            saved = 1 - batched[0] / self._at_once_usd
            notes.append(
                f"the contexts cost about {batched[0]:.4f} US dollars in batches and"
                f" {self._at_once_usd:.4f} at once, so batches save {saved:.0%}; with --no-wait"
                " less, since not every request then finds what another has cached"
            )
        if self.recipe.splitter == "semantic" and self._usage:
            notes.append(
                "the semantic splitter embeds every sentence once more, which is not counted here"
            )
        return (*notes, *self._notices)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownChunk:
    """What is there of a passage: its context, since when if it is live, and whether a vector.

    `waiting` when a batch at the vendor writes the context, `refused` when nobody asks again.
    """

    context: str | None = None
    reused_from: dt.datetime | None = None
    embedded: bool = False
    waiting: bool = False
    refused: bool = False


async def _known_chunks(
    conn: Connection,
    collection_id: int,
    document: Document,
    spans: Sequence[Span],
    kept: ContextsKept,
) -> list[_KnownChunk]:
    rows = await fetch_rows(
        conn,
        STATEMENTS["known_chunks"],
        {
            "collection_id": collection_id,
            "key": document.key,
            "chunks": Jsonb(rows_of(SplitDocument(document=document, spans=spans, kept=kept))),
        },
    )
    return [
        _KnownChunk(
            context=row["context"],
            reused_from=row["reused_from"],
            embedded=row["embedded"],
            waiting=row["waiting"],
            refused=row["refused"],
        )
        for row in rows
    ]


def _first_of(gone: Mapping[str, Live], digest: bytes) -> str | None:
    return next((key for key, known in gone.items() if known.content_hash == digest), None)


def _has_expired(document: Document) -> bool:
    return document.expires_at is not None and document.expires_at <= dt.datetime.now(dt.UTC)


def _failed(key: str, reason: str) -> PlannedDocument:
    return PlannedDocument(key=key, action="fail", reason=reason)
