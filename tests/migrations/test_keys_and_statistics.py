"""Whoever deletes a row finds what refers to it by an index, and tables that turn over are vacuumed."""

from __future__ import annotations

import importlib

import psycopg

WITHOUT_INDEX = """
select conrelid::regclass::text, conkey::text
  from pg_constraint
 where contype = 'f' and connamespace = 'ragpg'::regnamespace
   and not exists (
           select from pg_index
            where indrelid = conrelid and indpred is null and indisvalid
              -- The columns of the key, in any order, are the first of the index.
              and (indkey::int2[])[0:cardinality(conkey) - 1] @> conkey)
"""


def test_every_foreign_key_begins_an_index_of_its_table(owner: psycopg.Connection):
    assert owner.execute(WITHOUT_INDEX).fetchall() == []


def test_the_guard_sees_a_key_that_only_a_partial_or_a_later_column_serves(owner):
    owner.execute(
        """
        create table ragpg.note (
            tenant_id integer not null, note_id integer not null, chunk_id bigint not null,
            primary key (tenant_id, note_id, chunk_id),
            foreign key (tenant_id, chunk_id) references ragpg.chunk);
        create index on ragpg.note (tenant_id, chunk_id) where note_id > 1;
        """
    )
    assert owner.execute(WITHOUT_INDEX).fetchall() == [("ragpg.note", "{1,3}")]


def test_the_chunks_of_a_collection_and_the_judgements_of_a_document_have_an_index(owner):
    owner.execute("set enable_seqscan = off; set enable_bitmapscan = off")
    for statement, index in (
        (
            "select chunk_id from ragpg.chunk where tenant_id = 1 and collection_id = 2",
            "chunk_of_collection",
        ),
        (
            "select query_id from ragpg.qrel where tenant_id = 1 and document_key = 'a'",
            "qrel_document_key",
        ),
    ):
        plan = "\n".join(line for (line,) in owner.execute(f"explain {statement}"))
        assert index in plan


def test_tables_that_turn_over_are_vacuumed_at_a_fiftieth(owner):
    late = owner.execute(
        """
        select relname from pg_class
         where relnamespace = 'ragpg'::regnamespace
           and relname in ('document', 'chunk', 'embedding', 'lexeme_vector', 'staged_document',
                           'staged_chunk')
           and not coalesce('autovacuum_vacuum_scale_factor=0.02' = any (reloptions), false)
        """
    ).fetchall()
    assert late == []


def test_every_table_and_column_of_a_table_has_a_comment(owner):
    silent = owner.execute(
        """
        select class.relname, attname
          from pg_class as class
          join pg_attribute on attrelid = class.oid and attnum > 0 and not attisdropped
         where relnamespace = 'ragpg'::regnamespace and relkind = 'r'
           and (obj_description(class.oid, 'pg_class') is null
                or col_description(class.oid, attnum) is null)
        """
    ).fetchall()
    assert silent == []


def test_statistics_that_were_gathered_before_are_cleared(owner):
    revision = importlib.import_module("migrations.versions.0015_statistics_and_keys")
    owner.execute("select ragpg.create_tenant('acme'), ragpg.create_tenant('globex')")
    owner.execute("alter table ragpg.tenant alter column key set statistics -1")
    owner.execute("analyze ragpg.tenant")
    known = (
        "select count(*) from pg_stats"
        " where schemaname = 'ragpg' and tablename = 'tenant' and attname = 'key'"
    )
    assert owner.execute(known).fetchone() == (1,)
    with owner.transaction():
        owner.execute("set local role ragpg_owner")
        owner.execute(revision.NO_STATISTICS)
        owner.execute(revision.FORGOTTEN)
        assert owner.execute("select current_user").fetchone() == ("ragpg_owner",)
    assert owner.execute(known).fetchone() == (0,)
    owner.execute("analyze ragpg.tenant")
    assert owner.execute(known).fetchone() == (0,)
