"""Evaluation folders: documents or chunks, queries, judgements and contexts in text files.

corpus.jsonl       {"_id", "text", "title"?, "metadata"?}          the documents
chunks.jsonl       {"_id", "doc_id", "text", "index"?}             ready-made chunks, optional
queries.jsonl      {"_id", "text", "metadata"?}
qrels.tsv          query id, document id, relevance                with or without a header; else
                   qrels/test.tsv, as BEIR lays it out
qrels_chunks.tsv   query id, chunk id, relevance                   with chunks.jsonl
contexts.jsonl     {"_id", "context"}                              of chunks, optional
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ragpg.errors import InputError
from ragpg.inputs import without_middle
from ragpg.types import Chunk, Document, Json, Qrel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_HEADER = ("query-id", "corpus-id", "score")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A question of an evaluation under the id that its judgements use."""

    id: str
    text: str
    metadata: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenChunk:
    """A ready-made chunk under the id that judgements use; it lies in the document of that key."""

    id: str
    document_key: str
    chunk: Chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationData:
    """One folder. `chunks` and `contexts` (by chunk id) are None where the folder has no such file.

    `level` says what the ids of `qrels` are. `twins` maps the id of each chunk whose stripped text
    another chunk before it holds to that chunk's id; pass it on to `evaluate`.
    """

    documents: tuple[Document, ...]
    chunks: tuple[GivenChunk, ...] | None
    queries: tuple[Query, ...]
    qrels: tuple[Qrel, ...]
    contexts: Mapping[str, str] | None
    level: Literal["chunk", "document"]
    twins: Mapping[str, str]


def read_evaluation(directory: Path) -> EvaluationData:
    """The folder's values, documents and chunks in the order of their files.

    With `chunks.jsonl` and `qrels_chunks.tsv` the judgements are about chunks, else documents.
    Without `corpus.jsonl`, or where a chunk is no part of its document's text there, a document's
    text is its chunks joined by blank lines. Raises InputError that names the file and the line.
    """
    corpus, chunk_file = directory / "corpus.jsonl", directory / "chunks.jsonl"
    # Path.exists raises where the folder is shut, or its name too long.
    if not os.path.exists(corpus) and not os.path.exists(chunk_file):  # noqa: PTH110
        raise InputError(
            f"{without_middle(directory)} holds neither corpus.jsonl nor chunks.jsonl; add one of"
            " them"
        )
    documents = _documents(corpus) if corpus.exists() else {}
    chunks = _chunks(chunk_file, documents) if chunk_file.exists() else None
    queries = _queries(directory / "queries.jsonl")
    chunk_qrels = directory / "qrels_chunks.tsv"
    context_file = directory / "contexts.jsonl"
    if chunks is not None and chunk_qrels.exists():
        level: Literal["chunk", "document"] = "chunk"
        qrels = _qrels(chunk_qrels, queries, {each.id: None for each in chunks}, "chunk")
    else:
        level = "document"
        split = directory / "qrels" / "test.tsv"
        found = (directory / "qrels.tsv").exists() or not split.exists()
        path = directory / "qrels.tsv" if found else split
        qrels = _qrels(path, queries, documents, "document")
    contexts = None
    if chunks is not None and context_file.exists():
        contexts = _contexts(context_file, {each.id for each in chunks})
    return EvaluationData(
        documents=tuple(documents.values()),
        chunks=chunks,
        queries=tuple(queries.values()),
        qrels=qrels,
        contexts=contexts,
        level=level,
        twins=_twins(chunks or ()),
    )


def _documents(path: Path) -> dict[str, Document]:
    documents: dict[str, Document] = {}
    for place, row in _rows(path):
        key = _new_id(row, documents, place)
        documents[key] = Document(
            key=key,
            text=_text(row, "text", place),
            title=_text(row, "title", place, optional=True) or None,
            metadata=_metadata(row, place),
        )
    return documents


def _chunks(path: Path, documents: dict[str, Document]) -> tuple[GivenChunk, ...]:
    """The chunks in file order; adds to `documents` those that only their chunks tell."""
    texts: dict[str, tuple[str, str]] = {}
    by_document: dict[str, list[str]] = {}
    for place, row in _rows(path):
        chunk_id = _new_id(row, texts, place)
        key = _text(row, "doc_id", place)
        texts[chunk_id] = (key, _text(row, "text", place))
        by_document.setdefault(key, []).append(chunk_id)
    placed: dict[str, Chunk] = {}
    for key, ids in by_document.items():
        parts = [texts[chunk_id][1] for chunk_id in ids]
        given = documents.get(key)
        starts = _starts(parts, given.text) if given else None
        if starts is None:
            text = "\n\n".join(parts)
            starts = [sum(len(part) + 2 for part in parts[:count]) for count in range(len(parts))]
            documents[key] = Document(key=key, text=text, title=given.title if given else None)
        for position, (chunk_id, start) in enumerate(zip(ids, starts, strict=True)):
            part = parts[position]
            placed[chunk_id] = Chunk(
                position=position, start=start, stop=start + len(part), text=part
            )
    return tuple(
        GivenChunk(id=chunk_id, document_key=key, chunk=placed[chunk_id])
        for chunk_id, (key, _) in texts.items()
    )


def _starts(parts: Sequence[str], text: str) -> list[int] | None:
    """Where each part begins in the text, in order as far as possible; None if one is not in it."""
    starts: list[int] = []
    for part in parts:
        start = text.find(part, starts[-1] + 1 if starts else 0)
        start = start if start >= 0 else text.find(part)
        if start < 0:
            return None
        starts.append(start)
    return starts


def _queries(path: Path) -> dict[str, Query]:
    queries: dict[str, Query] = {}
    for place, row in _rows(path):
        query_id = _new_id(row, queries, place)
        text = _text(row, "text", place)
        if not text.strip():
            raise InputError(
                f"{place}: the query {query_id!r} is blank; write its text or remove it"
            )
        queries[query_id] = Query(id=query_id, text=text, metadata=_metadata(row, place))
    return queries


def _qrels(
    path: Path, queries: Mapping[str, Query], known: Mapping[str, object], kind: str
) -> tuple[Qrel, ...]:
    """The judgements above 0, in file order, each id of them known."""
    qrels: list[Qrel] = []
    for number, line in _lines(path):
        place = f"{without_middle(path)}, line {number}"
        fields = line.rstrip("\r").split("\t")
        if number == 1 and tuple(fields) == _HEADER:
            continue
        if len(fields) != len(_HEADER):
            raise InputError(
                f"{place} has {len(fields)} fields; expected query id, {kind} id and relevance, "
                "separated by tabs"
            )
        query_id, judged_id, score = fields
        if query_id not in queries:
            raise InputError(f"{place} names the query {query_id!r}, which queries.jsonl lacks")
        if judged_id not in known:
            raise InputError(f"{place} names the {kind} {judged_id!r}, which the folder lacks")
        relevance = _number(score, place)
        if relevance > 0:
            qrels.append(Qrel(query_id=query_id, id=judged_id, relevance=relevance))
    if not qrels:
        raise InputError(
            f"{without_middle(path)} holds no judgement above 0; nothing can be measured with it"
        )
    return tuple(qrels)


def _contexts(path: Path, known: set[str]) -> dict[str, str]:
    contexts: dict[str, str] = {}
    for place, row in _rows(path):
        chunk_id = _new_id(row, contexts, place)
        if chunk_id not in known:
            raise InputError(f"{place} names the chunk {chunk_id!r}, which chunks.jsonl lacks")
        contexts[chunk_id] = _text(row, "context", place)
    return contexts


def _twins(chunks: Sequence[GivenChunk]) -> dict[str, str]:
    count = Counter(each.chunk.text.strip() for each in chunks)
    first: dict[str, str] = {}
    twins: dict[str, str] = {}
    for each in chunks:
        text = each.chunk.text.strip()
        if count[text] > 1 and first.setdefault(text, each.id) != each.id:
            twins[each.id] = first[text]
    return twins


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers from 1 and the lines that are not blank."""
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError as exc:
        raise InputError(
            f"{without_middle(path)} is missing; an evaluation folder needs it"
        ) from exc
    except UnicodeDecodeError as exc:
        raise InputError(
            f"{without_middle(path)} is not UTF-8 at byte {exc.start}; save it as UTF-8"
        ) from exc
    # Not splitlines: JSON strings may hold U+2028 as it is.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Json]]]:
    """Each line's place, for messages, and its JSON object."""
    for number, line in _lines(path):
        place = f"{without_middle(path)}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as exc:
            raise InputError(
                f"{place} is not JSON ({exc.msg} at column {exc.colno}); expected one object a line"
            ) from exc
        if not isinstance(row, dict):
            raise InputError(f"{place} is a JSON {type(row).__name__}; expected an object")
        yield place, row


def _new_id(row: Mapping[str, Json], taken: Mapping[str, object], place: str) -> str:
    found = _text(row, "_id", place)
    if not found:
        raise InputError(f'{place} has an empty "_id"; every line needs one of its own')
    if found in taken:
        raise InputError(f"{place} repeats the id {found!r}; ids must be unique within a file")
    return found


def _text(row: Mapping[str, Json], name: str, place: str, *, optional: bool = False) -> str:
    value = row.get(name)
    if value is None and optional:
        return ""
    if not isinstance(value, str):
        found = "lacks" if name not in row else f"has {type(value).__name__} as"
        raise InputError(f'{place} {found} "{name}"; expected a string')
    return value


def _metadata(row: Mapping[str, Json], place: str) -> dict[str, Json]:
    value = row.get("metadata", {})
    if not isinstance(value, dict):
        raise InputError(f'{place} has {type(value).__name__} as "metadata"; expected an object')
    return value


def _number(score: str, place: str) -> float:
    try:
        relevance = float(score)
    except ValueError:
        relevance = math.nan
    if not math.isfinite(relevance):
        raise InputError(f"{place} has the relevance {score!r}; expected a number such as 1")
    return relevance
