"""What a collection holds by rule, in memory, and what its searches find, in plain Python."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import numpy as np
import psycopg

from ragpg import parse, testing
from ragpg.errors import DocumentError, ProviderRejected, ProviderUnavailable
from ragpg.ingest import content_hash, split_document
from ragpg.types import Chunk, Document, Embedded, Hit, Hits, Purpose, Recipe, WrittenContext

# Words by which a text says what a vendor does with it.
POISON = "poisonous"  # no vector, the embedder refuses the text
ZERO = "zeroes"  # a vector of zeros
GAP = "gapped"  # no context this time
REFUSED = "refusable"  # no context for good
HALF = "halved"  # a context with half a character in it
NUL = "nulled"  # a context with NUL in it
Identity = tuple[tuple[str, ...], str, str, int]


@dataclass
class Vendor:
    """Counts what it is asked and answers, and breaks or hangs when it is told to."""

    asked: Counter[str] = field(default_factory=Counter)
    paid: int = 0
    calls_left: int | None = None
    hangs: bool = False

    async def begin(self) -> None:
        """Fail or hang if the call that was chosen has come."""
        if self.calls_left is None:
            return
        self.calls_left -= 1
        if self.calls_left < 0:
            if self.hangs:
                await anyio.sleep_forever()
            raise ProviderUnavailable("it is down", provider="testing", model="m", retryable=True)


class FaultyEmbedder(testing.HashEmbedder):
    """A HashEmbedder that counts its texts and refuses some."""

    def __init__(self, dimensions: int) -> None:
        super().__init__(dimensions)
        self.vendor = Vendor()

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        """One vector per text, or the fault that the texts ask for."""
        if purpose == "document":
            await self.vendor.begin()
            if any(POISON in text for text in texts):
                raise ProviderRejected("a text is bad", provider="testing", model="m", status=400)
        embedded = await super().embed(texts, purpose=purpose)
        self.vendor.paid += len(embedded.usage)
        if purpose == "query":
            return embedded
        if any(ZERO in text for text in texts):
            zeros = [0.0] * self.dimensions
            pairs = zip(texts, embedded.vectors, strict=True)
            return Embedded(
                vectors=[zeros if ZERO in text else list(vector) for text, vector in pairs],
                usage=embedded.usage,
            )
        self.vendor.asked.update(texts)
        return embedded


class FaultyWriter(testing.FirstSentenceContextWriter):
    """A writer of contexts that counts its chunks and leaves some without."""

    def __init__(self) -> None:
        self.vendor = Vendor()

    async def write(
        self, document: Document, chunks: Sequence[Chunk]
    ) -> AsyncIterator[WrittenContext]:
        """One context per chunk, or the fault that its text asks for."""
        async for written in super().write(document, chunks):
            await self.vendor.begin()
            text = next(chunk.text for chunk in chunks if chunk.position == written.position)
            self.vendor.asked[text] += 1
            self.vendor.paid += len(written.usage)
            context, error = written.context, None
            if GAP in text or REFUSED in text:
                context, error = None, "the vendor will not\0 \ud800"
            elif HALF in text or NUL in text:
                context = f"{context} " + ("\ud800" if HALF in text else "\0")
            yield WrittenContext(
                position=written.position,
                context=context,
                error=error,
                refused=REFUSED in text,
                usage=written.usage,
            )


@dataclass
class Live:
    """A live document: what was given, and whether each passage has a context."""

    document: Document
    passages: dict[Identity, str]  # written, gap, refused; none where nobody is asked


def states(passages: Sequence[Identity], *, writes: bool) -> dict[Identity, str]:
    """What becomes of each passage's context where nothing is known of it."""
    if not writes:
        return dict.fromkeys(passages, "none")
    return {
        passage: "gap" if GAP in passage[2] else "refused" if REFUSED in passage[2] else "written"
        for passage in passages
    }


@dataclass
class Shelf:
    """The model of one collection."""

    recipe: Recipe
    writes: bool  # contexts by the counting writer
    live: dict[str, Live] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    queued: dict[str, Document] = field(default_factory=dict)
    history: list[tuple[str, str, str | None]] = field(default_factory=list)

    def same(self, document: Document, *, from_files: bool = False) -> bool:
        """Whether an ingest of this leaves what is live as it is."""
        live = self.live.get(document.key)
        return (
            live is not None
            and content_hash(live.document) == content_hash(document)
            and (from_files or live.document.modified_at == document.modified_at)
            and "gap" not in live.passages.values()
        )

    def expected_passages(self, document: Document, cut: Sequence[Identity]) -> dict[Any, str]:
        """The passages of a new version, those that it keeps as they are."""
        fresh = states(cut, writes=self.writes)
        old = self.live[document.key].passages if document.key in self.live else {}
        kept = {one: old[one] for one in cut if old.get(one) in ("written", "refused", "none")}
        return fresh | kept

    def publish(self, document: Document, passages: dict[Any, str]) -> None:
        """Make it live."""
        self.live[document.key] = Live(document=document, passages=passages)
        self.pending.pop(document.key, None)
        self.queued.pop(document.key, None)
        self.history.append(("published", document.key, None))

    def forget_queued(self) -> None:
        """Leave out the versions that no worker waits for any more."""
        self.queued = {
            key: one for key, one in self.queued.items() if self.pending.get(key) == "queued"
        }

    def remove(self, key: str, action: str = "deleted") -> None:
        """Delete it."""
        del self.live[key]
        self.history.append((action, key, None))

    def seen(self) -> set[str]:
        """The keys of those that have not expired."""
        return {key for key, one in self.live.items() if not expired(one.document)}


def expired(document: Document) -> bool:
    """Whether its time is over; no test runs at the moment itself."""
    return document.expires_at is not None and document.expires_at <= dt.datetime.now(dt.UTC)


def cleaned(document: Document) -> Document | str:
    """As it is stored, or the reason why it is not."""
    try:
        return parse.clean(document)[0]
    except DocumentError as exc:
        return exc.reason


async def cut(document: Document, recipe: Recipe) -> list[Identity] | None:
    """The passages by what makes them the same; None where there are none."""
    try:
        spans = await split_document(document, recipe, embed=_no_vectors)
    except DocumentError:
        return None
    counted: Counter[Any] = Counter()
    passages = []
    for span in spans:
        plain = (span.section_path, span.table_header, document.text[span.start : span.stop])
        passages.append((*plain, counted[plain]))
        counted[plain] += 1
    return passages


async def _no_vectors(texts: Sequence[str]) -> Sequence[Sequence[float]]:
    raise NotImplementedError(texts)


# What searches find. `Row` is what stands in the tables, read as a superuser.


@dataclass
class Row:
    """A live chunk."""

    chunk_id: int
    key: str
    text: str
    lexemes: Counter[str]
    vector: Any
    metadata: Mapping[str, Any]
    tags: tuple[str, ...]
    expired: bool


def rows_of(owner: psycopg.Connection[Any], collection_id: int, language: str) -> list[Row]:
    """Every chunk of a collection with its lexemes and its vector."""
    found = owner.execute(
        """
        select chunk.chunk_id, document.key, btrim(chunk.table_header || chunk.text, E' \t\n\r\f\v'),
               (select coalesce(jsonb_object_agg(lexeme.lexeme, cardinality(lexeme.positions)), '{}')
                  from unnest(ragpg.tokenize(ragpg.contextualized(
                           chunk.context, chunk.table_header, chunk.text), %(language)s)) as lexeme),
               embedding.embedding::text, document.metadata, document.tags,
               coalesce(document.expires_at <= now(), false)
          from ragpg.chunk
          join ragpg.document using (tenant_id, document_id)
          join ragpg.embedding using (tenant_id, chunk_id)
         where chunk.collection_id = %(collection_id)s
        """,
        {"collection_id": collection_id, "language": language},
    ).fetchall()
    return [
        Row(
            chunk_id=row[0],
            key=row[1],
            text=row[2],
            lexemes=Counter(row[3]),
            vector=np.array(row[4].strip("[]").split(","), dtype=float),
            metadata=row[5],
            tags=tuple(row[6]),
            expired=row[7],
        )
        for row in found
    ]


def bm25(rows: Sequence[Row], asked: Mapping[str, int]) -> dict[int, float]:
    """The score of every chunk that holds a lexeme of the query."""
    total = len(rows)
    average = max(1.0, sum(sum(row.lexemes.values()) for row in rows) / max(1, total))
    scores: dict[int, float] = {}
    for lexeme, times in asked.items():
        holders = [row for row in rows if lexeme in row.lexemes]
        idf = math.log(1 + (total - len(holders) + 0.5) / (len(holders) + 0.5))
        for row in holders:
            frequency, length = row.lexemes[lexeme], sum(row.lexemes.values())
            weight = frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * length / average))
            scores[row.chunk_id] = scores.get(row.chunk_id, 0) + times * idf * weight
    return scores


def cosines(rows: Sequence[Row], query: Sequence[float]) -> dict[int, float]:
    """The cosine of every chunk."""
    vector = np.array(query, dtype=np.float16).astype(float)
    return {
        row.chunk_id: float(row.vector @ vector)
        / float(np.linalg.norm(row.vector) * np.linalg.norm(vector))
        for row in rows
    }


def check_arm(
    ranked: Sequence[tuple[int, float]], wanted: Mapping[int, float], *, tolerance: float
) -> None:
    """That an arm found just these chunks, with these scores, best first, and equal ones by id."""
    assert {chunk_id for chunk_id, _ in ranked} == set(wanted)
    for chunk_id, score in ranked:
        assert math.isclose(score, wanted[chunk_id], rel_tol=tolerance, abs_tol=tolerance)
    assert list(ranked) == sorted(ranked, key=lambda one: (-one[1], one[0]))


def check_fusion(hits: Hits, *, dense: float = 0.6, lexical: float = 1.0) -> None:
    """That a list is the reciprocal rank fusion of its arms, ties by chunk id."""

    def fused(hit: Hit) -> float:
        parts = ((dense, hit.dense_rank), (lexical, hit.lexical_rank))
        return sum(weight / (60 + rank) for weight, rank in parts if rank is not None)

    assert [hit.chunk_id for hit in hits] == [
        hit.chunk_id for hit in sorted(hits, key=lambda hit: (-fused(hit), hit.chunk_id))
    ]
    assert all(math.isclose(hit.fused_score, fused(hit)) for hit in hits)


Predicate = Callable[[Row], bool]
# A filter as JSON, and the same in Python.
FILTERS: Sequence[tuple[dict[str, Any] | None, Predicate]] = (
    (None, lambda _: True),
    ({"year": {">=": 2025}}, lambda row: is_number(row) and row.metadata["year"] >= 2025),
    ({"year": 2025}, lambda row: is_number(row) and row.metadata["year"] == 2025),
    ({"not": {"year": {"exists": True}}}, lambda row: "year" not in row.metadata),
    ({"tags": {"any": ["adr", "rfc"]}}, lambda row: bool({"adr", "rfc"} & set(row.tags))),
    ({"key": {"prefix": "a"}}, lambda row: row.key.startswith("a")),
    ({"team": {"!=": "ada"}}, lambda row: row.metadata.get("team") != "ada"),
)


def is_number(row: Row) -> bool:
    """Whether its year is a number; True is none."""
    year = row.metadata.get("year")
    return isinstance(year, int | float) and not isinstance(year, bool)
