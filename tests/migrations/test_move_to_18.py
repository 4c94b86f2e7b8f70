"""A database moved to PostgreSQL 18 by a dump, from whichever version the tests run on."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from ragpg import upkeep
from ragpg.database.migrate import migrate
from ragpg.embedded import bundled_psql
from tests.conftest import SERVICE_ROLE, TestDatabase, embedded_server, with_database
from tests.sql.lexical_corpus import RECIPE
from tests.sql.tenancy_seed import bound_login
from tests.sql.test_tenancy_bindings import seen

WIDTH = 16
# Above 7,000 a collection has an index of lexemes, and a block of 4,000 chunks.
CHUNKS = {"acme": 8200, "globex": 300}
FILL = """
with given as (
    select place, text, vector from unnest(%(texts)s::text[], %(vectors)s::text[])
           with ordinality as pair(text, vector, place)
), made as (
    insert into ragpg.document (tenant_id, collection_id, key, revision, text, content_hash, source,
                                tags, metadata, media_type, page_starts)
    select %(tenant)s, %(collection)s, 'document ' || place, 1, text, '', 'source ' || place %% 3,
           '{}', jsonb_build_object('year', 2020 + place %% 6), 'text', '{}'
      from given
    returning document_id, key, text, source, metadata
), passage as (
    insert into ragpg.chunk (tenant_id, collection_id, document_id, position, start, stop,
                             section_path, table_header, text, text_hash)
    select %(tenant)s, %(collection)s, document_id, 0, 0, length(text), '{}', '', text, ''
      from made
    returning document_id, chunk_id
)
insert into ragpg.embedding (tenant_id, chunk_id, collection_id, document_key, source, tags,
                             attributes, embedding)
select %(tenant)s, chunk_id, %(collection)s, key, source, '{}',
       ragpg.attributes(metadata, key, source, '{}', null)
       || jsonb_build_object('@collection', %(collection)s::integer), vector::halfvec
  from passage join made using (document_id) join given on key = 'document ' || place
returning chunk_id
"""
# What a schema is made of, as text that is the same for the same schema on one server.
HOMES = "('ragpg'::regnamespace, 'ragpg_jobs'::regnamespace)"
CATALOGS = {
    "functions": "select oid::regprocedure, proowner::regrole, pg_get_functiondef(oid)"
    f" from pg_proc where pronamespace in {HOMES} and prokind in ('f', 'p')",
    "views": f"select oid::regclass, pg_get_viewdef(oid) from pg_class where relkind = 'v' and"
    f" relnamespace in {HOMES}",
    "relations": "select oid::regclass, relkind, relowner::regrole, relpersistence,"
    f" relrowsecurity, relforcerowsecurity, reloptions from pg_class where relnamespace in {HOMES}"
    " and relname not like 'embedding_ann_%'",
    "columns": "select attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull,"
    " attstattarget, attstorage, attidentity, attgenerated, pg_get_expr(adbin, adrelid)"
    " from pg_attribute left join pg_attrdef on adrelid = attrelid and adnum = attnum"
    f" join pg_class on pg_class.oid = attrelid where relnamespace in {HOMES} and attnum > 0"
    " and not attisdropped and relname not like 'embedding_ann_%'",
    "policies": "select * from pg_policies where schemaname in ('ragpg', 'ragpg_jobs')",
    "constraints": "select conrelid::regclass, conname, convalidated, pg_get_constraintdef(oid)"
    f" from pg_constraint where connamespace in {HOMES}",
    "indexes": "select schemaname, indexname, indexdef from pg_indexes"
    " where schemaname in ('ragpg', 'ragpg_jobs') and indexname not like 'embedding_ann_%'",
    "triggers": "select pg_get_triggerdef(pg_trigger.oid), tgenabled from pg_trigger join pg_class"
    f" on pg_class.oid = tgrelid where relnamespace in {HOMES} and not tgisinternal",
    "statistics": "select pg_get_statisticsobjdef(oid) from pg_statistic_ext"
    f" where stxnamespace in {HOMES}",
    "grants": "select what, right_of.grantee::regrole, privilege_type, is_grantable from ("
    " select oid::regclass::text as what, coalesce(relacl, acldefault('r', relowner)) as acl"
    f"   from pg_class where relnamespace in {HOMES} and relkind in ('r', 'v')"
    " union all select oid::regclass::text, coalesce(relacl, acldefault('s', relowner))"
    f"   from pg_class where relnamespace in {HOMES} and relkind = 'S'"
    " union all select oid::regprocedure::text, coalesce(proacl, acldefault('f', proowner))"
    f"   from pg_proc where pronamespace in {HOMES}"
    " union all select attrelid::regclass::text || '.' || attname, attacl from pg_attribute"
    f"   join pg_class on pg_class.oid = attrelid where relnamespace in {HOMES}"
    " union all select nspname, nspacl from pg_namespace where nspname in ('ragpg', 'ragpg_jobs')"
    ") as granted cross join aclexplode(acl) as right_of",
    "comments": "select pg_describe_object(classoid, objoid, objsubid), description"
    " from pg_description where pg_describe_object(classoid, objoid, objsubid) ~ 'ragpg'",
}
SEARCHES = (
    "select chunk_id, mode from ragpg.search_dense('docs', %(vector)s::halfvec, 20)",
    "select chunk_id, round(score::numeric, 5) from ragpg.search_lexical('docs', %(query)s, 150)",
    (
        "select chunk_id, dense_rank, lexical_rank, fused_score from ragpg.search_hybrid('docs',"
        " %(query)s, %(vector)s::halfvec, filter => %(filter)s::jsonpath)"
    ),
)
QUERIES = ("wort1 wort2 wort3", "wort17", "wort40 wort900", "a valve that was added")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The database before and after, and another on the new server that was migrated from empty."""

    before: TestDatabase
    after: TestDatabase
    empty_url: str
    reader_url: str


def fill(owner: psycopg.Connection[Any], tenant: str, count: int) -> None:
    rng = random.Random(count)  # noqa: S311
    texts = [
        " ".join(f"wort{int(2000 ** rng.random())}" for _ in range(12))
        + (f" a valve was added {place}" if place % 10 == 0 and count < 1000 else "")
        for place in range(count)
    ]
    vectors = [str([round(rng.gauss(0, 1), 3) for _ in range(WIDTH)]) for _ in range(count)]
    made = owner.execute("select ragpg.create_tenant(%s)", [tenant]).fetchone()
    assert made
    with owner.transaction():
        owner.execute("select ragpg.use_tenant(%s)", [tenant])
        recipe = json.dumps(RECIPE | {"dimensions": WIDTH})
        home = owner.execute("select ragpg.create_collection('docs', %s)", [recipe]).fetchone()
        assert home
        numbers = {"tenant": made[0], "collection": home[0]}
        ids = owner.execute(FILL, numbers | {"texts": texts, "vectors": vectors}).fetchall()
        owner.execute(
            "select ragpg.lexical_add(%s, %s, %s)", [made[0], home[0], [row[0] for row in ids]]
        )


def run(program: str, *arguments: str) -> str:
    """What it says on standard error; it must not fail."""
    path = Path(bundled_psql()).with_name(program)
    done = subprocess.run(
        [path, *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def documented(file: Path) -> list[str]:
    """The options of pg_dump that docs/tenancy.md gives, but for the address."""
    page = (Path(__file__).parents[2] / "docs" / "tenancy.md").read_text("utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("pg_dump ")]
    return [option.replace("ragpg.dump", str(file)) for option in line.split()[1:-1]]


@pytest.fixture
def moved(
    owner: psycopg.Connection[Any], database: TestDatabase, tmp_path: Path
) -> Iterator[Moved]:
    """Two tenants, one with an index of each kind, dumped and restored as documented."""
    owner.execute("update ragpg.dense_setting set exact_max = 1000, sketch_max = 1000")
    owner.execute("update ragpg.dense_setting set index_above = 5000, unindex_below = 2000")
    for tenant, count in CHUNKS.items():
        fill(owner, tenant, count)
    upkeep.apply(database.owner_url)
    # Tests that share the server have roles of their own.
    role = f"reader_of_{database.name}"
    reader = bound_login(owner, database, role, 1)
    owner.execute("vacuum analyze")
    run("pg_dump", *documented(tmp_path / "ragpg.dump"), database.owner_url)
    roles = str(tmp_path / "roles.sql")
    run("pg_dumpall", "--roles-only", f"--file={roles}", f"--dbname={database.owner_url}")
    with embedded_server() as server:
        run("psql", "--quiet", f"--file={roles}", server)
        with psycopg.connect(server, autocommit=True) as conn:
            for name in ("ragpg_moved", "ragpg_empty"):
                conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        after = with_database(server, "ragpg_moved")
        with psycopg.connect(after, autocommit=True) as conn:
            conn.execute("create extension vector schema public")
        run("pg_restore", "--exit-on-error", f"--dbname={after}", str(tmp_path / "ragpg.dump"))
        migrate(with_database(server, "ragpg_empty"))
        yield Moved(
            before=database,
            after=TestDatabase(
                name="ragpg_moved",
                owner_url=after,
                service_url=with_database(server, "ragpg_moved", user=SERVICE_ROLE),
                reader_url=with_database(server, "ragpg_moved", user=role),
            ),
            empty_url=with_database(server, "ragpg_empty"),
            reader_url=reader,
        )
    owner.execute("delete from ragpg.reader_tenant")
    owner.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def catalog(url: str, statement: str) -> list[str]:
    with psycopg.connect(url) as conn:
        return sorted(str(row) for row in conn.execute(statement))


def rows(url: str) -> dict[str, int]:
    """How many each table holds."""
    with psycopg.connect(url) as conn:
        tables = conn.execute(
            "select nspname, relname from pg_class join pg_namespace on pg_namespace.oid ="
            f" relnamespace where relkind = 'r' and relnamespace in {HOMES}"
        ).fetchall()
        counted = {}
        for table in tables:
            count = conn.execute(
                sql.SQL("select count(*) from {}").format(sql.Identifier(*table))
            ).fetchone()
            assert count
            counted[table[1]] = count[0]
    return counted


def found(url: str) -> list[Any]:
    """What the service finds, in both arms and fused, with the plan that the dense arm took."""
    vectors = [str([float(place == hot) for place in range(WIDTH)]) for hot in range(4)]
    answers: list[Any] = []
    for tenant in CHUNKS:
        with psycopg.connect(url) as conn:
            conn.execute("select ragpg.use_tenant(%s, true)", [tenant])
            for query, vector in zip(QUERIES, vectors, strict=True):
                given = {"query": query, "vector": vector, "filter": "$.year >= 2024"}
                answers += [
                    conn.execute(f"{statement} order by rank", given).fetchall()
                    for statement in SEARCHES
                ]
    return answers


def test_a_database_moved_to_18_is_the_same_and_finds_what_it_found(moved):
    assert not migrate(moved.after.owner_url).changed
    for name, statement in CATALOGS.items():
        kept = catalog(moved.after.owner_url, statement)
        assert kept, name
        assert kept == catalog(moved.empty_url, statement), name
    counted = rows(moved.before.owner_url)
    assert rows(moved.after.owner_url) == counted
    assert counted["lexeme_block"] == 1
    numbers = "select sequencename, last_value from pg_sequences where schemaname = 'ragpg'"
    assert catalog(moved.after.owner_url, numbers) == catalog(moved.before.owner_url, numbers)
    assert seen(moved.reader_url) == seen(moved.after.reader_url) == "acme"
    indexes = "select index_name, state from ragpg.dense_index"
    assert catalog(moved.after.owner_url, indexes) == ["('embedding_ann_1_1', 'valid')"]
    with psycopg.connect(moved.after.owner_url, autocommit=True) as conn:
        conn.execute("analyze")
    done = upkeep.apply(moved.after.owner_url)
    # The stems of PostgreSQL 18 are others; only globex has a word that is concerned.
    with psycopg.connect(moved.before.owner_url) as conn:
        older = conn.info.server_version < 180000
    assert [change.tenant for change in done.lexical] == (["globex"] if older else [])
    assert done.changes == ()
    before = found(moved.before.service_url)
    assert {row[1] for row in before[0]} == {"ann"}
    # acme has no text about valves, for the lexical arm.
    assert [bool(answer) for answer in before] == [True] * 10 + [False] + [True] * 13
    assert found(moved.after.service_url) == before
