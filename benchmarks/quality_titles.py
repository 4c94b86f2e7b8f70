"""The title as context, since many pipelines, and the reference on scifact, read title and text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import anyio.lowlevel

from ragpg.types import Chunk, Document, WrittenContext


class TitleWriter:
    """Gives every chunk its document's title, or the key where there is none."""

    provider = "title"
    model = "title-1"
    prompt_version = 1

    async def write(
        self, document: Document, chunks: Sequence[Chunk]
    ) -> AsyncIterator[WrittenContext]:
        """One context for each chunk, in order."""
        for chunk in chunks:
            await anyio.lowlevel.checkpoint()
            yield WrittenContext(position=chunk.position, context=document.title or document.key)
