"""A CSV or TSV text as one table, whose rows may go on over line ends within quotes."""

from __future__ import annotations

import re
from itertools import pairwise

from ragpg.blocks import Block
from ragpg.tokens import is_blank

# A quote opens a cell only where a cell begins: 5" is five inches. Possessive, so that a quote that
# is never closed is looked at once.
_RECORD = re.compile(
    r"""(?:(?<![^,;\t|\r\n])"(?:[^"]|"")*+"|[^\r\n])*+(?:\r\n?|\n|\Z)""",
)
_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"[-+]?[$€£]?\d[\d.,:/%-]*")


def csv_blocks(text: str) -> list[Block]:
    """All of the text as one table; its first record is the header if it holds no number."""
    starts = [0, *(match.end() for match in _RECORD.finditer(text) if match.end() < len(text))]
    rows = [
        start
        for start, stop in pairwise([*dict.fromkeys(starts), len(text)])
        if not is_blank(text[start:stop])
    ]
    if not rows:
        return [Block(kind="paragraph", start=0, stop=len(text))] if text else []
    if len(rows) > 1 and _names_columns(text[rows[0] : rows[1]]):
        del rows[0]
    return [Block(kind="table", start=0, stop=len(text), rows=tuple(rows))]


def _names_columns(record: str) -> bool:
    delimiter = max(_DELIMITERS, key=record.count)
    cells = [cell.strip().strip('"').strip() for cell in record.split(delimiter)]
    return any(cells) and not any(_NUMBER.fullmatch(cell) for cell in cells)
