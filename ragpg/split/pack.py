"""Packing the blocks of one section into spans of at most `limit` tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ragpg.blocks import Block, table_header, table_rows
from ragpg.split.cut import BREAKS, PROSE, pieces
from ragpg.tokens import TokenMap, count_tokens
from ragpg.types import Span

_LEAD_IN_TOKENS = 60  # a longer paragraph says something by itself

_header_tokens = lru_cache(maxsize=64)(count_tokens)


@dataclass(slots=True)
class _Draft:
    """The span being filled; what stands from `loose` on only introduces what follows."""

    start: int
    stop: int
    loose: int
    header: str = ""

    @property
    def firm(self) -> bool:
        return self.loose > self.start


class Packer:
    """Fills spans with the touching blocks of one section; every block lands in some span.

    A heading, a rule, a comment, and a short paragraph that ends in a colon or dots or stands
    before a table, go with the block after them. A block that fits stays whole; a longer one is
    opened into its rows, items or inner blocks, and cut only where it has none.
    """

    def __init__(
        self, text: str, tokens: TokenMap, *, path: tuple[str, ...], limit: int, overlap: int
    ) -> None:
        self._text, self._tokens, self._path = text, tokens, path
        self._limit, self._overlap = limit, overlap
        self._spans: list[Span] = []
        self._draft: _Draft | None = None
        self._goal = limit
        self._end = 0

    def pack(self, blocks: Sequence[Block]) -> list[Span]:
        """The spans of these blocks, covering them, of similar size where blocks allow it."""
        self._end = blocks[-1].stop
        queue = deque(blocks)
        while queue:
            block = queue.popleft()
            draft = self._draft
            if draft is not None and draft.firm and self._is_full(draft):
                self._close(draft)
            if self._extend(block, before_table=bool(queue) and queue[0].kind == "table"):
                continue
            if self._draft is not None and self._makes_way(self._draft, block):
                self._close(self._draft)
                queue.appendleft(block)
            elif block.children or block.kind == "table":
                queue.extendleft(reversed(self._inner(block)))
            else:
                self._place_long(block)
        if self._draft is not None:
            self._emit(self._draft, self._draft.stop)
        return self._spans

    def _used(self, draft: _Draft, stop: int) -> int:
        return _header_tokens(draft.header) + self._tokens.count(draft.start, stop)

    def _is_full(self, draft: _Draft) -> bool:
        """Whether the span has its share of the section, and the rest would not fit as well."""
        return (
            self._used(draft, draft.stop) >= self._goal
            and self._used(draft, self._end) > self._limit
        )

    def _alone(self, block: Block) -> int:
        return _header_tokens(block.header) + self._tokens.count(block.start, block.stop)

    def _extend(self, block: Block, *, before_table: bool = False) -> bool:
        """Put the block into the open span, or a new one where none is open, if it fits."""
        draft = self._draft
        used = self._alone(block) if draft is None else self._used(draft, block.stop)
        if used > self._limit:
            return False
        if draft is None:
            draft = self._draft = self._begin(block.start, block.header)
        draft.stop = block.stop
        if not self._introduces(block, before_table=before_table):
            draft.loose = block.stop
        return True

    def _introduces(self, block: Block, *, before_table: bool) -> bool:
        size = self._tokens.count(block.start, block.stop)
        if block.kind == "heading" or block.faint or size == 0:
            return True
        if block.kind != "paragraph" or size > _LEAD_IN_TOKENS:
            return False
        words = self._text[block.start : block.stop].rstrip(" \t\r\n*_")
        return before_table or words.endswith((":", "：", "...", "…"))

    def _makes_way(self, draft: _Draft, block: Block) -> bool:
        """Whether the open span closes before a block that does not fit into it."""
        if not draft.firm:
            return False
        return (
            self._alone(block) <= self._limit
            or self._used(draft, draft.stop) > self._limit // 2
            or bool(block.header)
        )

    def _inner(self, block: Block) -> Sequence[Block]:
        if block.kind != "table":
            return block.children
        header = _header_tokens(table_header(self._text, block))
        return table_rows(self._text, block, repeat_header=header <= self._limit // 2)

    def _place_long(self, block: Block) -> None:
        """Cut a block that does not fit behind the open span's heading, or in any span."""
        draft = self._draft
        used = 0 if draft is None else self._used(draft, block.start)
        if draft is not None and (
            used > self._limit * 3 // 4 or (block.kind == "fence" and self._fits(block))
        ):
            self._emit(draft, draft.stop)
            draft, used = None, 0
            if self._extend(block):
                return
        if draft is None:
            draft = self._draft = self._begin(block.start, block.header)
        room = self._limit - _header_tokens(draft.header)
        ranges = pieces(
            self._text,
            self._tokens,
            block.start,
            block.stop,
            limit=room,
            first=room - used,
            overlap=self._overlap if block.kind == "paragraph" else 0,
            breaks=BREAKS.get(block.kind, PROSE),
        )
        for number, (start, stop) in enumerate(ranges):
            if number:
                self._emit(draft, draft.stop)
                draft = self._draft = self._begin(start, block.header)
            draft.stop = draft.loose = stop

    def _fits(self, block: Block) -> bool:
        return self._alone(block) <= self._limit

    def _begin(self, start: int, header: str) -> _Draft:
        left = self._tokens.count(start, self._end)
        spans = max(1, -(-left // self._limit))
        self._goal = -(-left // spans)
        return _Draft(start=start, stop=start, loose=start, header=header)

    def _close(self, draft: _Draft) -> None:
        """Emit the firm part of the open span; what only introduces opens the next one."""
        self._emit(draft, draft.loose)
        if draft.loose < draft.stop:
            self._draft = self._begin(draft.loose, "")
            self._draft.stop = draft.stop

    def _emit(self, draft: _Draft, stop: int) -> None:
        """Make a span of it, or lengthen the one before, if that holds what only introduces."""
        self._draft = None
        if self._spans and (not draft.firm or self._tokens.count(draft.start, stop) == 0):
            last = self._spans[-1]
            joined = _header_tokens(last.table_header) + self._tokens.count(last.start, stop)
            if joined <= self._limit:
                self._spans[-1] = replace(last, stop=stop)
                return
        self._spans.append(
            Span(start=draft.start, stop=stop, section_path=self._path, table_header=draft.header)
        )
