"""Where the documents of an ingest come from: the caller's values, or files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

import anyio.to_thread

from ragpg import parse
from ragpg.errors import InputError, RagpgError
from ragpg.ingestion.failures import failure
from ragpg.types import Document, DocumentFailure


async def given(documents: Iterable[Document]) -> AsyncIterator[Document]:
    """These documents, one after the other. Raises InputError for anything else."""
    if not isinstance(documents, Iterable):
        raise InputError(
            f"documents is of type {type(documents).__name__}; give an iterable of ragpg.Document,"
            " such as a list"
        )
    for document in documents:
        if not isinstance(document, Document):
            raise InputError(f"{type(document).__name__} is no ragpg.Document; build one")
        yield document


async def parsed(
    files: Sequence[parse.SourceFile],
) -> AsyncIterator[Document | DocumentFailure]:
    """The document of each file, read in a thread, or why there is none."""
    for file in files:
        try:
            yield await anyio.to_thread.run_sync(_parse, file)
        except RagpgError as exc:
            yield failure(file.key, exc)


def _parse(file: parse.SourceFile) -> Document:
    return parse.parse_file(file.path, key=file.key)
