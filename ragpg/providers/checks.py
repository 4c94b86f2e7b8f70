"""Checks on what goes to a vendor and what comes back, the same for every vendor."""

from __future__ import annotations

from collections.abc import Sequence

from ragpg.errors import EmptyQueryError, InputError
from ragpg.providers.failures import Vendor, invalid
from ragpg.tokens import is_blank
from ragpg.types import Hits
from ragpg.vectors import storable


def require_query(query: str) -> str:
    """The query, or EmptyQueryError before any call."""
    if is_blank(query):
        raise EmptyQueryError("the query holds no text; ask something")
    return query


def require_texts(texts: Sequence[str]) -> None:
    """InputError, naming the place, when a text is blank: vendors refuse the whole request."""
    for place, text in enumerate(texts):
        if is_blank(text):
            raise InputError(
                f"text {place} of {len(texts)} is blank and has no vector; leave it out"
            )


def checked_vectors(
    vendor: Vendor, vectors: Sequence[Sequence[float]], *, count: int, dimensions: int
) -> list[list[float]]:
    """The vectors as float lists, or InvalidProviderResponse naming what is wrong with which."""
    checked = storable(vectors, count=count, dimensions=dimensions)
    if isinstance(checked, str):
        raise invalid(vendor, checked)
    lists: list[list[float]] = checked.tolist()
    return lists


def checked_order(vendor: Vendor, indices: Sequence[int], *, count: int, what: str) -> None:
    """InvalidProviderResponse unless `indices` name each of `count` things once."""
    if sorted(indices) == list(range(count)):
        return
    if len(indices) != count:
        raise invalid(vendor, f"returned {len(indices)} {what} for {count} texts")
    bad = next((i for i in indices if not 0 <= i < count), None)
    fault = f"index {bad}, which was not sent," if bad is not None else "an index twice"
    raise invalid(vendor, f"returned {fault} among {count} {what}")


def rerank_texts(hits: Hits) -> tuple[list[int], list[str]]:
    """The places of the hits that hold text, and what a reranker reads of each.

    Context and chunk are told apart by a blank line. Equal texts are sent as often as they occur,
    so that a result's index leads back to its own hit.
    """
    texts = [hit.contextualized for hit in hits]
    places = [place for place, text in enumerate(texts) if not is_blank(text)]
    return places, [texts[place] for place in places]
