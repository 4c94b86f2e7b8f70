"""What has had its time is deleted a part at a time, and a worker obeys nobody's NOTIFY."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from dataclasses import replace

import anyio
import psycopg
import pytest
from pydantic import SecretStr

from ragpg import errors, retention, testing
from ragpg.client import AsyncClient
from ragpg.ingest import stage
from ragpg.jobs import work
from ragpg.settings import Settings
from ragpg.types import Embedded, Purpose, Span
from tests.conftest import client_on
from tests.stages.test_jobs import FAST, GatedEmbedder, live, page, until

pytestmark = pytest.mark.anyio
OVER = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def logged(owner: psycopg.Connection) -> list[tuple[str, int]]:
    """The key of the tenant of each search in the log, with how many hits it has."""
    return owner.execute(
        "select tenant.key, (select count(*) from ragpg.search_hit as hit"
        "                     where hit.tenant_id = search.tenant_id"
        "                       and hit.search_id = search.search_id)"
        "  from ragpg.search join ragpg.tenant using (tenant_id) order by search.search_id"
    ).fetchall()


async def tenants_with_expired_documents(client: AsyncClient) -> None:
    for tenant in ("acme", "globex"):
        pages = client.collection(tenant=tenant, name="pages")
        await pages.ingest([page(key, expires_at=OVER) for key in ("a", "b", "c")])


async def test_a_backlog_is_deleted_in_parts_and_one_that_fails_keeps_the_others_deletions(
    client, owner, monkeypatch, caplog
):
    monkeypatch.setattr(retention, "MOST_CHUNKS", 1)
    await tenants_with_expired_documents(client)
    owner.execute(
        """
        create function pg_temp_refuse() returns trigger language plpgsql as $$
        begin
            raise exception 'the disk is full' using errcode = 'disk_full';
        end $$;
        create trigger refuse before delete on ragpg.document for each row
            when (old.key = 'b' and old.tenant_id = 1) execute function pg_temp_refuse();
        """
    )
    with caplog.at_level(logging.WARNING, logger="ragpg"):
        done = await retention.delete_overdue(client.transaction, log_days=90)
    assert (done.documents, done.searches) == (3, 0)
    # Of acme the first part stands, and globex did not wait for acme.
    assert [key for key, _ in live(owner)] == ["b", "c"]
    assert "collection 'pages' of tenant 'acme' was not all deleted" in caplog.text
    owner.execute("drop trigger refuse on ragpg.document")
    assert (await retention.delete_overdue(client.transaction, log_days=90)).documents == 2
    assert live(owner) == []


async def test_expire_takes_documents_together_up_to_its_chunks_and_one_document_at_least(
    client, owner
):
    pages = client.collection(tenant="acme", name="pages")
    long = "\n\n".join(f"## Part {n}\n\n{'Words of some length. ' * 100}" for n in range(4))
    await pages.ingest(
        [page("a", long, expires_at=OVER), page("b", expires_at=OVER), page("c", expires_at=OVER)]
    )
    with psycopg.connect(owner.info.dsn, password=owner.info.password, autocommit=True) as conn:
        conn.execute("select ragpg.use_tenant('acme', true)")
        parts = [
            [key for (key,) in conn.execute("select ragpg.delete_expired('pages', 2)").fetchall()]
            for _ in range(3)
        ]
    assert parts == [["a"], ["b", "c"], []]


async def test_a_worker_forgets_searches_of_the_days_that_are_set_and_no_others(database, owner):
    settings = Settings(database_url=SecretStr(database.service_url), search_log_days=30)
    async with AsyncClient(
        settings, embedder=testing.HashEmbedder(), reranker=testing.OverlapReranker()
    ) as client:
        for tenant in ("acme", "globex"):
            pages = client.collection(tenant=tenant, name="pages")
            await pages.ingest([page("a"), page("b")])
            for _ in range(3):
                await pages.search("leave")
        assert logged(owner) == [("acme", 2)] * 3 + [("globex", 2)] * 3
        owner.execute(
            "update ragpg.search set searched_at = now() - make_interval(days =>"
            " case mod(search_id, 3) when 0 then 29 when 1 then 31 else 400 end)"
        )
        await work(client, limits=FAST, drain=True)
        assert logged(owner) == [("acme", 2), ("globex", 2)]
        assert owner.execute("select count(*) from ragpg.search_hit").fetchone() == (4,)


async def test_a_log_that_is_kept_for_ever_is_not_touched(database, owner):
    settings = Settings(database_url=SecretStr(database.service_url), search_log_days=0)
    async with AsyncClient(
        settings, embedder=testing.HashEmbedder(), reranker=testing.OverlapReranker()
    ) as client:
        pages = client.collection(tenant="acme", name="pages")
        await pages.ingest([page("a")])
        await pages.search("leave")
        owner.execute("update ragpg.search set searched_at = '2001-01-01'")
        await work(client, limits=FAST, drain=True)
        assert logged(owner) == [("acme", 1)]


async def test_the_log_is_pruned_in_parts_and_a_reader_may_not(
    client, owner, database, monkeypatch
):
    monkeypatch.setattr(retention, "MOST_SEARCHES", 2)
    pages = client.collection(tenant="acme", name="pages")
    await pages.ingest([page("a")])
    for _ in range(5):
        await pages.search("leave")
    assert await retention.prune_log(pages.transaction, older_than_days=1) == 0
    assert await retention.prune_log(pages.transaction, older_than_days=0) == 5
    assert logged(owner) == []
    with pytest.raises(errors.InputError, match="older_than_days"):
        await retention.prune_log(pages.transaction, older_than_days=-1)
    with (
        psycopg.connect(database.reader_url) as conn,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        conn.execute("select ragpg.prune_log(0)")


async def test_a_notify_of_any_login_ends_no_job_and_kills_no_worker(database, owner):
    embedder = GatedEmbedder()
    async with client_on(database, embedder=embedder) as client:
        pages = client.collection(tenant="acme", name="pages")
        await pages.enqueue([page("a")])
        async with anyio.create_task_group() as group:
            patient = replace(FAST, stalled_after_s=300.0, lost_after_s=300.0)
            group.start_soon(lambda: work(client, limits=patient))
            await until(lambda: embedder.asked)
            job = owner.execute("select id from ragpg_jobs.procrastinate_jobs").fetchone()[0]
            abort = f'{{"type": "abort_job_requested", "job_id": {job}}}'
            with psycopg.connect(database.reader_url, autocommit=True) as stranger:
                for channel in ("procrastinate_any_queue_v1", "procrastinate_queue_v1#ragpg"):
                    for payload in (abort, "x"):
                        stranger.execute("select pg_notify(%s, %s)", [channel, payload])
            await anyio.sleep(0.5)
            embedder.gate.set()
            await until(lambda: live(owner) == [("a", 1)])
            await pages.enqueue([page("b")])
            await until(lambda: live(owner) == [("a", 1), ("b", 1)])
            group.cancel_scope.cancel()
    # One try each.
    assert len(embedder.asked) == 2


class InterruptedEmbedder(testing.HashEmbedder):
    """Runs a statement between the staging of documents and their publication."""

    def __init__(self, owner: psycopg.Connection, statement: str) -> None:
        super().__init__()
        self._owner = owner
        self._statement = statement

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        self._owner.execute("select ragpg.use_tenant('acme', true)")
        self._owner.execute(self._statement)
        return await super().embed(texts, purpose=purpose)


async def test_a_document_that_is_deleted_during_its_ingest_is_said_to_be_so(database, owner):
    embedder = InterruptedEmbedder(owner, "select ragpg.delete_document('pages', 'a')")
    async with client_on(database, embedder=embedder) as client:
        pages = client.collection(tenant="acme", name="pages")
        report = await pages.ingest([page("a"), page("b")])
    assert report.created == ("b",)
    assert [(one.key, one.reason, one.message) for one in report.failed] == [
        (
            "a",
            "conflict",
            (
                "document 'a' was deleted or renamed during its ingest, so it was not stored; ingest"
                " it again if it shall be there"
            ),
        )
    ]
    assert owner.execute("select key from ragpg.staged_document").fetchall() == []


@pytest.mark.parametrize("deletion", ["delete_collection('pages')", "delete_tenant('acme')"])
async def test_a_collection_that_is_deleted_during_an_ingest_ends_it_by_name(
    database, owner, deletion
):
    embedder = InterruptedEmbedder(owner, f"select ragpg.{deletion}")
    async with client_on(database, embedder=embedder) as client:
        pages = client.collection(tenant="acme", name="pages")
        with pytest.raises(errors.NotFoundError):
            await pages.ingest([page("a"), page("b")])


async def test_nothing_is_staged_in_a_collection_that_was_deleted(client, owner):
    pages = client.collection(tenant="acme", name="pages")
    await pages.create()
    owner.execute("select ragpg.use_tenant('acme', true)")
    number = owner.execute("select ragpg.collection_number('pages')").fetchone()[0]
    owner.execute("select ragpg.delete_collection('pages')")
    with pytest.raises(errors.CollectionNotFound, match="it was deleted"):
        async with pages.transaction() as conn:
            await stage(conn, number, page("a"), [Span(start=0, stop=3)])
