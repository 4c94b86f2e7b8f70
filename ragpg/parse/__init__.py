"""Files and bytes to documents; each error is a DocumentError that names the document.

`parse_file` and `parse_bytes` check and return what they read as it stands, with NULs still in
it: the caller passes each document, its own or a parsed one, through `clean` and reports the
count that comes back.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Final

from ragpg.errors import DocumentError, InputError
from ragpg.inputs import without_middle
from ragpg.parse.check import can_be_stored, check_key
from ragpg.parse.clean import clean
from ragpg.parse.files import (
    UNSUPPORTED,
    FoundFiles,
    SourceFile,
    as_path,
    find_files,
    media_type_of,
)
from ragpg.parse.pages import notices
from ragpg.types import Document, MediaType

__all__ = [
    "FoundFiles",
    "SourceFile",
    "as_path",
    "can_be_stored",
    "check_key",
    "clean",
    "find_files",
    "notices",
    "parse_bytes",
    "parse_file",
]

MAX_BYTES: Final = 100_000_000


def parse_file(path: Path, *, key: str) -> Document:
    """The document in the file; `modified_at` is the file's where the document names none.

    Raises DocumentError as `parse_bytes` does, and with reason `unreadable` when the file cannot
    be read.
    """
    try:
        status = path.stat()
        _check_size(status.st_size, key)
        # A pipe or a device has a size of 0 and may never end.
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise DocumentError(
            f"{without_middle(key)} cannot be read from {without_middle(path)} ({exc.strerror});"
            " check the path and its rights.",
            reason="unreadable",
        ) from exc
    document = parse_bytes(content, key=key, media_type=media_type_of(path.name))
    if document.modified_at is not None:
        return document
    return replace(document, modified_at=dt.datetime.fromtimestamp(status.st_mtime, tz=dt.UTC))


def parse_bytes(content: bytes, *, key: str, media_type: MediaType | None = None) -> Document:
    """The document in `content`, read as `media_type`, else by the key's suffix, else by its start.

    Raises DocumentError with a reason: `no_text`, `binary`, `encoding`, `unsupported` (a
    format that is not read), `unreadable` (broken, encrypted, bad metadata), `front_matter` (no
    valid YAML or TOML), `too_large` (more than 100 MB). Raises InputError for what are no bytes.
    """
    if not isinstance(content, bytes):
        raise InputError(
            f"the content of {key} is of type {type(content).__name__}; give bytes, or make a"
            " ragpg.Document of a text"
        )
    _check_size(len(content), key)
    if not content:
        raise DocumentError(f"{key} is empty; add text, or leave it out.", reason="no_text")
    parse = _parser(media_type or media_type_of(key) or _sniff(content, key))
    document = parse(content, key=key)
    clean(document)
    return document


def _parser(media_type: MediaType) -> Callable[..., Document]:
    """`parse_<media type>` of the module of that name, loaded when it is first needed.

    PDFium and mammoth take a quarter of a second to import, and most folders need neither.
    """
    module = import_module(f"ragpg.parse.{media_type}")
    parse: Callable[..., Document] = getattr(module, f"parse_{media_type}")
    return parse


def _check_size(size: int, key: str) -> None:
    if size > MAX_BYTES:
        raise DocumentError(
            f"{key} has at least {size} bytes, more than {MAX_BYTES}; split it.", reason="too_large"
        )


def _sniff(content: bytes, key: str) -> MediaType:
    """What the first bytes say; Markdown for any text, which plain text is as well."""
    head = content[:1024].lstrip().lower()
    if head.startswith(b"%pdf-"):
        return "pdf"
    if head.startswith(b"pk\x03\x04") and b"word/" in content:
        return "docx"
    if head.startswith((b"<!doctype html", b"<html")):
        return "html"
    suffix = PurePosixPath(key).suffix.lower()
    if suffix in UNSUPPORTED:
        raise DocumentError(
            f"{key} is of a kind that ragpg does not read ({suffix}); convert it to Markdown, "
            "text, HTML, PDF or DOCX, or say its media type.",
            reason="unsupported",
        )
    return "markdown"
