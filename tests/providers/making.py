"""Hits, documents and chunks made by hand for the provider tests."""

from __future__ import annotations

from typing import Any

from ragpg import types


def hit(chunk_id: int, text: str, **changes: Any) -> types.Hit:
    """A hit whose chunk starts at character 1000 * chunk_id of the document `doc/<chunk_id>`."""
    fields: dict[str, Any] = {
        "rank": chunk_id,
        "chunk_id": chunk_id,
        "document_key": f"doc/{chunk_id}",
        "document_title": f"Document {chunk_id}",
        "source": None,
        "section_path": (),
        "position": 0,
        "start": 1000 * chunk_id,
        "stop": 1000 * chunk_id + len(text),
        "page": None,
        "text": text,
        "table_header": "",
        "context": None,
        "tags": (),
        "metadata": {},
        "modified_at": None,
        "dense_rank": 1,
        "dense_score": 0.5,
        "lexical_rank": None,
        "lexical_score": None,
        "fused_score": 0.01,
    }
    return types.Hit(**{**fields, **changes})


def hits(*found: types.Hit) -> types.Hits:
    return types.Hits(hits=found)


def document(*, lines: int, key: str = "guide") -> types.Document:
    """A document of `lines` lines of eight words each under one heading."""
    body = "".join(f"Line {i} says something about number {i}.\n" for i in range(lines))
    return types.Document(key=key, title="The guide", text=f"# Field guide\n\n{body}")


def cut(source: types.Document, *, into: int) -> list[types.Chunk]:
    """The document's text in `into` chunks of about equal length."""
    size = -(-len(source.text) // into)
    return [
        types.Chunk(
            position=position,
            start=start,
            stop=min(start + size, len(source.text)),
            text=source.text[start : start + size],
        )
        for position, start in enumerate(range(0, len(source.text), size))
    ]
