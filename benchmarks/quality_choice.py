"""The fusion weight by the protocol of docs/decisions/0006-fusion-weights.md.

    python -m benchmarks.quality_choice NAME... [--held-out NAME..] [--contexts rule]

Reads the files that `benchmarks.quality` wrote. Chooses a dense weight (lexical 1) by the mean over
the named parts, each counting the same, of Pass@10 on the even queries, and sets it on the odd queries
and on the held-out parts against the default and equal weights, with a paired bootstrap.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from ragpg.retrieve import Weights

RESULTS = Path(__file__).parent / "results"
MEASURE = "pass@10"
# Means closer than this many points count as equal; the weight nearest to 1 is taken then.
TIE = 0.2
RESAMPLES = 10_000
SEED = 6

# By weight one value for each query of a part, in percent.
Part = Mapping[float, Sequence[float]]


def part(name: str, contexts: str, start: int, step: int) -> dict[float, list[float]]:
    """One part's values by weight: every `step`-th query from `start`."""
    result = json.loads((RESULTS / f"quality_{name}_{contexts}.json").read_text("utf-8"))
    return {
        float(weight): [100 * value for value in measures[MEASURE][start::step]]
        for weight, measures in result["by_weight"].items()
    }


def mean(parts: Sequence[Part], weight: float) -> float:
    """The mean over parts, each counting the same."""
    return statistics.fmean(statistics.fmean(one[weight]) for one in parts)


def choose(parts: Sequence[Part]) -> float:
    """The weight of the highest mean; of those that tie with it the one nearest to 1."""
    means = {weight: mean(parts, weight) for weight in parts[0]}
    best = max(means.values())
    return min(
        (weight for weight, value in means.items() if value >= best - TIE),
        key=lambda weight: abs(weight - 1),
    )


def interval(parts: Sequence[Part], weight: float, other: float) -> tuple[float, float]:
    """Where 95 % of the differences of two weights lie when queries are drawn again, by part."""
    # A seed makes the figure repeatable; nothing here is secret.
    draw = random.Random(SEED)
    differences = [[a - b for a, b in zip(one[weight], one[other], strict=True)] for one in parts]
    means = sorted(
        statistics.fmean(
            statistics.fmean(draw.choices(values, k=len(values))) for values in differences
        )
        for _ in range(RESAMPLES)
    )
    return means[RESAMPLES // 40], means[-RESAMPLES // 40]


def show(title: str, names: Sequence[str], parts: Sequence[Part]) -> None:
    """Each weight's values by part and their mean."""
    print(f"{title}: " + ", ".join(names) + ", mean")
    for weight in parts[0]:
        values = [statistics.fmean(one[weight]) for one in parts]
        print(
            f"  {weight:5.2f}"
            + "".join(f"{value:8.2f}" for value in (*values, mean(parts, weight)))
        )


def main() -> None:
    """Choose on the even queries, and report the others."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality_choice")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--held-out", nargs="+", default=[])
    parser.add_argument("--contexts", default="rule")
    options = parser.parse_args()
    even = [part(name, options.contexts, 0, 2) for name in options.names]
    weight, now = choose(even), Weights().dense
    show("chosen on, even queries", options.names, even)
    print(f"chosen: {weight}; the default now: {now}")
    odd = [part(name, options.contexts, 1, 2) for name in options.names]
    rest = [part(name, options.contexts, 0, 1) for name in options.held_out]
    for title, names, parts in (
        ("reported, odd queries", options.names, odd),
        ("reported, held out", options.held_out, rest),
    ):
        if parts:
            show(title, names, parts)
            for other in sorted({now, 1.0} - {weight}):
                low, high = interval(parts, weight, other)
                gain = mean(parts, weight) - mean(parts, other)
                print(f"  {weight} against {other}: {gain:+.2f}, 95 % {low:+.2f} to {high:+.2f}")


if __name__ == "__main__":
    main()
