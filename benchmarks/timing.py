"""One way of timing for every contestant: one caller, then many threads that start together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

Call = Callable[[Any], list[str]]


def timed(
    make_call: Callable[[], Call], queries: Sequence[Any], *, callers: int, budget_s: float
) -> dict[str, Any]:
    """Milliseconds at p50 and p95, searches a second, and the ids found by place of the query.

    Each caller has a connection of its own from `make_call`, warms it with eight queries, and stops
    after its share of the queries (one caller: all; more: ten each) or `budget_s`.
    """
    latencies: list[float] = []
    found: dict[int, list[str]] = {}
    failures: list[BaseException] = []
    ready = threading.Barrier(callers + 1)

    def work(number: int) -> None:
        try:
            call = make_call()
            for query in queries[:8]:
                call(query)
            share = range(len(queries)) if callers == 1 else range(number * 10, number * 10 + 10)
            ready.wait()
            end = time.perf_counter() + budget_s
            for turn in share:
                place = turn % len(queries)
                start = time.perf_counter()
                ids = call(queries[place])
                latencies.append((time.perf_counter() - start) * 1000)
                found[place] = ids
                if time.perf_counter() > end:
                    break
        except BaseException as exc:
            failures.append(exc)
            ready.abort()
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - start
    if failures:
        raise failures[0]
    ordered = sorted(latencies)
    return {
        "calls": len(ordered),
        "p50_ms": ordered[len(ordered) // 2],
        "p95_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))],
        "per_second": len(ordered) / elapsed,
        "found": found,
    }
