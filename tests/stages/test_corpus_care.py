"""Corpus care on a real Postgres: history, documents that are due, and documents that expire."""

from __future__ import annotations

import datetime as dt
from typing import Any

import anyio
import psycopg
import pytest
from pydantic import SecretStr

from ragpg import testing
from ragpg.client import AsyncClient
from ragpg.errors import CollectionNotFound, InputError
from ragpg.ingest import publish_documents, split_document, stage
from ragpg.retrieve import Weights
from ragpg.settings import Settings
from ragpg.staging import Staged
from ragpg.types import Document
from tests.conftest import SERVICE_ROLE, client_on
from tests.stages.test_ingest import LEAVE, leave, recipe

pytestmark = pytest.mark.anyio

HISTORY = (
    "select document_key, action, revision, kept_chunks, new_chunks, role, actor"
    " from ragpg.document_history order by history_id"
)


def days_ago(days: int) -> dt.date:
    return dt.datetime.now(dt.UTC).date() - dt.timedelta(days=days)


async def test_every_change_of_a_document_is_in_its_history_with_who_and_how_much(database, owner):
    settings = Settings(database_url=SecretStr(database.service_url), actor="kim@acme.example")
    fakes: dict[str, Any] = {
        "embedder": testing.HashEmbedder(),
        "context_writer": testing.FirstSentenceContextWriter(),
    }
    async with AsyncClient(settings, **fakes) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.create(recipe())
        await handbook.ingest([leave()])
        await handbook.ingest([leave()])
        await handbook.ingest([leave(LEAVE.replace("Five days", "Eight days"))])
        await handbook.delete("hr/leave.md")
        await handbook.ingest([leave()])
    kim = (SERVICE_ROLE, "kim@acme.example")
    assert owner.execute(HISTORY).fetchall() == [
        ("hr/leave.md", "published", 1, 0, 3, *kim),
        ("hr/leave.md", "published", 2, 2, 1, *kim),
        ("hr/leave.md", "deleted", 2, 3, 0, *kim),
        ("hr/leave.md", "published", 1, 0, 3, *kim),
    ]
    hashes = owner.execute(
        "select content_hash from ragpg.document_history order by history_id"
    ).fetchall()
    assert hashes[0] == hashes[3] != hashes[1] == hashes[2]


async def test_without_an_actor_the_history_names_the_role_alone(client, owner):
    await client.collection(tenant="acme", name="handbook").ingest([leave()])
    assert owner.execute("select role, actor from ragpg.document_history").fetchall() == [
        (SERVICE_ROLE, None)
    ]


async def test_history_is_undone_with_the_change_that_it_tells(client, owner):
    handbook = client.collection(tenant="acme", name="handbook")
    await handbook.ingest([leave()])
    async with handbook.transaction() as conn:
        await conn.execute("select ragpg.delete_document('handbook', 'hr/leave.md')")
        cursor = await conn.execute("select action from ragpg.document_history order by history_id")
        assert await cursor.fetchall() == [("published",), ("deleted",)]
        await conn.rollback()
    assert owner.execute("select action from ragpg.document_history").fetchall() == [("published",)]


async def test_history_is_a_tenants_own_and_nobody_but_the_functions_writes_it(client, database):
    await client.collection(tenant="acme", name="handbook").ingest([leave()])
    await client.collection(tenant="globex", name="handbook").ingest(
        [Document(key="secret.md", text="A secret.")]
    )
    async with client.transaction("acme") as conn:
        cursor = await conn.execute("select document_key from ragpg.document_history")
        assert await cursor.fetchall() == [("hr/leave.md",)]
    with psycopg.connect(database.service_url, autocommit=True) as service:
        service.execute("select ragpg.use_tenant('acme', true)")
        for statement in (
            "update ragpg.document_history set actor = 'nobody'",
            "delete from ragpg.document_history",
            "insert into ragpg.document_history overriding system value select * from ragpg.document_history",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                service.execute(statement)


async def test_a_document_is_due_when_its_review_date_has_passed(client):
    handbook = client.collection(tenant="acme", name="handbook")
    now = dt.datetime.now(dt.UTC)
    await handbook.ingest(
        [
            Document(key="late.md", text="Late.", owner="people", review_by=days_ago(10)),
            Document(key="later.md", text="Later.", review_by=days_ago(30)),
            Document(key="today.md", text="Today.", review_by=days_ago(0)),
            Document(key="old.md", text="Old.", modified_at=now - dt.timedelta(days=400)),
            Document(key="new.md", text="New.", modified_at=now - dt.timedelta(days=4)),
            Document(
                key="gone.md", text="Gone.", review_by=days_ago(5),
                expires_at=now - dt.timedelta(days=1),
            ),
        ]
    )  # fmt: skip
    due = await handbook.stale()
    assert [(one.document_key, one.overdue_days, one.owner) for one in due] == [
        ("later.md", 30, None),
        ("late.md", 10, "people"),
    ]
    old = await handbook.stale(unmodified_days=365)
    assert [(one.document_key, one.age_days) for one in old] == [
        ("later.md", None),
        ("late.md", None),
        ("old.md", 400),
    ]
    async with handbook.transaction() as conn:
        cursor = await conn.execute("select key from ragpg.stale_document order by key")
        assert await cursor.fetchall() == [("late.md",), ("later.md",)]
    with pytest.raises(InputError, match="-1, it must be 0 to 365000"):
        await handbook.stale(unmodified_days=-1)
    with pytest.raises(CollectionNotFound, match="nothing"):
        await client.collection(tenant="acme", name="nothing").stale()


async def test_an_owner_and_dates_come_from_front_matter(client, tmp_path):
    (tmp_path / "leave.md").write_text(
        f"---\nowner: people\nreview_by: {days_ago(3)}\nexpires_at: 2099-01-01\n---\n\nLeave.\n"
    )
    handbook = client.collection(tenant="acme", name="handbook")
    await handbook.ingest_files([tmp_path])
    (due,) = await handbook.stale()
    assert (due.document_key, due.owner, due.overdue_days) == ("leave.md", "people", 3)
    assert due.expires_at == dt.datetime(2099, 1, 1, tzinfo=dt.UTC)


async def test_a_document_leaves_both_arms_when_it_expires_and_is_deleted_by_expire(client, owner):
    handbook = client.collection(tenant="acme", name="handbook")
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1.5)
    await handbook.ingest([leave(expires_at=soon), Document(key="b.md", text="Leave of absence.")])
    assert await handbook.expire() == ()

    async def found(weights: Weights) -> set[str]:
        hits = await handbook.retrieve("leave", weights=weights)
        return {hit.document_key for hit in hits}

    dense, lexical = Weights(dense=1, lexical=0), Weights(dense=0, lexical=1)
    assert await found(dense) == await found(lexical) == {"hr/leave.md", "b.md"}
    await anyio.sleep(max(0.0, (soon - dt.datetime.now(dt.UTC)).total_seconds()) + 0.05)
    assert await found(dense) == await found(lexical) == {"b.md"}
    assert await handbook.expire() == ("hr/leave.md",)
    assert await handbook.expire() == ()
    for table in ("document", "chunk", "embedding", "lexeme_vector"):
        assert owner.execute(f"select count(*) from ragpg.{table}").fetchone() == (1,)
    assert owner.execute(HISTORY).fetchall()[-1][:4] == ("hr/leave.md", "expired", 1, 1)


async def test_expiring_leaves_other_collections_and_tenants_alone(client, owner):
    past = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    for tenant, name in (("acme", "one"), ("acme", "two"), ("globex", "one")):
        await client.collection(tenant=tenant, name=name).ingest([leave(expires_at=past)])
    assert await client.collection(tenant="acme", name="one").expire() == ("hr/leave.md",)
    assert owner.execute("select count(*) from ragpg.document").fetchone() == (2,)


async def staged(handbook, document: Document) -> Staged:
    """The document, staged and not embedded."""
    spans = await split_document(document, recipe(), embed=lambda _texts: _never())
    async with handbook.transaction() as conn:
        return await stage(conn, await handbook.number(), document, spans)


async def _never() -> list[list[float]]:
    raise AssertionError("a section splitter embeds nothing")


async def test_a_document_that_cannot_be_published_holds_up_no_other(client, owner):
    handbook = client.collection(tenant="acme", name="handbook")
    await handbook.create(recipe())
    good = await staged(handbook, leave())
    bare = await staged(handbook, Document(key="bare.md", text="Bare."))
    late = await staged(handbook, Document(key="late.md", text="Late."))
    await staged(handbook, Document(key="late.md", text="A newer one."))
    vector = "[" + ",".join(["1"] * 256) + "]"
    owner.execute(
        "update ragpg.staged_chunk set embedding = %s where document_key <> 'bare.md'", [vector]
    )
    async with handbook.transaction() as conn:
        done = await publish_documents(conn, "handbook", [late, good, bare])
    assert [(one.key, one.state, one.chunks) for one in done] == [
        ("late.md", "superseded", None),
        ("hr/leave.md", "published", 3),
        ("bare.md", "incomplete", None),
    ]
    assert owner.execute("select key from ragpg.document").fetchall() == [("hr/leave.md",)]
    assert owner.execute("select key from ragpg.staged_document order by 1").fetchall() == [
        ("bare.md",),
        ("late.md",),
    ]


async def test_many_documents_of_which_some_are_new_changed_or_shorter_are_each_right(
    database, owner
):
    async with client_on(database) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        await handbook.create(recipe())
        first = [
            Document(key=f"{n:03}.md", text=f"{LEAVE}\n## Own\n\nNumber {n}.\n") for n in range(90)
        ]
        report = await handbook.ingest(first)
        assert report.created == tuple(each.key for each in first)
        second = [
            Document(key="000.md", text="# Leave\n\nAsk the people team.\n"),
            Document(key="001.md", text=first[1].text.replace("Five days", "Eight days")),
            *first[2:],
            Document(key="new.md", text=LEAVE),
        ]
        report = await handbook.ingest(second)
        assert (report.created, report.updated) == (("new.md",), ("000.md", "001.md"))
        assert (len(report.unchanged), report.chunks, report.reused_chunks) == (88, 8, 3)
    rows = owner.execute(
        "select key, document.text, string_agg(chunk.text, '' order by position) from ragpg.document"
        " join ragpg.chunk using (tenant_id, document_id) group by 1, 2 order by 1"
    ).fetchall()
    assert [(key, text) for key, text, _ in rows] == [(one.key, one.text) for one in second]
    assert all(text == joined for _, text, joined in rows)
    counts = [
        owner.execute(f"select count(*) from ragpg.{table}").fetchone()
        for table in ("chunk", "embedding", "lexeme_vector")
    ]
    assert counts[0] == counts[1] == counts[2]
