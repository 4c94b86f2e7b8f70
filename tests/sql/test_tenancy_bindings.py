"""Which tenants a reader may see: by its login, the role it took, and the groups of both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from ragpg import doctor
from ragpg.database import Database
from ragpg.database.migrate import migrate
from ragpg.errors import ConfigurationError
from ragpg.settings import Settings
from tests.conftest import TestDatabase
from tests.sql.tenancy_seed import RECIPE, make_login, one

NAMES = ("ragpg_a", "ragpg_b", 'Ragpg "A"; drop', "ragpg_login", "ragpg_renamed")


@pytest.fixture
def tenants(only_test_with_roles: None, owner: psycopg.Connection) -> Iterator[tuple[int, int]]:
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


def test_migration_and_doctor_refuse_a_schema_in_which_others_may_create_operators(
    database, owner, tenants
):
    make_login(owner, database, "ragpg_login", groups=[])
    for role in ("public", "ragpg_app", "ragpg_login"):
        owner.execute(f"grant create on schema public to {role}")
        with pytest.raises(
            ConfigurationError, match=f"revoke create on schema public from {role}"
        ) as refused:
            migrate(database.owner_url)
        examined = asyncio.run(
            doctor.examine(Settings(database_url=SecretStr(database.service_url)))
        )
        said = {finding.name: (finding.state, finding.message) for finding in examined}
        assert said["schema public"] == ("failed", str(refused.value))
        owner.execute(f"revoke create on schema public from {role}")
    owner.execute("grant create on schema public to ragpg_owner")
    owner.execute("update ragpg.installation set functions_digest = 'older'")
    assert migrate(database.owner_url).functions_applied


def test_an_operator_of_a_login_that_may_create_in_public_is_not_run_as_the_owner(
    database, owner, tenants
):
    url = make_login(owner, database, "ragpg_login", groups=["ragpg_reader"])
    owner.execute("grant create on schema public to ragpg_login")
    owner.execute("select ragpg.use_tenant('acme', true)")
    owner.execute(
        "select ragpg.create_collection('docs', %s)", [json.dumps(RECIPE | {"glossary": ""})]
    )
    owner.execute("create table public.heard (who text); grant insert on heard to public")
    make = """
        create function public.trap_{0}({1}) returns {2} language plpgsql as $$
        begin
            insert into public.heard values (current_user);
            return {3};
        end $$
    """
    with psycopg.connect(url, autocommit=True) as conn:
        for name, arguments, result, value in (
            ("plus", "float8, integer", "float8", "$1"),
            ("minus", "integer, float8", "float8", "$1 - $2::numeric"),
            ("contains", "text[], text[]", "boolean", "true"),
            ("slash", "bigint, numeric", "numeric", "1"),
        ):
            conn.execute(make.format(name, arguments, result, value))
        conn.execute(
            """
            create operator public.+ (function = trap_plus, leftarg = float8, rightarg = integer);
            create operator public.- (function = trap_minus, leftarg = integer, rightarg = float8);
            create operator public.@> (function = trap_contains, leftarg = text[], rightarg = text[]);
            create operator public./ (function = trap_slash, leftarg = bigint, rightarg = numeric);
            create function public.format(text, text) returns text language sql as $$
                insert into public.heard values (current_user); select 'x' $$;
            create function public.cardinality(bigint[]) returns integer language sql as $$
                insert into public.heard values (current_user); select 1 $$;
            """
        )
        conn.execute("select ragpg.use_tenant('acme', true)")
        conn.execute(
            "select * from ragpg.search_hybrid('docs', 'a', '[1,0,0]', tags_all => array['x'])"
        )
        conn.execute("select * from ragpg.search_dense('docs', '[1,0,0]')")
    # An empty collection runs few of them: the functions of ragpg look nowhere else at all.
    assert owner.execute("select who from public.heard").fetchall() == []
    assert (
        owner.execute(
            "select proname from pg_proc where pronamespace = 'ragpg'::regnamespace"
            " and proconfig::text like '%public%'"
        ).fetchall()
        == []
    )
    # Neither do those that were parsed when they were made, with a trap there already.
    owner.execute("grant create on schema public to ragpg_owner")
    owner.execute("revoke create on schema public from ragpg_login")
    owner.execute("update ragpg.installation set functions_digest = 'older'")
    assert migrate(database.owner_url).functions_applied
    assert (
        one(
            owner,
            "select count(*) from pg_depend join pg_proc as user_of on user_of.oid = objid"
            " where classid = 'pg_proc'::regclass"
            " and user_of.pronamespace = 'ragpg'::regnamespace"
            " and (refclassid = 'pg_operator'::regclass and refobjid in (select oid from"
            " pg_operator where oprowner = 'ragpg_login'::regrole)"
            " or refclassid = 'pg_proc'::regclass and refobjid in (select oid from pg_proc"
            " where proowner = 'ragpg_login'::regrole))",
        )
        == 0
    )
    owner.execute("drop owned by ragpg_login cascade")


def test_a_role_that_serves_all_tenants_is_not_bound_to_one(database, owner, tenants):
    make_login(owner, database, "ragpg_login", groups=["ragpg_app"])
    bind = "insert into ragpg.reader_tenant values ('ragpg_login', %s)"
    with pytest.raises(psycopg.Error, match="is a member of ragpg_app") as refused:
        owner.execute(bind, [tenants[0]])
    assert refused.value.sqlstate == "RG009"
    owner.execute("revoke ragpg_app from ragpg_login")
    owner.execute("grant ragpg_reader to ragpg_login")
    owner.execute(bind, [tenants[0]])
    owner.execute("grant ragpg_app to ragpg_login")
    found = doctor.judge_readers(owner)
    assert found.state == "failed"
    assert "run `revoke ragpg_app from ragpg_login`, or delete the binding" in found.message


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
