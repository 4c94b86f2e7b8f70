"""Contextual Retrieval as a production system on one Postgres.

    document -> chunks -> contexts -> embeddings and BM25 -> fused hits -> reranked -> cited answer

The seven stages are ingest, contextualize, index, retrieve, rerank, generate, evaluate; see the
modules of those names, and `AsyncClient`, where they meet. A folder is one subject with its door in
`__init__`: `parse` and `split` before stage 1, `ingestion` around stages 1 to 3, `batches` beside
stage 2; `filters`, `providers`, `database` and `collection`; for operators `jobs`, `upkeep`, `cli`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragpg import errors
    from ragpg.client import AsyncClient
    from ragpg.collection import AsyncCollection
    from ragpg.documents import DocumentOverview
    from ragpg.filters import Filter, field, key, modified, source, tags
    from ragpg.ingestion.corpus_sync import SyncReport
    from ragpg.ingestion.plan import Plan
    from ragpg.parse import parse_bytes
    from ragpg.protocols import ContextWriter, Embedder, Generator, Reranker
    from ragpg.retrieve import Weights
    from ragpg.search_explanation import ChunkExplanation
    from ragpg.search_log import LoggedHit, LoggedSearch, SearchOverview
    from ragpg.settings import Settings
    from ragpg.sync import Client, Collection

    __version__: str
    from ragpg.types import (
        Answer,
        AnswerBlock,
        AnswerDelta,
        Chunk,
        Citation,
        Document,
        DocumentFailure,
        Enqueued,
        Hit,
        Hits,
        IngestReport,
        PassedOver,
        Qrel,
        Recipe,
        Usage,
    )

# Loaded when first asked for, so that `import ragpg` and `ragpg --help` load no driver, no model
# and no vendor's SDK.
_HOME = {
    "client": ("AsyncClient",),
    "collection": ("AsyncCollection",),
    "ingestion.corpus_sync": ("SyncReport",),
    "documents": ("DocumentOverview",),
    "filters": ("Filter", "field", "key", "modified", "source", "tags"),
    "parse": ("parse_bytes",),
    "ingestion.plan": ("Plan",),
    "protocols": ("ContextWriter", "Embedder", "Generator", "Reranker"),
    "retrieve": ("Weights",),
    "search_explanation": ("ChunkExplanation",),
    "search_log": ("LoggedHit", "LoggedSearch", "SearchOverview"),
    "settings": ("Settings",),
    "sync": ("Client", "Collection"),
    "types": (
        "Answer",
        "AnswerBlock",
        "AnswerDelta",
        "Chunk",
        "Citation",
        "Document",
        "DocumentFailure",
        "Enqueued",
        "Hit",
        "Hits",
        "IngestReport",
        "PassedOver",
        "Qrel",
        "Recipe",
        "Usage",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Answer",
    "AnswerBlock",
    "AnswerDelta",
    "AsyncClient",
    "AsyncCollection",
    "Chunk",
    "ChunkExplanation",
    "Citation",
    "Client",
    "Collection",
    "ContextWriter",
    "Document",
    "DocumentFailure",
    "DocumentOverview",
    "Embedder",
    "Enqueued",
    "Filter",
    "Generator",
    "Hit",
    "Hits",
    "IngestReport",
    "LoggedHit",
    "LoggedSearch",
    "PassedOver",
    "Plan",
    "Qrel",
    "Recipe",
    "Reranker",
    "SearchOverview",
    "Settings",
    "SyncReport",
    "Usage",
    "Weights",
    "__version__",
    "errors",
    "field",
    "key",
    "modified",
    "parse_bytes",
    "source",
    "tags",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "errors":
        return importlib.import_module("ragpg.errors")
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("ragpg")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"ragpg.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'ragpg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
