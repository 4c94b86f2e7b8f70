"""The deletion of a tenant: nothing of it is left in any table, and nothing of the others goes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.conftest import TestDatabase
from tests.sql.tenancy_seed import make_world


def rows_by_tenant(owner: psycopg.Connection[Any], tenant: int) -> dict[str, list[Any]]:
    """The rows of this tenant in every table that has a tenant."""
    tables = owner.execute(
        "select relname from pg_class"
        " where relnamespace = 'ragpg'::regnamespace and relkind in ('r', 'p')"
        "   and exists (select from pg_attribute where attrelid = pg_class.oid"
        "                and attname = 'tenant_id' and not attisdropped)"
    ).fetchall()
    return {
        name: owner.execute(
            sql.SQL("select * from ragpg.{} as t where tenant_id = %s order by t::text").format(
                sql.Identifier(name)
            ),
            [tenant],
        ).fetchall()
        for (name,) in tables
    }


def jobs(owner: psycopg.Connection[Any]) -> list[Any]:
    return owner.execute(
        "select args ->> 'tenant_id' from ragpg_jobs.procrastinate_jobs order by 1"
    ).fetchall()


def test_nothing_of_a_deleted_tenant_is_left_in_any_table_and_its_neighbour_has_all(
    owner: psycopg.Connection[Any], database: TestDatabase
) -> None:
    world = make_world(owner, database)
    for key in ("acme", "globex"):
        with owner.transaction():
            owner.execute("select ragpg.use_tenant(%s)", [key])
            owner.execute("update ragpg.staged_document set content_hash = 'x'")
            owner.execute("select ragpg.enqueue('docs', array['draft.md'])")
    before = rows_by_tenant(owner, world.globex)
    assert [name for name, rows in rows_by_tenant(owner, world.acme).items() if not rows] == []
    assert jobs(owner) == [(str(world.acme),), (str(world.globex),)]
    with psycopg.connect(database.service_url, autocommit=True) as conn:
        conn.execute("select ragpg.delete_tenant('acme')")
    assert {name: rows for name, rows in rows_by_tenant(owner, world.acme).items() if rows} == {}
    assert rows_by_tenant(owner, world.globex) == before
    assert jobs(owner) == [(str(world.globex),)]


def test_the_tenant_that_was_set_stays_set_and_one_that_is_not_there_is_named(
    owner: psycopg.Connection[Any], database: TestDatabase
) -> None:
    owner.execute("select ragpg.create_tenant('acme'), ragpg.create_tenant('globex')")
    with psycopg.connect(database.service_url) as conn:
        acme = conn.execute("select ragpg.use_tenant('acme')").fetchone()
        conn.execute("select ragpg.delete_tenant('globex')")
        assert conn.execute("select ragpg.current_tenant()").fetchone() == acme
        with pytest.raises(psycopg.Error, match="there is no tenant 'globex'") as raised:
            conn.execute("select ragpg.delete_tenant('globex')")
        assert raised.value.sqlstate == "RG002"


def test_a_reader_may_not_delete_a_tenant(
    owner: psycopg.Connection[Any], database: TestDatabase
) -> None:
    owner.execute("select ragpg.create_tenant('acme')")
    with (
        psycopg.connect(database.reader_url) as conn,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        conn.execute("select ragpg.delete_tenant('acme')")
