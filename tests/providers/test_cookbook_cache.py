"""The published run on 737 chunks of 90 files of code read 77.04 % of its input from the cache.

What the same chunks cost in batches is measured against that.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from ragpg.context_batch import ContextRequest, Sharing
from ragpg.providers.claude import ClaudeContextWriter
from ragpg.providers.claude_batch import ClaudeBatchContextWriter
from ragpg.types import Chunk, Document, Usage
from tests.providers.making import cut, document
from tests.vendor_stub import VendorStub

pytestmark = pytest.mark.anyio

SHARED = Path(os.environ.get("RAGPG_SHARED", Path(__file__).parents[2].parent / "shared"))
FOLDER = SHARED / "data" / "cookbook-code"


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def corpus() -> list[tuple[Document, list[Chunk]]]:
    by_document: dict[str, list[str]] = defaultdict(list)
    for row in rows("chunks.jsonl"):
        by_document[row["doc_id"]].append(row["text"])
    return [
        (
            Document(key=row["_id"], text=row["text"]),
            [
                Chunk(position=i, start=start, stop=start + len(text), text=text)
                for i, text in enumerate(by_document[row["_id"]])
                for start in [max(0, row["text"].find(text))]
            ],
        )
        for row in rows("corpus.jsonl")
    ]


def own_corpus() -> list[tuple[Document, list[Chunk]]]:
    """12 different documents of 4 to 15 chunks of some 150 words, 8 on average, as there."""
    sizes = (4, 5, 6, 6, 7, 8, 8, 8, 9, 10, 12, 15)
    documents = [document(lines=20 * n + i, key=f"guide {i}") for i, n in enumerate(sizes)]
    return [(each, cut(each, into=n)) for each, n in zip(documents, sizes, strict=True)]


async def counted(
    stub: VendorStub, documents: Sequence[tuple[Document, list[Chunk]]]
) -> tuple[list[Usage], list[dict[str, int]]]:
    """Each call's usage, and those of later calls of a cached document that read no cache."""
    claude = ClaudeContextWriter(api_key="k", model="claude-haiku-5-5", base_url=stub.anthropic_url)
    usages: list[Usage] = []
    not_read: list[dict[str, int]] = []
    for source, chunks in documents:
        before = len(stub.log)
        async for written in claude.write(source, chunks):
            assert written.error is None
            usages += written.usage
        counters = [call.answer["usage"] for call in stub.log[before:]]
        # A file near the minimum may be marked and still be too short, which costs nothing.
        if counters[0]["cache_creation_input_tokens"]:
            not_read += [each for each in counters[1:] if not each["cache_read_input_tokens"]]
    await claude.aclose()
    return usages, not_read


def share_read(usages: Sequence[Usage]) -> float:
    read = sum(usage.cache_read_tokens for usage in usages)
    return read / (read + sum(u.input_tokens + u.cache_write_tokens for u in usages))


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is not there; set RAGPG_SHARED")
async def test_at_least_77_percent_of_the_input_tokens_are_read_from_the_cache(stub):
    usages, not_read = await counted(stub, corpus())
    assert len(usages) == 737
    assert not_read == []
    assert share_read(usages) >= 0.77


async def test_each_document_is_sent_in_full_once_and_read_from_the_cache_by_its_other_chunks(stub):
    documents = own_corpus()
    usages, not_read = await counted(stub, documents)
    assert len(usages) == 98
    assert sum(usage.cache_write_tokens > 0 for usage in usages) == len(documents) == 12
    assert not_read == []
    # Of n chunks the first writes and n - 1 read; each chunk itself is new.
    assert share_read(usages) >= 0.77


async def in_batches(stub: VendorStub, *, ahead: bool) -> list[Usage]:
    """What one batch costs, or what first chunks ahead and then the others cost."""
    sharing: Sharing = "seed" if ahead else "at once"
    claude = ClaudeBatchContextWriter(
        api_key="k", model="claude-haiku-5-5", base_url=stub.anthropic_url
    )
    first: dict[str, ContextRequest] = {}
    others: dict[str, ContextRequest] = {}
    for number, (source, chunks) in enumerate(corpus()):
        seen = set()
        for request in claude.requests(source, chunks, sharing=sharing):
            goes_ahead = ahead and request.prefix is not None and request.prefix not in seen
            seen.add(request.prefix)
            (first if goes_ahead else others)[f"{number}-{request.position}"] = request
    usages: list[Usage] = []
    for requests in (first, others):
        if requests:
            vendor_id = await claude.submit(requests)
            stub.batches.end()
            async for result in claude.results(vendor_id):
                usages += result.usage
    await claude.aclose()
    return usages


def dollars(usages: Sequence[Usage]) -> float:
    return sum(usage.cost_usd or 0.0 for usage in usages)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is not there; set RAGPG_SHARED")
@pytest.mark.parametrize(("ahead", "saved"), [(True, 0.45), (False, 0.36)])
async def test_batches_save_a_third_when_sent_at_once_and_nearly_half_when_first_chunks_go_ahead(
    stub, ahead, saved
):
    claude = ClaudeContextWriter(api_key="k", model="claude-haiku-5-5", base_url=stub.anthropic_url)
    live: list[Usage] = []
    for source, chunks in corpus():
        async for written in claude.write(source, chunks):
            live += written.usage
    await claude.aclose()
    stub.claude.clock_s += 7_200
    batched = await in_batches(stub, ahead=ahead)
    assert len(live) == len(batched) == 737
    assert 1 - dollars(batched) / dollars(live) >= saved
