"""The published run on 737 chunks of 90 files of code read 77.04 % of its input from the cache."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from ragpg.providers.claude import ClaudeContextWriter
from ragpg.types import Chunk, Document, Usage

pytestmark = pytest.mark.anyio

SHARED = Path(os.environ.get("RAGPG_SHARED", Path(__file__).parents[2].parent / "shared"))
FOLDER = SHARED / "data" / "cookbook-code"


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is not there; set RAGPG_SHARED")
async def test_at_least_77_percent_of_the_input_tokens_are_read_from_the_cache(stub):
    by_document: dict[str, list[str]] = defaultdict(list)
    for row in rows("chunks.jsonl"):
        by_document[row["doc_id"]].append(row["text"])
    claude = ClaudeContextWriter(api_key="k", model="claude-haiku-5-5", base_url=stub.anthropic_url)
    usages: list[Usage] = []
    not_read: list[dict[str, int]] = []
    for row in rows("corpus.jsonl"):
        document = Document(key=row["_id"], text=row["text"])
        chunks = [
            Chunk(position=i, start=start, stop=start + len(text), text=text)
            for i, text in enumerate(by_document[row["_id"]])
            for start in [max(0, row["text"].find(text))]
        ]
        before = len(stub.log)
        async for written in claude.write(document, chunks):
            assert written.error is None
            usages += written.usage
        counters = [call.answer["usage"] for call in stub.log[before:]]
        # A file near the minimum may be marked and still be too short, which costs nothing.
        if counters[0]["cache_creation_input_tokens"]:
            not_read += [each for each in counters[1:] if not each["cache_read_input_tokens"]]
    await claude.aclose()
    read = sum(usage.cache_read_tokens for usage in usages)
    total = read + sum(usage.input_tokens + usage.cache_write_tokens for usage in usages)
    assert len(usages) == 737
    assert not_read == []
    assert read / total >= 0.77
