"""What an operator is told of a database that is empty, behind, closed to the role, or away."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from ragpg.database import SCHEMA_REVISION
from tests.cli.test_commands import CommandLine
from tests.conftest import SERVICE_ROLE, TestDatabase, with_database
from tests.sql.tenancy_seed import make_login

AWAY = "postgresql://ragpg_service@127.0.0.1:1/ragpg?connect_timeout=2"
INDEX = (("index", "plan"), ("index", "apply"), ("index", "recall"))
READ_OTHERWISE = "texts are read otherwise now, by a new release or another PostgreSQL"


def on(service_url: str, owner_url: str) -> CommandLine:
    return CommandLine({"RAGPG_DATABASE_URL": service_url, "RAGPG_OWNER_DATABASE_URL": owner_url})


def findings(run: CommandLine, *, code: int = 0) -> dict[str, tuple[str, str]]:
    """State and message of each check of the doctor."""
    found = json.loads(run("doctor", "--json", code=code).stdout)
    return {one["name"]: (one["state"], one["message"]) for one in found}


@pytest.fixture
def empty(owner: psycopg.Connection, database: TestDatabase) -> Iterator[TestDatabase]:
    """A database in which nothing was migrated."""
    name = f"{database.name}_empty"
    owner.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
    yield TestDatabase(
        name=name,
        owner_url=with_database(database.owner_url, name),
        service_url=database.service_url.replace(database.name, name),
        reader_url=database.reader_url.replace(database.name, name),
    )
    owner.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def test_an_empty_database_is_to_be_migrated(empty):
    run = on(empty.service_url, empty.owner_url)
    for command in INDEX:
        said = run(*command, code=3).stderr
        assert said == "ragpg: the database holds no ragpg schema; run `ragpg migrate`\n"
    found = findings(run, code=1)
    told = "the database holds no ragpg schema; run `ragpg migrate`"
    assert found["schema"] == ("failed", told)
    assert found["index maintenance"][1].endswith(told)


def test_a_migration_by_a_role_without_the_rights_says_who_has_them(empty):
    said = on(empty.service_url, empty.service_url)("migrate", code=3).stderr
    assert said.startswith("ragpg: this role may not make what the schema needs (permission denied")
    assert "set RAGPG_OWNER_DATABASE_URL to the address of a superuser" in said


def test_a_schema_that_is_behind_names_both_revisions_and_the_command(database, owner):
    owner.execute("update ragpg.alembic_version set version_num = '0001'")
    run = on(database.service_url, database.owner_url)
    for command in INDEX:
        said = run(*command, code=3).stderr
        assert said.startswith("ragpg: the database is at revision 0001 with functions ")
        assert said.endswith("; run `ragpg migrate`\n")
        assert f"needs {SCHEMA_REVISION}" in said


def test_a_role_without_rights_is_told_which_it_needs(database, owner):
    nobody = make_login(owner, database, "ragpg_test_nobody", groups=[])
    run = on(nobody, database.service_url)
    for command in INDEX:
        said = run(*command, code=3).stderr
        assert said.startswith(
            "ragpg: 'ragpg_test_service' may not act as ragpg_owner (permission "
        )
        assert said.endswith(
            "set RAGPG_OWNER_DATABASE_URL to the address of a login role that is a member of it\n"
        )
    found = findings(run, code=1)
    assert found["database"][0] == "ok"
    assert "'ragpg_test_nobody', which is no member of ragpg_app" in found["role"][1]
    assert "schema" not in found
    assert "'ragpg_test_service' may not act as ragpg_owner" in found["index maintenance"][1]


def test_a_service_whose_group_lost_its_grants_is_told_which(database, owner):
    owner.execute("revoke usage on schema ragpg from ragpg_app")
    state, message = findings(on(database.service_url, database.owner_url), code=1)["schema"]
    assert state == "failed"
    assert message.startswith("'ragpg_test_service' may not use schema ragpg though it is a member")


def test_a_server_that_is_away_is_exit_code_4_and_names_the_settings():
    run = on(AWAY, AWAY)
    said = run("index", "plan", code=4).stderr
    assert said.startswith("ragpg: the database cannot be reached: connection failed: ")
    assert "RAGPG_OWNER_DATABASE_URL" in said
    assert len(said.splitlines()) == 1
    assert findings(run, code=1)["database"][0] == "failed"


def test_an_invalid_index_and_a_bm25_index_to_rebuild_are_named_planned_and_mended(database, owner):
    run = on(database.service_url, database.owner_url)
    assert "nothing to measure" in run("index", "recall").stdout
    owner.execute("update ragpg.dense_setting set index_above = 30, unindex_below = 10")
    run("ingest", "examples", "--tenant", "acme")
    run("index", "apply")
    owner.execute(
        "update pg_index set indisvalid = false"
        " where indexrelid = 'ragpg.embedding_ann_1_1'::regclass"
    )
    owner.execute(
        "update ragpg.lexeme_vector set weights = overlay(weights::text placing '{7:1,'"
        " from 1 for 1)::sparsevec"
    )
    state, message = findings(run)["vector indexes"]
    assert state == "warning"
    assert message.startswith("left invalid by a build that failed: embedding_ann_1_1; ")
    for command in (("index", "plan"), ("index", "apply")):
        _head, lexical, _head, dense = run(*command).stdout.splitlines()
        assert lexical.split()[:5] == ["rebuild", "acme", "default", "47", "0"]
        assert lexical.rstrip().endswith(READ_OTHERWISE)
        assert dense.split()[0] == "rebuild"
        assert dense.split()[-1] == "embedding_ann_1_1"
    assert run("index", "plan").stdout.startswith("nothing to do: every collection has the vector")
    assert "vector indexes" not in findings(run)


def test_the_doctor_says_whether_somebody_works_on_what_waits(database, owner, tmp_path):
    run = on(database.service_url, database.owner_url)
    assert findings(run)["workers"] == ("ok", "0 alive, 0 documents in work, 0 waiting")
    (tmp_path / "leave.md").write_text("Everybody has 30 days of leave.")
    run("enqueue", str(tmp_path))
    state, message = findings(run, code=1)["workers"]
    assert state == "failed"
    assert message.startswith("0 alive, 0 documents in work, 1 waiting, the oldest for 0 minutes;")
    assert "start `ragpg worker`" in message
    owner.execute("insert into ragpg_jobs.procrastinate_workers default values")
    assert findings(run)["workers"][0] == "ok"
    owner.execute("update ragpg.staged_document set queued_at = now() - interval '3 hours'")
    state, message = findings(run)["workers"]
    assert state == "warning"
    assert "1 alive, 0 documents in work, 1 waiting, the oldest for 180 minutes" in message
    run("worker", "--drain")
    owner.execute(
        "update ragpg_jobs.procrastinate_workers set last_heartbeat = now() - interval '1 min'"
    )
    assert findings(run)["workers"] == ("ok", "0 alive, 0 documents in work, 0 waiting")


def test_the_doctor_says_that_a_server_takes_no_writes(database, owner):
    owner.execute(
        sql.SQL("alter role {} in database {} set default_transaction_read_only = on").format(
            sql.Identifier(SERVICE_ROLE), sql.Identifier(database.name)
        )
    )
    run = on(database.service_url, database.owner_url)
    assert "takes no writes" in findings(run)["database"][1]
