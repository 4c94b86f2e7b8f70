"""Word documents (.docx) to Markdown, by way of HTML."""

from __future__ import annotations

import io
import re
import zipfile
from html import unescape
from typing import Any
from xml.parsers.expat import ExpatError

import mammoth  # type: ignore[import-untyped]
from mammoth import documents, transforms

from ragpg.blocks import first_title, markdown_blocks
from ragpg.errors import DocumentError
from ragpg.parse.html import to_markdown
from ragpg.parse.metadata import read_datetime
from ragpg.types import Document

_UNPACKED_MAX = 500_000_000  # bytes; a small archive may unpack to any size
# By name, which Word writes whatever its language is, and by id for a file without its styles.
_STYLES = "p[style-name='Title'] => h1:fresh\np.Title => h1:fresh"
# Between what stands in each of them; a paragraph is taken as it is.
_MARKS = {
    documents.Table: "; ",
    documents.TableRow: " / ",
    documents.TableCell: " ",
    documents.Paragraph: "",
}
_TITLE = re.compile(r"<dc:title>([^<]*)</dc:title>")
_AUTHOR = re.compile(r"<dc:creator>([^<]*)</dc:creator>")
_MODIFIED = re.compile(r"<dcterms:modified[^>]*>([^<]*)</dcterms:modified>")


def parse_docx(content: bytes, *, key: str) -> Document:
    """The document; `text` is its body as Markdown, without images.

    A table in a cell of another becomes a line of that cell: `Size / Price; S / 10; M / 12`.

    Title, author and time of change come from its properties; the title may be the first
    heading of level 1.
    """
    try:
        properties = _properties(content, key)
        html = mammoth.convert_to_html(
            io.BytesIO(content),
            style_map=_STYLES,
            convert_image=_no_image,
            transform_document=transforms.element_of_type(documents.Table, _unnested),
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


def _unnested(table: Any) -> Any:
    """The table with the tables in its cells as paragraphs; a table of one cell is just a frame."""
    if len(table.children) == 1 and len(getattr(table.children[0], "children", ())) == 1:
        return table
    return table.copy(children=[_flat(row) for row in table.children])


def _flat(part: Any) -> Any:
    """A row or cell without tables in it; what else stands there, such as a bookmark, as it is."""
    if isinstance(part, documents.Table):
        return documents.paragraph(_words(part))
    if isinstance(part, documents.TableRow | documents.TableCell):
        return part.copy(children=[_flat(inner) for inner in part.children])
    return part


def _words(part: Any) -> list[Any]:
    """What stands in its paragraphs: cells of a table parted by `/`, its rows by `;`."""
    if isinstance(part, documents.Paragraph):
        return list(part.children)
    mark = _MARKS[type(part)]
    inner = [one for one in part.children if type(one) in _MARKS]  # else a bookmark
    words = _words(inner[0]) if inner else []
    for one in inner[1:]:
        words += [documents.run([documents.text(mark)]), *_words(one)]
    return words


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
