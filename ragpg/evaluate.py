"""Stage 7 of 7: judgements and ranked lists -> measures; pure.

A measure is named `name@k`, or `rr`, which looks at the whole list. All lie between 0 and 1. Per
query, with R the relevant ids and T the first k of the list:

- `pass@k`: |R found in T| / |R|, an id being found when an id of the same text is in T; Anthropic's
  contextual retrieval guide reports this, averaged over queries.
- `recall@k`: |R and T| / |R|; `miss@k`: 1 - recall@k.
- `p@k`: |R and T| / k.
- `rr`: 1 / rank of the first relevant id, 0 if there is none; its mean is MRR (Voorhees 1999).
- `ndcg@k`: sum of relevance / log2(rank + 1) over T, divided by the same sum of the best possible
  list (Jarvelin and Kekalainen 2002, with linear gain as in trec_eval).
"""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragpg.errors import InputError
from ragpg.inputs import shown
from ragpg.types import Qrel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

LADDER_MEASURES = ("pass@5", "pass@10", "pass@20", "miss@20", "rr", "ndcg@10")

_NAME = re.compile(r"(?P<name>[a-z]+)(?:@(?P<k>[1-9]\d*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Means over queries by measure, and the same measures query by query, as fractions."""

    queries: int
    mean: Mapping[str, float]
    by_query: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """One query: its golden ids as judged, their relevance, and the list without repeats.

    Ids of the same text are one id. `ranked` keeps the places of the list as it came: a repeat is
    None, because it used up a place and found nothing new.
    """

    golden: Sequence[str]
    relevance: Mapping[str, float]
    ranked: Sequence[str | None]


def evaluate(
    qrels: Iterable[Qrel],
    run: Mapping[str, Sequence[str]],
    measures: Sequence[str] = LADDER_MEASURES,
    *,
    twins: Mapping[str, str] | None = None,
) -> Measures:
    """Means of the measures over all queries that have a judgement.

    `run` is each query's ids, best first; a judged query that it lacks counts as an empty list.
    `twins` maps an id to the id that stands for its text, where several ids hold the same text;
    such ids are one to every measure, except that `pass@k` counts each golden id on its own.
    A judgement of 0 or less says that the id is no answer and is left out. Raises InputError for an
    unknown measure, for a judgement that is none, and when nothing is judged.
    """
    functions = {measure: _measure(measure) for measure in measures}
    same = twins or {}
    golden: dict[str, list[Qrel]] = {}
    for qrel in qrels:
        if not isinstance(qrel, Qrel) or not math.isfinite(qrel.relevance):
            raise InputError(
                f"{shown(qrel)} is no judgement; give ragpg.Qrel(query_id=.., id=.., relevance=1.0)"
            )
        if qrel.relevance > 0:
            golden.setdefault(qrel.query_id, []).append(qrel)
    if not golden:
        raise InputError("there is no judgement to evaluate against; give at least one qrel")
    by_query: dict[str, dict[str, float]] = {}
    for query_id, judgements in golden.items():
        judged = _judged(judgements, run.get(query_id, ()), same)
        by_query[query_id] = {name: function(judged) for name, function in functions.items()}
    mean = {
        name: math.fsum(values[name] for values in by_query.values()) / len(by_query)
        for name in functions
    }
    return Measures(queries=len(by_query), mean=mean, by_query=by_query)


def rank_of(
    judged_id: str, ids: Sequence[str], *, twins: Mapping[str, str] | None = None
) -> int | None:
    """The rank, from 1, of the id or of one of the same text in a list; None where neither is."""
    same = twins or {}
    wanted = same.get(judged_id, judged_id)
    ranks = (rank for rank, each in enumerate(ids, start=1) if same.get(each, each) == wanted)
    return next(ranks, None)


def gain(measure: str, before: Measures, now: Measures) -> tuple[float, float]:
    """How much more a measure is, and half the width of its 95 % interval, both as fractions.

    The interval is that of a mean of differences query by query, taken as normal: right from some
    thirty queries on. It is infinite for a single query. Both must be measured on the same queries.
    """
    differences = [
        now.by_query[query_id][measure] - values[measure]
        for query_id, values in before.by_query.items()
    ]
    if len(differences) == 1:
        return differences[0], math.inf
    width = 1.96 * statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences), width


def failure_reduction(first: float, now: float) -> float:
    """The share of the first row's failures that are gone, 1 when all are; 0 when it had none.

    Both are failure rates, such as `miss@20`; negative when there are more failures than before.
    """
    return (first - now) / first if first else 0.0


def _judged(qrels: Sequence[Qrel], ids: Sequence[str], same: Mapping[str, str]) -> _Judged:
    relevance: dict[str, float] = {}
    for qrel in qrels:
        stands_for = same.get(qrel.id, qrel.id)
        relevance[stands_for] = max(qrel.relevance, relevance.get(stands_for, 0.0))
    seen: set[str] = set()
    ranked: list[str | None] = []
    for each in ids:
        stands_for = same.get(each, each)
        ranked.append(None if stands_for in seen else stands_for)
        seen.add(stands_for)
    golden = [same.get(qrel.id, qrel.id) for qrel in qrels]
    return _Judged(golden=golden, relevance=relevance, ranked=ranked)


def _measure(measure: str) -> Callable[[_Judged], float]:
    """The function of one measure's name."""
    parsed = _NAME.fullmatch(measure)
    if parsed is not None:
        name, k = parsed["name"], parsed["k"]
        if name == "rr" and k is None:
            return _reciprocal_rank
        if name in _AT_K and k is not None:
            return lambda judged: _AT_K[name](judged, int(k))
    accepted = ", ".join(["rr", *(f"{name}@k" for name in _AT_K)])
    raise InputError(f"there is no measure {measure!r}; use one of {accepted}, k being 1 or more")


def _pass_at(judged: _Judged, k: int) -> float:
    top = set(judged.ranked[:k])
    return sum(each in top for each in judged.golden) / len(judged.golden)


def _found(judged: _Judged, k: int) -> int:
    return sum(each in judged.relevance for each in judged.ranked[:k])


def _recall_at(judged: _Judged, k: int) -> float:
    return _found(judged, k) / len(judged.relevance)


def _miss_at(judged: _Judged, k: int) -> float:
    return 1 - _recall_at(judged, k)


def _precision_at(judged: _Judged, k: int) -> float:
    return _found(judged, k) / k


def _ndcg_at(judged: _Judged, k: int) -> float:
    gains = [judged.relevance.get(each, 0.0) if each else 0.0 for each in judged.ranked[:k]]
    ideal = sorted(judged.relevance.values(), reverse=True)[:k]
    return _discounted(gains) / _discounted(ideal)


def _discounted(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def _reciprocal_rank(judged: _Judged) -> float:
    for rank, each in enumerate(judged.ranked, start=1):
        if each in judged.relevance:
            return 1 / rank
    return 0.0


_AT_K: Mapping[str, Callable[[_Judged, int], float]] = {
    "pass": _pass_at,
    "recall": _recall_at,
    "miss": _miss_at,
    "p": _precision_at,
    "ndcg": _ndcg_at,
}
