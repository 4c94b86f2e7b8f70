"""Word documents (.docx) to Markdown, by way of HTML."""

from __future__ import annotations

import io
import re
import zipfile
from html import unescape
from xml.parsers.expat import ExpatError

import mammoth  # type: ignore[import-untyped]

from ragpg.blocks import first_title, markdown_blocks
from ragpg.errors import DocumentError
from ragpg.parse.html import to_markdown
from ragpg.parse.metadata import read_datetime
from ragpg.types import Document

_UNPACKED_MAX = 500_000_000  # bytes; a small archive may unpack to any size
_STYLES = "p[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => p:fresh"
_TITLE = re.compile(r"<dc:title>([^<]*)</dc:title>")
_AUTHOR = re.compile(r"<dc:creator>([^<]*)</dc:creator>")
_MODIFIED = re.compile(r"<dcterms:modified[^>]*>([^<]*)</dcterms:modified>")


def parse_docx(content: bytes, *, key: str) -> Document:
    """The document; `text` is its body as Markdown, without images.

    Title, author and time of change come from its properties; the title may be the first
    heading of level 1.
    """
    try:
        properties = _properties(content, key)
        html = mammoth.convert_to_html(
            io.BytesIO(content), style_map=_STYLES, convert_image=_no_image
        ).value
    except DocumentError:
        raise
    except (
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        AttributeError,
        OSError,
        RecursionError,
        ExpatError,
    ) as exc:
        raise DocumentError(
            f"{key} cannot be read as a Word document ({exc}); save it again as .docx.",
            reason="unreadable",
        ) from exc
    text = to_markdown(html, key=key)
    author = _property(_AUTHOR, properties)
    return Document(
        key=key,
        text=text,
        title=_property(_TITLE, properties) or first_title(markdown_blocks(text)),
        modified_at=read_datetime(_property(_MODIFIED, properties)),
        metadata={"author": author} if author else {},
        media_type="docx",
    )


def _no_image(_image: object) -> list[object]:
    return []


def _properties(content: bytes, key: str) -> str:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > _UNPACKED_MAX:
            raise DocumentError(
                f"{key} unpacks to {unpacked} bytes, more than {_UNPACKED_MAX}; split it.",
                reason="too_large",
            )
        if "docProps/core.xml" not in archive.namelist():
            return ""
        return archive.read("docProps/core.xml").decode("utf-8", "replace")


def _property(pattern: re.Pattern[str], properties: str) -> str | None:
    match = pattern.search(properties)
    return (" ".join(unescape(match[1]).split()) or None) if match else None
