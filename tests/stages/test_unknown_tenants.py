"""A tenant's key that is mistyped: made by default, refused where a service says so."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from ragpg import errors, testing
from ragpg.client import AsyncClient
from ragpg.near_tenants import near_tenants
from ragpg.settings import Settings
from ragpg.types import Document
from tests.sql.tenancy_seed import bound_login

pytestmark = pytest.mark.anyio
LEAVE = Document(key="leave.md", text="Everybody has 30 days of leave.")
REFUSED = (
    "there is no tenant 'acme-typo', and RAGPG_CREATE_TENANTS is false; check the key, or make it"
    " with `ragpg create-tenant` or client.create_tenant"
)


@pytest.fixture
async def strict(database) -> AsyncIterator[AsyncClient]:
    settings = Settings(database_url=SecretStr(database.service_url), create_tenants=False)
    async with AsyncClient(
        settings,
        embedder=testing.HashEmbedder(),
        context_writer=testing.FirstSentenceContextWriter(),
    ) as client:
        await client.create_tenant("acme")
        yield client


async def test_by_default_documents_make_the_tenant_that_they_come_for(client: AsyncClient):
    await client.collection(tenant="acme-typo", name="docs").ingest([LEAVE])
    assert [row["name"] for row in await client.collections(tenant="acme-typo")] == ["docs"]


async def test_where_tenants_are_made_on_purpose_no_call_makes_another(
    strict: AsyncClient, owner: psycopg.Connection, tmp_path: Path
):
    (tmp_path / "leave.md").write_text("Everybody has 30 days of leave.")
    typo = strict.collection(tenant="acme-typo", name="docs")
    for call in (
        typo.create(),
        typo.ingest([LEAVE]),
        typo.ingest_files(tmp_path),
        typo.enqueue([LEAVE]),
        typo.enqueue_files(tmp_path),
        typo.sync(tmp_path),
        typo.plan(tmp_path),
        typo.plan_files(tmp_path),
    ):
        with pytest.raises(errors.TenantNotFound) as refused:
            await call
        assert str(refused.value) == REFUSED
        assert refused.value.near == ("acme",)
    assert owner.execute("select key from ragpg.tenant").fetchall() == [("acme",)]
    right = strict.collection(tenant="acme", name="docs")
    assert (await right.ingest([LEAVE])).created == ("leave.md",)
    await strict.create_tenant("acme-typo")
    assert (await typo.ingest([LEAVE])).created == ("leave.md",)


async def test_the_names_of_other_tenants_are_in_a_traceback_and_not_in_the_message(
    strict: AsyncClient,
):
    with pytest.raises(errors.TenantNotFound) as refused:
        await strict.collection(tenant="acmee", name="docs").create()
    assert "'acme'" not in str(refused.value)
    assert "tenants of a similar key: 'acme'" in "".join(traceback.format_exception(refused.value))
    with pytest.raises(errors.TenantNotFound) as refused:
        await strict.collection(tenant="globex", name="docs").create()
    assert refused.value.near == ()
    assert not hasattr(refused.value, "__notes__")


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("acme-typo", ("acme",)),
        ("amce", ("acme",)),
        ("Acme", ("acme",)),
        ("acme", ()),
        ("globex-staging", ("globex-stage", "globex", "globex-prod")),
        ("gloebx", ("globex",)),
        ("zzz", ()),
        ("", ()),
        ("%", ()),
    ],
)
async def test_keys_that_share_most_letter_pairs_are_near_the_most_alike_first(
    client: AsyncClient, asked: str, near: tuple[str, ...]
):
    for key in ("acme", "globex", "globex-prod", "globex-stage", "initech"):
        await client.create_tenant(key)
    assert await near_tenants(client.transaction, asked) == near


def test_only_the_service_may_ask_and_one_that_is_bound_hears_of_its_own_tenant(
    database, owner: psycopg.Connection
):
    owner.execute("select ragpg.create_tenant('acme'), ragpg.create_tenant('acme-secret')")
    with (
        psycopg.connect(database.reader_url, autocommit=True) as conn,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        conn.execute("select * from ragpg.near_tenants('acmee')")
    # Such a binding is refused, and holds where somebody makes a bound reader a service afterwards.
    acme = owner.execute("select ragpg.create_tenant('acme')").fetchone()
    assert acme is not None
    url = bound_login(owner, database, "ragpg_test_both", acme[0])
    owner.execute("grant ragpg_app to ragpg_test_both")
    try:
        with psycopg.connect(url, autocommit=True) as conn:
            found = conn.execute("select near_key from ragpg.near_tenants('acmee')").fetchall()
    finally:
        owner.execute("revoke ragpg_app from ragpg_test_both")
    assert found == [("acme",)]
