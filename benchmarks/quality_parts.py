"""What is measured together: a folder, one of its languages, one question in so many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ragpg import ladder
from ragpg.evaluation_data import EvaluationData, Query, read_evaluation

# Postgres has no configuration for Chinese; its words are pairs of characters in every language.
CONFIGURATIONS = {
    "en": "english",
    "de": "german",
    "es": "spanish",
    "ar": "arabic",
    "hi": "hindi",
    "zh": "simple",
}

# What a part that is cut so has behind its name.
CUTS = {"section": "", "fixed": ", chunks of 300 tokens", "whole": ", whole documents"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Documents and queries that are measured together, and how their collections are made."""

    name: str
    plan: ladder.Plan
    language: str
    cut: str = "section"


def parts(directory: Path, languages: Sequence[str], every: int) -> Iterator[Part]:
    """The folder as a whole, or one part for each language; of the queries one in `every`."""
    data = read_evaluation(directory)
    suffix = f", one question in {every}" if every > 1 else ""
    if not languages:
        plan = ladder.plan_of(chosen(data, data.queries[::every]))
        yield Part(name=directory.name + suffix, plan=plan, language="english")
    for language in languages:
        queries = [query for query in data.queries if query.metadata.get("lang") == language]
        documents = [each for each in data.documents if each.metadata.get("lang") == language]
        asked = replace(data, documents=tuple(documents))
        yield Part(
            name=f"{directory.name} {language}{suffix}",
            plan=ladder.plan_of(chosen(asked, queries[::every])),
            language=CONFIGURATIONS[language],
        )


def chosen(data: EvaluationData, queries: Sequence[Query]) -> EvaluationData:
    """The data with these queries alone."""
    ids = {query.id for query in queries}
    qrels = tuple(qrel for qrel in data.qrels if qrel.query_id in ids)
    return replace(data, queries=tuple(queries), qrels=qrels)


def recut(part: Part, cut: str) -> Part:
    """The same part in other chunks: one of CUTS."""
    return replace(part, name=part.name + CUTS[cut], cut=cut)
