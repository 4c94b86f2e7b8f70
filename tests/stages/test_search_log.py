"""The search log for an audit: which collection, and which passages, also after they are gone."""

from __future__ import annotations

import json

import pytest

import ragpg
from ragpg.types import Document
from ragpg.upkeep import dense_recall
from tests.conftest import client_on

pytestmark = pytest.mark.anyio
LOGGED = "select collection, document_key, start, stop, beginning, shown from ragpg.search_log order by chunk_id"


async def test_what_was_shown_is_known_after_its_text_was_replaced_and_follows_a_renaming(
    client, owner
):
    notes = client.collection(tenant="acme", name="notes")
    await notes.ingest(
        [Document(key="a.md", text="Turn the valve."), Document(key="b.md", text="Open a valve.")]
    )
    await notes.search("valve", k=2)
    before = owner.execute(LOGGED).fetchall()
    assert before == [
        ("notes", "a.md", 0, 15, "Turn the valve.", True),
        ("notes", "b.md", 0, 13, "Open a valve.", True),
    ]
    await notes.ingest([Document(key="a.md", text="Another text.")])
    async with client.transaction("acme") as conn:
        await conn.execute("select ragpg.rename_document('notes', 'b.md', 'c.md')")
    assert owner.execute(LOGGED).fetchall() == [
        ("notes", "a.md", 0, 15, None, True),
        ("notes", "c.md", 0, 13, "Open a valve.", True),
    ]
    version = owner.execute(
        "select document_history.revision from ragpg.search_log"
        "  join ragpg.document_history using (tenant_id, document_key)"
        " where document_key = 'a.md' and happened_at < searched_at"
    ).fetchall()
    assert version == [(1,)]


@pytest.mark.parametrize(("setting", "logged"), [("false", 0), ("true", 1)])
async def test_searches_are_logged_unless_the_environment_says_otherwise(
    database, owner, monkeypatch, setting, logged
):
    monkeypatch.setenv("RAGPG_LOG_SEARCHES", setting)
    async with client_on(database) as client:
        notes = client.collection(tenant="acme", name="notes")
        await notes.ingest([Document(key="a.md", text="Turn the valve.")])
        hits = await notes.search("valve")
    assert len(hits) == 1
    assert (hits.search_id is not None) == bool(logged)
    for table in ("search", "search_hit"):
        assert owner.execute(f"select count(*) from ragpg.{table}").fetchone() == (logged,)


async def test_a_filter_that_another_release_logged_and_this_one_refuses_stops_no_measurement(
    client, owner, database
):
    notes = client.collection(tenant="acme", name="notes")
    await notes.ingest([Document(key="a.md", text="Turn the valve.", metadata={"year": 2025})])
    await notes.search("valve", where=ragpg.field("year") == 2025)
    deep: dict[str, object] = {"field": ["year"], "==": 2025}
    for _ in range(51):
        deep = {"not": deep}
    await notes.search("valve")
    owner.execute(
        "update ragpg.search set filter = %s::jsonb where filter is null",
        [json.dumps(deep)],
    )
    (check,) = dense_recall.recall(database.owner_url)
    assert isinstance(check, dense_recall.RecallCheck)
    assert (check.query_source, check.queries, check.mean_recall) == ("logged", 1, 1.0)
    owner.execute("update ragpg.search set filter = %s::jsonb", [json.dumps(deep)])
    (check,) = dense_recall.recall(database.owner_url)
    assert isinstance(check, dense_recall.RecallCheck)
    assert check.query_source == "stored"
