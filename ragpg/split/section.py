"""Splitting along the document's own structure: headings, blocks, rows, lines, sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from ragpg.blocks import Block, has_words, markdown_blocks, text_blocks
from ragpg.csv_blocks import csv_blocks
from ragpg.split.fixed import check_sizes
from ragpg.split.pack import Packer
from ragpg.tokens import TokenMap
from ragpg.types import Document, Span

PROSE_SUFFIXES = frozenset({"", ".txt", ".text", ".rst", ".adoc"})
TABLE_SUFFIXES = frozenset({".csv", ".tsv"})


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands under it, up to the next heading, and the headings above it."""

    path: tuple[str, ...]
    blocks: tuple[Block, ...]


def document_blocks(document: Document) -> Sequence[Block]:
    """The touching blocks of the document's text, by its media type and its key's suffix."""
    if document.media_type != "text":
        return markdown_blocks(document.text)
    suffix = PurePosixPath(document.key).suffix.lower()
    if suffix in TABLE_SUFFIXES:
        return csv_blocks(document.text)
    return text_blocks(
        document.text, code=suffix not in PROSE_SUFFIXES, dollar_quotes=suffix == ".sql"
    )


def sections(text: str, blocks: Sequence[Block]) -> Iterator[Section]:
    """The sections in order. A heading without words under it goes with the next section."""
    path: list[tuple[int, str]] = []
    held: list[Block] = []
    worded = False
    for block in blocks:
        if block.kind == "heading":
            if worded:
                yield Section(tuple(title for _, title in path if title), tuple(held))
                held, worded = [], False
            while path and path[-1][0] >= block.level:
                path.pop()
            path.append((block.level, block.title))
        held.append(block)
        worded = worded or has_words(text, (block,))
    if held:
        yield Section(tuple(title for _, title in path if title), tuple(held))


def split_section(document: Document, *, max_tokens: int, overlap_tokens: int) -> list[Span]:
    """Spans along headings and blocks, in order, covering the text; `max_tokens` each at most.

    A section that is longer is packed block by block; overlap applies only inside a paragraph
    that must itself be cut. Neighbouring sections under a quarter of the limit are joined up to
    half of it, where they have one parent: the span's path is then the parent's.
    """
    check_sizes(max_tokens=max_tokens, overlap_tokens=overlap_tokens)
    text = document.text
    tokens = TokenMap(text)
    parts: list[list[Span]] = []
    for section in _with_wordless_end_joined(text, list(sections(text, document_blocks(document)))):
        packer = Packer(text, tokens, path=section.path, limit=max_tokens, overlap=overlap_tokens)
        parts.append(packer.pack(section.blocks))
    return list(_join_small(tokens, parts, max_tokens, titled=document.title is not None))


def _with_wordless_end_joined(text: str, parts: list[Section]) -> list[Section]:
    """The sections, where headings with nothing below them at the end go with the one before."""
    if len(parts) > 1 and not has_words(text, parts[-1].blocks):
        last, before = parts.pop(), parts.pop()
        parts.append(replace(before, blocks=before.blocks + last.blocks))
    return parts


def _join_small(
    tokens: TokenMap, parts: Sequence[Sequence[Span]], limit: int, *, titled: bool
) -> Iterator[Span]:
    """The spans in order, runs of small sections of one parent joined."""
    joined: Span | None = None
    merged = False
    for part in parts:
        span = part[0]
        small = len(part) == 1 and tokens.count(span.start, span.stop) < limit // 4
        if joined is not None:
            path = _shared_path(joined.section_path, span.section_path, merged=merged)
            if (
                small
                and path is not None
                and (path or titled)
                and tokens.count(joined.start, span.stop) <= limit // 2
            ):
                joined = replace(joined, stop=span.stop, section_path=path)
                merged = True
                continue
            yield joined
        joined, merged = (span, False) if small else (None, False)
        if not small:
            yield from part
    if joined is not None:
        yield joined


def _shared_path(
    first: tuple[str, ...], second: tuple[str, ...], *, merged: bool
) -> tuple[str, ...] | None:
    """The path that a span of two neighbouring sections has, or None if they are not close.

    Close are siblings, a parent and its child, and lines above the first heading with what
    follows. `merged` says that `first` is already the shared path of several sections.
    """
    if not first and not merged:
        return second
    depth = 0
    for mine, other in zip(first, second, strict=False):
        if mine != other:
            break
        depth += 1
    near = len(first) == depth if merged else len(first) - depth <= 1
    return first[:depth] if near and len(second) - depth <= 1 else None
