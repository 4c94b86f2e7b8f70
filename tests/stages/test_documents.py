"""Documents are listed by page, renamed, and read from bytes."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import psycopg
import pytest

import ragpg
from ragpg.errors import ConflictError, DocumentNotFound, InputError, NotFoundError
from ragpg.types import Document

pytestmark = pytest.mark.anyio


async def test_documents_are_listed_by_key_in_pages(client):
    docs = client.collection(tenant="acme", name="docs")
    with pytest.raises(NotFoundError):
        await docs.documents()
    await docs.ingest(
        [Document(key=f"hr/{n:02}.md", text=f"Rule {n}.", tags=("hr",)) for n in range(5)]
        + [Document(key="it/vpn.md", text="# VPN\n\nHow it works.", title="VPN", owner="it")]
    )
    assert [each.key for each in await docs.documents(limit=4)] == [
        "hr/00.md", "hr/01.md", "hr/02.md", "hr/03.md",
    ]  # fmt: skip
    rest = await docs.documents(after="hr/03.md")
    assert [(each.key, each.title, each.owner, each.chunks) for each in rest] == [
        ("hr/04.md", None, None, 1), ("it/vpn.md", "VPN", "it", 1),
    ]  # fmt: skip
    assert rest[0].tags == ("hr",)
    assert rest[0].characters == len("Rule 4.")
    await docs.set_alias("all")
    under = await client.collection(tenant="acme", name="all").documents(key_prefix="it/")
    assert [each.key for each in under] == ["it/vpn.md"]
    with pytest.raises(InputError, match="limit is 0"):
        await docs.documents(limit=0)


async def test_an_expired_document_is_no_longer_live_and_named_as_expired_where_people_inspect(
    client, database, owner
):
    docs = client.collection(tenant="acme", name="docs")
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    await docs.ingest(
        [
            Document(key="new.md", text="The new rule."),
            Document(key="old.md", text="The old rule.", expires_at=later),
        ]
    )
    assert [each.key for each in await docs.documents()] == ["new.md", "old.md"]
    assert (await docs.document("old.md")).text == "The old rule."
    owner.execute("update ragpg.document set expires_at = '2020-12-31 12:00Z' where key = 'old.md'")
    assert [each.key for each in await docs.documents()] == ["new.md"]
    with pytest.raises(DocumentNotFound, match=r"'old\.md' .* expired at 2020-12-31T12:00"):
        await docs.document("old.md")
    with psycopg.connect(database.service_url) as conn:
        conn.execute("select ragpg.use_tenant('acme')")
        for statement in (
            "select key, expired from ragpg.document_overview order by 1",
            "select document_key, expired from ragpg.chunk_overview order by 1",
        ):
            assert conn.execute(statement).fetchall() == [("new.md", False), ("old.md", True)]
        assert conn.execute(
            "select documents, expired_documents from ragpg.collection_overview"
        ).fetchone() == (2, 1)
        assert conn.execute("select live, expired from ragpg.ingest_status").fetchone() == (1, 1)
    assert await docs.expire() == ("old.md",)
    with pytest.raises(DocumentNotFound, match=r"has no document 'old\.md'"):
        await docs.document("old.md")


async def test_a_document_is_renamed_with_its_chunks(client):
    docs = client.collection(tenant="acme", name="docs")
    await docs.ingest([Document(key="a.md", text="The rule."), Document(key="b.md", text="More.")])
    before = (await docs.retrieve("rule")).hits[0]
    await docs.rename("a.md", "hr/a.md")
    after = (await docs.retrieve("rule")).hits[0]
    assert (before.document_key, after.document_key) == ("a.md", "hr/a.md")
    assert before.chunk_id == after.chunk_id
    with pytest.raises(DocumentNotFound):
        await docs.rename("a.md", "c.md")
    with pytest.raises(ConflictError, match=r"has a document 'b\.md' already"):
        await docs.rename("hr/a.md", "b.md")


async def test_an_upload_is_read_from_its_bytes_and_given_tags(client):
    upload = b"<html><body><main><h1>Leave</h1><p>Everybody has 30 days.</p></main></body></html>"
    document = ragpg.parse_bytes(upload, key="hr/leave.html")
    docs = client.collection(tenant="acme", name="docs")
    await docs.ingest([replace(document, tags=("hr",), metadata={"year": 2026})])
    hits = await docs.retrieve("days", where=ragpg.tags.any("hr"))
    assert hits[0].metadata == {"year": 2026}
    assert "30 days" in hits[0].text
    with pytest.raises(InputError, match="give bytes"):
        ragpg.parse_bytes("text", key="a.md")  # type: ignore[arg-type]
