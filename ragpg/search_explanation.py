"""Why a logged search returned a chunk, or did not: the log's words, or what can be said now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ragpg.database import Connection, fetch_rows
from ragpg.errors import FilterError
from ragpg.filters import Filter
from ragpg.filters.jsonpath import FilterArguments, compile_filter
from ragpg.inputs import MAX_CHUNK_ID, checked_count
from ragpg.json_form import JsonForm
from ragpg.retrieve import DEPTH
from ragpg.search_log import STATEMENTS, LoggedHit, SearchOverview, logged_search
from ragpg.types import Json

Outcome = Literal[
    "cited",  # shown, and the answer quotes it
    "shown",
    "not_shown",  # a candidate that others stood before
    "gone",  # no such chunk now
    "elsewhere",  # in another collection
    "expired",
    "filtered",
    "outranked",  # both arms returned better ones
    "repeated",  # a candidate has the same text
    "left_out",  # good enough by what is live now
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkExplanation(JsonForm):
    """Why a search returned a chunk or did not: `reason` is a sentence, `outcome` a word for it.

    `hit` is what was logged of a candidate. Of another chunk the scores are those of now, None
    where it is gone or in another collection. `least_dense_score` and `least_lexical_score` are the
    lowest that an arm returned. `lexemes` is what each word of the query adds to BM25 now.
    """

    search_id: int
    chunk_id: int
    outcome: Outcome
    reason: str
    document_key: str | None
    hit: LoggedHit | None
    dense_score: float | None
    least_dense_score: float | None
    lexical_score: float | None
    least_lexical_score: float | None
    lexemes: Mapping[str, float]


async def explain_search(conn: Connection, search_id: int, chunk_id: int) -> ChunkExplanation:
    """Why the chunk is among what the search returned, or is not. Three or four statements.

    Raises SearchNotFound, InputError.
    """
    checked_count("chunk_id", chunk_id, greatest=MAX_CHUNK_ID)
    logged = await logged_search(conn, search_id)
    search, hits = logged.search, logged.hits
    hit = next((hit for hit in hits if hit.chunk_id == chunk_id), None)
    words = {"collection": search.collection, "query": search.query, "chunk_id": chunk_id}
    rows = await fetch_rows(conn, STATEMENTS["lexemes"], words)
    known = ChunkExplanation(
        search_id=search_id,
        chunk_id=chunk_id,
        outcome="gone",
        reason="no chunk of this tenant has this number now: it was replaced or deleted",
        document_key=None if hit is None else hit.document_key,
        hit=hit,
        dense_score=None if hit is None else hit.dense_score,
        least_dense_score=min(_returned("dense", hits), default=None),
        lexical_score=None if hit is None else hit.lexical_score,
        least_lexical_score=min(_returned("lexical", hits), default=None),
        lexemes={row["lexeme"]: row["contribution"] for row in rows},
    )
    if hit is not None:
        outcome: Outcome = "cited" if hit.cited else "shown" if hit.shown else "not_shown"
        return replace(known, outcome=outcome, reason=_of_candidate(search, hit))
    arguments, is_readable = _arguments(search.filter)
    asked = {"search_id": search_id, "chunk_id": chunk_id} | arguments
    found = await fetch_rows(conn, STATEMENTS["not_found"], asked)
    if not found:
        return known
    now = found[0] | {"passes": found[0]["passes"] or not is_readable}
    known = replace(
        known,
        document_key=now["document_key"],
        dense_score=now["dense_score"],
        lexical_score=sum(known.lexemes.values()) if now["is_there"] else None,
    )
    outcome, reason = _of_other(now, known, search, hits)
    return replace(known, outcome=outcome, reason=reason)


def _of_candidate(search: SearchOverview, hit: LoggedHit) -> str:
    cited = " and is cited" if hit.cited else ""
    if search.mode == "whole_corpus":
        return f"the collection was read whole, this chunk too: it was shown{cited}"
    way = [
        f"not found by the {arm} arm" if rank is None else f"{arm} rank {rank}"
        for arm, rank in (("dense", hit.dense_rank), ("lexical", hit.lexical_rank))
    ]
    way.append(f"rank {hit.fused_rank} of {search.candidates} after fusion")
    if hit.rerank_rank is not None:
        way.append(f"rank {hit.rerank_rank} after reranking by {search.reranker}")
    if hit.shown:
        return f"it was shown{cited}: {', '.join(way)}"
    order = f"reranking by {search.reranker}" if search.reranker else "fusion"
    return (
        f"it was found ({', '.join(way)}) and is not among the {search.shown} that were shown:"
        f" after {order} others stood before it, or it is on another page"
    )


def _of_other(
    now: Mapping[str, Any],
    known: ChunkExplanation,
    search: SearchOverview,
    hits: Sequence[LoggedHit],
) -> tuple[Outcome, str]:
    """The word and the sentence for a live chunk that was no candidate."""
    key = repr(now["document_key"])
    since = f"; {key} was published after the search" if now["published_since"] else ""
    arms = [
        _standing("dense", known.dense_score, _returned("dense", hits)),
        _standing("lexical", known.lexical_score, _returned("lexical", hits)),
    ]
    if search.mode == "whole_corpus":
        arms = [(False, "the collection was read whole")]
    clauses = ", and ".join(clause for _, clause in arms)
    reasons: tuple[tuple[bool, Outcome, str], ...] = (
        (not now["is_there"], "elsewhere", f"{key} is in another collection than was searched"),
        (now["expired"], "expired", f"{key} had expired when this was searched"),
        (not now["passes"], "filtered", f"{key} does not pass the filter of the search{since}"),
        (all(is_below for is_below, _ in arms), "outranked", clauses + since),
        (
            now["repeats"],
            "repeated",
            "a candidate has the same text, which a search with `deduplicate` gives once",
        ),
    )
    for is_so, outcome, reason in reasons:
        if is_so:
            return outcome, reason
    return "left_out", (
        f"{clauses}, so what is live now would be a candidate{since}; else the call excluded it,"
        " gave an arm no weight or less depth, or an approximate plan missed it"
    )


def _returned(arm: Literal["dense", "lexical"], hits: Sequence[LoggedHit]) -> list[float]:
    """The scores of what an arm returned."""
    if arm == "dense":
        return [hit.dense_score or 0.0 for hit in hits if hit.dense_rank is not None]
    return [hit.lexical_score or 0.0 for hit in hits if hit.lexical_rank is not None]


def _standing(
    arm: Literal["dense", "lexical"], score: float | None, returned: Sequence[float]
) -> tuple[bool, str]:
    """Whether the arm could not return the chunk, and a clause that says why."""
    if arm == "lexical" and not score:
        return True, "no word of the query is in it"
    if score is None:
        return True, "the query has no vector"
    name = "cosine" if arm == "dense" else "BM25 score"
    if not returned:
        return False, f"its {name} is {score:.4f} where the {arm} arm returned nothing"
    is_below = score < min(returned)
    clause = (
        f"its {name} of {score:.4f} is {'' if is_below else 'not '}below the {min(returned):.4f} of"
        f" the last of {len(returned)} that the {arm} arm returned"
    )
    # The depth is not logged; an arm that returned fewer than the usual one has returned all.
    return is_below and len(returned) >= DEPTH, clause


def _arguments(logged: Mapping[str, Json] | None) -> tuple[dict[str, Any], bool]:
    """The filter's arguments; False for one that another release wrote and this one refuses."""
    try:
        compiled = compile_filter(None if logged is None else Filter.from_json(logged))
    except FilterError:
        return FilterArguments().parameters(), False
    return compiled.parameters(), True
