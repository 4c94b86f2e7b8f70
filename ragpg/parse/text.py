"""Plain text and code, as it stands."""

from __future__ import annotations

from ragpg.parse.encoding import decode
from ragpg.types import Document


def parse_text(content: bytes, *, key: str) -> Document:
    """The document; its text is the content, line ends kept, and it has no title."""
    return Document(key=key, text=decode(content, key=key), media_type="text")
