"""What EXPLAIN tells a reader of other tenants' texts, and how often a policy asks for the tenant."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.sql.dense_seed import make_collection
from tests.sql.tenancy_seed import make_login, make_world, one

# Words of ragpg itself, and the columns of embedding by which searches are planned.
WITH_STATISTICS = {
    "context_batch.status", "context_batch_item.status", "embedding.document_key",
    "embedding.source", "staged_document.status", "usage.model", "usage.operation", "usage.provider",
}  # fmt: skip


def expected_rows(conn: psycopg.Connection, statement: str) -> int:
    """How many rows the planner says that it expects."""
    (plan,) = one(conn, f"explain (format json) {statement}")
    return int(plan["Plan"]["Plan Rows"])


@pytest.fixture
def reader(owner, database):
    """A reader bound to the tenant small, beside a large one whose texts are all alike."""
    small = make_collection(owner, tenant="small")
    large = make_collection(owner, tenant="large")
    owner.execute(
        """
        insert into ragpg.document (tenant_id, collection_id, key, revision, text, content_hash, title,
                                    source, owner, tags, metadata, media_type, page_starts)
        select %s, %s, 'board/merger-' || number, 1, 'x', '', 'The merger', 'board', 'mallory', '{}',
               '{}', 'text', '{}'
          from generate_series(1, 3000) as number
        """,
        large,
    )
    owner.execute(
        """
        insert into ragpg.search (tenant_id, collection_id, query, k, notices, degraded, timings_ms)
        select %s, %s, 'who buys globex', 20, '{}', '{}', '{}' from generate_series(1, 3000)
        """,
        large,
    )
    # As many of its own, so that the planner's share for a foreign text is a number of rows.
    owner.execute(
        """
        insert into ragpg.document (tenant_id, collection_id, key, revision, text, content_hash, tags,
                                    metadata, media_type, page_starts)
        select %s, %s, 'note/' || number, 1, 'x', '', '{}', '{}', 'text', '{}'
          from generate_series(1, 3000) as number
        """,
        small,
    )
    owner.execute(
        """
        insert into ragpg.search (tenant_id, collection_id, query, k, notices, degraded, timings_ms)
        select %s, %s, md5(number::text), 20, '{}', '{}', '{}'
          from generate_series(1, 3000) as number
        """,
        small,
    )
    owner.execute(
        """
        insert into ragpg.chunk (tenant_id, collection_id, document_id, position, start, stop,
                                 section_path, table_header, text, text_hash, context)
        select document.tenant_id, document.collection_id, document.document_id, 0, 0, 6, '{}', '',
               case when document.title is null then left(md5(document.key), 6) else 'secret' end, '',
               case when document.title is null then md5(document.key) else 'the merger' end
          from ragpg.document
        """
    )
    owner.execute(
        """
        insert into ragpg.embedding (tenant_id, chunk_id, collection_id, document_key, source, tags,
                                     attributes, embedding)
        select chunk.tenant_id, chunk.chunk_id, chunk.collection_id, document.key, document.source,
               case when document.key ^@ 'board/merger-20' then array['layoffs', %s || '.layoffs']
                    when document.key ^@ 'note/100' then array['layoffs'] else '{}' end, '{}', '[1,0]'
          from ragpg.chunk join ragpg.document using (tenant_id, document_id)
        """,
        [small[1]],
    )
    owner.execute("analyze ragpg.document, ragpg.search, ragpg.chunk, ragpg.embedding")
    url = make_login(owner, database, "ragpg_small", groups=["ragpg_reader"])
    owner.execute("insert into ragpg.reader_tenant values ('ragpg_small', %s)", [small[0]])
    with psycopg.connect(url, autocommit=True) as conn:
        yield conn
    owner.execute("drop owned by ragpg_small; drop role ragpg_small")


@pytest.mark.parametrize(
    ("table", "true", "false"),
    [
        ("document", "key ^@ 'board/'", "key ^@ 'cellar/'"),
        ("document", "key <> 'board/merger-1'", "key <> 'cellar/'"),
        ("document", "title = 'The merger'", "title = 'The murder'"),
        ("document", "owner < 'mallorz'", "owner < 'mallorx'"),
        ("document", "source = 'board'", "source = 'cellar'"),
        ("search", "query = 'who buys globex'", "query = 'who sells globex'"),
        ("chunk", "text = 'secret'", "text = 'public'"),
        ("chunk", "context ^@ 'the m'", "context ^@ 'the n'"),
    ],
)
def test_a_guess_of_another_tenants_text_is_expected_as_often_as_any(reader, table, true, false):
    def rows(condition: str) -> int:
        return expected_rows(reader, f"select from ragpg.{table} where {condition}")

    assert rows(true) == rows(false)


def returned_by_the_index_of_tags(conn: psycopg.Connection) -> int:
    """How many entries of it this transaction was given."""
    return int(
        one(conn, "select pg_stat_get_xact_tuples_returned('ragpg.embedding_tags'::regclass)")
    )


@pytest.mark.parametrize("condition", ["tags_any => '{layoffs}'", "tags_all => '{layoffs}'"])
def test_the_counters_of_the_index_of_tags_tell_of_the_callers_chunks_only(reader, condition):
    search = f"select count(*) from ragpg.search_dense('docs', '[1,0]', {condition})"
    with reader.transaction():
        assert one(reader, search) == 11
        assert returned_by_the_index_of_tags(reader) == 11


def test_asked_for_all_of_no_tags_a_search_reads_no_index_of_tags(reader):
    search = "select count(*) from ragpg.search_dense('docs', '[1,0]', 5, tags_all => '{}')"
    with reader.transaction():
        assert one(reader, search) == 5
        assert returned_by_the_index_of_tags(reader) == 0


@pytest.mark.parametrize("column", ["document_key", "source", "attributes", "tags"])
def test_a_reader_cannot_name_the_columns_that_searches_are_planned_by(reader, column):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute(f"explain select from ragpg.embedding where {column} is null")
    assert one(reader, "select count(chunk_id) from ragpg.embedding") == 3000


@pytest.mark.parametrize(
    "call",
    [
        "search_dense('docs', '[1,0]', sources => array['board'])",
        "search_dense('docs', '[1,0]', key_prefix => 'board/')",
        "search_lexical('docs', 'merger', sources => array['board'])",
        "search_hybrid('docs', 'merger', '[1,0]', key_prefix => 'board/')",
        "explain_hybrid('docs', 'merger', '[1,0]', key_prefix => 'board/')",
        "whole_corpus('docs', sources => array['board'])",
        "query_lexemes('docs', 'merger')",
        "current_tenant()",
    ],
)
def test_the_plans_of_statements_within_a_function_are_not_printed_to_its_caller(reader, call):
    # They show the rows that are expected from statistics over all tenants.
    printed: list[str] = []
    reader.add_notice_handler(lambda said: printed.append(str(said.message_primary)))
    reader.execute("set client_min_messages = debug5")
    for setting in ("debug_print_plan", "debug_print_parse", "debug_print_rewritten"):
        reader.execute(f"set {setting} = on")
    printed.clear()
    reader.execute(f"select * from ragpg.{call}")
    # Those of the caller's own statement.
    assert [printed.count(kind) for kind in ("parse tree:", "rewritten parse tree:", "plan:")] == [
        1,
        1,
        1,
    ]


def test_no_column_of_text_that_a_reader_sees_has_statistics(owner):
    told = {
        name
        for (name,) in owner.execute(
            """
            select class.relname || '.' || attname
              from pg_class as class
              join pg_attribute on attrelid = class.oid and attnum > 0 and not attisdropped
             where relnamespace = 'ragpg'::regnamespace and relkind = 'r'
               and atttypid in ('text'::regtype, 'bytea'::regtype)
               and coalesce(attstattarget, -1) <> 0
               and exists (select from pg_attribute as tenant
                            where tenant.attrelid = class.oid and tenant.attname = 'tenant_id')
            """
        )
    }
    # Made after 0015, of a rebuild that no reader may see.
    assert told - {"lexical_rebuild.reading"} == WITH_STATISTICS


def test_a_policy_asks_for_the_tenant_once_a_statement_and_not_once_a_row(owner, database):
    world = make_world(owner, database)
    with psycopg.connect(world.reader, autocommit=True) as conn:
        conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(world.acme)])
        conn.execute("set enable_hashjoin = off; set enable_mergejoin = off")
        for view in ("search_log", "document_overview", "chunk_overview", "pending"):
            plan = one(conn, f"explain (format json, verbose) select * from ragpg.{view}")
            for line in json.dumps(plan, indent=0).splitlines():
                assert "current_tenant()" not in line or ": " not in line, (view, line)
            assert "InitPlan" in json.dumps(plan)


@pytest.mark.parametrize("table", ["document", "search", "usage", "chunk", "synced_key"])
def test_an_empty_table_too_raises_without_a_tenant(owner, database, table):
    owner.execute("vacuum analyze")
    with psycopg.connect(database.reader_url, autocommit=True) as conn:
        for condition in ("true", "tenant_id = 99"):
            for scan in ("on", "off"):
                conn.execute(f"set enable_indexscan = {scan}; set enable_bitmapscan = {scan}")
                with pytest.raises(psycopg.Error, match="no tenant is set") as refused:
                    conn.execute(f"select * from ragpg.{table} where {condition}")
                assert refused.value.sqlstate == "RG001"
