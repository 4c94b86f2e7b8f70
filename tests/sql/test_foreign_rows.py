"""What a bound reader's statements read, in pages and rows, does not grow with others' rows.

Where it does, docs/tenancy.md says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.sql.dense_seed import make_collection
from tests.sql.tenancy_seed import make_login, one, relations

# A row of each table that grows with a tenant, `rows` times.
FILL = """
with made as (
    insert into ragpg.document (tenant_id, collection_id, key, revision, text, content_hash, tags, metadata,
                                review_by, media_type, page_starts)
    select %(tenant)s, %(collection)s, 'note/' || number, 1, 'x', '', '{}', '{}', '2020-01-01', 'text', '{}'
      from generate_series(1, %(rows)s::integer) as number
    returning document_id, key
), passage as (
    insert into ragpg.chunk (tenant_id, collection_id, document_id, position, start, stop,
                             section_path, table_header, text, text_hash, context_error)
    select %(tenant)s, %(collection)s, document_id, 0, 0, 5, '{}', '', 'apple', '', 'none' from made
    returning chunk_id
), vectors as (
    insert into ragpg.embedding (tenant_id, chunk_id, collection_id, document_key, tags, attributes, embedding)
    select %(tenant)s, chunk_id, %(collection)s, chunk_id::text, '{}', '{}', '[1,0]' from passage
), searches as (
    insert into ragpg.search (tenant_id, collection_id, query, k, notices, degraded, timings_ms)
    select %(tenant)s, %(collection)s, key, 20, '{}', '{}', '{}' from made returning search_id
), hits as (
    insert into ragpg.search_hit (tenant_id, search_id, chunk_id, fused_rank, fused_score, document_key)
    select %(tenant)s, search_id, search_id, 1, 1, 'x' from searches
), uses as (
    insert into ragpg.usage (tenant_id, provider, model, operation, input_tokens, output_tokens,
                             cache_write_tokens, cache_read_tokens, duration_ms)
    select %(tenant)s, 'x', 'x', 'embed', 1, 1, 1, 1, 1 from made
), staged as (
    insert into ragpg.staged_document (tenant_id, collection_id, key, status, claim, text, content_hash, tags,
                                       metadata, media_type, page_starts)
    select %(tenant)s, %(collection)s, key, 'staged', '00000000-0000-0000-0000-000000000001', 'x', '', '{}',
           '{}', 'text', '{}' from made returning key
), staged_passage as (
    insert into ragpg.staged_chunk (tenant_id, collection_id, document_key, position, start, stop,
                                    section_path, table_header, text, text_hash)
    select %(tenant)s, %(collection)s, key, 0, 0, 1, '{}', '', 'x', '' from staged
), history as (
    insert into ragpg.document_history (tenant_id, collection_id, document_key, action, revision,
                                        content_hash, kept_chunks, new_chunks, role)
    select %(tenant)s, %(collection)s, key, 'published', 1, '', 0, 1, 'x' from made
), golden as (
    insert into ragpg.golden_query (tenant_id, query_id, query) select %(tenant)s, key, 'x' from made returning query_id
)
insert into ragpg.qrel (tenant_id, query_id, document_key, relevance) select %(tenant)s, query_id, 'x', 1 from golden
"""
ADD_LEXEMES = """
select ragpg.lexical_add(%(tenant)s, %(collection)s, array(
           select chunk_id from ragpg.chunk where tenant_id = %(tenant)s))
"""
SEARCHES = (
    "ragpg.search_lexical('docs', 'apple', 10)",
    "ragpg.search_dense('docs', '[1,0]', 10)",
    "ragpg.search_hybrid('docs', 'apple', '[1,0]', 10)",
)
# An index of more rows may be a level deeper, and several are asked.
DEEPER = 10


def add_large(owner: psycopg.Connection, tenant: str) -> None:
    home = make_collection(owner, tenant=tenant)
    fill(owner, home, 4_000)
    owner.execute(ADD_LEXEMES, {"tenant": home[0], "collection": home[1]})


def fill(owner: psycopg.Connection, home: tuple[int, int], rows: int) -> None:
    owner.execute(FILL, {"tenant": home[0], "collection": home[1], "rows": rows})


@pytest.fixture
def bound(owner, database) -> Iterator[psycopg.Connection]:
    """A reader of the tenant small, which has 50 rows in each table."""
    home = make_collection(owner, tenant="small")
    fill(owner, home, 50)
    owner.execute(ADD_LEXEMES, {"tenant": home[0], "collection": home[1]})
    url = make_login(owner, database, "ragpg_small", groups=["ragpg_reader"])
    owner.execute("insert into ragpg.reader_tenant values ('ragpg_small', %s)", [home[0]])
    with psycopg.connect(url, autocommit=True) as conn:
        yield conn
    owner.execute("drop owned by ragpg_small; drop role ragpg_small")


def cost(conn: psycopg.Connection, relation: str) -> tuple[int, int]:
    """The pages that a count of these rows reads, and the rows that it reads and leaves out."""
    statement = f"explain (analyze, buffers, format json) select count(*) from {relation}"
    # The first one reads the catalogue too.
    conn.execute(statement)
    (plan,) = one(conn, statement)

    def left_out(node: dict[str, Any]) -> int:
        inner = sum(map(left_out, node.get("Plans", [])))
        own = node.get("Rows Removed by Filter", 0) * node["Actual Loops"]
        return int(inner + own)

    pages = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    return int(pages), left_out(plan["Plan"])


def costs(
    owner: psycopg.Connection, reader: psycopg.Connection, counted: list[str]
) -> dict[str, tuple[int, int]]:
    owner.execute("vacuum analyze")
    return {name: cost(reader, name) for name in counted}


def readable(owner: psycopg.Connection) -> list[str]:
    """What a reader may count; of embedding it may not name all columns, but it may count."""
    may = "select has_any_column_privilege('ragpg_reader', 'ragpg.' || %s, 'select')"
    return [f"ragpg.{name}" for name in relations(owner) if one(owner, may, [name])]


def test_searches_of_a_bound_reader_read_no_page_more_for_the_rows_of_others(owner, bound):
    # The score of each chunk is looked up in an index, which the first of them makes a level deeper.
    add_large(owner, "large")
    before = costs(owner, bound, [*SEARCHES])
    add_large(owner, "larger")
    after = costs(owner, bound, [*SEARCHES])
    for name in SEARCHES:
        assert after[name][0] <= before[name][0] + DEEPER, (name, before[name], after[name])


def test_among_many_tenants_a_count_of_a_bound_reader_visits_its_own_rows_only(owner, bound):
    for number in range(30):
        fill(owner, make_collection(owner, tenant=f"other {number}"), 50)
    names = readable(owner)
    assert len(names) >= 30
    before = costs(owner, bound, names)
    fill(owner, make_collection(owner, tenant="large"), 4_000)
    after = costs(owner, bound, names)
    for name in names:
        assert after[name][0] <= before[name][0] + DEEPER, (name, before[name], after[name])
        # The new tenant and its collection are rows of two small tables, which are read whole.
        assert after[name][1] <= before[name][1] + 2, (name, before[name], after[name])


def test_a_scan_of_a_whole_table_tells_how_many_rows_others_have_in_it(owner, bound):
    # As docs/tenancy.md says. The planner takes one by itself where tenants are few and unequal.
    fill(owner, make_collection(owner, tenant="large"), 4_000)
    owner.execute("vacuum analyze")
    bound.execute("set enable_indexscan = off; set enable_indexonlyscan = off")
    bound.execute("set enable_bitmapscan = off")
    _, left_out = cost(bound, "ragpg.chunk")
    assert left_out == 4_000
    assert one(bound, "select count(*) from ragpg.chunk") == 50
