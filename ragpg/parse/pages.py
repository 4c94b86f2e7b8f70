"""Pages of a document that hold no text, which nobody can find anything on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ragpg.types import Document


def notices(document: Document) -> tuple[str, ...]:
    """One sentence that names its pages without text, by ranges; none where each page has some."""
    pages = [
        number
        for number, (start, stop) in enumerate(
            pairwise((*document.page_starts, len(document.text))), start=1
        )
        if start == stop
    ]
    if not pages:
        return ()
    named = ", ".join(_ranges(pages))
    return (
        (
            f"{document.key} holds no text on {'page' if len(pages) == 1 else 'pages'} {named} of"
            f" {len(document.page_starts)}; if they are scans, run text recognition on the file and"
            " ingest it again"
        ),
    )


def _ranges(pages: Sequence[int]) -> Iterator[str]:
    """`2-3` and `7` for 2, 3 and 7."""
    first = last = pages[0]
    for page in (*pages[1:], None):
        if page == last + 1:
            last = page
            continue
        yield str(first) if first == last else f"{first}-{last}"
        if page is not None:
            first = last = page
