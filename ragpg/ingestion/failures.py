"""Why a document is not live, as an ingest reports it."""

from __future__ import annotations

from collections.abc import Sequence

from ragpg.errors import ConflictError, DocumentError, ProviderError, RagpgError
from ragpg.ingest import Published, superseded
from ragpg.staging import Staged, StagedChunk
from ragpg.types import DocumentFailure


def conflict(done: Published) -> ConflictError:
    """The error of a document that was not published."""
    if done.state == "superseded":
        return superseded(done.key)
    if done.state == "deleted":
        return ConflictError(
            f"document {done.key!r} was deleted or renamed during its ingest, so it was not stored;"
            " ingest it again if it shall be there"
        )
    return ConflictError(
        f"document {done.key!r} is not complete: a chunk has no embedding, or there is none;"
        " ingest it again, finished chunks are kept"
    )


def failure(key: str, exc: RagpgError) -> DocumentFailure:
    """The same as a report has it."""
    reason = (
        exc.reason
        if isinstance(exc, DocumentError)
        else "provider"
        if isinstance(exc, ProviderError)
        else "conflict"
        if isinstance(exc, ConflictError)
        else "input"
    )
    return DocumentFailure(key=key, reason=reason, message=str(exc), retryable=exc.retryable)


def held_back(staged: Staged, gaps: Sequence[StagedChunk]) -> DocumentFailure:
    """A document that its recipe does not let go live without these contexts.

    Where all were refused for good, only a changed text or somebody who asks again helps.
    """
    first = gaps[0]
    key = staged.document.key
    passing = not all(gap.context_refused for gap in gaps)
    step = (
        "ingest it again to retry those"
        if passing
        else "they were refused for good: change the text, or ask again with --recontextualize"
        " (recontextualize=True)"
    )
    return DocumentFailure(
        key=key,
        reason="context",
        message=f"document {key!r} is held back: {len(gaps)} of its {len(staged.chunks)} contexts"
        f" failed, the first of chunk {first.position} ({first.context_error}); {step}",
        retryable=passing,
    )
