"""Makes judged queries from Markdown documents: headings that are taken out of them.

    python -m benchmarks.quality_headings DIR NEW_DIR

Reads DIR/corpus.jsonl and DIR/queries.jsonl and writes a folder of the same form. A query is a heading
of level 2 to 4 with four words or more that stands once in its tenant and is no query of DIR; its one
relevant document is the one that it was taken out of. At most 25 of a tenant, in the order of a hash,
so that the same folder gives the same queries. The judgements are as weak as that: compare
configurations with them, do not quote the figures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FEWEST_WORDS = 4
MOST_OF_A_TENANT = 25
FENCE = re.compile(r"\s*(```|~~~)")
HEADING = re.compile(r"#{2,4}\s+(.*?)\s*#*$")
MARKS = re.compile(r"\{[^}]*\}|`|\*\*|\[([^\]]*)\]\([^)]*\)")


def headings(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers from 0 and the words of the headings outside code."""
    fenced = False
    for number, line in enumerate(text.split("\n")):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced and (match := HEADING.match(line)):
            yield number, MARKS.sub(lambda mark: mark[1] or "", match[1]).strip()


def chosen(documents: list[dict[str, Any]], old: set[str]) -> Iterator[tuple[str, str, str, int]]:
    """Tenant, heading, document and line number of each query."""
    by_tenant: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for document in documents:
        known = old | {(document.get("title") or "").lower()}
        for number, heading in headings(document["text"]):
            if len(heading.split()) >= FEWEST_WORDS and heading.lower() not in known:
                tenant = document["metadata"]["tenant"]
                by_tenant[tenant].append((heading, document["_id"], number))
    for tenant, found in sorted(by_tenant.items()):
        times = Counter(heading.lower() for heading, _, _ in found)
        single = [each for each in found if times[each[0].lower()] == 1]
        single.sort(key=lambda each: hashlib.sha256(f"{each[1]}{each[0]}".encode()).digest())
        for heading, document_id, number in single[:MOST_OF_A_TENANT]:
            yield tenant, heading, document_id, number


def main() -> None:
    """Read one folder and write the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality_headings")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    documents = read(options.source / "corpus.jsonl")
    old = {query["text"].strip().lower() for query in read(options.source / "queries.jsonl")}
    queries, qrels = [], ["query-id\tcorpus-id\tscore"]
    taken: dict[str, set[int]] = defaultdict(set)
    for number, (tenant, heading, document_id, line) in enumerate(chosen(documents, old)):
        query_id = f"{tenant}:{number:03}"
        queries.append({"_id": query_id, "text": heading, "metadata": {"tenant": tenant}})
        qrels.append(f"{query_id}\t{document_id}\t1")
        taken[document_id].add(line)
    for document in documents:
        lines = document["text"].split("\n")
        kept = [line for at, line in enumerate(lines) if at not in taken[document["_id"]]]
        document["text"] = "\n".join(kept)
    options.target.mkdir(parents=True, exist_ok=True)
    write(options.target / "corpus.jsonl", map(json.dumps, documents))
    write(options.target / "queries.jsonl", map(json.dumps, queries))
    write(options.target / "qrels.tsv", iter(qrels))


def read(path: Path) -> list[dict[str, Any]]:
    """The objects of a file, one a line."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write(path: Path, lines: Iterator[str]) -> None:
    """The lines as a file."""
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
