"""A server whose administrator is no superuser, and databases that an administrator shut or cut."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import anyio
import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from ragpg import doctor, errors
from ragpg.database.migrate import migrate
from ragpg.settings import Settings
from tests.conftest import SERVICE_ROLE, TestDatabase, embedded_server, with_database

ROLES = "ragpg_app, ragpg_owner, ragpg_reader"


@pytest.fixture
def managed() -> Iterator[str]:
    """The administrator's url of a database on a server that has no role of ragpg yet."""
    with embedded_server() as server:
        with psycopg.connect(server, autocommit=True) as conn:
            conn.execute("create role admin login createrole createdb")
            conn.execute("create database app owner admin")
        with psycopg.connect(with_database(server, "app"), autocommit=True) as conn:
            # As providers let their administrators do it themselves.
            conn.execute("create extension vector")
        yield with_database(server, "app", user="admin")


def test_an_administrator_that_is_no_superuser_makes_the_roles_and_the_schema(managed):
    assert migrate(managed).changed
    assert not migrate(managed).changed
    with psycopg.connect(managed, autocommit=True) as conn:
        conn.execute("create role service login in role ragpg_app")
        conn.execute("set role ragpg_owner")
        assert conn.execute("select ragpg.create_tenant('acme')").fetchone() == (1,)


@pytest.fixture
def shut(server_url: str, template: str) -> Iterator[str]:
    """The superuser's url of a database with pgvector, of which nobody else may use `public`."""
    name = f"ragpg_shut_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    with psycopg.connect(with_database(server_url, name), autocommit=True) as conn:
        conn.execute("create extension vector; revoke all on schema public from public")
    yield with_database(server_url, name)
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def test_the_roles_may_look_into_public_after_a_migration_by_its_owner(shut):
    assert migrate(shut).changed
    with psycopg.connect(shut, autocommit=True) as conn:
        conn.execute("set role ragpg_app")
        assert conn.execute("select '[1]'::public.halfvec::text").fetchone() == ("[1]",)


def test_a_migrator_that_may_not_open_public_names_the_grant_and_makes_nothing(shut):
    migrator = f"migrator_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(shut, autocommit=True) as conn:
        conn.execute(
            sql.SQL("create role {0} login password 'only-for-tests' in role ragpg_owner").format(
                sql.Identifier(migrator)
            )
        )
        conn.execute(
            sql.SQL("grant create on database {} to ragpg_owner").format(
                sql.Identifier(conn.info.dbname)
            )
        )
        try:
            with pytest.raises(
                errors.ConfigurationError, match=f"grant usage on schema public to {ROLES}`"
            ):
                migrate(with_database(shut, conn.info.dbname, user=migrator))
            assert conn.execute("select to_regnamespace('ragpg')").fetchone() == (None,)
        finally:
            conn.execute(sql.SQL("drop role {}").format(sql.Identifier(migrator)))


def test_doctor_reports_a_service_that_may_not_use_public(database: TestDatabase, owner):
    owner.execute("revoke usage on schema public from public")
    findings = anyio.run(doctor.examine, Settings(database_url=SecretStr(database.service_url)))
    assert [
        (one.state, ROLES in one.message) for one in findings if one.name == "schema public"
    ] == [("failed", True)]


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_letter_is_refused(server_url, template, encoding):
    name = f"ragpg_{encoding.lower()}_{uuid.uuid4().hex[:8]}"
    url = with_database(server_url, name)
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(
            sql.SQL("create database {} template template0 encoding {} locale 'C'").format(
                sql.Identifier(name), sql.Literal(encoding)
            )
        )
        try:
            with pytest.raises(errors.ConfigurationError, match=f"is {encoding}, and ragpg needs"):
                migrate(url)
            service = Settings(
                database_url=SecretStr(with_database(server_url, name, user=SERVICE_ROLE))
            )
            told = {one.name: one for one in anyio.run(doctor.examine, service)}
            assert told["database"].state == "failed"
            assert f"is {encoding}, and ragpg needs" in told["database"].message
        finally:
            conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
