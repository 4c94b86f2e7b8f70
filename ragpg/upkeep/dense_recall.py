"""Recall of the dense arm, measured on a collection's own queries against the exact scan."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import psycopg
from pgvector import HalfVector
from pgvector.psycopg import register_vector

from ragpg.database.sqlstates import translated
from ragpg.errors import DatabaseUnavailable, FilterError, RagpgError
from ragpg.filters import Filter
from ragpg.filters.jsonpath import FilterArguments, compile_filter
from ragpg.inputs import checked_count
from ragpg.upkeep.dense_index import acting_as_owner

TARGET = 0.99
# Noise of 0.35 of a vector's length leaves a cosine of about .94, as of a paraphrase.
NOISE = 0.35

QUERY_SOURCES = """
select collection.tenant_id, collection.collection_id, tenant.key, collection.name
  from ragpg.collection join ragpg.tenant using (tenant_id)
 where exists (select from ragpg.embedding
                where embedding.tenant_id = collection.tenant_id
                  and embedding.collection_id = collection.collection_id)
 order by collection.tenant_id, collection.collection_id
"""
LOGGED = """
select search.query_embedding, search.filter
  from ragpg.search
 where search.tenant_id = %s and search.collection_id = %s and search.query_embedding is not null
   and l2_norm(search.query_embedding) > 0
 order by search.searched_at desc, search.search_id desc
 limit %s
"""
STORED = """
select embedding.embedding, null::jsonb
  from ragpg.embedding
 where embedding.tenant_id = %s and embedding.collection_id = %s
 order by md5(embedding.chunk_id::text), embedding.chunk_id
 limit %s
"""
SEARCH = """
select found.chunk_id, found.score, found.mode
  from ragpg._search_dense(
           %(tenant)s, %(collection)s, %(query)s, %(k)s, %(sources)s, %(tags_all)s, %(tags_any)s,
           %(modified_from)s, %(modified_before)s, %(key_prefix)s, %(filter)s::jsonpath,
           %(mode)s) as found
"""
STORE = """
insert into ragpg.dense_recall (
    tenant_id, collection_id, query_source, queries, k, modes, mean_recall, lowest_recall)
values (%s, %s, %s, %s, %s, %s, %s, %s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallCheck:
    """Recall of one collection over a sample of queries; `modes` are the plans that were taken.

    `query_source` is "logged" for queries of the search log with their filters, or "stored" for the
    collection's own vectors with noise, where the log has none.
    """

    tenant: str
    collection: str
    query_source: Literal["logged", "stored"]
    queries: int
    k: int
    modes: tuple[str, ...]
    mean_recall: float
    lowest_recall: float

    @property
    def advice(self) -> str | None:
        """What to do about a recall below .99, or None."""
        if self.mean_recall >= TARGET:
            return None
        return (
            f"recall of {self.collection!r} of tenant {self.tenant!r} is {self.mean_recall:.3f};"
            " raise ef_search (ann) or sketch_rescored (sketch) in ragpg.dense_setting, then check"
            " again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallFailure:
    """A collection whose recall could not be measured, and why; the others are."""

    tenant: str
    collection: str
    message: str

    @property
    def advice(self) -> str:
        """What to do about it."""
        return (
            f"recall of {self.collection!r} of tenant {self.tenant!r} was not measured:"
            f" {self.message}"
        )


def recall(
    url: str, *, queries: int = 50, k: int = 150
) -> Generator[RecallCheck | RecallFailure, None, None]:
    """Check every collection that holds vectors, and store each result in ragpg.dense_recall.

    `url` is that of a role that may act as ragpg_owner. Costs two searches a query, one of them
    exact: about 0.1 s a query at 100,000 vectors. A generator, so that progress can be shown.
    Raises InputError, DatabaseUnavailable; any other error is the failure of one collection.
    """
    checked_count("queries", queries)
    checked_count("k", k)
    with acting_as_owner(url, None) as conn:
        register_vector(conn)
        for tenant_id, collection_id, tenant, name in conn.execute(QUERY_SOURCES).fetchall():
            home = (tenant_id, collection_id)
            try:
                with translated():
                    check = _measured(conn, home, tenant, name, queries=queries, k=k)
            except DatabaseUnavailable:
                raise
            except RagpgError as exc:
                yield RecallFailure(tenant=tenant, collection=name, message=str(exc))
            else:
                if check is not None:
                    yield check


def _measured(
    conn: psycopg.Connection[Any],
    home: tuple[int, int],
    tenant: str,
    name: str,
    *,
    queries: int,
    k: int,
) -> RecallCheck | None:
    """The check of one collection, stored; None where its vectors have gone meanwhile."""
    source, sample = _sample(conn, home, queries)
    if not sample:
        return None
    shares, modes = [], set()
    for vector, where in sample:
        share, mode = _check(conn, home, vector, where, k)
        shares.append(share)
        modes.add(mode)
    check = RecallCheck(
        tenant=tenant,
        collection=name,
        query_source=source,
        queries=len(shares),
        k=k,
        modes=tuple(sorted(modes)),
        mean_recall=sum(shares) / len(shares),
        lowest_recall=min(shares),
    )
    _store(conn, home, check)
    return check


def _sample(
    conn: psycopg.Connection[Any], home: tuple[int, int], queries: int
) -> tuple[Literal["logged", "stored"], list[tuple[HalfVector, FilterArguments]]]:
    logged = []
    for vector, where in conn.execute(LOGGED, [*home, queries]).fetchall():
        # One that another release logged, and that is larger than this one searches with.
        with suppress(FilterError):
            logged.append((vector, _arguments(where)))
    if logged:
        return "logged", logged
    rows = conn.execute(STORED, [*home, queries]).fetchall()
    random = np.random.default_rng(home[1])
    return "stored", [(_noisy(vector, random), FilterArguments()) for vector, _ in rows]


def _arguments(where: object) -> FilterArguments:
    return compile_filter(None if where is None else Filter.from_json(where))


def _noisy(vector: HalfVector, random: np.random.Generator) -> HalfVector:
    values = vector.to_numpy().astype(np.float32)
    noise = random.standard_normal(len(values)).astype(np.float32)
    return HalfVector(values + noise * (NOISE * np.linalg.norm(values) / np.linalg.norm(noise)))


def _check(
    conn: psycopg.Connection[Any],
    home: tuple[int, int],
    vector: HalfVector,
    where: FilterArguments,
    k: int,
) -> tuple[float, str]:
    """Share of the exact results that were found, and the plan; both in one snapshot.

    A chunk that scores as well as the last exact one counts as found: which of equals comes last is
    no loss.
    """
    named = {"tenant": home[0], "collection": home[1], "query": vector, "k": k}
    given = where.parameters()
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        found = conn.execute(SEARCH, {**named, **given, "mode": "auto"}).fetchall()
        exact = conn.execute(SEARCH, {**named, **given, "mode": "exact"}).fetchall()
    if not exact:
        return 1.0, "exact"
    worst = min(score for _, score, _ in exact) - 1e-9
    good = sum(1 for _, score, _ in found if score >= worst)
    return min(1.0, good / len(exact)), found[0][2] if found else "none"


def _store(conn: psycopg.Connection[Any], home: tuple[int, int], check: RecallCheck) -> None:
    values: Sequence[object] = (
        *home,
        check.query_source,
        check.queries,
        check.k,
        list(check.modes),
        check.mean_recall,
        check.lowest_recall,
    )
    conn.execute(STORE, values)
