"""The quality part of docs/benchmarks.md: ours beside the reference, all rows, the weights."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.quality_reference import reference

SHOWN = ("5", "10", "20")


def comparison(results: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """One row of a table for each figure that the reference has."""
    for result in results:
        for name, other_row in reference(result["name"], result["contexts"]).items():
            ours = result["rows"].get(name)
            if ours is None:
                continue
            row = {"data": result["name"], "contexts": result["contexts"], "row": name}
            for k, mine, other in zip(SHOWN, ours, other_row, strict=False):
                row[f"@{k}"] = f"{mine:.1f}"
                row[f"reference @{k}"] = f"{other:.1f}"
                row[f"difference @{k}"] = signed(mine - other)
            yield row | {"one query is": f"{100 / result['queries']:.2f}"}


def signed(points: float) -> str:
    """A difference with its sign; what is below the reference is bold."""
    shown = f"{points:+.1f}"
    if shown in {"+0.0", "-0.0"}:
        return "0.0"
    return f"**{shown}**" if points < 0 else shown


def rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """All rows of one part; the last column is what a reranker is sent, where it was measured."""
    names = ("Pass@5", "Pass@10", "Pass@20", "Pass@150")
    return [
        {"": name} | {k: f"{value:.1f}" for k, value in zip(names, values, strict=False)}
        for name, values in result["rows"].items()
    ]


def weights(results: Sequence[Mapping[str, Any]], measure: str) -> list[dict[str, str]]:
    """By dense weight the measure on even and odd queries of each part that has it, in percent."""
    table = []
    results = [result for result in results if result["by_weight"]]
    for weight in results[0]["by_weight"] if results else ():
        row = {"dense weight, lexical 1": weight}
        for result in results:
            values = result["by_weight"][weight][measure]
            halves = [100 * statistics.fmean(values[start::2]) for start in (0, 1)]
            row[result["name"]] = " / ".join(f"{half:.1f}" for half in halves)
        table.append(row)
    return table
