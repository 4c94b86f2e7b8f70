"""Migrating: from empty, twice, four at once, with other rights, and refusing what does not fit."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from ragpg import doctor, errors
from ragpg.database import SCHEMA_REVISION, Database
from ragpg.database.migrate import MigrationReport, migrate
from ragpg.settings import Settings
from tests.conftest import SERVICE_ROLE, with_database

ROOT = Path(__file__).parents[2]


@pytest.fixture
def empty(server_url: str, template: str) -> Iterator[str]:
    name = f"ragpg_empty_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    yield name
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def test_an_empty_database_is_migrated_once_and_then_left_alone(server_url, empty):
    url = with_database(server_url, empty)
    first = migrate(url)
    # A server with an old pgvector has warnings of its own.
    assert replace(first, warnings=()) == MigrationReport(
        found=None, revision=SCHEMA_REVISION, functions_applied=True
    )
    again = migrate(url)
    assert (again.found, again.functions_applied, again.changed) == (SCHEMA_REVISION, False, False)


def test_four_migrations_at_once_do_the_work_once(server_url, empty):
    url = with_database(server_url, empty)
    reports: list[MigrationReport] = []
    threads = [threading.Thread(target=lambda: reports.append(migrate(url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert sorted(report.changed for report in reports) == [False, False, False, True]


def test_the_roles_script_lets_a_login_that_is_no_superuser_migrate(server_url, empty):
    script = (ROOT / "docker" / "roles.sh").read_text("utf-8")
    body = script[script.index("<<'SQL'") + 7 : script.rindex("SQL")]
    suffix = uuid.uuid4().hex[:6]
    # Roles belong to the whole server, which has the three groups already.
    body = re.sub(r"create role (ragpg_owner|ragpg_app|ragpg_reader) nologin;", "", body)
    body = body.replace("ragpg_migrator", f"migrator_{suffix}").replace(
        "ragpg_service", f"service_{suffix}"
    )
    body = body.replace(":'owner_password'", "'only-for-tests'")
    body = body.replace(":'service_password'", "'only-for-tests'")
    body = body.replace("on database ragpg", f"on database {empty}")
    with psycopg.connect(with_database(server_url, empty), autocommit=True) as conn:
        conn.execute(body)
    try:
        report = migrate(with_database(server_url, empty, user=f"migrator_{suffix}"))
        assert report.revision == SCHEMA_REVISION
        open_and_close(with_database(server_url, empty, user=f"service_{suffix}"))
    finally:
        with psycopg.connect(with_database(server_url, empty), autocommit=True) as conn:
            for role in (f"migrator_{suffix}", f"service_{suffix}"):
                conn.execute(sql.SQL("drop owned by {} cascade").format(sql.Identifier(role)))
                conn.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def open_and_close(url: str) -> None:
    async def inside() -> None:
        database = Database(url=url)
        try:
            async with database.transaction(None) as conn:
                await conn.execute("select 1")
        finally:
            await database.aclose()

    anyio.run(inside)


def test_a_database_without_the_schema_names_the_command(server_url, empty):
    with pytest.raises(errors.SchemaMissing, match="run `ragpg migrate`"):
        open_and_close(with_database(server_url, empty, user=SERVICE_ROLE))


def test_an_older_schema_names_the_command_and_both_revisions(database, owner):
    owner.execute("update ragpg.alembic_version set version_num = '0001'")
    with pytest.raises(errors.SchemaOutdated, match="run `ragpg migrate`") as caught:
        open_and_close(database.service_url)
    assert (caught.value.found, caught.value.needed) == ("0001", SCHEMA_REVISION)


def test_functions_of_another_version_are_outdated_and_migrate_mends_them(database, owner):
    owner.execute("update ragpg.installation set functions_digest = 'other'")
    with pytest.raises(errors.SchemaOutdated):
        open_and_close(database.service_url)
    assert migrate(database.owner_url).functions_applied
    open_and_close(database.service_url)


def test_a_newer_schema_is_refused_by_the_service_and_by_migrate(database, owner):
    owner.execute("update ragpg.alembic_version set version_num = '9999'")
    with pytest.raises(errors.SchemaTooNew, match="install a newer ragpg"):
        open_and_close(database.service_url)
    with pytest.raises(errors.SchemaTooNew, match="install a newer ragpg"):
        migrate(database.owner_url)


def test_a_superuser_is_refused_as_the_service(database):
    with pytest.raises(
        errors.ConfigurationError, match="a superuser, so tenants would not be kept"
    ):
        open_and_close(database.owner_url)


def test_an_owner_and_a_role_that_bypasses_policies_are_refused_as_the_service(
    database, owner, server_url
):
    suffix = uuid.uuid4().hex[:6]
    for attributes, why in (
        ("in role ragpg_owner", "an owner of the schema"),
        ("bypassrls in role ragpg_app", "allowed to bypass row-level security"),
    ):
        role = f"wrong_{suffix}_{why.split()[-1]}".replace("-", "_")
        owner.execute(f"create role {role} login password 'only-for-tests' {attributes}")
        try:
            with pytest.raises(errors.ConfigurationError, match=why):
                open_and_close(with_database(server_url, database.name, user=role))
        finally:
            owner.execute(f"drop role {role}")


def test_a_database_that_is_not_there_is_one_sentence_with_a_next_step():
    with pytest.raises(errors.DatabaseUnavailable, match="check RAGPG_DATABASE_URL"):
        open_and_close("postgresql://ragpg_service@127.0.0.1:1/ragpg")


def test_a_database_whose_pgvector_is_too_old_is_refused_and_left_as_it_was(server_url, empty):
    url = with_database(server_url, empty)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("create extension vector")
        conn.execute("update pg_extension set extversion = '0.7.4' where extname = 'vector'")
        with pytest.raises(errors.ConfigurationError, match=r"pgvector 0\.7\.4.* needs 0\.8"):
            migrate(url)
        assert conn.execute("select to_regnamespace('ragpg')").fetchone() == (None,)
    assert finding("pgvector", url).state == "failed"


def finding(name: str, url: str) -> doctor.Finding:
    findings = anyio.run(doctor.examine, Settings(database_url=SecretStr(url)))
    (found,) = [one for one in findings if one.name == name]
    return found


def test_a_locale_that_knows_no_letters_but_a_to_z_is_warned_of(server_url, template):
    name = f"ragpg_locale_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(
            sql.SQL("create database {} template template0 locale_provider libc locale 'C'").format(
                sql.Identifier(name)
            )
        )
        try:
            warnings = migrate(with_database(server_url, name)).warnings
            locale = finding("locale", with_database(server_url, name))
        finally:
            conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
    assert "the locale of this database knows no letters but A to Z" in warnings[-1]
    assert locale == doctor.Finding(name="locale", state="warning", message=warnings[-1])
