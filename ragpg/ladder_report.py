"""What `ragpg evaluate` prints of a ladder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ragpg import terminal
from ragpg.evaluate import LADDER_MEASURES, gain
from ragpg.ladder import Ladder, Rung

TITLES = {
    "pass@5": "Pass@5",
    "pass@10": "Pass@10",
    "pass@20": "Pass@20",
    "miss@20": "1-recall@20",
    "rr": "MRR",
    "ndcg@10": "nDCG@10",
}
# A judgement that lies deeper is a miss: a person or a model reads so many hits.
READ = 5


def print_ladder(ladder: Ladder, *, misses: bool) -> None:
    """The ladder in percent except RR and nDCG, what may be chance in it, and what it misses."""
    out = terminal.console()
    out.print(
        f"{ladder.directory}: {ladder.queries} queries, {ladder.documents} documents,"
        f" judged by {ladder.level}"
    )
    out.print(
        f"embeddings {ladder.embedder}, contexts {ladder.context_writer}, rerank {ladder.reranker}"
    )
    terminal.print_table(
        ("", *(TITLES[name] for name in LADDER_MEASURES), "fewer misses"),
        [row(rung) for rung in (*ladder.rungs, *ladder.beside)],
    )
    out.print(
        f"\nOne query is worth {100 / ladder.queries:.2f} points."
        f" Pass@{READ} against the row above, 95 %:"
    )
    for line in gains(ladder):
        out.print(line)
    missed = list(misses_of(ladder))
    out.print(
        f"{len(missed)} of {len(ladder.judged)} judgements are not in the first {READ} of the last"
        f" rung{'; --misses names them' if missed and not misses else ''}"
    )
    if misses and missed:
        names = ladder.judged[0].ranks
        terminal.print_table(("query", "text", "judged", *names, "first there"), missed)


def row(rung: Rung) -> list[str]:
    """A rung's name and figures."""
    shown = [
        f"{mean:.4f}" if name in {"rr", "ndcg@10"} else f"{100 * mean:.2f}"
        for name, mean in rung.measures.mean.items()
    ]
    return [rung.name, *shown, f"{100 * rung.reduction:.1f} %"]


def gains(ladder: Ladder) -> Iterator[str]:
    """A line for each rung above the first: what it adds, and whether that may be chance."""
    for before, now in pairwise(ladder.rungs):
        more, width = gain(f"pass@{READ}", before.measures, now.measures)
        chance = " (may be chance)" if abs(more) <= width and more else ""
        yield f"  {now.name:20s} {100 * more:+.2f} ± {100 * width:.2f}{chance}"


def misses_of(ladder: Ladder) -> Iterator[list[str | int | None]]:
    """A row for each judgement that the last rung has below the first five, or not at all."""
    last = ladder.rungs[-1].name
    for judged in ladder.judged:
        rank = judged.ranks[last]
        if rank is None or rank > READ:
            ranks = (each or "none" for each in judged.ranks.values())
            yield [judged.query_id, judged.query, judged.id, *ranks, judged.first]
