"""Engines and connections of the caller's own: they serve, and are left as they were."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from pgvector.psycopg import register_vector_async
from psycopg.rows import dict_row
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from ragpg import errors, testing
from ragpg.client import AsyncClient
from ragpg.types import Document
from tests.conftest import client_on

pytestmark = pytest.mark.anyio
LEAVE = Document(key="leave.md", text="Everybody has 30 days of leave.")


async def test_a_client_on_the_callers_engine_ingests_searches_and_answers(database):
    url = urlunsplit(urlsplit(database.service_url)._replace(scheme="postgresql+psycopg"))
    engine = create_async_engine(url)
    async with engine.connect() as conn:
        # Made before the client, as in a service that is there already.
        assert (await conn.execute(text("select 1"))).scalar() == 1
    client = AsyncClient(
        engine=engine, embedder=testing.HashEmbedder(), reranker=testing.OverlapReranker(),
        context_writer=testing.FirstSentenceContextWriter(), generator=testing.QuotingGenerator(),
    )  # fmt: skip
    async with client:
        handbook = client.collection(tenant="acme", name="handbook")
        report = await handbook.ingest([LEAVE])
        assert report.created == ("leave.md",)
        assert [hit.document_key for hit in await handbook.search("leave")] == ["leave.md"]
        assert (await handbook.ask("How much leave?")).citations
    async with engine.connect() as conn:
        assert (await conn.execute(text("select 2"))).scalar() == 2
    await engine.dispose()


async def test_the_callers_transaction_keeps_its_tenant_and_its_settings(client, database):
    for tenant in ("acme", "globex"):
        theirs = client.collection(tenant=tenant, name="docs")
        await theirs.ingest([Document(key=f"{tenant}.md", text=f"The {tenant} rule.")])
    globex = client.collection(tenant="globex", name="docs")
    async with client.transaction("acme") as conn:
        await conn.execute("set local statement_timeout = '3s'")
        hits = await globex.retrieve("rule", conn=conn)
        assert [hit.document_key for hit in hits] == ["globex.md"]
        rows = await (await conn.execute("select key from ragpg.document")).fetchall()
        assert rows == [("acme.md",)]
        row = await (await conn.execute("show statement_timeout")).fetchone()
        assert row == ("3s",)
    async with (
        await psycopg.AsyncConnection.connect(database.service_url) as conn,
    ):
        await globex.retrieve("rule", conn=conn)
        with pytest.raises(psycopg.DatabaseError, match="no tenant is set"):
            await conn.execute("select key from ragpg.document")


async def test_a_connection_in_autocommit_is_told_to_open_a_transaction(client, database):
    docs = client.collection(tenant="acme", name="docs")
    await docs.ingest([LEAVE])
    async with await psycopg.AsyncConnection.connect(database.service_url, autocommit=True) as conn:
        with pytest.raises(errors.InputError, match=r"async with conn\.transaction\(\)"):
            await docs.retrieve("leave", conn=conn)
        async with conn.transaction():
            assert len(await docs.retrieve("leave", conn=conn)) == 1
    with (
        psycopg.connect(database.service_url) as blocking,
        pytest.raises(errors.InputError, match=r"give a psycopg\.AsyncConnection"),
    ):
        await docs.retrieve("leave", conn=blocking)


async def test_the_first_connection_may_give_rows_as_dicts(client, database):
    await client.collection(tenant="acme", name="docs").ingest([LEAVE])
    async with (
        client_on(database) as fresh,
        await psycopg.AsyncConnection.connect(database.service_url, row_factory=dict_row) as conn,
    ):
        docs = fresh.collection(tenant="acme", name="docs")
        assert len(await docs.retrieve("leave", conn=conn)) == 1


async def test_hits_are_the_same_on_a_connection_that_knows_vectors_and_one_that_does_not(
    client, database
):
    docs = client.collection(tenant="acme", name="docs")
    await docs.ingest([LEAVE])
    wanted = (await docs.retrieve("leave")).hits
    async with (
        await psycopg.AsyncConnection.connect(database.service_url) as plain,
        await psycopg.AsyncConnection.connect(database.service_url) as knowing,
    ):
        await register_vector_async(knowing)
        assert wanted[0].dense_score is not None
        assert (await docs.retrieve("leave", conn=plain)).hits == wanted
        assert (await docs.retrieve("leave", conn=knowing)).hits == wanted


async def test_a_wrong_statement_is_no_unreachable_database(client):
    async def wrong() -> None:
        async with client.transaction(None) as conn:
            await conn.execute("select %s", [])

    with pytest.raises(errors.DatabaseError, match="0 parameters were passed") as refused:
        await wrong()
    assert type(refused.value) is errors.DatabaseError
    assert not refused.value.retryable


async def test_a_tenant_that_is_deleted_during_searches_is_not_found(client):
    docs = client.collection(tenant="acme", name="docs")
    await docs.ingest([Document(key=f"{n}.md", text=f"Leave rule {n}.") for n in range(50)])

    async def search() -> None:
        while True:
            await docs.search("leave")

    searching = [asyncio.create_task(search()) for _ in range(8)]
    await asyncio.sleep(0.3)
    await client.delete_tenant("acme")
    ended = await asyncio.gather(*searching, return_exceptions=True)
    assert {type(error) for error in ended} <= {errors.TenantNotFound, errors.CollectionNotFound}
