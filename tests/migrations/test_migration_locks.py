"""A migration beside people at work: who waits for whom, for how long, and what it then says."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from ragpg import errors
from ragpg.database import SCHEMA_REVISION, migration_locks
from ragpg.database.migrate import migrate
from tests.conftest import with_database

OUTDATED = "update ragpg.installation set functions_digest = 'older'"


def test_who_holds_the_lock_of_migrations_is_named_and_not_waited_for_for_ever(
    database, owner, monkeypatch
):
    monkeypatch.setattr(migration_locks, "MIGRATION_WAIT_S", 1)
    with psycopg.connect(database.service_url, autocommit=True) as conn:
        conn.execute("select pg_advisory_lock(491260440679)")
        named = rf"process {conn.info.backend_pid} \(ragpg_test_service, idle"
        with pytest.raises(errors.ConflictError, match=named):
            migrate(database.owner_url)
    assert not migrate(database.owner_url).changed


def test_new_functions_lock_no_reader_out_of_a_table(database, owner):
    owner.execute(OUTDATED)
    tenant = owner.execute("select ragpg.create_tenant('acme')").fetchone()
    with psycopg.connect(database.reader_url) as reader:
        reader.execute("select set_config('ragpg.tenant_id', %s, false)", [str(tenant[0])])
        for table in ("document", "chunk", "embedding", "tenant", "search"):
            reader.execute(
                sql.SQL("select count(*) from ragpg.{}").format(sql.Identifier(table))
                if table != "embedding"
                else "select count(chunk_id) from ragpg.embedding"
            )
        assert migrate(database.owner_url).functions_applied


def test_a_policy_that_was_changed_is_made_again(database, owner):
    owner.execute(OUTDATED)
    owner.execute("drop policy current_tenant_only on ragpg.usage")
    owner.execute("alter policy current_tenant_only on ragpg.chunk using (true)")
    owner.execute("alter table ragpg.search disable row level security")
    assert migrate(database.owner_url).functions_applied
    made = owner.execute(
        "select count(*), count(distinct qual), count(distinct with_check) from pg_policies"
        " join pg_class on relname = tablename and relnamespace = 'ragpg'::regnamespace"
        " where relrowsecurity and tablename in ('usage', 'chunk', 'search', 'document')"
    ).fetchone()
    assert made == (4, 1, 1)


def test_a_table_in_use_is_tried_again_until_it_is_free_and_searches_pass_between(
    database, owner, monkeypatch
):
    owner.execute(OUTDATED)
    owner.execute("drop policy current_tenant_only on ragpg.chunk")
    reports = []
    with psycopg.connect(database.owner_url) as idle:
        idle.execute("select count(*) from ragpg.chunk")
        other = threading.Thread(target=lambda: reports.append(migrate(database.owner_url)))
        other.start()
        owner.execute("set statement_timeout = '5s'")
        for _ in range(3):
            owner.execute("select count(*) from ragpg.chunk, pg_sleep(0.5)")
        idle.rollback()
        other.join(timeout=120)
    assert [report.functions_applied for report in reports] == [True]


def test_a_reader_that_holds_one_table_and_wants_another_is_no_victim_of_a_revision(
    database, owner
):
    owner.execute("drop statistics ragpg.lexeme_vector_home, ragpg.chunk_home")
    owner.execute("update ragpg.alembic_version set version_num = '0017'")
    owner.execute(OUTDATED)
    owner.execute("drop function ragpg.tag_keys cascade")
    owner.execute("create index embedding_tags on ragpg.embedding using gin (tags)")
    # So that the functions, which come after the revision, want this table.
    owner.execute("drop policy current_tenant_only on ragpg.search")
    reports = []
    other = threading.Thread(target=lambda: reports.append(migrate(database.owner_url)))
    with psycopg.connect(database.owner_url) as reader:
        reader.execute("select count(*) from ragpg.search")
        other.start()
        for _ in range(300):
            # Until revision 0018 has the index of this table, where it takes it before the others.
            held = owner.execute(
                "select 1 from pg_locks where relation = 'ragpg.lexeme_vector_keys'::regclass"
                " and mode = 'AccessExclusiveLock' and granted"
            ).fetchone()
            if held:
                break
            time.sleep(0.005)
        assert reader.execute("select count(*) from ragpg.lexeme_vector").fetchone() == (0,)
    other.join(timeout=120)
    assert [report.revision for report in reports] == [SCHEMA_REVISION]


def test_a_table_that_stays_in_use_is_left_as_it_was_and_its_user_named(
    database, owner, monkeypatch
):
    monkeypatch.setattr(migration_locks, "TABLE_TRIES", 2)
    owner.execute(OUTDATED)
    owner.execute("drop policy current_tenant_only on ragpg.chunk")
    with psycopg.connect(database.owner_url) as idle:
        idle.execute("select count(*) from ragpg.chunk")
        named = rf"process {idle.info.backend_pid} \(postgres, idle in transaction"
        with pytest.raises(errors.ConflictError, match=named):
            migrate(database.owner_url)
    assert owner.execute("select functions_digest from ragpg.installation").fetchone() == ("older",)


@pytest.fixture
def elsewhere(server_url: str, template: str) -> Iterator[str]:
    """The url of a database with pgvector in a schema of its own."""
    name = f"ragpg_elsewhere_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    with psycopg.connect(with_database(server_url, name), autocommit=True) as conn:
        conn.execute("create schema extensions; create extension vector schema extensions")
    yield with_database(server_url, name)
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def test_a_pgvector_outside_public_is_refused_before_anything_is_made(elsewhere):
    with pytest.raises(errors.ConfigurationError, match="alter extension vector set schema public"):
        migrate(elsewhere)
    with psycopg.connect(elsewhere, autocommit=True) as conn:
        assert conn.execute("select to_regnamespace('ragpg')").fetchone() == (None,)
        conn.execute("alter extension vector set schema public")
    assert migrate(elsewhere).changed


def test_a_role_set_to_another_path_and_older_strings_migrates_all_the_same(server_url, template):
    name = f"ragpg_odd_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            conn.execute(
                sql.SQL("alter database {} set search_path = ''").format(sql.Identifier(name))
            )
            assert migrate(with_database(server_url, name)).changed
        finally:
            conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
