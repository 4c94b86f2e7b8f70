"""HTML to Markdown, without what surrounds the content."""

from __future__ import annotations

import re
from html import unescape

from html_to_markdown import ConversionOptions, InlineDataMedia, PreprocessingOptions, convert

from ragpg.blocks import first_title, markdown_blocks
from ragpg.errors import DocumentError
from ragpg.parse.encoding import decode
from ragpg.parse.html_frame import MARK, mark_frame
from ragpg.types import Document

# By themselves; the library knows no selector of two elements (`body > footer` matches nothing).
_LEFT_OUT = [
    f"[{MARK}]",
    "nav",
    "input",
    "select",
    "textarea",
    "datalist",
    "svg",
    "noscript",
    "template",
    "[role=navigation]",
    "[role=banner]",
    "[role=contentinfo]",
    "[role=search]",
    "[aria-hidden=true]",
]
_TITLE = re.compile(r"<title[^>]*>([^<]*)</title>", re.IGNORECASE)
_CHARSET = re.compile(rb"<meta[^>]{1,200}?charset\s*=\s*[\"']?([\w-]+)", re.IGNORECASE)


def parse_html(content: bytes, *, key: str) -> Document:
    """The document; `text` is the content as Markdown, the title is <title>, else the first h1."""
    source = _decode(content, key)
    text = to_markdown(mark_frame(source), key=key)
    match = _TITLE.search(source)
    title = " ".join(unescape(match[1]).split()) if match else ""
    return Document(
        key=key,
        text=text,
        title=title or first_title(markdown_blocks(text)),
        media_type="html",
    )


def _decode(content: bytes, key: str) -> str:
    """The declared encoding where there is one and it fits, else as any text."""
    declared = _CHARSET.search(content[:4096])
    if declared and not content.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        try:
            return content.decode(declared[1].decode("ascii"))
        except (LookupError, UnicodeDecodeError):
            pass
    return decode(content, key=key)


def to_markdown(source: str, *, key: str) -> str:
    """HTML as Markdown: no navigation, control of a form, script, style, comment or marked frame.

    Embedded images are left out but for their description; drawings (svg) with their labels.
    """
    options = ConversionOptions(
        extract_metadata=False,
        exclude_selectors=_LEFT_OUT,
        inline_data_media=InlineDataMedia.ALT_TEXT_ONLY,
        # Forms are layout too: each page of ASP.NET Web Forms is one.
        preprocessing=PreprocessingOptions(
            enabled=True, preset="minimal", remove_forms=False, remove_navigation=False
        ),
    )
    try:
        result = convert(source, options)
    except (RuntimeError, ValueError) as exc:
        raise DocumentError(
            f"{key} cannot be read as HTML ({exc}); check the file.", reason="unreadable"
        ) from exc
    return result.content or ""
