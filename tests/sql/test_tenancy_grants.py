"""Who may do what in schema ragpg, and guards that fail for a table or function without discipline."""

from __future__ import annotations

import psycopg
import pytest

from tests.sql.tenancy_seed import make_login, one

READ_ONLY = ("tenant", "collection", "collection_alias", "document", "chunk", "embedding")
HIDDEN = ("lexeme_vector", "lexeme_count", "lexeme_waiting", "lexeme_block", "lexeme_column",
          "lexical_reference", "reader_tenant")  # fmt: skip
FOR_BOTH = {
    "attributes", "collection_number", "contextualized", "current_tenant", "dense_index_state",
    "dense_mode", "expand", "explain_hybrid", "explain_lexical", "has_outdated_lexemes", "instant", "instants",
    "query_lexemes", "search_dense", "search_hybrid", "search_lexical", "stale_documents", "tokenize",
    "use_tenant", "whole_corpus",
}  # fmt: skip
FOR_SERVICE = {
    "create_collection", "create_tenant", "delete_collection", "delete_document", "delete_expired",
    "delete_tenant",
    "enqueue", "hold_collection", "near_tenants", "prune_log", "publish", "publish_documents", "rename_document",
    "set_alias",
    "set_whole_corpus_tokens",
}  # fmt: skip


def unsealed_tables(owner: psycopg.Connection) -> list[str]:
    """Tables with a tenant that lack the policy, or whose key does not begin with the tenant."""
    return [
        name
        for (name,) in owner.execute(
            """
            select class.relname
              from pg_class as class
              join pg_attribute as tenant
                on tenant.attrelid = class.oid and tenant.attname = 'tenant_id'
              left join pg_index as key on key.indrelid = class.oid and key.indisprimary
              left join pg_policies as policy
                on policy.schemaname = 'ragpg' and policy.tablename = class.relname
             where class.relnamespace = 'ragpg'::regnamespace and class.relkind in ('r', 'p', 'm', 'f')
               and class.relname <> 'reader_tenant'
               and (not class.relrowsecurity
                    or key.indkey[0] is distinct from tenant.attnum
                    or policy.policyname is distinct from 'current_tenant_only'
                    or policy.qual is distinct from
                       '((tenant_id = ( SELECT ragpg.current_tenant() AS current_tenant)) AND (tenant_id = ( SELECT ragpg.current_tenant() AS current_tenant)))'
                    or policy.with_check is distinct from
                       '(tenant_id = ( SELECT ragpg.current_tenant() AS current_tenant))'
                    or policy.cmd <> 'ALL' or policy.permissive <> 'PERMISSIVE'
                    or policy.roles <> '{public}')
             order by 1
            """
        )
    ]


def tables_without_a_tenant(owner: psycopg.Connection) -> set[str]:
    return {
        name
        for (name,) in owner.execute(
            "select relname from pg_class where relnamespace = 'ragpg'::regnamespace"
            " and relkind in ('r', 'p', 'm', 'f') and not exists (select from pg_attribute"
            " where attrelid = pg_class.oid and attname = 'tenant_id')"
        )
    }


def careless_functions(owner: psycopg.Connection) -> list[str]:
    """Functions that run as owner on the caller's search path or print their plans to it, or that a caller can
    reach unasked."""
    return [
        name
        for (name,) in owner.execute(
            """
            select proname from pg_proc as proc
             where pronamespace = 'ragpg'::regnamespace
               and (prosecdef and coalesce(
                        (select setting from unnest(proconfig) as setting
                          where setting like 'search_path=%'), '')
                        <> 'search_path=pg_catalog, pg_temp'
                    or prosecdef
                       and not coalesce(proconfig @> '{client_min_messages=warning}', false)
                    or proconfig::text like '%public%'
                    or exists (select from aclexplode(coalesce(proacl, acldefault('f', proowner)))
                                where grantee = 0)
                    or prolang = (select oid from pg_language where lanname = 'internal')
                    or proleakproof)
             order by 1
            """
        )
    ]


def test_every_table_with_a_tenant_has_the_policy_and_every_function_its_discipline(owner):
    assert unsealed_tables(owner) == []
    assert tables_without_a_tenant(owner) == {"alembic_version", "installation", "dense_setting"}
    assert careless_functions(owner) == []


def test_the_guard_sees_a_new_table_and_a_new_function_without_discipline(owner):
    owner.execute("create table ragpg.note (tenant_id integer, note_id integer)")
    owner.execute("create table ragpg.hint (hint_id integer)")
    owner.execute("create function ragpg.peek() returns integer language sql as 'select 1'")
    owner.execute(
        "create function ragpg.read() returns integer language sql security definer as 'select 1'"
    )
    owner.execute("revoke execute on function ragpg.read() from public")
    assert unsealed_tables(owner) == ["note"]
    assert "hint" in tables_without_a_tenant(owner)
    assert careless_functions(owner) == ["peek", "read"]


def test_every_view_asks_as_its_caller_or_for_the_tenant_behind_a_barrier(owner):
    careless = owner.execute(
        """
        select relname from pg_class
         where relnamespace = 'ragpg'::regnamespace and relkind = 'v'
           and not coalesce('security_invoker=true' = any (reloptions), false)
           and not (coalesce('security_barrier=true' = any (reloptions), false)
                    and pg_get_viewdef(oid) like '%current_tenant()%')
        """
    ).fetchall()
    assert careless == []


def test_service_and_reader_may_call_these_functions_and_no_others(owner):
    def callable_by(role: str) -> set[str]:
        return {
            name
            for (name,) in owner.execute(
                "select proname from pg_proc where pronamespace = 'ragpg'::regnamespace"
                " and has_function_privilege(%s, oid, 'execute')",
                [role],
            )
        }

    assert callable_by("ragpg_reader") <= FOR_BOTH
    assert callable_by("ragpg_app") == callable_by("ragpg_reader") | FOR_SERVICE
    assert callable_by("public") == set()


def test_nobody_but_the_two_roles_sees_the_schema(owner, database):
    url = make_login(owner, database, "ragpg_stranger", groups=[])
    with psycopg.connect(url, autocommit=True) as conn:
        for statement in ("select * from ragpg.tenant", "select ragpg.current_tenant()",
                          "select ragpg.use_tenant('acme')"):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="schema ragpg"):
                conn.execute(statement)
    owner.execute("drop role ragpg_stranger")


def test_a_function_that_the_owner_adds_later_is_not_everybodys(owner, database):
    owner.execute("set role ragpg_owner")
    owner.execute("create function ragpg.later() returns integer language sql as 'select 1'")
    owner.execute("reset role")
    for url in (database.service_url, database.reader_url):
        with psycopg.connect(url) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("select ragpg.later()")


def test_the_reader_writes_nothing_and_the_service_no_live_row(owner, database):
    def may(role: str, table: str) -> set[str]:
        return {
            privilege
            for privilege in ("insert", "update", "delete", "truncate", "references", "trigger")
            if one(
                owner, "select has_table_privilege(%s, %s, %s)", [role, f"ragpg.{table}", privilege]
            )
        }

    tables = [
        name
        for (name,) in owner.execute(
            "select relname from pg_class where relnamespace = 'ragpg'::regnamespace"
            " and relkind in ('r', 'p', 'v')"
        )
    ]
    assert {table for table in tables if may("ragpg_reader", table)} == set()
    assert {table for table in tables if may("ragpg_app", table)} == {
        "context_batch", "context_batch_item", "staged_document", "staged_chunk", "search",
        "search_hit", "golden_query", "qrel", "synced_key", "usage",
    }  # fmt: skip
    assert may("ragpg_app", "usage") == {"insert"}
    assert may("ragpg_app", "search") == {"insert", "update", "delete"}
    for table in HIDDEN:
        for role in ("ragpg_app", "ragpg_reader"):
            assert not one(
                owner, "select has_table_privilege(%s, %s, 'select')", [role, f"ragpg.{table}"]
            )
    tenant = one(owner, "select ragpg.create_tenant('acme')")
    with psycopg.connect(database.service_url, autocommit=True) as conn:
        conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(tenant)])
        for table in (*READ_ONLY, *HIDDEN):
            for statement in (f"delete from ragpg.{table}", f"truncate ragpg.{table}",
                              f"insert into ragpg.{table} default values"):  # fmt: skip
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(statement)


def test_neither_role_can_create_in_the_schema_or_read_its_sequences(owner, database):
    for url in (database.service_url, database.reader_url):
        with psycopg.connect(url, autocommit=True) as conn:
            for statement in (
                "create table ragpg.mine (a integer)",
                "create view ragpg.mine as select 1",
                "create function ragpg.mine() returns integer language sql as 'select 1'",
                "create function public.format(text, integer, integer) returns text language sql as 'select $1'",
                "create or replace function ragpg.current_tenant() returns integer language sql as 'select 2'",
                "drop policy current_tenant_only on ragpg.chunk",
                "alter table ragpg.chunk disable row level security",
                "alter function ragpg.tokenize(text, text) reset all",
                "select * from ragpg.chunk_chunk_id_seq",
                "select nextval('ragpg.chunk_chunk_id_seq')",
                "set role ragpg_owner",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(statement)
            # PostgreSQL 18 answers null instead of an error.
            last = "select last_value from pg_sequences where sequencename = 'chunk_chunk_id_seq'"
            assert conn.execute(last).fetchall() in ([], [(None,)])
