"""BM25 computed in Python on the lexemes that the database makes, to hold its ranking against."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ragpg import ladder
from ragpg.collection import AsyncCollection
from ragpg.retrieve import DEPTH

K1, B = 1.2, 0.75


async def same_ranking(
    plan: ladder.Plan, handles: Mapping[str, AsyncCollection], language: str
) -> tuple[int, int]:
    """How many queries have the SQL top 150 that Python's BM25 gives, and how many were asked."""
    same = asked = 0
    for tenant, handle in handles.items():
        async with handle.transaction() as conn:
            cursor = await conn.execute(
                "select chunk_id, array_agg(lexeme), array_agg(coalesce(cardinality(positions), 1))"
                "  from ragpg.chunk left join lateral unnest(ragpg.tokenize("
                "           ragpg.contextualized(context, table_header, text), %s)) on true"
                " where collection_id = ragpg.collection_number(%s) group by chunk_id",
                [language, handle.name],
            )
            counts = {
                chunk_id: counted(lexemes, times)
                for chunk_id, lexemes, times in await cursor.fetchall()
            }
            for query in plan.data.queries:
                if plan.tenant_of(query) != tenant:
                    continue
                cursor = await conn.execute(
                    "select array_agg(lexeme), array_agg(cardinality(positions))"
                    " from unnest(ragpg.tokenize(%s, %s))",
                    [query.text, language],
                )
                lexemes, times = (await cursor.fetchall())[0]
                cursor = await conn.execute(
                    "select chunk_id, score from ragpg.search_lexical(%s, %s, %s) order by rank",
                    [handle.name, query.text, DEPTH],
                )
                got = await cursor.fetchall()
                asked += 1
                same += agree(got, bm25(counts, counted(lexemes, times))[:DEPTH])
    return same, asked


def counted(lexemes: Sequence[str | None] | None, times: Sequence[int] | None) -> Counter[str]:
    """Lexemes with how often each occurs."""
    pairs = zip(lexemes or (), times or (), strict=True)
    return Counter({lexeme: count for lexeme, count in pairs if lexeme is not None})


def agree(got: Sequence[tuple[int, float]], wanted: Sequence[tuple[int, float]]) -> bool:
    """Equal scores place by place; equal ids too, except among equal scores."""
    if len(got) != len(wanted):
        return False
    if any(not math.isclose(a[1], b[1], rel_tol=1e-5) for a, b in zip(got, wanted, strict=True)):
        return False
    last = wanted[-1][1] if wanted else 0.0
    clear = {i for i, score in wanted if score > last * (1 + 1e-5)}
    return clear <= {i for i, _ in got}


def bm25(counts: Mapping[int, Counter[str]], terms: Counter[str]) -> list[tuple[int, float]]:
    """Every matching chunk with its score, best first; Lucene's idf."""
    lengths = {chunk: sum(counter.values()) for chunk, counter in counts.items()}
    average = sum(lengths.values()) / max(len(lengths), 1)
    frequency = {term: sum(term in counter for counter in counts.values()) for term in terms}
    scores: dict[int, float] = defaultdict(float)
    for term, times in terms.items():
        idf = math.log(1 + (len(counts) - frequency[term] + 0.5) / (frequency[term] + 0.5))
        for chunk, counter in counts.items():
            if tf := counter.get(term):
                norm = K1 * (1 - B + B * lengths[chunk] / average)
                scores[chunk] += times * idf * tf * (K1 + 1) / (tf + norm)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
