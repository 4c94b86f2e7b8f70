"""Stage 4 of 7: query -> hits, in one SQL call that runs both arms and fuses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from pgvector import HalfVector
from psycopg import ProgrammingError
from psycopg.adapt import PyFormat
from psycopg.types.json import Jsonb

from ragpg.database import Connection, fetch_rows, statements
from ragpg.errors import DimensionError, EmptyQueryError, InputError
from ragpg.filters import Filter
from ragpg.filters.jsonpath import compile_filter
from ragpg.inputs import (
    MAX_CHUNK_ID,
    MAX_K,
    checked_choice,
    checked_chunk_ids,
    checked_count,
    checked_text,
    shown,
)
from ragpg.tokens import count_tokens
from ragpg.types import Expansion, Hit, Hits

STATEMENTS = statements("retrieve")
# How deep each arm is searched before fusion, as in the published pipeline.
DEPTH = 150
DEEPER = f"for more begin again, with a greater depth (up to {MAX_K}) or a filter"
# What an embedding model reads of a query ends before; BM25 takes half a second for so many words.
MAX_QUERY = 32_000
# What a chunk takes beside its words when it is read whole: its address. ragpg.whole_corpus counts
# on it, since no more chunks than tokens / 16 can then fit.
_ADDRESS_TOKENS = 16
# As search_hybrid checks.
_MAX_WEIGHT = 1_000_000
# A chunk that no search found.
_UNFOUND = {
    "dense_rank": None,
    "dense_score": None,
    "lexical_rank": None,
    "lexical_score": None,
    "fused_score": 0.0,
    "duplicates": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What a rank of each arm counts in the fusion: weight / (60 + rank).

    The defaults were chosen with the local embedding model, see
    docs/decisions/0006-fusion-weights.md for how, and for where they lose; `ragpg.search_hybrid`
    has the same.
    """

    dense: float = 0.6
    lexical: float = 1.0


def checked_query(query: str) -> str:
    """The query without NUL characters.

    Raises EmptyQueryError when nothing is left, and InputError for more than 32,000 characters: all
    words of a shorter one count.
    """
    cleaned = (
        checked_text("query", query).replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    )
    if not any(character.isprintable() and not character.isspace() for character in cleaned):
        raise EmptyQueryError("the query holds no text; ask something")
    if len(cleaned) > MAX_QUERY:
        raise InputError(
            f"the query has {len(cleaned)} characters, at most {MAX_QUERY} are searched for; ask"
            " with the passage that matters"
        )
    return cleaned


def check_list(*, k: int, depth: int, weights: Weights, after: int | None) -> None:
    """Raise InputError for what names no list of hits, or no place in it, before anything is paid.

    The list depends on the depth, and `k` beyond it deepens the search; so pages need a depth that
    is at least `k`.
    """
    checked_count("k", k)
    checked_count("depth", depth)
    if after is not None:
        checked_count("after", after, greatest=MAX_CHUNK_ID)
        if k > depth:
            raise InputError(
                f"k is {k} and depth {depth}: pages are parts of one list, and a k above the depth"
                f" makes another; give depth={k} or more, the same with every page"
            )
    if not isinstance(weights, Weights):
        raise InputError(f"weights is {shown(weights)}; give ragpg.Weights(dense=.., lexical=..)")
    for name, value in (("dense", weights.dense), ("lexical", weights.lexical)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # NaN is neither above nor below.
        if not number or not 0 <= value <= _MAX_WEIGHT:
            raise InputError(
                f"the {name} weight is {shown(value)}, it must be 0 to {_MAX_WEIGHT}; the usual"
                f" weights are {Weights().dense} and {Weights().lexical:g}"
            )
    if not weights.dense + weights.lexical:
        raise InputError("both weights are 0, so no arm is searched; give one weight above 0")


async def retrieve(
    conn: Connection,
    query: str,
    *,
    collection: str,
    embedding: Sequence[float] | None,
    dimensions: int,
    where: Filter | None,
    k: int,
    weights: Weights,
    exclude: Sequence[int],
    after: int | None,
    deduplicate: bool,
    depth: int = DEPTH,
) -> Hits:
    """The `k` best hits of both arms, fused; best first, ties by chunk id.

    `embedding` None searches by keywords alone. `deduplicate` gives each text once, its best hit.
    A page that the depth has cut short says so in `notices`, which takes a second search. Raises
    InputError, FilterError, DimensionError, CollectionNotFound.
    """
    check_list(k=k, depth=depth, weights=weights, after=after)
    exclude, depth = checked_chunk_ids("exclude", exclude), max(depth, k)
    if embedding is not None and len(embedding) != dimensions:
        raise DimensionError(
            f"the query's embedding has {len(embedding)} dimensions, collection {collection!r}"
            f" holds {dimensions}; embed the query with the collection's model"
        )
    notices: list[str] = []
    if embedding is not None and not any(embedding):
        notices.append("the query's embedding is zero, so only keywords were searched")
        embedding = None
    asked = compile_filter(where).parameters() | {
        "collection": collection,
        "query": query,
        "embedding": None if embedding is None else _vector(conn, embedding),
        "k": k,
        "depth": depth,
        "dense_weight": weights.dense,
        "lexical_weight": weights.lexical,
        "exclude": exclude,
        "after": after,
        "deduplicate": deduplicate,
    }
    rows = await fetch_rows(conn, STATEMENTS["retrieve_hybrid"], asked)
    if len(rows) < k and (after is not None or exclude):
        reached = await fetch_rows(conn, STATEMENTS["reaches_depth"], asked)
        if reached[0]["reached"]:
            notices.append(
                f"the list ends here, since each arm was searched {depth} deep; {DEEPER}"
            )
    worded = weights.lexical == 0 or any(row["lexical_rank"] is not None for row in rows)
    if not worded and not await _has_lexemes(conn, collection, query):
        searched = "nothing" if embedding is None or not weights.dense else "only meaning"
        notices.append(
            f"the query holds no keyword (stop words or symbols only), so {searched} was searched"
        )
    return Hits(
        hits=tuple(_hit(row) for row in rows),
        query=query,
        dense_mode=rows[0]["dense_mode"] if rows else None,
        lexical_mode=rows[0]["lexical_mode"] if rows else None,
        notices=tuple(notices),
    )


def check_listed(hits: Hits, after: int) -> None:
    """Raise InputError unless the chunk is among the hits, with the sentence of search_hybrid."""
    if not any(hit.chunk_id == after for hit in hits):
        raise InputError(
            f"after names chunk {after}, which is not among the {len(hits)} that this search found;"
            " page with the query, filter and depth of the page before; if the chunk is gone"
            " since, begin again"
        )


def page(hits: Hits, *, after: int, k: int, depth: int) -> Hits:
    """The `k` hits behind the chunk `after`; where the list ends at `depth`, it is told."""
    place = 1 + next(place for place, hit in enumerate(hits) if hit.chunk_id == after)
    shown = replace(hits, hits=hits.hits[place : place + k])
    if len(shown) == k or len(hits) < depth:
        return shown
    notice = f"the list ends here, since {depth} hits were reranked; {DEEPER}"
    return replace(shown, notices=(*shown.notices, notice))


async def whole_corpus(
    conn: Connection, query: str, *, collection: str, where: Filter | None, max_tokens: int
) -> Hits | None:
    """All live chunks that `where` lets through, by document key and position, as hits.

    None where they have more than `max_tokens` tokens, with titles, contexts and addresses, and
    where there are none. One SQL call, which gives up a large collection before it reads a text;
    counting takes 10 ms for 20,000 tokens. Raises FilterError, CollectionNotFound.
    """
    rows = await fetch_rows(
        conn,
        STATEMENTS["whole_corpus"],
        {"collection": collection, "max_tokens": max_tokens} | compile_filter(where).parameters(),
    )
    hits = tuple(_hit({**row, **_UNFOUND}) for row in rows)
    if not hits or sum(map(_read_tokens, hits)) > max_tokens:
        return None
    return Hits(hits=hits, query=query, mode="whole_corpus")


def _read_tokens(hit: Hit) -> int:
    title = hit.document_title or hit.document_key
    words = "\n".join((title, *hit.section_path, hit.contextualized))
    return _ADDRESS_TOKENS + count_tokens(words)


async def expand(conn: Connection, hits: Hits, *, collection: str, unit: Expansion) -> Hits:
    """Every hit followed by the chunks around it, in document order, each chunk once.

    `neighbours` are the chunk before and the chunk after; `section` is the run of chunks under the
    same headings, at most 20 before and 20 after. An added chunk is a Hit with `expanded_from`.
    Raises InputError, CollectionNotFound.
    """
    checked_choice("unit", unit, get_args(Expansion))
    rows = await fetch_rows(
        conn,
        STATEMENTS["expand"],
        {"collection": collection, "chunk_ids": [hit.chunk_id for hit in hits], "unit": unit},
    )
    added: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        added.setdefault(row["expanded_from"], []).append(row)
    expanded: list[Hit] = []
    for hit in hits:
        expanded.append(hit)
        expanded += [
            _hit({**row, **_UNFOUND, "rank": hit.rank}) for row in added.get(hit.chunk_id, ())
        ]
    return replace(hits, hits=tuple(expanded))


def _vector(conn: Connection, embedding: Sequence[float]) -> HalfVector | str:
    """The vector in a form that this connection can send.

    A caller's own connection need not know pgvector's types. As text, 384 dimensions take 0.2 ms
    more to write and 0.02 ms more to read.
    """
    vector = HalfVector(list(embedding))
    try:
        conn.adapters.get_dumper(HalfVector, PyFormat.AUTO)
    except ProgrammingError:
        return vector.to_text()
    return vector


async def _has_lexemes(conn: Connection, collection: str, query: str) -> bool:
    rows = await fetch_rows(
        conn, STATEMENTS["query_lexemes"], {"collection": collection, "query": query}
    )
    return bool(rows[0]["lexemes"])


def _hit(row: Mapping[str, Any]) -> Hit:
    fields = {name: value for name, value in row.items() if not name.endswith("_mode")}
    fields["section_path"] = tuple(fields["section_path"])
    fields["tags"] = tuple(fields["tags"])
    fields["duplicates"] = tuple(fields["duplicates"])
    fields["page_breaks"] = tuple(fields["page_breaks"])
    return Hit(**fields)


async def log_search(
    conn: Connection,
    *,
    collection_id: int,
    candidates: Hits,
    shown: Hits,
    embedding: Sequence[float] | None,
    where: Filter | None,
    k: int,
) -> int:
    """Write a search and its candidates to the log and return its id.

    `candidates` are all fused hits, `shown` those that the caller got, reranked or not; of a whole
    corpus both are all of it.
    """
    reranked = {hit.chunk_id: hit for hit in shown}
    rows = await fetch_rows(
        conn,
        STATEMENTS["log_search"],
        {
            "collection_id": collection_id,
            "query": candidates.query,
            "embedding": None if embedding is None else HalfVector(list(embedding)),
            "filter": None if where is None else Jsonb(where.to_json()),
            "k": k,
            "dense_mode": candidates.dense_mode,
            "lexical_mode": candidates.lexical_mode,
            "reranker": shown.reranker,
            "notices": list(shown.notices),
            "degraded": list(shown.degraded),
            "timings_ms": Jsonb({s: 1000 * t for s, t in shown.timings_s.items()}),
            "mode": shown.mode,
        },
    )
    search_id = int(rows[0]["search_id"])
    await conn.execute(
        STATEMENTS["log_search_hits"],
        {
            "search_id": search_id,
            "hits": Jsonb([_logged(hit, reranked.get(hit.chunk_id)) for hit in candidates]),
        },
    )
    return search_id


def _logged(candidate: Hit, shown: Hit | None) -> dict[str, Any]:
    was_reranked = shown is not None and shown.rerank_score is not None
    return {
        "chunk_id": candidate.chunk_id,
        "dense_rank": candidate.dense_rank,
        "dense_score": candidate.dense_score,
        "lexical_rank": candidate.lexical_rank,
        "lexical_score": candidate.lexical_score,
        "fused_rank": candidate.rank,
        "fused_score": candidate.fused_score,
        "rerank_rank": shown.rank if shown is not None and was_reranked else None,
        "rerank_score": shown.rerank_score if shown is not None else None,
        "shown": shown is not None,
        "document_key": candidate.document_key,
        "start": candidate.start,
        "stop": candidate.stop,
    }


async def log_citations(conn: Connection, search_id: int, chunk_ids: Sequence[int]) -> None:
    """Mark which of a logged search's hits the answer cites."""
    await conn.execute(
        STATEMENTS["log_citations"], {"search_id": search_id, "chunk_ids": list(chunk_ids)}
    )
