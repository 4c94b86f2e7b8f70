"""Three stores on the server of the ingest benchmark, filled through their own calls.

Runs in an interpreter that has `requirements.txt` and nothing of ragpg; `benchmarks.ingest` starts
it. Each store's table is first empty, then filled in SQL from the table `stock`, which holds the
chunks that ragpg and COPY had. Its text index is there while rows are added; its vector index is
there only in the rows called hnsw, and is made as the store's documentation does it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import zlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.peers.run import Haystack, LangChain, LlamaIndex, be_quiet
from benchmarks.server_cpu import cpu_seconds

BATCH = 1000
DISTINCT_VECTORS = 16_384
DIMENSIONS = 384
FILL = {
    "lc_chunk": "(langchain_id, content, embedding, tenant, kind, content_tsv) select id::text, text,"
    " embedding::vector, 't', 'k', to_tsvector('pg_catalog.english', text) from stock",
    "data_li_chunk": "(text, metadata_, node_id, embedding) select text,"
    ' \'{"tenant": "t", "kind": "k"}\', id::text, embedding::vector from stock',
    "hs_chunk": "(id, embedding, content, meta) select id::text, embedding::vector, text,"
    ' \'{"tenant": "t", "kind": "k"}\' from stock',
}


def rows_of(texts: list[str]) -> list[dict[str, Any]]:
    """What `insert` takes, made before the clock starts."""
    random = np.random.default_rng(11)
    table = random.standard_normal((DISTINCT_VECTORS, DIMENSIONS)).astype(np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    return [
        {
            "id": f"added-{number}",
            "text": text,
            "tenant": "t",
            "kind": "k",
            "vector": table[zlib.crc32(text.encode()) % DISTINCT_VECTORS].tolist(),
        }
        for number, text in enumerate(texts)
    ]


def drop_vector_index(conn: psycopg.Connection[Any], table: str) -> None:
    """The peer's HNSW index, if its `make` has built one."""
    for (name,) in conn.execute(
        "select indexname from pg_indexes where tablename = %s and indexdef like '%% USING hnsw %%'",
        [table],
    ).fetchall():
        conn.execute(f'drop index "{name}"')


def timed(conn: psycopg.Connection[Any], peer: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The peer's own insert, a thousand rows a call."""
    conn.execute("checkpoint")
    cpu, start = cpu_seconds(conn), time.perf_counter()
    for first in range(0, len(rows), BATCH):
        peer.insert(rows[first : first + BATCH])
    spent = time.perf_counter() - start
    return {
        "chunks": len(rows),
        "seconds": spent,
        "per_second": len(rows) / spent,
        "cpu_us": (cpu_seconds(conn) - cpu) / len(rows) * 1e6,
        "load": os.getloadavg()[0],
        "peer": True,
    }


def run(peer: Any, dsn: str, rows: list[dict[str, Any]], held: int) -> list[dict[str, Any]]:
    """Empty with and without a vector index, then full without."""
    found = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        peer.make()
        if isinstance(peer, LangChain):
            # Its text index; its vector index is for afterwards, by its documentation.
            peer.store.apply_hybrid_search_index()
        else:
            found.append({"system": f"{peer.name}, hnsw", "held": 0, **timed(conn, peer, rows)})
            conn.execute(f"truncate {peer.table}")
        drop_vector_index(conn, peer.table)
        found.append({"system": peer.name, "held": 0, **timed(conn, peer, rows)})
        conn.execute(f"truncate {peer.table}")
        conn.execute(f"insert into {peer.table} {FILL[peer.table]} order by id limit {held}")
        conn.execute(f"vacuum analyze {peer.table}")
        found.append({"system": peer.name, "held": held, **timed(conn, peer, rows)})
        conn.execute(f"drop table {peer.table}")
    return found


def main() -> None:
    """Run every store and write peers.json."""
    be_quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--held", type=int, required=True)
    arguments = parser.parse_args()
    rows = rows_of(json.loads((arguments.folder / "texts.json").read_text("utf-8")))
    kinds = (LangChain, LlamaIndex, Haystack)
    found = []
    for kind in kinds:
        found += run(
            kind(arguments.dsn, DIMENSIONS, k=20, depth=150), arguments.dsn, rows, arguments.held
        )
    versions = {kind.name: version(kind.package) for kind in kinds}
    (arguments.folder / "peers.json").write_text(
        json.dumps({"rows": found, "versions": versions}), "utf-8"
    )


if __name__ == "__main__":
    main()
