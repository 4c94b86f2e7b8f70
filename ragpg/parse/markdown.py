"""Markdown: front matter to fields, the rest as it stands."""

from __future__ import annotations

from ragpg.blocks import first_title, markdown_blocks
from ragpg.parse.encoding import decode
from ragpg.parse.front_matter import split_front_matter
from ragpg.parse.metadata import read_fields
from ragpg.types import Document


def parse_markdown(content: bytes, *, key: str) -> Document:
    """The document; `text` is what follows the front matter, line ends kept.

    The title is the front matter's, else the first heading of level 1, else None.
    """
    values, body = split_front_matter(decode(content, key=key), key=key)
    fields = read_fields(values, key=key)
    fields["title"] = fields["title"] or first_title(markdown_blocks(body))
    return Document(key=key, text=body, media_type="markdown", **fields)
