"""A dump restored where the roles of its readers are not: no reader gets more than it had."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from ragpg import doctor
from ragpg.database.migrate import migrate
from ragpg.embedded import bundled_psql
from ragpg.errors import ConfigurationError
from tests.conftest import TestDatabase, with_database
from tests.sql.tenancy_seed import make_login, one
from tests.sql.test_tenancy_bindings import seen

ROLES = ("ragpg_restored", "ragpg_restored_group")
LOST = (
    "readers of this database were bound to tenants and are no more, as after a restore without"
    " their roles"
)


def drop_roles(conn: psycopg.Connection) -> None:
    for name in ROLES:
        conn.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))


def run(program: str, *arguments: str) -> str:
    """What it says on standard error."""
    done = subprocess.run(
        [Path(bundled_psql()).with_name(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stderr


@pytest.fixture
def restored(
    owner: psycopg.Connection, database: TestDatabase, tmp_path: Path
) -> Iterator[tuple[psycopg.Connection, TestDatabase]]:
    """A database with two tenants and bound readers, dumped and restored without their roles."""
    drop_roles(owner)
    owner.execute("select ragpg.create_tenant('acme'), ragpg.create_tenant('globex')")
    for name in ROLES:
        owner.execute(
            sql.SQL("create role {} login in role ragpg_reader").format(sql.Identifier(name))
        )
        owner.execute(
            "insert into ragpg.reader_tenant select %s, tenant_id from ragpg.tenant"
            " where key = 'acme'",
            [name],
        )
    run("pg_dump", "--format=custom", f"--file={tmp_path / 'dump'}", database.owner_url)
    drop_roles(owner)
    name = f"{database.name}_restored"
    owner.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
    url = with_database(database.owner_url, name)
    said = run("pg_restore", f"--dbname={url}", str(tmp_path / "dump"))
    assert 'role "ragpg_restored" does not exist' in said
    fresh = TestDatabase(
        name=name,
        owner_url=url,
        service_url=database.service_url.replace(database.name, name),
        reader_url=database.reader_url.replace(database.name, name),
    )
    with psycopg.connect(url, autocommit=True) as conn:
        yield conn, fresh
    owner.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
    drop_roles(owner)


def test_a_reader_made_after_the_restore_sees_nothing_until_it_is_bound_again(restored):
    conn, database = restored
    assert one(conn, "select count(*) from ragpg.reader_tenant") == 0
    url = make_login(conn, database, "ragpg_restored", groups=["ragpg_reader"])
    for tenant in ("acme", "globex"):
        with psycopg.connect(url) as reader, pytest.raises(psycopg.Error, match=LOST) as refused:
            reader.execute("select ragpg.use_tenant(%s)", [tenant])
        assert refused.value.sqlstate == "RG004"
    assert seen(url, "set ragpg.tenant_id = '1'") == "RG004"
    assert conn.execute(
        "select tenant, role_name, role_exists from ragpg.lost_reader order by role_name"
    ).fetchall() == [("acme", ROLES[0], True), ("acme", ROLES[1], False)]
    assert one(conn, "select ragpg.bind_readers_again()") == 1
    assert seen(url) == "acme"
    with psycopg.connect(url) as reader, pytest.raises(psycopg.Error, match="no tenant 'globex'"):
        reader.execute("select ragpg.use_tenant('globex')")


def test_a_reader_that_is_in_no_group_yet_sees_nothing_while_a_group_is_lost(restored):
    conn, database = restored
    assert seen(database.reader_url, "select ragpg.use_tenant('globex', true)") == "RG004"
    assert seen(database.service_url, "select ragpg.use_tenant('globex', true)") == "globex"
    conn.execute("delete from ragpg.reader_name")
    assert seen(database.reader_url, "select ragpg.use_tenant('globex', true)") == "globex"


def test_a_binding_that_is_removed_or_moved_is_not_lost(owner, database):
    acme = one(owner, "select ragpg.create_tenant('acme')")
    globex = one(owner, "select ragpg.create_tenant('globex')")
    names = "select tenant_id, role_name from ragpg.reader_name"
    owner.execute("insert into ragpg.reader_tenant values ('ragpg_test_reader', %s)", [acme])
    assert owner.execute(names).fetchall() == [(acme, "ragpg_test_reader")]
    owner.execute("update ragpg.reader_tenant set tenant_id = %s", [globex])
    assert owner.execute(names).fetchall() == [(globex, "ragpg_test_reader")]
    assert seen(database.reader_url) == "globex"
    owner.execute("delete from ragpg.reader_tenant")
    assert owner.execute(names).fetchall() == []
    assert seen(database.reader_url, "select ragpg.use_tenant('acme', true)") == "acme"
    owner.execute("insert into ragpg.reader_tenant values ('ragpg_test_reader', %s)", [acme])
    owner.execute("select ragpg.delete_tenant('acme')")
    assert owner.execute(names).fetchall() == []
    assert seen(database.reader_url, "select ragpg.use_tenant('globex', true)") == "globex"


def test_a_renamed_reader_stays_bound_and_is_not_lost(owner, database):
    drop_roles(owner)
    acme = one(owner, "select ragpg.create_tenant('acme')")
    make_login(owner, database, ROLES[0], groups=["ragpg_reader"])
    owner.execute("insert into ragpg.reader_tenant values (%s, %s)", [ROLES[0], acme])
    owner.execute(f"alter role {ROLES[0]} rename to {ROLES[1]}")
    assert owner.execute("table ragpg.lost_reader").fetchall() == []
    assert seen(with_database(database.owner_url, database.name, user=ROLES[1])) == "acme"
    owner.execute("delete from ragpg.reader_tenant")
    assert owner.execute("table ragpg.reader_name").fetchall() == []
    drop_roles(owner)


def test_the_doctor_names_lost_readers_and_the_statements_that_bind_them(restored):
    conn, database = restored
    conn.execute("set role ragpg_owner")
    lost = doctor.judge_readers(conn)
    assert (lost.name, lost.state) == ("readers", "failed")
    assert f"{ROLES[0]!r} of 'acme', {ROLES[1]!r} of 'acme'" in lost.message
    assert "`select ragpg.bind_readers_again()`" in lost.message
    report = migrate(database.owner_url)
    assert (report.changed, report.warnings) == (False, (lost.message,))
    conn.execute("delete from ragpg.reader_name")
    assert doctor.judge_readers(conn).state == "ok"
    conn.execute("reset role")
    conn.execute("create role ragpg_restored in role ragpg_reader")
    conn.execute("insert into ragpg.reader_tenant values ('ragpg_restored', 1)")
    unbound = doctor.judge_readers(conn)
    assert unbound.state == "warning"
    assert "'ragpg_test_reader'" in unbound.message


def test_a_restore_on_a_server_without_the_roles_of_ragpg_is_told_from_a_good_schema(
    owner, database
):
    owner.execute("alter schema ragpg owner to postgres")
    with pytest.raises(ConfigurationError, match="schema ragpg belongs to 'postgres' and not to"):
        migrate(database.owner_url)
