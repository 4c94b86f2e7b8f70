"""The whole product beside a model in memory: random steps, and after each what must hold.

`RAGPG_MODEL_EXAMPLES=500 pytest tests/stages/test_model.py` looks longer, with other steps.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import os
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg import sql

from ragpg import errors, testing
from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.jobs import WorkerLimits, work
from ragpg.types import Document, Recipe
from ragpg.upkeep import apply
from tests.conftest import TestDatabase, client_on
from tests.stages import product_model as model
from tests.stages.product_model import FaultyEmbedder, FaultyWriter, Shelf

EXAMPLES = int(os.environ.get("RAGPG_MODEL_EXAMPLES", "0"))
FAST = WorkerLimits(
    concurrency=2, max_attempts=1, first_wait_s=0.01, longest_wait_s=0.01, poll_s=0.01
)
TENANTS = ("red", "blue")
KEYS = ("a.md", "b/a.md", "ä ö.md", "z'%_.md")
RECIPES = {
    "plain": Recipe(splitter="fixed", max_tokens=12, overlap_tokens=4, language="simple"),
    "german": Recipe(max_tokens=20, overlap_tokens=2, language="german"),
    "whole": Recipe(splitter="whole", language="english"),
}
LONG = "word " * 300
BLOCKS = st.sampled_from(
    [
        "# Leave\n\nEverybody has thirty days of leave.",
        "Everybody has thirty days of leave.",
        "Everybody has thirty days of leave.",
        "## Costs\n\nThe cluster `ERR-1042` costs 5 % more since v1.2.3.",
        "Straße und Häuser wurden gebaut. 東京都の天気 🚀👩‍👩‍👧",
        "| a | b |\n|---|---|\n" + "| one | two |\n" * 8,
        "```python\ndef leave(days):\n    return days\n```",
        "NUL\0 inside\r\nand a\rreturn \u200b\ufeff\u202eright",
        "---\ntitle: no front matter here\n---\ntext",
        LONG,
        "x" * 400,
        "<!-- nothing -->",
        "   ",
        f"a {model.POISON} text",
        f"a {model.ZERO} text",
        f"a {model.GAP} text",
        f"a {model.REFUSED} text",
        f"a {model.HALF} text",
        f"a {model.NUL} text",
        "half \ud800 a character",
    ]
)
METADATA = st.dictionaries(
    st.sampled_from(["year", "team", "x\0", "nested"]),
    st.sampled_from(
        [2024, 2025, 2025.5, True, None, "ada", 10**30, 1e-300, {"a": [1, {"b": None}]}, "\0"]
    ),
    max_size=2,
)
PAST, FUTURE = (dt.datetime(year, 5, 4, 12, tzinfo=dt.UTC) for year in (2020, 2090))
DOCUMENTS = st.builds(
    Document,
    key=st.sampled_from(KEYS),
    text=st.lists(BLOCKS, min_size=0, max_size=4).map("\n\n".join),
    title=st.sampled_from([None, None, "A title", " "]),
    tags=st.sampled_from([(), ("adr",), ("rfc", "adr"), ("x",)]),
    metadata=METADATA,
    modified_at=st.sampled_from([None, None, PAST]),
    expires_at=st.sampled_from([None, None, None, PAST, FUTURE]),
    media_type=st.sampled_from(["markdown", "text"]),
)
BATCHES = st.lists(DOCUMENTS, min_size=1, max_size=3)
PLACES = st.tuples(st.sampled_from(TENANTS), st.sampled_from(list(RECIPES)))
QUERIES = st.sampled_from(
    [
        "leave",
        "thirty days of leave",
        "ERR-1042 v1.2.3",
        "Häuser 東京",
        "the",
        "🚀",
        "word one text",
    ]
)


class Product(RuleBasedStateMachine):
    """Two tenants with a collection of each recipe; a rule does one thing here and in the model."""

    database: TestDatabase
    owner: psycopg.Connection[Any]
    runner: asyncio.Runner
    folder: Path
    clients: dict[str, AsyncClient]
    embedders: dict[str, FaultyEmbedder]
    writer: FaultyWriter
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.run_number = next(self.numbers)
        self.shelves: dict[tuple[str, str], Shelf] = {}
        self.searches: Counter[str] = Counter()
        self.unbilled = self.paid()
        self.known_numbers: dict[tuple[str, str], int] = {}

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What it returns; nothing may take longer than a minute."""
        return self.runner.run(asyncio.wait_for(work, 60))

    def tenant(self, name: str) -> str:
        """The key of a tenant that no example before has used."""
        return f"{name}-{self.run_number}"

    def collection(self, place: tuple[str, str]) -> AsyncCollection:
        """The product's side of a shelf."""
        kind = "rule" if place[1] == "whole" else "written"
        return self.clients[kind].collection(tenant=self.tenant(place[0]), name=place[1])

    def number(self, place: tuple[str, str]) -> int:
        """The collection's number."""
        if place not in self.known_numbers:
            self.known_numbers[place] = int(self.run(self.collection(place).number()))
        return self.known_numbers[place]

    def rows(self, query: str, place: tuple[str, str]) -> list[tuple[Any, ...]]:
        """Rows of one collection, read as a superuser; the query has one parameter."""
        return self.owner.execute(query, [self.number(place)]).fetchall()

    @initialize()
    def create(self) -> None:
        """Every collection under its recipe."""
        for place in itertools.product(TENANTS, RECIPES):
            client = self.clients["rule" if place[1] == "whole" else "written"]
            defaults = client.providers.default_recipe()
            recipe = RECIPES[place[1]]
            recipe = replace(
                defaults,
                splitter=recipe.splitter,
                max_tokens=recipe.max_tokens,
                overlap_tokens=recipe.overlap_tokens,
                language=recipe.language,
            )
            if place[1] == "german":
                recipe = replace(recipe, failed_contexts="hold")
            stored = self.run(self.collection(place).create(recipe))
            self.shelves[place] = Shelf(recipe=stored, writes=place[1] != "whole")

    def teardown(self) -> None:
        """Delete both tenants; no table holds a row of them after that."""
        for vendor in self.vendors():
            vendor.calls_left, vendor.hangs = None, False
        try:
            for name in TENANTS if self.shelves else ():
                key = self.tenant(name)
                found = self.owner.execute(
                    "select tenant_id from ragpg.tenant where key = %s", [key]
                ).fetchone()
                assert found
                self.run(self.clients["rule"].delete_tenant(key))
                assert self.tables_with(found[0]) == []
        finally:
            super().teardown()

    def tables_with(self, tenant_id: int) -> list[str]:
        """The tables that hold a row of a tenant."""
        names = self.owner.execute(
            "select table_name from information_schema.columns join information_schema.tables"
            " using (table_schema, table_name) where table_schema = 'ragpg'"
            " and column_name = 'tenant_id' and table_type = 'BASE TABLE'"
        ).fetchall()
        asked = sql.SQL("select 1 from ragpg.{} where tenant_id = %s limit 1")
        return [
            name
            for (name,) in names
            if self.owner.execute(asked.format(sql.Identifier(name)), [tenant_id]).fetchone()
        ]

    def vendors(self) -> list[model.Vendor]:
        """The embedders and the writer, as what they count."""
        return [self.writer.vendor, *(one.vendor for one in self.embedders.values())]

    def paid(self) -> int:
        """Answered calls of all examples."""
        return sum(vendor.paid for vendor in self.vendors())

    def billed(self) -> int:
        """Those that stand in the bills of both tenants."""
        rows = self.owner.execute(
            "select count(*) from ragpg.usage join ragpg.tenant using (tenant_id)"
            " where key = any (%s) and operation in ('embed', 'context')",
            [[self.tenant(name) for name in TENANTS]],
        ).fetchall()
        return int(rows[0][0])

    def expect(self, place: tuple[str, str], documents: list[Document], **how: bool) -> Any:
        """Ingest into the model: the outcome by key, and what must be paid for at most."""
        shelf = self.shelves[place]
        outcome: dict[str, str] = {}
        contexts, vectors, exact = 0, 0, True
        for raw in documents:
            key = raw.key
            if key in outcome:
                continue
            document = model.cleaned(raw)
            passages = (
                None
                if isinstance(document, str) or shelf.same(document, **how)
                else self.run(model.cut(document, shelf.recipe))
            )
            if isinstance(document, str) or (passages is None and not shelf.same(document, **how)):
                reason = document if isinstance(document, str) else "no_text"
                outcome[key] = reason
                shelf.pending[key] = "no_text" if reason == "no_text" else "failed"
                continue
            if passages is None:
                outcome[key] = "unchanged"
                shelf.pending.pop(key, None)
                shelf.queued.pop(key, None)
                continue
            exact = exact and key not in shelf.pending
            old = shelf.live[key].passages if key in shelf.live else {}
            wanted = shelf.expected_passages(document, passages)
            asked = [one for one in passages if old.get(one) not in ("written", "refused", "none")]
            contexts += len(asked) if shelf.writes else 0
            is_held = shelf.recipe.failed_contexts == "hold" and {"gap", "refused"} & set(
                wanted.values()
            )
            if is_held:
                outcome[key] = "context"
                shelf.pending[key] = "failed"
                continue
            text = [one for one in asked if one not in old or wanted[one] == "written"]
            vectors += len(text)
            if any(word in one[1] + one[2] for one in text for word in (model.POISON, model.ZERO)):
                outcome[key] = "provider"
                shelf.pending[key] = "failed"
                exact = False
                continue
            outcome[key] = "updated" if key in shelf.live else "created"
            shelf.publish(document, wanted)
        return outcome, contexts, vectors, exact

    @rule(place=PLACES, documents=BATCHES)
    def ingest(self, place: tuple[str, str], documents: list[Document]) -> None:
        """Documents come; what is reported and paid for is what the model says."""
        before = [vendor.asked.total() for vendor in self.vendors()]
        report = self.run(self.collection(place).ingest(documents))
        outcome, contexts, vectors, exact = self.expect(place, documents)
        given = {
            **dict.fromkeys(report.created, "created"),
            **dict.fromkeys(report.updated, "updated"),
            **dict.fromkeys(report.unchanged, "unchanged"),
            **{one.key: one.reason for one in report.failed if one.reason != "duplicate_key"},
        }
        assert given == outcome, report.failed
        after = [vendor.asked.total() for vendor in self.vendors()]
        asked = after[0] - before[0], sum(after[1:]) - sum(before[1:])
        assert asked[0] <= contexts
        assert asked[1] <= vectors
        if exact:
            assert asked == (contexts, vectors)

    @rule(place=PLACES, documents=BATCHES, calls=st.integers(0, 6), hangs=st.booleans())
    def ingest_that_ends_early(
        self, place: tuple[str, str], documents: list[Document], calls: int, hangs: bool
    ) -> None:
        """A vendor is down, or the call is cancelled in the middle; then it is done again."""
        for vendor in self.vendors():
            vendor.calls_left, vendor.hangs = calls, hangs
        collection = self.collection(place)
        documents = list({document.key: document for document in documents}.values())
        ended = (errors.ProviderError, TimeoutError)
        with suppress(*ended):
            self.run(asyncio.wait_for(collection.ingest(documents), 0.3 if hangs else 30))
        for vendor in self.vendors():
            vendor.calls_left, vendor.hangs = None, False
        # Calls that were answered when it ended need not be stored any more.
        lost = self.paid() - self.billed() - self.unbilled
        assert 0 <= lost <= 4, lost
        self.unbilled += lost
        # Which of them went live before is not known to the model: it reads it, and goes on.
        shelf = self.shelves[place]
        news = self.history(place)[len(shelf.history) :]
        for action, key, _ in news:
            assert action == "published"
            document = model.cleaned(next(one for one in documents if one.key == key))
            assert isinstance(document, Document)
            passages = self.run(model.cut(document, shelf.recipe))
            shelf.publish(document, shelf.expected_passages(document, passages))
        states = self.staged(place)
        assert {key for key, _ in states} <= set(shelf.pending) | {one.key for one in documents}
        # Cancelled while the server commits what is staged, it stays so, and counts as interrupted.
        assert all(status in ("failed", "no_text", "queued", "staged") for _, status in states)
        shelf.pending = dict(states)
        shelf.forget_queued()
        self.ingest(place, documents)

    @rule(place=PLACES, key=st.sampled_from(KEYS))
    def delete(self, place: tuple[str, str], key: str) -> None:
        """A document goes, if it was there, and so does what waits under its key."""
        shelf = self.shelves[place]
        deleted = self.run(self.collection(place).delete(key))
        assert deleted == (key in shelf.live)
        shelf.pending.pop(key, None)
        shelf.queued.pop(key, None)
        if deleted:
            shelf.remove(key)

    @rule(place=PLACES, key=st.sampled_from(KEYS), to=st.sampled_from(KEYS))
    def rename(self, place: tuple[str, str], key: str, to: str) -> None:
        """A document gets another key, unless that one is taken."""
        shelf = self.shelves[place]
        try:
            self.run(self.collection(place).rename(key, to))
        except errors.NotFoundError:
            assert key not in shelf.live
        except errors.ConflictError:
            assert to in shelf.live
        else:
            if key == to:
                return
            moved = shelf.live.pop(key)
            shelf.live[to] = replace(moved, document=replace(moved.document, key=to))
            shelf.history.append(("renamed", to, key))
            states = self.staged(place)
            shelf.pending = dict(states)

    @rule(place=PLACES)
    def expire(self, place: tuple[str, str]) -> None:
        """What has expired is deleted."""
        shelf = self.shelves[place]
        gone = set(shelf.live) - shelf.seen()
        assert set(self.run(self.collection(place).expire())) == gone
        for key in sorted(gone):
            shelf.remove(key, "expired")

    @rule(
        place=PLACES.filter(lambda place: place[1] != "whole"),
        documents=BATCHES,
        commits=st.booleans(),
    )
    def enqueue(self, place: tuple[str, str], documents: list[Document], commits: bool) -> None:
        """Documents wait for a worker, unless the caller's own transaction is rolled back."""
        shelf, collection = self.shelves[place], self.collection(place)
        client = self.clients["written"]

        async def enqueue() -> Any:
            async with client.transaction(collection.tenant) as conn:
                done = await collection.enqueue(documents, conn=conn)
                if not commits:
                    raise _RolledBackError
                return done

        try:
            done = self.run(enqueue())
        except _RolledBackError:
            return
        assert {one.reason for one in done.failed} <= {"no_text", "encoding"}
        kept: dict[str, Document] = {}
        for raw in documents:
            document = model.cleaned(raw)
            if isinstance(document, str):
                shelf.pending[raw.key] = "no_text" if document == "no_text" else "failed"
            else:
                kept[raw.key] = document
        for key, document in kept.items():
            if shelf.same(document):
                shelf.pending.pop(key, None)
                shelf.queued.pop(key, None)
                assert key in done.unchanged
            else:
                shelf.pending[key] = "queued"
                shelf.queued[key] = document
                assert key in done.queued

    @rule()
    def work(self) -> None:
        """A worker makes live what waits."""
        self.run(work(self.clients["written"], limits=FAST, drain=True))
        for place, shelf in self.shelves.items():
            waiting = dict(shelf.queued)
            for action, key, _ in self.history(place)[len(shelf.history) :]:
                if action == "expired":
                    assert model.expired(shelf.live[key].document)
                    shelf.remove(key, "expired")
                else:
                    assert self.expect(place, [waiting.pop(key)])[0][key] in ("created", "updated")
            for key, document in waiting.items():
                if shelf.pending.get(key) == "queued":
                    outcome = self.expect(place, [document])[0]
                    assert outcome[key] not in ("created", "updated"), outcome
            shelf.queued.clear()

    @rule(place=PLACES, files=st.dictionaries(st.sampled_from(["a.md", "b.txt", "s/c.md"]), BLOCKS))
    def sync(self, place: tuple[str, str], files: dict[str, str]) -> None:
        """A folder is mirrored; afterwards its documents are there and those it lost are gone."""
        folder = self.folder / self.tenant(place[0]) / place[1]
        for name in ("a.md", "b.txt", "s/c.md"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if name in files:
                path.write_bytes(files[name].encode("utf-8", "surrogatepass"))
        shelf, collection = self.shelves[place], self.collection(place)
        report = self.run(collection.sync(folder, allow_removals=True))
        for old, new in report.renamed.items():
            moved = shelf.live.pop(old)
            shelf.live[new] = replace(moved, document=replace(moved.document, key=new))
            shelf.history.append(("renamed", new, old))
        news = self.history(place)[len(shelf.history) :]
        for action, key, _ in news:
            if action == "deleted":
                assert key in report.removed
                shelf.remove(key)
                continue
            assert key in (*report.ingested.created, *report.ingested.updated)
            document = self.run(collection.document(key))
            passages = self.run(model.cut(document, shelf.recipe))
            shelf.publish(document, shelf.expected_passages(document, passages))
        shelf.pending = dict(self.staged(place))
        shelf.forget_queued()
        assert not report.failed
        lost = {*report.removed, *report.renamed}
        assert not lost & set(files)
        # A second sync finds nothing to do.
        again = self.run(collection.plan(folder))
        gaps = any("gap" in one.passages.values() for one in shelf.live.values())
        refused = {one.key for one in report.ingested.failed}
        waits = {one.key for one in again.documents if one.action in ("add", "update")} - refused
        assert gaps or not waits, report

    @rule(place=PLACES, query=QUERIES, chosen=st.sampled_from(model.FILTERS))
    def retrieve(self, place: tuple[str, str], query: str, chosen: Any) -> None:
        """Both arms and their fusion are what Python finds among the rows."""
        where, holds = chosen
        collection, shelf = self.collection(place), self.shelves[place]
        rows = model.rows_of(self.owner, self.number(place), shelf.recipe.language)
        passing = {row.chunk_id for row in rows if holds(row) and not row.expired}
        hits = self.run(collection.retrieve(query, where=where, k=1000, depth=1000))
        assert {hit.document_key for hit in hits} <= shelf.seen()
        model.check_fusion(hits)
        asked = self.owner.execute(
            "select lexeme, cardinality(positions) from unnest(ragpg.tokenize(%s, %s))",
            [query, shelf.recipe.language],
        ).fetchall()
        lexical = model.bm25(rows, dict(asked))
        model.check_arm(
            sorted_by([(hit.lexical_rank, hit.chunk_id, hit.lexical_score) for hit in hits]),
            {one: score for one, score in lexical.items() if one in passing},
            tolerance=1e-5,
        )
        embedder = testing.HashEmbedder(shelf.recipe.dimensions)
        vector = self.run(embedder.embed([query], purpose="query")).vectors[0]
        dense = model.cosines(rows, vector)
        model.check_arm(
            sorted_by([(hit.dense_rank, hit.chunk_id, hit.dense_score) for hit in hits]),
            {one: score for one, score in dense.items() if one in passing},
            tolerance=1e-4,
        )
        self.pages(collection, query, where, [hit.chunk_id for hit in hits])
        self.deduplicated(collection, query, where, rows, [hit.chunk_id for hit in hits])

    def pages(self, collection: Any, query: str, where: Any, ids: list[int]) -> None:
        """Pages of a list are the list, and `exclude` takes out just what it names."""
        paged: list[int] = []
        while True:
            page = self.run(
                collection.retrieve(
                    query, where=where, k=3, depth=1000, after=paged[-1] if paged else None
                )
            )
            paged += [hit.chunk_id for hit in page]
            if len(page) < 3 or len(paged) > 30:
                break
        assert paged == ids[: len(paged)]
        assert len(paged) == len(ids) or len(paged) > 30
        rest = self.run(
            collection.retrieve(query, where=where, k=1000, depth=1000, exclude=ids[::2])
        )
        assert [hit.chunk_id for hit in rest] == ids[1::2]

    def deduplicated(
        self, collection: Any, query: str, where: Any, rows: list[Any], ids: list[int]
    ) -> None:
        """Each text once, the others named."""
        texts = {row.chunk_id: row.text for row in rows}
        alike: dict[str, list[int]] = {}
        for chunk_id in ids:
            alike.setdefault(texts[chunk_id], []).append(chunk_id)
        hits = self.run(
            collection.retrieve(query, where=where, k=1000, depth=1000, deduplicate=True)
        )
        assert [[hit.chunk_id, *hit.duplicates] for hit in hits] == list(alike.values())

    @rule(place=PLACES, query=QUERIES, expand=st.sampled_from([None, "neighbours", "section"]))
    def search(self, place: tuple[str, str], query: str, expand: Any) -> None:
        """A search is one row of the log, and what stands around its hits is there once."""
        hits = self.run(self.collection(place).search(query, k=5, expand=expand))
        self.searches[place[0]] += 1
        assert hits.search_id is not None
        assert not hits.degraded
        ids = [hit.chunk_id for hit in hits]
        assert len(ids) == len(set(ids))
        found = {hit.chunk_id for hit in hits if hit.expanded_from is None}
        assert {hit.expanded_from for hit in hits} <= {None, *found}
        assert {hit.document_key for hit in hits} <= self.shelves[place].seen()
        answer = self.run(self.collection(place).generate(query, hits))
        for citation in answer.citations:
            text = self.shelves[place].live[citation.document_key].document.text
            assert text[citation.start : citation.stop] == citation.quote

    @rule(place=PLACES)
    def swap_alias(self, place: tuple[str, str]) -> None:
        """Readers of an alias see the collection that it means now."""
        self.run(self.collection(place).set_alias("current"))
        alias = replace_name(self.collection(place), "current")
        listed = self.run(alias.documents(limit=1000))
        assert {one.key for one in listed} == self.shelves[place].seen()

    @rule()
    def maintain(self) -> None:
        """Indexes are planned and built, and the log is pruned of what is old: of nothing."""
        apply(self.database.owner_url)
        pruned = self.clients["rule"].prune_log(tenant=self.tenant("red"), older_than_days=30)
        assert self.run(pruned) == 0

    def staged(self, place: tuple[str, str]) -> list[tuple[Any, ...]]:
        """What is not live, and why."""
        return self.rows(
            "select key, status from ragpg.staged_document where collection_id = %s", place
        )

    def history(self, place: tuple[str, str]) -> list[tuple[Any, ...]]:
        """What changed, in order."""
        return self.rows(
            "select action, document_key, former_key from ragpg.document_history"
            " where collection_id = %s order by history_id",
            place,
        )

    @precondition(lambda self: self.shelves)
    @invariant()
    def documents_are_live_whole_and_once(self) -> None:
        """Texts, fields, passages and their contexts are those of the model."""
        for place, shelf in self.shelves.items():
            live = self.rows(
                "select key, text, tags, metadata, expires_at, modified_at, title, document_id"
                " from ragpg.document where collection_id = %s",
                place,
            )
            assert sorted(row[0] for row in live) == sorted(shelf.live)
            chunks = self.rows(
                "select document_id, start, stop, text, context, section_path, table_header,"
                " context_error, context_refused, chunk_id from ragpg.chunk"
                " where collection_id = %s order by document_id, position",
                place,
            )
            assert {row[0] for row in chunks} == {row[7] for row in live}
            for key, text, tags, metadata, expires, modified, title, number in live:
                wanted = shelf.live[key].document
                assert (text, tuple(tags), metadata) == (wanted.text, wanted.tags, wanted.metadata)
                assert (expires, modified) == (wanted.expires_at, wanted.modified_at)
                assert title == wanted.title
                own = [row[1:] for row in chunks if row[0] == number]
                check_cover(text, own)
                counted: Counter[Any] = Counter()
                found = {}
                for _, _, passage, context, path, header, error, refused, _ in own:
                    plain = (tuple(path), header, passage)
                    state = (
                        "refused"
                        if refused
                        else "gap"
                        if error
                        else ("none" if not shelf.writes else "written")
                    )
                    assert (context is None) == (state in ("refused", "gap")), (context, state)
                    found[*plain, counted[plain]] = state
                    counted[plain] += 1
                assert found == shelf.live[key].passages
            for table in ("embedding", "lexeme_vector"):
                ids = self.rows(
                    f"select chunk_id from ragpg.{table} where collection_id = %s",
                    place,
                )
                assert sorted(ids) == sorted((row[-1],) for row in chunks)

    @precondition(lambda self: self.shelves)
    @invariant()
    def what_waits_and_what_happened_is_told(self) -> None:
        """Staging holds what the model says, history each change, the log each search."""
        for place, shelf in self.shelves.items():
            staged = self.staged(place)
            assert dict(staged) == shelf.pending
            orphans = self.rows(
                "select document_key from ragpg.staged_chunk where collection_id = %s", place
            )
            assert {key for (key,) in orphans} <= set(shelf.pending)
            # Which of several documents goes live first is nobody's promise; of each, the order is.
            assert by_key(self.history(place)) == by_key(shelf.history)
        assert self.billed() == self.paid() - self.unbilled
        for name in TENANTS:
            log = self.run(self.clients["rule"].search_log(tenant=self.tenant(name), limit=1000))
            assert len(log) == self.searches[name]
            status = self.run(self.clients["rule"].status(tenant=self.tenant(name)))
            for row in status:
                shelf = self.shelves[name, row["collection"]]
                assert row["live"] == len(shelf.seen()), row
                waiting = row["queued"] + row["retrying"]
                assert waiting == list(shelf.pending.values()).count("queued"), row
                assert row["failed"] == list(shelf.pending.values()).count("failed"), row
                assert row["no_text"] == list(shelf.pending.values()).count("no_text"), row


class _RolledBackError(Exception):
    """The caller's own transaction fails."""


def replace_name(collection: AsyncCollection, name: str) -> AsyncCollection:
    """A handle of the same client on another name."""
    return AsyncCollection(collection._runtime, tenant=collection.tenant, name=name)


def by_key(changes: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Those of each document together, in their order."""
    return sorted(changes, key=lambda change: str(change[1]))


def sorted_by(ranked: list[tuple[int | None, int, Any]]) -> list[tuple[int, float]]:
    """Chunk ids and scores by rank, which counts from 1 without gaps."""
    placed = sorted((rank, one, score) for rank, one, score in ranked if rank is not None)
    assert [rank for rank, _, _ in placed] == list(range(1, len(placed) + 1))
    return [(one, score) for _, one, score in placed]


def check_cover(text: str, chunks: list[tuple[Any, ...]]) -> None:
    """That every character is in some chunk, and each chunk is verbatim."""
    reached = 0
    for start, stop, passage, *_ in chunks:
        assert text[start:stop] == passage
        assert start <= reached < stop
        reached = stop
    assert reached == len(text)


@pytest.fixture
def product(database: TestDatabase, tmp_path: Path) -> Iterator[type[Product]]:
    """The machine on a database of its own."""
    embedders = {"written": FaultyEmbedder(32), "rule": FaultyEmbedder(64)}
    writer = FaultyWriter()
    with asyncio.Runner() as runner, psycopg.connect(database.owner_url, autocommit=True) as owner:
        clients = {
            "written": client_on(database, embedder=embedders["written"], context_writer=writer),
            "rule": client_on(database, embedder=embedders["rule"], context_writer=None),
        }
        for client in clients.values():
            runner.run(client.__aenter__())
        yield type(
            "Product",
            (Product,),
            {
                "database": database,
                "owner": owner,
                "runner": runner,
                "folder": tmp_path,
                "clients": clients,
                "embedders": embedders,
                "writer": writer,
            },
        )
        for client in clients.values():
            runner.run(client.aclose())


def test_any_steps_leave_the_product_as_the_model_says(product: type[Product]):
    run_state_machine_as_test(
        product,
        settings=settings(
            max_examples=EXAMPLES or 5,
            stateful_step_count=16,
            deadline=None,
            derandomize=not EXAMPLES,
            database=None,
            print_blob=False,
            # Explaining traces every line, which takes five times as long.
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
