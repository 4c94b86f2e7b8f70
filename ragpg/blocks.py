"""The blocks of a text with their character ranges: what parsing and splitting both look at.

Sibling blocks touch: each ends where the next one starts, so blank lines belong to the block
before them and no character lies between two blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block import table as gfm_table
from markdown_it.token import Token

from ragpg.tokens import is_blank

Kind = Literal[
    "heading", "paragraph", "fence", "table", "row", "list", "item", "quote", "html", "rule"
]

_KINDS: dict[str, Kind] = {
    "heading_open": "heading",
    "paragraph_open": "paragraph",
    "fence": "fence",
    "code_block": "fence",
    "table_open": "table",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "list_item_open": "item",
    "blockquote_open": "quote",
    "html_block": "html",
    "hr": "rule",
}
# Block structure shows at the start of a line. A longer one is cut before it reaches the parser,
# whose paragraph rules look at every line once per enclosing block.
_LINE_MAX = 10_000
_TITLE_MAX = 200
_LINE_END = re.compile(r"\r\n?|\n")
_BLANK_LINES = re.compile(r"(?>\r\n|\r|\n)(?:[^\S\r\n]*+(?>\r\n|\r|\n))++")
_COMMENTS = re.compile(r"\s*(?:<!--(?:(?!-->).)*-->\s*)+", re.DOTALL)
_LABEL = re.compile(r"\s*\([\w-]+\)=\s*")  # names the heading below it, for MyST
_MARKUP = re.compile(r"[\\`*_\[\]<>&!{}~]")
# A part of code goes on behind a blank line with what closes it, or with a further branch of it.
_ENDS_PART = re.compile(r"[)\]}]|(?:end|else|elif|except|finally|catch)\b", re.IGNORECASE)
_DOLLAR_QUOTE = re.compile(r"\$(?:[A-Za-z_]\w*)?\$")
_INDENT = re.compile(r"[ \t]*")
_NESTING_MAX = 8
_HEADING_ID = re.compile(r"\s*\{\s*[#.][^{}]*\}\s*$")


def _table(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:  # noqa: FBT001
    """Whether a GFM table starts here, as markdown-it says; its rows make no tokens.

    With three tokens a cell, 300,000 rows of two cells took 20 s and 1 GB.
    """
    if not gfm_table(state, start_line, end_line, silent=True):
        return False
    if silent:
        return True
    rules = state.md.block.ruler.getRules("blockquote")
    outer, state.parentType = state.parentType, "table"
    line = start_line + 2
    while (
        line < end_line
        and state.sCount[line] >= state.blkIndent
        and not state.isEmpty(line)
        and not state.is_code_block(line)
        and not any(rule(state, line, end_line, True) for rule in rules)  # noqa: FBT003
    ):
        line += 1
    state.push("table_open", "table", 1).map = [start_line, line]
    state.push("table_close", "table", -1)
    state.parentType = outer
    state.line = line
    return True


_BLOCKS = MarkdownIt("commonmark").enable("table").disable("inline")
_BLOCKS.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
_INLINE = MarkdownIt("commonmark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block `text[start:stop]`; `children` are the blocks that it consists of.

    `level` and `title` are a heading's. `header` is the header and delimiter row of the table
    that a row continues. `faint` blocks (rules, comments, labels) say nothing alone. `rows`, of a
    table that is no Markdown, are the offsets of its rows; what stands before them is its header.
    """

    kind: Kind
    start: int
    stop: int
    level: int = 0
    title: str = ""
    children: tuple[Block, ...] = ()
    header: str = ""
    faint: bool = False
    rows: tuple[int, ...] = ()


@dataclass(slots=True)
class _Open:
    """A block under construction, from a parser's token."""

    token: Token
    children: list[_Open]
    title: str = ""


def line_starts(text: str, start: int = 0, stop: int | None = None) -> list[int]:
    """The offsets at which the lines of text[start:stop] begin, in order."""
    end = len(text) if stop is None else stop
    starts = [start, *(match.end() for match in _LINE_END.finditer(text, start, end))]
    if len(starts) > 1 and starts[-1] == end:
        starts.pop()
    return starts


@lru_cache(maxsize=2)
def markdown_blocks(text: str) -> tuple[Block, ...]:
    """The CommonMark blocks (and GFM tables) of `text`, touching, from 0 to its end.

    Linear; about a second for a megabyte of short paragraphs. The last two texts are kept,
    because reading a document, checking it and splitting it each need its blocks.
    """
    starts = line_starts(text)
    stops = [*starts[1:], len(text)]
    lines = (
        text[start : min(stop, start + _LINE_MAX)].rstrip("\r\n")
        for start, stop in zip(starts, stops, strict=True)
    )
    roots = _tree(_BLOCKS.parse("\n".join(lines)))
    starts.append(len(text))
    blocks = _siblings(text, roots, starts, 0, len(text))
    return tuple(_with_definitions(text, blocks, roots, starts))


def _tree(tokens: Sequence[Token]) -> list[_Open]:
    roots: list[_Open] = []
    stack: list[_Open] = []
    for token in tokens:
        if token.type == "inline" and stack and stack[-1].token.type == "heading_open":
            stack[-1].title = heading_title(token.content)
        if token.type in _KINDS and token.map is not None:
            block = _Open(token, [])
            (stack[-1].children if stack else roots).append(block)
            if token.nesting == 1:
                stack.append(block)
        elif token.nesting == -1 and token.type.removesuffix("_close") + "_open" in _KINDS:
            stack.pop()
    return roots


def heading_title(content: str) -> str:
    """A heading's words without markup, attributes and line ends."""
    if not _MARKUP.search(content):
        return " ".join(content.split())[:_TITLE_MAX].rstrip()
    (inline,) = _INLINE.parseInline(content[: 2 * _TITLE_MAX])
    words = (
        " " if child.type in {"softbreak", "hardbreak"} else child.content
        for child in inline.children or []
        if child.type != "html_inline"
    )
    title = _HEADING_ID.sub("", " ".join("".join(words).split()))
    return title[:_TITLE_MAX].rstrip()


def _siblings(
    text: str, opened: Sequence[_Open], starts: Sequence[int], start: int, stop: int
) -> list[Block]:
    """Blocks of one parent's children, stretched so that they touch and fill [start, stop)."""
    if not opened:
        return [Block(kind="paragraph", start=start, stop=stop)] if start < stop else []
    edges = [start, *(starts[(block.token.map or [0])[0]] for block in opened[1:]), stop]
    return [
        _block(text, block, starts, begin, end)
        for block, begin, end in zip(opened, edges[:-1], edges[1:], strict=True)
    ]


def _block(text: str, opened: _Open, starts: Sequence[int], start: int, stop: int) -> Block:
    kind = _KINDS[opened.token.type]
    level = int(opened.token.tag[1]) if kind == "heading" else 0
    pattern = {"html": _COMMENTS, "paragraph": _LABEL}.get(kind)
    faint = kind == "rule" or (
        pattern is not None and pattern.fullmatch(text, start, stop) is not None
    )
    block = Block(kind=kind, start=start, stop=stop, level=level, title=opened.title, faint=faint)
    if opened.children:
        return replace(block, children=tuple(_siblings(text, opened.children, starts, start, stop)))
    return block


def _with_definitions(
    text: str, blocks: Sequence[Block], roots: Sequence[_Open], starts: Sequence[int]
) -> Iterator[Block]:
    """The blocks, with the lines that no block covers (link definitions) as paragraphs."""
    if not roots:
        yield from blocks
        return
    for block, opened in zip(blocks, roots, strict=True):
        first, last = opened.token.map or [0, 0]
        lead, tail = min(starts[first], block.stop), min(starts[last], block.stop)
        begin = block.start
        if not is_blank(text[begin:lead]):
            yield Block(kind="paragraph", start=begin, stop=lead)
            begin = lead
        if is_blank(text[tail : block.stop]):
            yield _clipped(block, begin, block.stop)
        else:
            yield _clipped(block, begin, tail)
            yield Block(kind="paragraph", start=tail, stop=block.stop)


def _clipped(block: Block, start: int, stop: int) -> Block:
    """The block as [start, stop), its outer children with it."""
    if block.start == start and block.stop == stop:
        return block
    children = list(block.children)
    if children:
        children[0] = _clipped(children[0], start, children[0].stop)
        children[-1] = _clipped(children[-1], children[-1].start, stop)
    return replace(block, start=start, stop=stop, children=tuple(children))


def table_rows(text: str, table: Block, *, repeat_header: bool) -> list[Block]:
    """A table's rows as blocks; the first holds header, delimiter and the first row."""
    if table.rows:
        rows: Sequence[int] = table.rows
    else:
        starts = [*line_starts(text, table.start, table.stop), table.stop]
        lines = [start for start, stop in pairwise(starts) if not is_blank(text[start:stop])]
        rows = lines[2:]
    edges = [table.start, *rows[1:], table.stop]
    header = text[table.start : rows[0]] if repeat_header and rows else ""
    return [
        Block(kind="row", start=start, stop=stop, header=header if start > table.start else "")
        for start, stop in pairwise(edges)
    ]


def table_header(text: str, table: Block) -> str:
    """The header and delimiter row of a table, as they stand."""
    if table.rows:
        return text[table.start : table.rows[0]]
    starts = [*line_starts(text, table.start, table.stop), table.stop, table.stop]
    return text[table.start : starts[2]]


def text_blocks(text: str, *, code: bool, dollar_quotes: bool = False) -> list[Block]:
    """Blocks of plain text, parted by blank lines; of code, parts that begin in column 0.

    A part of code that holds blank lines has children by the same rule, one indentation further in:
    a class its methods, a method its paragraphs. `dollar_quotes` says that text between two `$$` or
    `$tag$` belongs together, as in SQL.
    """
    edges = [0, *(match.end() for match in _BLANK_LINES.finditer(text)), len(text)]
    kind: Kind = "fence" if code else "paragraph"
    pieces = [
        Block(kind=kind, start=start, stop=stop) for start, stop in pairwise(edges) if start < stop
    ]
    return _nested(text, pieces, _NESTING_MAX, dollar_quotes=dollar_quotes) if code else pieces


def _nested(text: str, pieces: Sequence[Block], depth: int, *, dollar_quotes: bool) -> list[Block]:
    """Pieces of code as parts that begin at the least indentation among them, with children."""
    indents = [_indent(text, piece) for piece in pieces]
    ends = [
        _ENDS_PART.match(text, piece.start + indent) is not None
        for piece, indent in zip(pieces, indents, strict=True)
    ]
    least = min((one for one, end in zip(indents, ends, strict=True) if not end), default=0)
    groups: list[list[Block]] = []
    quoted = False
    for piece, indent, end in zip(pieces, indents, ends, strict=True):
        if groups and (quoted or end or indent > least):
            groups[-1].append(piece)
        else:
            groups.append([piece])
        if dollar_quotes and len(_DOLLAR_QUOTE.findall(text, piece.start, piece.stop)) % 2:
            quoted = not quoted
    parts = []
    for first, *inner in groups:
        children: tuple[Block, ...] = ()
        if inner and depth > 0:
            children = (first, *_nested(text, inner, depth - 1, dollar_quotes=False))
        elif inner:
            children = (first, *inner)
        stop = inner[-1].stop if inner else first.stop
        parts.append(Block(kind="fence", start=first.start, stop=stop, children=children))
    return parts


def _indent(text: str, piece: Block) -> int:
    """White space characters at the start of the piece's first line."""
    match = _INDENT.match(text, piece.start, piece.stop)
    return 0 if match is None else match.end() - piece.start


def has_words(text: str, blocks: Sequence[Block]) -> bool:
    """True where some block says something beyond headings, rules and comments."""
    return any(
        block.kind != "heading" and not block.faint and not is_blank(text[block.start : block.stop])
        for block in blocks
    )


def first_title(blocks: Sequence[Block]) -> str | None:
    """The first heading of level 1, or None."""
    return next((block.title for block in blocks if block.level == 1 and block.title), None)
