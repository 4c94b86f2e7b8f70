"""Judgements name documents by key: when a file is moved, they follow the document."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from ragpg.errors import InputError
from ragpg.types import Document, Qrel

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "docs"
    root.mkdir()
    (root / "pump.md").write_text("The pump moves water through the plant.\n")
    (root / "valve.md").write_text("The valve is opened before the pump is started.\n")
    return root


def judge(owner: psycopg.Connection, *judgements: tuple[str, str, float], tenant: int = 1) -> None:
    for query, key, relevance in judgements:
        owner.execute(
            "insert into ragpg.golden_query (tenant_id, query_id, query) values (%s, %s, %s)"
            " on conflict do nothing",
            [tenant, query, f"text of {query}"],
        )
        owner.execute(
            "insert into ragpg.qrel (tenant_id, query_id, document_key, relevance)"
            " values (%s, %s, %s, %s)",
            [tenant, query, key, relevance],
        )


def judged(owner: psycopg.Connection) -> list[tuple[int, str, str, float]]:
    return owner.execute(
        "select tenant_id, query_id, document_key, relevance from ragpg.qrel order by 1, 2, 3"
    ).fetchall()


async def test_judgements_follow_a_file_that_was_moved(client, folder, owner):
    docs = client.collection(tenant="acme", name="docs")
    await docs.sync(folder)
    judge(owner, ("q1", "pump.md", 1.0), ("q1", "valve.md", 0.5), ("q2", "pump.md", 2.0))
    (folder / "pump.md").rename(folder / "pumps.md")
    assert (await docs.sync(folder)).renamed == {"pump.md": "pumps.md"}
    assert judged(owner) == [
        (1, "q1", "pumps.md", 1.0),
        (1, "q1", "valve.md", 0.5),
        (1, "q2", "pumps.md", 2.0),
    ]
    rows = owner.execute(
        "select query_id, query, document_key, relevance from ragpg.qrel"
        " join ragpg.golden_query using (tenant_id, query_id) where query_id = 'q2'"
    ).fetchall()
    report = await docs.evaluate(
        {query_id: "pump moves water" for query_id, _, _, _ in rows},
        [Qrel(query_id=query, id=key, relevance=value) for query, _, key, value in rows],
        measures=["recall@1"],
    )
    assert report.mean["recall@1"] == 1.0


async def test_of_two_judgements_that_meet_under_one_key_the_better_holds(client, folder, owner):
    docs = client.collection(tenant="acme", name="docs")
    await docs.sync(folder)
    # Of a document that was once there under the new key.
    judge(owner, ("q1", "pump.md", 1.0), ("q1", "pumps.md", 3.0), ("q2", "pump.md", 2.0))
    judge(owner, ("q2", "pumps.md", 0.5))
    (folder / "pump.md").rename(folder / "pumps.md")
    await docs.sync(folder)
    assert judged(owner) == [(1, "q1", "pumps.md", 3.0), (1, "q2", "pumps.md", 2.0)]


async def test_a_judgement_stays_for_another_collection_that_has_the_old_key_and_is_one_at_the_end(
    client, folder, owner
):
    old = client.collection(tenant="acme", name="old")
    new = client.collection(tenant="acme", name="new")
    await old.sync(folder)
    await new.sync(folder)
    judge(owner, ("q1", "pump.md", 1.0))
    (folder / "pump.md").rename(folder / "pumps.md")
    await new.sync(folder)
    assert judged(owner) == [(1, "q1", "pump.md", 1.0), (1, "q1", "pumps.md", 1.0)]
    await old.sync(folder)
    assert judged(owner) == [(1, "q1", "pumps.md", 1.0)]


async def test_the_judgements_of_another_tenant_stay_as_they_are(client, folder, owner):
    docs = client.collection(tenant="acme", name="docs")
    await docs.sync(folder)
    other = client.collection(tenant="other", name="docs")
    await other.ingest([Document(key="pump.md", text="Another pump.")])
    judge(owner, ("q1", "pump.md", 1.0))
    judge(owner, ("q1", "pump.md", 1.0), tenant=2)
    (folder / "pump.md").rename(folder / "pumps.md")
    await docs.sync(folder)
    assert judged(owner) == [(1, "q1", "pumps.md", 1.0), (2, "q1", "pump.md", 1.0)]


async def test_a_judgement_of_an_unknown_query_and_queries_without_ids_are_refused(client):
    docs = client.collection(tenant="acme", name="docs")
    await docs.ingest([Document(key="a.md", text="The rule.")])
    with pytest.raises(InputError, match="is about a query that is not given"):
        await docs.evaluate({"q1": "rule"}, [Qrel(query_id="q2", id="a.md")])
    with pytest.raises(InputError, match="give texts by id"):
        await docs.evaluate(["rule"], [Qrel(query_id="q1", id="a.md")])
