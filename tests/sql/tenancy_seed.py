"""Two tenants with the same names for everything, told apart by numbers and by one word."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from tests.conftest import SERVICE_PASSWORD, with_database

if TYPE_CHECKING:
    from tests.conftest import TestDatabase

# In every text of globex, and typed by no attempt: where it shows, something leaked.
CANARY = "kestrelvault"
# Every number of globex, of rows and of the tenant itself, begins here; acme's begin at 1.
FOREIGN = 7770001
LEAK = re.compile(rf"{CANARY}|\b777\d{{4}}\b", re.IGNORECASE)
RECIPE = {
    "embedding_provider": "local",
    "embedding_model": "model",
    "dimensions": 3,
    "embedding_dtype": "float",
    "context_provider": "none",
    "context_model": "none",
    "context_prompt_version": 1,
    "splitter": "whole",
    "max_tokens": 400,
    "overlap_tokens": 0,
    "language": "english",
}
STAGE = """
insert into ragpg.staged_document (
    tenant_id, collection_id, key, status, claim, text, content_hash, title, source, tags, metadata,
    modified_at, owner, review_by, media_type, page_starts, last_error)
values (%(tenant)s, %(collection)s, %(key)s, 'staged', '00000000-0000-0000-0000-000000000001',
        %(text)s, '', %(text)s, %(source)s, array[%(tag)s], %(metadata)s, '2025-06-01', %(text)s,
        '2025-12-01', 'text', '{}', %(text)s);
"""
STAGE_CHUNK = """
insert into ragpg.staged_chunk (
    tenant_id, collection_id, document_key, position, start, stop, section_path, table_header, text,
    text_hash, context, embedding)
values (%(tenant)s, %(collection)s, %(key)s, 0, 0, length(%(text)s), array[%(text)s], '', %(text)s,
        sha256(%(text)s::bytea), %(text)s, '[1,0.5,0]')
"""
REST = """
with logged as (
    insert into ragpg.search (tenant_id, collection_id, query, query_embedding, filter, k, notices,
                              degraded, timings_ms)
    values (%(tenant)s, %(collection)s, %(text)s, '[1,0,0]', to_jsonb(%(text)s::text), 20,
            array[%(text)s], '{}', '{}')
    returning search_id
), hits as (
    insert into ragpg.search_hit (tenant_id, search_id, chunk_id, fused_rank, fused_score,
                                  document_key)
    select %(tenant)s, logged.search_id, chunk.chunk_id, 1, 1, %(text)s from logged, ragpg.chunk
     where chunk.tenant_id = %(tenant)s
), golden as (
    insert into ragpg.golden_query (tenant_id, query_id, query) values (%(tenant)s, 'q1', %(text)s)
), batch as (
    insert into ragpg.context_batch (tenant_id, batch_id, collection_id, provider, model, status,
                                     requests, last_error)
    values (%(tenant)s, '00000000-0000-0000-0000-000000000002', %(collection)s, 'claude', 'model',
            'intended', 1, %(text)s)
), request as (
    insert into ragpg.context_batch_item (tenant_id, batch_id, number, collection_id, document_key,
                                          position, text_hash, error)
    values (%(tenant)s, '00000000-0000-0000-0000-000000000002', 0, %(collection)s, 'draft.md', 0, '',
            %(text)s)
), without_context as (
    insert into ragpg.staged_chunk (tenant_id, collection_id, document_key, position, start, stop,
                                    section_path, table_header, text, text_hash)
    values (%(tenant)s, %(collection)s, 'draft.md', 1, 0, length(%(text)s), array[%(text)s], '',
            %(text)s, sha256(%(text)s::bytea))
), refused as (
    update ragpg.chunk set context_error = %(text)s, context_refused = true
      from ragpg.document
     where document.tenant_id = chunk.tenant_id and document.document_id = chunk.document_id
       and chunk.tenant_id = %(tenant)s and document.key = 'rules.md'
), synced as (
    insert into ragpg.synced_key (tenant_id, collection_id, document_key, root)
    values (%(tenant)s, %(collection)s, 'handbook.md', %(text)s)
), recall as (
    insert into ragpg.dense_recall (tenant_id, collection_id, query_source, queries, k, modes,
                                    mean_recall, lowest_recall)
    values (%(tenant)s, %(collection)s, 'stored', 1, 10, '{exact}', 1, 1)
)
insert into ragpg.usage (tenant_id, collection_id, provider, model, operation, input_tokens,
                         output_tokens, cache_write_tokens, cache_read_tokens, duration_ms)
values (%(tenant)s, %(collection)s, %(text)s, %(text)s, 'embed', 1, 0, 0, 0, 1)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The two tenants, and a URL for each kind of login."""

    acme: int
    globex: int
    service: str
    reader: str
    bound: str
    grouped: str

    def urls(self) -> dict[str, str]:
        """By the name of the login."""
        return {name: getattr(self, name) for name in ("service", "reader", "bound", "grouped")}


def make_world(owner: psycopg.Connection[Any], database: TestDatabase) -> World:
    """Rows of both tenants in every table; the roles bound and grouped may see acme only."""
    acme = seed_tenant(owner, "acme", "leave policy of acme")
    restart_numbers(owner, FOREIGN)
    globex = seed_tenant(owner, "globex", f"leave policy {CANARY}")
    restart_numbers(owner, 1000)
    owner.execute("select ragpg.dense_count()")
    owner.execute("analyze")
    return World(
        acme=acme,
        globex=globex,
        service=database.service_url,
        reader=database.reader_url,
        bound=bound_login(owner, database, "Bound Reader", acme),
        grouped=grouped_login(owner, database, acme),
    )


def seed_tenant(owner: psycopg.Connection[Any], key: str, text: str) -> int:
    """The number of a new tenant: two live documents, one staged, a search and all the rest."""
    tenant = one(owner, "select ragpg.create_tenant(%s)", [key])
    with owner.transaction():
        owner.execute("select ragpg.use_tenant(%s)", [key])
        recipe = json.dumps(RECIPE | {"glossary": text})
        collection = one(owner, "select ragpg.create_collection('docs', %s)", [recipe])
        owner.execute("select ragpg.set_alias('live', 'docs')")
        home = {"tenant": tenant, "collection": collection, "text": text}
        for name in ("handbook.md", "rules.md", "draft.md"):
            fields = home | {
                "key": name,
                "source": f"wiki/{text}",
                "tag": text,
                "metadata": json.dumps({"year": 2025, "secret": text}),
            }
            owner.execute(STAGE, fields)
            owner.execute(STAGE_CHUNK, fields)
            if name != "draft.md":
                owner.execute(
                    "select ragpg.publish('docs', %s, '00000000-0000-0000-0000-000000000001')",
                    [name],
                )
        owner.execute(REST, home)
        # One chunk in a block of columns, the other waiting for one.
        for step in ("_index_rows", "_fill_block", "_index_rows"):
            owner.execute(f"select ragpg.{step}(%s, %s, 1)", [tenant, collection])
        owner.execute(
            "insert into ragpg.qrel (tenant_id, query_id, document_key, relevance)"
            " values (%s, 'q1', %s, 1)",
            [tenant, text],
        )
        owner.execute("select ragpg.rebuild_lexical_step(%s, %s, 1)", [tenant, collection])
    return int(tenant)


def restart_numbers(owner: psycopg.Connection[Any], first: int) -> None:
    """Every identity column of the schema counts on from here."""
    columns = owner.execute(
        "select table_name, column_name from information_schema.columns"
        " where table_schema = 'ragpg' and is_identity = 'YES'"
    ).fetchall()
    for table, column in columns:
        owner.execute(
            sql.SQL("alter table ragpg.{} alter column {} restart with {}").format(
                sql.Identifier(table), sql.Identifier(column), sql.Literal(first)
            )
        )


def make_login(
    owner: psycopg.Connection[Any], database: TestDatabase, name: str, *, groups: list[str]
) -> str:
    """The URL of a login in these groups; roles belong to the server, so it may be there already."""
    if not owner.execute("select 1 from pg_roles where rolname = %s", [name]).fetchone():
        owner.execute(
            sql.SQL("create role {} login password {}").format(
                sql.Identifier(name), sql.Literal(SERVICE_PASSWORD)
            )
        )
    for group in groups:
        owner.execute(sql.SQL("grant {} to {}").format(sql.Identifier(group), sql.Identifier(name)))
    return with_database(database.owner_url, database.name, user=name.replace(" ", "%20"))


def bound_login(
    owner: psycopg.Connection[Any], database: TestDatabase, name: str, tenant: int
) -> str:
    """The URL of a reader that is bound by its own row."""
    url = make_login(owner, database, name, groups=["ragpg_reader"])
    owner.execute(
        "insert into ragpg.reader_tenant values (quote_ident(%s)::regrole, %s)", [name, tenant]
    )
    return url


def grouped_login(owner: psycopg.Connection[Any], database: TestDatabase, tenant: int) -> str:
    """The URL of a login without a row, in a group that has one."""
    if not owner.execute("select 1 from pg_roles where rolname = 'readers_of_acme'").fetchone():
        owner.execute("create role readers_of_acme in role ragpg_reader")
    url = make_login(owner, database, "grouped_reader", groups=["readers_of_acme"])
    owner.execute("insert into ragpg.reader_tenant values ('readers_of_acme', %s)", [tenant])
    return url


def one(conn: psycopg.Connection[Any], statement: str, parameters: list[Any] | None = None) -> Any:
    """The first value of the first row."""
    row = conn.execute(statement, parameters).fetchone()
    if row is None:
        raise LookupError(statement)
    return row[0]


def relations(owner: psycopg.Connection[Any]) -> list[str]:
    """Every table and view of the schema, by name."""
    return [
        name
        for (name,) in owner.execute(
            "select relname from pg_class where relnamespace = 'ragpg'::regnamespace"
            " and relkind in ('r', 'p', 'v', 'm', 'f') order by 1"
        )
    ]
