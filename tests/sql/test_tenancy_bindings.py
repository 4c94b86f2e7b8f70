"""Which tenants a reader may see: by its login, the role it took, and the groups of both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from ragpg.database import Database
from ragpg.errors import ConfigurationError
from ragpg.migrate import migrate
from tests.conftest import TestDatabase
from tests.sql.tenancy_seed import make_login, one

NAMES = ("ragpg_a", "ragpg_b", 'Ragpg "A"; drop', "ragpg_login", "ragpg_renamed")


@pytest.fixture
def tenants(owner: psycopg.Connection) -> Iterator[tuple[int, int]]:
    """acme and globex; the roles that a test makes are dropped after it."""
    drop_roles(owner)
    yield (
        one(owner, "select ragpg.create_tenant('acme')"),
        one(owner, "select ragpg.create_tenant('globex')"),
    )
    drop_roles(owner)


def drop_roles(owner: psycopg.Connection) -> None:
    for name in NAMES:
        owner.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))


def group(owner: psycopg.Connection, name: str, tenant: int, *members: str) -> None:
    """A group of readers bound to this tenant."""
    owner.execute(sql.SQL("create role {} in role ragpg_reader").format(sql.Identifier(name)))
    owner.execute(
        "insert into ragpg.reader_tenant values (quote_ident(%s)::regrole, %s)", [name, tenant]
    )
    for member in members:
        owner.execute(
            sql.SQL("grant {} to {}").format(sql.Identifier(name), sql.Identifier(member))
        )


def seen(url: str, *before: str) -> str:
    """The one tenant that a session sees after these statements, or the SQLSTATE."""
    with psycopg.connect(url, autocommit=True) as conn:
        try:
            for statement in before:
                conn.execute(statement)
            rows = conn.execute("select key from ragpg.tenant").fetchall()
        except psycopg.Error as refused:
            return refused.sqlstate or ""
    ((key,),) = rows
    return str(key)


def test_a_login_is_bound_by_the_group_that_it_is_in(database: TestDatabase, owner, tenants):
    url = make_login(owner, database, "ragpg_login", groups=["ragpg_reader"])
    assert seen(url, "select ragpg.use_tenant('globex', true)") == "globex"
    group(owner, "ragpg_a", tenants[0], "ragpg_login")
    assert seen(url) == "acme"
    assert seen(url, "select ragpg.use_tenant('globex', true)") == "RG002"
    assert seen(url, f"set ragpg.tenant_id = {tenants[1]}") == "RG004"
    assert seen(url, "set role ragpg_reader") == "acme"


def test_a_login_that_does_not_inherit_is_bound_by_its_group_too(database, owner, tenants):
    url = make_login(owner, database, "ragpg_login", groups=[])
    owner.execute("alter role ragpg_login noinherit")
    group(owner, "ragpg_a", tenants[0], "ragpg_login")
    assert seen(url) == "42501"
    assert seen(url, "set role ragpg_a") == "acme"
    assert seen(url, "set role ragpg_reader") == "acme"
    assert seen(url, "set role ragpg_reader", f"set ragpg.tenant_id = {tenants[1]}") == "RG004"


def test_its_own_row_outweighs_the_groups_of_a_login(database, owner, tenants):
    url = make_login(owner, database, "ragpg_login", groups=["ragpg_reader"])
    owner.execute("insert into ragpg.reader_tenant values ('ragpg_login', %s)", [tenants[0]])
    group(owner, "ragpg_b", tenants[1], "ragpg_login")
    assert seen(url) == "acme"
    assert seen(url, "set role ragpg_b") == "acme"
    assert seen(url, "set role ragpg_b", "select ragpg.use_tenant('globex', true)") == "RG002"


def test_a_login_in_two_bound_groups_chooses_between_their_tenants_only(database, owner, tenants):
    third = one(owner, "select ragpg.create_tenant('initech')")
    url = make_login(owner, database, "ragpg_login", groups=["ragpg_reader"])
    group(owner, "ragpg_a", tenants[0], "ragpg_login")
    group(owner, "ragpg_b", tenants[1], "ragpg_login")
    assert seen(url) == "RG001"
    assert seen(url, "select ragpg.use_tenant('globex', true)") == "globex"
    assert seen(url, "select ragpg.use_tenant('initech', true)") == "RG002"
    assert seen(url, f"set ragpg.tenant_id = {third}") == "RG004"
    assert seen(url, "set role ragpg_b") == "globex"
    assert seen(url, "set role ragpg_b", f"set ragpg.tenant_id = {tenants[0]}") == "RG004"


def test_a_binding_follows_a_rename_and_any_name_can_be_bound(database, owner, tenants):
    url = make_login(owner, database, "ragpg_login", groups=["ragpg_reader"])
    owner.execute("insert into ragpg.reader_tenant values ('ragpg_login', %s)", [tenants[0]])
    owner.execute("alter role ragpg_login rename to ragpg_renamed")
    owner.execute("alter role ragpg_renamed password 'only-for-tests'")
    assert seen(url.replace("ragpg_login", "ragpg_renamed")) == "acme"
    group(owner, NAMES[2], tenants[1])
    take = sql.SQL("set role {}").format(sql.Identifier(NAMES[2])).as_string(None)
    assert seen(database.owner_url, take) == "globex"
    with pytest.raises(psycopg.errors.UndefinedObject):
        owner.execute("insert into ragpg.reader_tenant values ('ragpg_lgoin', 1)")


def test_a_role_renamed_under_a_session_that_took_it_is_refused(database, owner, tenants):
    make_login(owner, database, "ragpg_login", groups=["ragpg_reader"])
    group(owner, "ragpg_a", tenants[0], "ragpg_login")
    owner.execute("alter role ragpg_login noinherit")
    url = make_login(owner, database, "ragpg_login", groups=[])
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("set role ragpg_a")
        assert conn.execute("select key from ragpg.tenant").fetchall() == [("acme",)]
        owner.execute("alter role ragpg_a rename to ragpg_renamed")
        with pytest.raises(psycopg.Error, match="renamed or dropped") as refused:
            conn.execute("select key from ragpg.tenant")
    assert refused.value.sqlstate == "RG004"


def test_a_superuser_and_an_owner_are_not_bound_by_the_groups_they_count_as_members_of(
    database, owner, tenants
):
    url = make_login(owner, database, "ragpg_login", groups=["ragpg_reader", "ragpg_owner"])
    group(owner, "ragpg_a", tenants[0], "ragpg_login")
    use = "select ragpg.use_tenant('globex', true)"
    for session in (url, database.owner_url):
        with psycopg.connect(session, autocommit=True) as conn:
            assert conn.execute(use).fetchall() == [(tenants[1],)]
            assert one(conn, "select ragpg.current_tenant()") == tenants[1]


def test_migration_refuses_a_schema_in_which_anybody_may_create_operators(database, owner):
    owner.execute("update ragpg.installation set functions_digest = 'older'")
    owner.execute("grant create on schema public to public")
    with pytest.raises(Exception, match="revoke create on schema public") as refused:
        migrate(database.owner_url)
    assert type(refused.value).__name__ == "DatabaseError"
    owner.execute("revoke create on schema public from public")
    assert migrate(database.owner_url).functions_applied


def test_a_service_that_could_become_the_owner_is_refused_although_it_does_not_inherit(
    database, owner, tenants
):
    url = make_login(owner, database, "ragpg_login", groups=["ragpg_app", "ragpg_owner"])
    owner.execute("alter role ragpg_login noinherit")

    async def open_and_close() -> None:
        pool = Database(url=url, pool_max_size=1)
        try:
            async with pool.transaction(None):
                pass
        finally:
            await pool.aclose()

    with pytest.raises(ConfigurationError, match="an owner of the schema"):
        asyncio.run(open_and_close())
