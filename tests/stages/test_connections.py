"""Connections under what an administrator, a pooler or a standby makes of them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ragpg import errors, upkeep
from ragpg.collection.search import UNLOGGED
from ragpg.database import Database
from ragpg.database.connections import behind_pooler
from ragpg.database.migrate import migrate
from ragpg.jobs import work
from ragpg.types import Document
from tests.conftest import SERVICE_ROLE, TestDatabase, client_on

pytestmark = pytest.mark.anyio
LEAVE = Document(key="leave.md", text="Everybody has 30 days of leave, Łukasz too.")


def set_for_service(owner: psycopg.Connection, database: TestDatabase, setting: str) -> None:
    """What an administrator sets for the service's sessions in this database."""
    owner.execute(
        sql.SQL("alter role {} in database {} set {}").format(
            sql.Identifier(SERVICE_ROLE), sql.Identifier(database.name), sql.SQL(setting)
        )
    )


@asynccontextmanager
async def pooler(database: TestDatabase, *, loses: bytes = b"") -> AsyncIterator[TestDatabase]:
    """The database through what names a process of its own at connecting, as PgBouncer does.

    The bytes `loses` of what is sent become spaces.
    """
    at = conninfo_to_dict(database.service_url)
    host, port = str(at["host"]), int(at.get("port") or 5432)

    carrying = set[asyncio.Task[None]]()

    async def carried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None
        carrying.add(this)
        up_reader, up_writer = await (
            asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
            if host.startswith("/")
            else asyncio.open_connection(host, port)
        )

        async def forward(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while data := await source.read(1 << 20):
                    # BackendKeyData: 'K', a length of 12, the process, the key.
                    head, mark, rest = data.partition(b"K\0\0\0\x0c")
                    changed = head + mark + (b"\x7f\xff\xff\xff" + rest[4:] if mark else b"")
                    target.write(changed.replace(loses, b" " * len(loses)) if loses else changed)
                target.close()

        await asyncio.gather(forward(reader, up_writer), forward(up_reader, writer))
        for ended in (writer, up_writer):
            with suppress(ConnectionError):
                await ended.wait_closed()

    listening = await asyncio.start_server(carried, "127.0.0.1", 0)
    number = listening.sockets[0].getsockname()[1]

    def through(url: str) -> str:
        at = {"host": "127.0.0.1", "port": number, "sslmode": "disable", "gssencmode": "disable"}
        return make_conninfo(url, **at)

    try:
        yield replace(
            database,
            service_url=through(database.service_url),
            owner_url=through(database.owner_url),
        )
    finally:
        listening.close()
        await asyncio.gather(*carrying)


@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_isolation = 'serializable'",
        "search_path = ''",
        "datestyle = 'German, DMY'",
        "client_encoding = 'LATIN1'",
        "idle_in_transaction_session_timeout = '2s'",
    ],
)
async def test_a_service_works_whatever_is_set_for_its_role(database, owner, setting):
    set_for_service(owner, database, setting)
    async with client_on(database) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.create()
        reports = await asyncio.gather(
            *[
                docs.ingest([Document(key=f"{n}-{m}.md", text=f"Rule {n} of {m}.") for m in "abc"])
                for n in range(4)
            ]
        )
        assert [report.failed for report in reports] == [()] * 4
        await docs.enqueue([LEAVE])
        await work(client, drain=True)
        hits = await docs.search("Łukasz leave", k=1)
        assert [(hit.document_key, hit.text) for hit in hits] == [("leave.md", LEAVE.text)]
        assert hits.search_id is not None
        await docs.ingest([Document(key="later.md", text="A rule that came later.")])
        (later,) = await docs.retrieve("later", k=1)
        why = await client.explain_search(hits.search_id, later.chunk_id, tenant="acme")
        assert why.dense_score is not None
        assert (await docs.ask("How much leave?")).citations
        assert [found.key for found in await docs.documents(key_prefix="leave")] == ["leave.md"]


async def test_a_transaction_sees_what_it_has_waited_for_whatever_isolation_is_the_default(
    database, owner
):
    set_for_service(owner, database, "default_transaction_isolation = 'repeatable read'")
    pool = Database(url=database.service_url)
    async with pool.transaction(None) as conn:
        row = await (await conn.execute("show transaction_isolation")).fetchone()
        assert row == ("read committed",)
    await pool.aclose()


async def test_a_read_only_server_is_searched_and_every_answer_says_that_nothing_was_logged(
    database, owner
):
    async with client_on(database) as client:
        await client.collection(tenant="acme", name="docs").ingest([LEAVE])
    set_for_service(owner, database, "default_transaction_read_only = on")
    async with client_on(database) as client:
        docs = client.collection(tenant="acme", name="docs")
        hits = await docs.search("leave", expand="neighbours")
        assert (len(hits), hits.search_id, hits.notices) == (1, None, (UNLOGGED,))
        assert (await docs.retrieve("leave")).notices == (UNLOGGED,)
        answer = await docs.ask("How much leave?")
        assert answer.citations
        assert answer.hits.notices == (UNLOGGED,)
        with pytest.raises(errors.DatabaseError, match=r"takes no writes .* of the primary"):
            await docs.ingest([Document(key="new.md", text="New.")])
    assert owner.execute("select count(*) from ragpg.search").fetchone() == (0,)


async def test_a_search_in_a_read_only_transaction_of_the_callers_works(client, database):
    docs = client.collection(tenant="acme", name="docs")
    await docs.ingest([LEAVE])
    async with await psycopg.AsyncConnection.connect(database.service_url) as conn:
        await conn.set_read_only(True)
        hits = await docs.retrieve("leave", conn=conn)
        assert (len(hits), hits.notices) == (1, (UNLOGGED,))


async def test_behind_a_pooler_nothing_is_prepared_unless_the_settings_say_so(database):
    async with pooler(database) as there:
        for given, through, threshold in (
            (None, database.service_url, 5),
            (None, there.service_url, None),
            (True, there.service_url, 5),
            (False, database.service_url, None),
        ):
            pool = Database(url=through, prepared_statements=given)
            async with pool.transaction(None) as conn:
                assert await behind_pooler(conn) == (through == there.service_url)
                assert conn.prepare_threshold == threshold
            await pool.aclose()


@pytest.mark.parametrize(("setting", "threshold"), [("false", None), ("true", 5)])
async def test_statements_are_prepared_as_the_environment_says(
    database, monkeypatch, setting, threshold
):
    monkeypatch.setenv("RAGPG_PREPARED_STATEMENTS", setting)
    async with client_on(database) as client:
        await client.collection(tenant="acme", name="docs").ingest([LEAVE])
        async with client.transaction("acme") as conn:
            assert conn.prepare_threshold == threshold
            for _ in range(8):
                await conn.execute("select key from ragpg.document")
            prepared = await conn.execute(
                "select count(*) from pg_prepared_statements"
                " where statement = 'select key from ragpg.document'"
            )
            assert await prepared.fetchone() == (0 if threshold is None else 1,)


async def test_mixed_up_prepared_statements_are_told_with_the_setting_that_mends_it(database):
    pool = Database(url=database.service_url)
    with pytest.raises(errors.ConfigurationError, match="RAGPG_PREPARED_STATEMENTS=false"):
        async with pool.transaction(None) as conn:
            await conn.execute("execute nothing_of_this_name")
    await pool.aclose()


async def test_a_worker_behind_a_pooler_that_drops_its_settings_is_refused_with_what_to_do(
    database,
):
    lost = b"-c search_path=ragpg_jobs"
    async with pooler(database, loses=lost) as there, client_on(there) as client:
        with pytest.raises(errors.ConfigurationError, match="the address of the server itself"):
            await work(client, drain=True)


async def test_upkeep_and_migration_behind_a_pooler_warn_of_their_lock(database):
    async with pooler(database) as there:
        for url, warned in ((there.owner_url, 1), (database.owner_url, 0)):
            report = await asyncio.to_thread(migrate, url)
            plan = await asyncio.to_thread(upkeep.plan, url)
            for warnings in (report.warnings, plan.warnings):
                # A server with an old pgvector has warnings of its own.
                assert sum("a pooler stands before" in one for one in warnings) == warned


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="not of this system")
async def test_a_connection_whose_other_end_vanished_is_given_up_within_a_minute(database):
    async with pooler(database) as there:
        pool = Database(url=there.service_url)
        async with pool.transaction(None) as conn:
            with socket.socket(fileno=os.dup(conn.fileno())) as at:
                assert at.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert at.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
                idle, every, tries = (
                    at.getsockopt(socket.IPPROTO_TCP, option)
                    for option in (
                        socket.TCP_KEEPIDLE,
                        socket.TCP_KEEPINTVL,
                        socket.TCP_KEEPCNT,
                    )
                )
                assert idle + every * tries == 60
        await pool.aclose()
