"""Three hybrid stores on the server of the benchmark, called as their documentation says.

Runs in an interpreter that has `requirements.txt` and nothing of ragpg; `benchmarks.hybrid` starts
it. Each store has one table for all tenants and a filter on the tenant; each is also run with an
index on the tenant, which none of them documents as needed. Rows go in through the store's own
calls, while its vector index is dropped and then made again as it was, which only saves time.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.hybrid_cells import cell_of
from benchmarks.timing import timed

EF_SEARCH = 200
BATCH = 1000


def be_quiet() -> None:
    """No telemetry, and nothing of what Haystack says at each connection: its index is there."""
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
    logging.disable(logging.WARNING)


class Peer:
    """A store: `make`, `insert` rows, then `caller` gives a connection of its own for calls."""

    name: str
    package: str
    table: str
    tenant_expression: str
    kind_expression: str

    def __init__(self, dsn: str, dimensions: int, *, k: int, depth: int) -> None:
        self.dsn, self.dimensions, self.k, self.depth = dsn, dimensions, k, depth


class LangChain(Peer):
    name, package, table = "langchain-postgres", "langchain-postgres", "lc_chunk"
    tenant_expression, kind_expression = "tenant", "kind"

    def _config(self, query: str = "") -> Any:
        from langchain_postgres.v2.hybrid_search_config import (
            HybridSearchConfig,
            reciprocal_rank_fusion,
        )

        # A fresh one per query: one that is kept goes on to search the first query's text.
        return HybridSearchConfig(
            tsv_column="content_tsv",
            tsv_lang="pg_catalog.english",
            fts_query=query,
            fusion_function=reciprocal_rank_fusion,
            primary_top_k=self.depth,
            secondary_top_k=self.depth,
            fusion_function_parameters={"rrf_k": 60, "fetch_top_k": self.k},
        )

    def _store(self, *, hybrid: bool = True) -> Any:
        from langchain_core.embeddings import Embeddings
        from langchain_postgres import PGVectorStore
        from langchain_postgres.v2.indexes import HNSWQueryOptions

        class NoEmbeddings(Embeddings):
            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                raise NotImplementedError

            def embed_query(self, text: str) -> list[float]:
                raise NotImplementedError

        return PGVectorStore.create_sync(
            self.engine,
            NoEmbeddings(),
            self.table,
            metadata_columns=["tenant", "kind"],
            hybrid_search_config=self._config() if hybrid else None,
            index_query_options=HNSWQueryOptions(ef_search=EF_SEARCH),
        )

    def make(self) -> None:
        from langchain_postgres import Column, PGEngine

        url = self.dsn.replace("postgresql://", "postgresql+psycopg://")
        self.engine = PGEngine.from_connection_string(url, pool_size=20)
        self.engine.init_vectorstore_table(
            self.table,
            self.dimensions,
            metadata_columns=[Column("tenant", "TEXT"), Column("kind", "TEXT")],
            id_column=Column("langchain_id", "TEXT"),
            hybrid_search_config=self._config(),
        )
        self.store = self._store()

    def insert(self, rows: list[dict[str, Any]]) -> None:
        self.store.add_embeddings(
            [row["text"] for row in rows],
            [row["vector"] for row in rows],
            [{"tenant": row["tenant"], "kind": row["kind"]} for row in rows],
            [row["id"] for row in rows],
        )

    def finish(self) -> None:
        from langchain_postgres.v2.indexes import HNSWIndex

        self.store.apply_vector_index(HNSWIndex(name="lc_hnsw"))
        self.store.apply_hybrid_search_index()

    def _filter(self, question: dict[str, Any]) -> dict[str, Any]:
        wanted = {"tenant": {"$eq": question["tenant"]}}
        if question["kind"] is not None:
            return {"$and": [wanted, {"kind": {"$eq": question["kind"]}}]}
        return wanted

    def caller(self) -> Any:
        def call(question: dict[str, Any]) -> list[str]:
            found = self.store.similarity_search_by_vector(
                question["vector"],
                k=self.k,
                filter=self._filter(question),
                hybrid_search_config=self._config(question["text"]),
            )
            return [document.id for document in found]

        return call

    def dense_caller(self) -> Any:
        store = self._store(hybrid=False)

        def call(question: dict[str, Any]) -> list[str]:
            found = store.similarity_search_by_vector(
                question["vector"], k=self.depth, filter=self._filter(question)
            )
            return [document.id for document in found]

        return call


class LlamaIndex(Peer):
    name, package = "llama-index-postgres", "llama-index-vector-stores-postgres"
    table = "data_li_chunk"
    tenant_expression, kind_expression = "(metadata_->>'tenant')", "(metadata_->>'kind')"

    def make(self) -> None:
        from llama_index.vector_stores.postgres import PGVectorStore

        self.store = PGVectorStore(
            connection_string=self.dsn.replace("postgresql://", "postgresql+psycopg2://"),
            async_connection_string=self.dsn.replace("postgresql://", "postgresql+asyncpg://"),
            table_name="li_chunk",
            schema_name="public",
            embed_dim=self.dimensions,
            hybrid_search=True,
            text_search_config="english",
            use_jsonb=True,
            hnsw_kwargs={
                "hnsw_m": 16,
                "hnsw_ef_construction": 64,
                "hnsw_ef_search": EF_SEARCH,
                "hnsw_dist_method": "vector_cosine_ops",
            },
            create_engine_kwargs={"pool_size": 20},
        )
        self.insert([])

    def insert(self, rows: list[dict[str, Any]]) -> None:
        from llama_index.core.schema import TextNode

        self.store.add(
            [
                TextNode(
                    id_=row["id"],
                    text=row["text"],
                    metadata={"tenant": row["tenant"], "kind": row["kind"]},
                    embedding=row["vector"],
                )
                for row in rows
            ]
        )

    def finish(self) -> None:
        return

    def _query(self, question: dict[str, Any], *, hybrid: bool) -> list[str]:
        from llama_index.core.vector_stores.types import (
            MetadataFilter,
            MetadataFilters,
            VectorStoreQuery,
            VectorStoreQueryMode,
        )

        filters = [MetadataFilter(key="tenant", value=question["tenant"])]
        if question["kind"] is not None:
            filters.append(MetadataFilter(key="kind", value=question["kind"]))
        found = self.store.query(
            VectorStoreQuery(
                query_embedding=question["vector"],
                query_str=question["text"] if hybrid else None,
                # Not fused: the vector leg's k come first, then what the text leg adds.
                similarity_top_k=self.k if hybrid else self.depth,
                sparse_top_k=self.depth if hybrid else None,
                mode=VectorStoreQueryMode.HYBRID if hybrid else VectorStoreQueryMode.DEFAULT,
                filters=MetadataFilters(filters=filters),
            )
        )
        return list(found.ids)

    def caller(self) -> Any:
        return lambda question: self._query(question, hybrid=True)[: self.k]

    def dense_caller(self) -> Any:
        return lambda question: self._query(question, hybrid=False)


class Haystack(Peer):
    name, package, table = "haystack pgvector", "pgvector-haystack", "hs_chunk"
    tenant_expression, kind_expression = "(meta->>'tenant')", "(meta->>'kind')"

    def _store(self, *, recreate: bool) -> Any:
        from haystack.utils import Secret
        from haystack_integrations.document_stores.pgvector import PgvectorDocumentStore

        return PgvectorDocumentStore(
            connection_string=Secret.from_token(self.dsn),
            table_name=self.table,
            embedding_dimension=self.dimensions,
            vector_function="cosine_similarity",
            recreate_table=recreate,
            search_strategy="hnsw",
            hnsw_recreate_index_if_exists=False,
            hnsw_ef_search=EF_SEARCH,
            language="english",
        )

    def make(self) -> None:
        self.store = self._store(recreate=True)
        self.store.count_documents()

    def insert(self, rows: list[dict[str, Any]]) -> None:
        from haystack import Document

        self.store.write_documents(
            [
                Document(
                    id=row["id"],
                    content=row["text"],
                    meta={"tenant": row["tenant"], "kind": row["kind"]},
                    embedding=row["vector"],
                )
                for row in rows
            ]
        )

    def finish(self) -> None:
        return

    @staticmethod
    def _filter(question: dict[str, Any]) -> dict[str, Any]:
        wanted = {"field": "meta.tenant", "operator": "==", "value": question["tenant"]}
        if question["kind"] is None:
            return wanted
        kind = {"field": "meta.kind", "operator": "==", "value": question["kind"]}
        return {"operator": "AND", "conditions": [wanted, kind]}

    def caller(self) -> Any:
        from haystack.components.joiners import DocumentJoiner
        from haystack_integrations.components.retrievers.pgvector import (
            PgvectorEmbeddingRetriever,
            PgvectorKeywordRetriever,
        )

        # A store holds one connection, so each caller has a store of its own.
        store = self._store(recreate=False)
        dense = PgvectorEmbeddingRetriever(document_store=store, top_k=self.depth)
        words = PgvectorKeywordRetriever(document_store=store, top_k=self.depth)
        join = DocumentJoiner(join_mode="reciprocal_rank_fusion", top_k=self.k)

        def call(question: dict[str, Any]) -> list[str]:
            wanted = self._filter(question)
            near = dense.run(query_embedding=question["vector"], filters=wanted)["documents"]
            worded = words.run(query=question["text"], filters=wanted)["documents"]
            return [found.id for found in join.run(documents=[near, worded])["documents"]]

        return call

    def dense_caller(self) -> Any:
        from haystack_integrations.components.retrievers.pgvector import PgvectorEmbeddingRetriever

        store = self._store(recreate=False)
        dense = PgvectorEmbeddingRetriever(document_store=store, top_k=self.depth)

        def call(question: dict[str, Any]) -> list[str]:
            found = dense.run(query_embedding=question["vector"], filters=self._filter(question))
            return [document.id for document in found["documents"]]

        return call


def load(peer: Peer, dsn: str, folder: Path) -> float:
    """Seconds for all rows through the store's own insert, its vector index made afterwards."""
    data = np.load(folder / "chunks.npz")
    texts = json.loads((folder / "texts.json").read_text("utf-8"))
    vectors, tenant, kind = data["vectors"], data["tenant"].tolist(), data["kind"].tolist()
    with psycopg.connect(dsn, autocommit=True) as conn:
        indexes = conn.execute(
            "select indexname, indexdef from pg_indexes where tablename = %s"
            " and (indexdef like '%% USING hnsw %%' or indexdef like '%% USING gin %%')",
            [peer.table],
        ).fetchall()
        for name, _ in indexes:
            conn.execute(f'drop index "{name}"')
        start = time.perf_counter()
        for first in range(0, len(texts), BATCH):
            peer.insert(
                [
                    {
                        "id": str(row),
                        "text": texts[row],
                        "tenant": f"t{tenant[row]}",
                        "kind": f"k{kind[row]}",
                        "vector": vectors[row].tolist(),
                    }
                    for row in range(first, min(first + BATCH, len(texts)))
                ]
            )
        for _, definition in indexes:
            conn.execute(definition)
        peer.finish()
        spent = time.perf_counter() - start
        conn.execute(f"vacuum analyze {peer.table}")
    return spent


def measure(peer: Peer, dsn: str, folder: Path, callers: list[int], budget: float) -> list[Any]:
    questions = json.loads((folder / "questions.json").read_text("utf-8"))
    for question, vector in zip(questions, np.load(folder / "questions.npy"), strict=True):
        question["vector"] = vector.tolist()
    cells: dict[str, list[int]] = {}
    for place, question in enumerate(questions):
        cells.setdefault(cell_of(question), []).append(place)
    rows: list[Any] = []
    for indexed in (False, True):
        with psycopg.connect(dsn, autocommit=True) as conn:
            if indexed:
                conn.execute(f"create index peer_tenant on {peer.table} ({peer.tenant_expression})")
                conn.execute(f"vacuum analyze {peer.table}")
        for cell, places in cells.items():
            asked = [questions[place] for place in places]
            dense = timed(peer.dense_caller, asked, callers=1, budget_s=budget / 2)
            for count in callers:
                outcome = timed(peer.caller, asked, callers=count, budget_s=budget)
                outcome["found"] = {places[at]: ids for at, ids in outcome["found"].items()}
                rows.append(
                    {
                        "system": peer.name + (", tenant index" if indexed else ""),
                        "cell": cell,
                        "callers": count,
                        "dense": {places[at]: ids for at, ids in dense["found"].items()},
                        **outcome,
                    }
                )
                print(peer.name, indexed, cell, count, f"{outcome['p50_ms']:.1f} ms",
                      file=sys.stderr, flush=True)  # fmt: skip
    return rows


def main() -> None:
    be_quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--callers", default="1,16")
    parser.add_argument("--budget", type=float, default=6)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--depth", type=int, default=150)
    arguments = parser.parse_args()
    dimensions = np.load(arguments.folder / "chunks.npz")["vectors"].shape[1]
    callers = [int(count) for count in arguments.callers.split(",")]
    rows, loads = [], {}
    for kind in (LangChain, LlamaIndex, Haystack):
        peer = kind(arguments.dsn, dimensions, k=arguments.k, depth=arguments.depth)
        peer.make()
        loads[peer.name] = load(peer, arguments.dsn, arguments.folder)
        print(peer.name, f"loaded in {loads[peer.name]:.0f} s", file=sys.stderr, flush=True)
        rows += measure(peer, arguments.dsn, arguments.folder, callers, arguments.budget)
        with psycopg.connect(arguments.dsn, autocommit=True) as conn:
            conn.execute(f"drop table {peer.table}")
    versions = {kind.name: version(kind.package) for kind in (LangChain, LlamaIndex, Haystack)}
    (arguments.folder / "peers.json").write_text(
        json.dumps({"rows": rows, "load_s": loads, "versions": versions}), "utf-8"
    )


if __name__ == "__main__":
    main()
