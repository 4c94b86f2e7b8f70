"""The side paths of the client: lists, documents by key, hits and numbers that belong to another."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from ragpg import errors
from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.types import Document, Recipe
from tests.sql.tenancy_seed import CANARY

pytestmark = pytest.mark.anyio
RECIPE = Recipe(
    embedding_provider="testing",
    embedding_model="hash-256",
    dimensions=256,
    context_provider="testing",
    context_model="first-sentence",
    max_tokens=20,
    overlap_tokens=5,
)


async def filled(client: AsyncClient, tenant: str, word: str) -> AsyncCollection:
    """A collection docs with one document of three sections."""
    await client.create_tenant(tenant)
    docs = client.collection(tenant=tenant, name="docs")
    await docs.create(RECIPE)
    text = "".join(f"# Part {n}\n\nThe leave policy says {word}.\n\n" for n in (1, 2, 3))
    await docs.ingest([Document(key=f"{word}.md", text=text)])
    return docs


async def test_no_side_path_of_the_client_shows_another_tenant(client: AsyncClient, owner):
    acme = await filled(client, "acme", "thirty")
    globex = await filled(client, "globex", CANARY)
    foreign = await globex.retrieve(f"leave policy {CANARY}")
    assert CANARY in repr(foreign)

    assert [row["name"] for row in await client.collections(tenant="acme")] == ["docs"]
    with pytest.raises(errors.DocumentNotFound):
        await acme.document(f"{CANARY}.md")
    assert await acme.delete(f"{CANARY}.md") is False
    assert [each.key for each in await acme.documents()] == ["thirty.md"]
    assert await acme.documents(key_prefix=CANARY[:3]) == []
    with pytest.raises(errors.DocumentNotFound):
        await acme.rename(f"{CANARY}.md", "mine.md")
    assert CANARY not in repr((await acme.retrieve(f"leave policy {CANARY}")).hits)
    assert CANARY not in repr((await acme.search(f"leave policy {CANARY}")).hits)
    number = await globex.number()
    with pytest.raises(errors.CollectionNotFound):
        await client.collection(tenant="acme", name=str(number)).recipe()
    with pytest.raises(errors.TenantNotFound):
        await client.collection(tenant="acme' or '1'='1", name="docs").recipe()

    # Hits of globex handed to acme: expansion looks their numbers up, and finds none of them.
    around = await acme.expand(foreign, "section")
    given = {hit.chunk_id for hit in foreign.hits}
    assert {hit.chunk_id for hit in around.hits} <= given
    assert await globex.delete(f"{CANARY}.md") is True


async def test_an_answer_is_not_logged_into_the_log_of_another_tenant(client, owner):
    await filled(client, "acme", "thirty")
    globex = await filled(client, "globex", CANARY)
    await globex.search(f"leave policy {CANARY}")
    async with client.transaction("acme") as conn:
        rows = await (await conn.execute("select * from ragpg.search_log")).fetchall()
        assert rows == []
        changed = await conn.execute("update ragpg.search_hit set cited = true")
        assert changed.rowcount == 0
    logged = owner.execute("select count(*), count(*) filter (where cited) from ragpg.search_hit")
    assert logged.fetchone()[0] > 0


def test_a_log_row_cannot_be_hung_onto_a_search_of_another_tenant(database, owner):
    with psycopg.connect(database.service_url, autocommit=True) as conn:
        conn.execute("select ragpg.create_tenant('acme')")
        conn.execute("select ragpg.use_tenant('acme', true)")
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            conn.execute(
                "insert into ragpg.search_hit (tenant_id, search_id, chunk_id, fused_rank, fused_score)"
                " values (ragpg.current_tenant(), 1, 1, 1, 1)"
            )


async def test_a_tenant_neither_holds_anothers_collection_nor_prunes_its_log(client, owner):
    acme = await filled(client, "acme", "thirty")
    globex = await filled(client, "globex", CANARY)
    await acme.search("leave")
    await globex.search("leave")
    foreign = await globex.number()
    async with client.transaction("acme") as conn:
        cursor = await conn.execute(
            "select ragpg.hold_collection(%s), ragpg.prune_log(0)", [foreign]
        )
        assert await cursor.fetchone() == (False, 1)
    left = owner.execute("select collection_id from ragpg.search").fetchall()
    assert left == [(foreign,)]
    for call in ("hold_collection(1)", "prune_log(0)", "delete_expired('docs')"):
        with pytest.raises(errors.TenantNotSetError):
            await run_without_tenant(client, f"select ragpg.{call}")


async def run_without_tenant(client: AsyncClient, statement: LiteralString) -> None:
    async with client.transaction(None) as conn:
        await conn.execute(statement)
