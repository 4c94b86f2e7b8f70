"""Type-checked as a user would write it; never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import ragpg
from ragpg.types import Embedded, Purpose


class MyEmbedder:
    """A provider of the caller's own: any object with the right method."""

    provider = "mine"
    model = "mine-1"
    dimensions = 2

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        return Embedded(vectors=[[1.0, 0.0] for _ in texts])


async def service() -> str:
    async with ragpg.AsyncClient(embedder=MyEmbedder()) as client:
        handbook = client.collection(tenant="acme", name="handbook")
        report: ragpg.IngestReport = await handbook.ingest([ragpg.Document(key="a", text="b")])
        where: ragpg.Filter = (ragpg.field("year") >= 2025) & ragpg.tags.any("adr")
        hits: ragpg.Hits = await handbook.retrieve("leave", where=where, k=50)
        hits = await handbook.rerank("leave", hits, k=8)
        first: ragpg.Hit = hits[0]
        answer: ragpg.Answer = await handbook.generate("leave", hits)
        stream: AsyncIterator[ragpg.AnswerDelta | ragpg.Answer] = handbook.stream("leave", hits)
        quotes: list[str] = [citation.quote for citation in answer.citations]
        async for item in stream:
            text: str = item.text
        return text + first.text + "".join(quotes) + "".join(report.created)


def paths(handbook: ragpg.Collection, folder: Path) -> ragpg.IngestReport:
    handbook.sync("docs", plan=handbook.plan(folder))
    handbook.enqueue_files(folder)
    return handbook.ingest_files(["docs", folder])


def script() -> str:
    with ragpg.Client.from_env() as client:
        return client.collection(tenant="acme", name="handbook").ask("leave").text


def blocking_signatures(client: ragpg.Client, handbook: ragpg.Collection) -> int:
    """The twins have the exact signatures of their originals; an unneeded ignore is an error."""
    handbook.ingest([], wait=1)  # type: ignore[arg-type]
    handbook.search("leave", deep=5)  # type: ignore[call-arg]
    handbook.search()  # type: ignore[call-arg]
    handbook.delete("a", "b")  # type: ignore[call-arg]
    handbook.retrieve("leave", conn=None)  # type: ignore[call-arg]
    report: ragpg.Answer = handbook.ingest([])  # type: ignore[assignment]
    client.search_log("acme")  # type: ignore[call-arg]
    overview: list[ragpg.SearchOverview] = client.search_log(tenant="acme", limit=5)
    return len(overview) + len(report.text)
