"""No function, view or table shows a row of another tenant, or an empty result without a tenant."""

from __future__ import annotations

import itertools
import random
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.conftest import TestDatabase
from tests.sql.tenancy_seed import CANARY, FOREIGN, LEAK, World, make_world, one, relations

LOGINS = ("service", "reader", "bound", "grouped")
GARBAGE = ("1; drop table ragpg.chunk", "1e0", " 1", "1 ", "+1", "01", "1.0", "2147483648",
           "99999999999999999999", "-1", "0", "null", "'1'", "1,7770001", "\u0661", "424242")  # fmt: skip
# What may answer without a tenant: one row about the installation, and functions of their arguments.
OPEN_TABLES = {"alembic_version", "installation", "dense_setting"}
OPEN_FUNCTIONS = {"attributes", "contextualized", "create_tenant", "delete_tenant", "dense_index_state",
                  "dense_mode", "instant", "instants", "near_tenants", "tokenize", "use_tenant"}  # fmt: skip
VALUES: dict[str, list[str]] = {
    "text": ["'docs'", "'handbook.md'", "'leave policy'", "'globex'", "'neighbours'", "'english'"],
    "integer": ["1", "20", str(FOREIGN)],
    "bigint": ["1", str(FOREIGN), "2"],
    "double precision": ["1", "0.5"],
    "boolean": ["true", "false"],
    "jsonb": ["""'{"year": 2025}'""", "'{}'"],
    "jsonpath": ["'$.year == 2025'", "'exists($.secret)'"],
    "uuid": ["'00000000-0000-0000-0000-000000000001'"],
    "timestamp with time zone": ["null", "'2020-01-01'"],
    "halfvec": ["'[1,0,0]'", "'[1,0.5,0]'"],
    "sparsevec": ["'{1:1}/1000000000'"],
    "uuid[]": ["'{00000000-0000-0000-0000-000000000001}'"],
    "text[]": ["null", "'{docs}'"],
    "integer[]": [f"'{{1,{FOREIGN}}}'"],
    "bigint[]": [f"'{{1,2,{FOREIGN}}}'", "'{}'"],
    "double precision[]": ["'{1,1}'"],
    "boolean[]": ["'{t,f}'"],
    "oid": ["1"],
    "tsquery": ["'leave'"],
    "tsvector": ["'leave:1'"],
    "anyelement": ["'docs'"],
}


@pytest.fixture
def world(owner: psycopg.Connection, database: TestDatabase) -> World:
    return make_world(owner, database)


def calls(owner: psycopg.Connection, each: int) -> list[tuple[str, str]]:
    """Every function of the schema with `each` drawn argument lists, as name and statement."""
    rng = random.Random(6)  # noqa: S311
    found = []
    for name, types in owner.execute(
        "select proname, array(select format_type(t, null) from unnest(proargtypes) as t)"
        # A trigger function cannot be called, whoever asks.
        "  from pg_proc where pronamespace = 'ragpg'::regnamespace"
        "   and prorettype <> 'trigger'::regtype order by oid"
    ):
        for turn in range(each):
            plausible = ["'docs'"] if types[:1] == ["text"] and turn else []
            given = plausible + [rng.choice(VALUES[kind]) for kind in types[len(plausible) :]]
            arguments = ", ".join(f"{v}::{k}" for v, k in zip(given, types, strict=True))
            arguments = arguments.replace("anyelement", "text")
            found.append((name, f"select * from ragpg.{name}({arguments})"))
    return found


def answer(conn: psycopg.Connection, statement: str) -> list[Any] | str:
    """The rows, or the SQLSTATE; whatever it did is undone. Fails on a trace of globex in an error."""
    rows: list[Any] = []
    error = None
    try:
        with conn.transaction(force_rollback=True):
            rows = conn.execute(statement).fetchall()
    except psycopg.Error as refused:
        error = refused
    if error is None:
        return rows
    said = f"{error} {error.diag.message_detail} {error.diag.context}"
    assert CANARY not in said, statement
    return error.sqlstate or ""


@pytest.mark.parametrize("login", ["service", "reader"])
def test_without_a_valid_tenant_every_table_and_view_raises(owner, world, login):
    with psycopg.connect(world.urls()[login], autocommit=True) as conn:
        for setting in (None, "", *GARBAGE):
            if setting is not None:
                conn.execute("select set_config('ragpg.tenant_id', %s, false)", [setting])
            for name in set(relations(owner)) - OPEN_TABLES:
                got = answer(conn, f"select * from ragpg.{name}")
                assert got in {"RG001", "42501"}, (setting, name)


@pytest.mark.parametrize("login", ["service", "reader"])
def test_without_a_valid_tenant_every_function_raises(owner, world, login):
    with psycopg.connect(world.urls()[login], autocommit=True) as conn:
        for setting in (None, "", *GARBAGE):
            if setting is not None:
                conn.execute("select set_config('ragpg.tenant_id', %s, false)", [setting])
            for name, call in calls(owner, each=2):
                got = answer(conn, call)
                assert name in OPEN_FUNCTIONS or got in ("RG001", "42501"), (setting, call)


@pytest.mark.parametrize("login", LOGINS)
def test_every_table_and_view_shows_exactly_the_rows_of_the_tenant(owner, world, login):
    with psycopg.connect(world.urls()[login], autocommit=True) as conn:
        conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(world.acme)])
        for name in relations(owner):
            got = answer(conn, f"select * from ragpg.{name}")
            if name in OPEN_TABLES or got == "42501":
                continue
            assert isinstance(got, list), (name, got)
            assert not LEAK.search(repr(got)), name
            assert got, f"give {name} a row in tenancy_seed"
            if name == "lexical_health":
                continue
            assert len(got) == one(
                owner, f"select count(*) from ragpg.{name} where tenant_id = {world.acme}"
            ), name


@pytest.mark.parametrize("login", LOGINS)
def test_no_function_returns_anything_of_another_tenant(owner, world, login):
    answered = set()
    with psycopg.connect(world.urls()[login], autocommit=True) as conn:
        conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(world.acme)])
        for name, call in calls(owner, each=6):
            got = answer(conn, call)
            if isinstance(got, list) and name not in OPEN_FUNCTIONS:
                answered.add(name)
                assert not LEAK.search(repr(got)), call
    assert answered >= {"search_dense", "search_lexical", "current_tenant", "collection_number"}


@pytest.mark.parametrize("login", ["bound", "grouped"])
def test_a_bound_reader_sees_its_tenant_and_no_other_whatever_it_sets(owner, world, login):
    tries = [
        f"set ragpg.tenant_id = '{world.globex}'",
        f"set session ragpg.tenant_id to {world.globex}",
        f"select set_config('ragpg.tenant_id', '{world.globex}', false)",
        f"alter role current_user set ragpg.tenant_id = '{world.globex}'",
        "select ragpg.use_tenant('globex', true)",
        "reset ragpg.tenant_id",
        "reset all",
        "discard all",
        "set role ragpg_reader",
        "set role none",
        "reset role",
        "set role ragpg_app",
        "set role ragpg_owner",
        "set session authorization default",
        "set session authorization ragpg_owner",
        "set row_security = off",
        "set search_path = pg_temp, ragpg",
        "set session_replication_role = replica",
        "create temp table reader_tenant (role regrole, tenant_id integer)",
        "create function pg_temp.current_tenant() returns integer language sql as 'select 7770001'",
        "create function pg_temp.quote_ident(name) returns text language sql as $$select 'x'$$",
        f"update ragpg.reader_tenant set tenant_id = {world.globex}",
        "delete from ragpg.reader_tenant",
    ]
    with psycopg.connect(world.urls()[login], autocommit=True) as conn:
        for attempt in tries:
            for statement in (attempt, "select * from ragpg.tenant, ragpg.chunk"):
                rows, said = [], ""
                try:
                    result = conn.execute(statement)
                    rows = result.fetchall() if statement != attempt else []
                except psycopg.Error as refused:
                    said = str(refused)
                assert CANARY not in said, attempt
                assert not LEAK.search(repr(rows)), attempt
                assert {row[0] for row in rows} <= {world.acme}, attempt
    # The setting that the role gave itself is the one of its next session.
    with psycopg.connect(world.urls()[login], autocommit=True) as conn:
        got = answer(conn, "select * from ragpg.chunk")
        assert got == "RG004" or not LEAK.search(repr(got))
        conn.execute("alter role current_user reset ragpg.tenant_id")


def test_a_bound_reader_cannot_tell_a_foreign_tenant_from_none(world):
    with psycopg.connect(world.bound, autocommit=True) as conn:
        answers: list[tuple[str | None, ...]] = []
        for key in ("globex", "nobody"):
            with pytest.raises(psycopg.Error) as refused:
                conn.execute("select ragpg.use_tenant(%s)", [key])
            diag = refused.value.diag
            answers.append((refused.value.sqlstate, str(diag.message_primary).replace(key, "KEY"),
                            diag.message_detail, diag.message_hint, diag.context))  # fmt: skip
        for number in (world.globex, 424242):
            conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(number)])
            with pytest.raises(psycopg.Error) as refused:
                conn.execute("select ragpg.current_tenant()")
            answers.append((refused.value.sqlstate, refused.value.diag.message_primary,
                            refused.value.diag.context))  # fmt: skip
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]
    assert (answers[0][0], answers[2][0]) == ("RG002", "RG004")


def test_a_cached_plan_asks_for_the_tenant_again(world):
    with psycopg.connect(world.service, autocommit=True, prepare_threshold=1) as conn:
        conn.execute("set plan_cache_mode = force_generic_plan")
        for tenant, key in itertools.product([world.acme, world.globex], ["handbook.md"] * 3):
            conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(tenant)])
            found = conn.execute(
                "select distinct tenant_id from ragpg.document where key = %s", [key]
            ).fetchall()
            assert found == [(tenant,)]
        conn.execute("reset ragpg.tenant_id")
        assert answer(conn, "select * from ragpg.document where key = 'handbook.md'") == "RG001"


def test_a_parallel_scan_answers_for_one_tenant(owner, world):
    with psycopg.connect(world.reader, autocommit=True) as conn:
        conn.execute("select ragpg.use_tenant('acme', true)")
        for setting in (
            "parallel_setup_cost",
            "parallel_tuple_cost",
            "min_parallel_table_scan_size",
        ):
            conn.execute(sql.SQL("set {} = 0").format(sql.Identifier(setting)))
        conn.execute("set enable_indexscan = off; set enable_bitmapscan = off")
        assert one(conn, "select count(*) from ragpg.chunk") == 2


def test_a_function_in_a_condition_sees_no_row_before_the_policy(world):
    for login in LOGINS:
        with psycopg.connect(world.urls()[login], autocommit=True) as conn:
            heard: list[psycopg.errors.Diagnostic] = []
            conn.add_notice_handler(heard.append)
            conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(world.acme)])
            conn.execute(
                "create function pg_temp.tell(anyelement) returns boolean language plpgsql"
                " cost 0.0001 as $$begin raise notice '%', $1; return true; end$$"
            )
            for name in (
                "chunk_overview",
                "lexical_health",
                "document",
                "search_log",
                "index_health",
            ):
                conn.execute(
                    sql.SQL("select from ragpg.{0} where pg_temp.tell({0}::text)").format(
                        sql.Identifier(name)
                    )
                )
            texts = [diag.message_primary for diag in heard]
            assert texts
            assert not LEAK.search(repr(texts))


def test_copy_shows_the_rows_of_the_tenant_only(world):
    with psycopg.connect(world.service) as conn:
        conn.execute("select ragpg.use_tenant('acme')")
        with conn.cursor() as cursor, cursor.copy("copy ragpg.chunk to stdout") as copy:
            lines = b"".join(copy).decode().splitlines()
    assert len(lines) == 2
    assert not LEAK.search(repr(lines))
