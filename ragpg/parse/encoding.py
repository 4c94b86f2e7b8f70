"""Bytes to text: by byte-order mark, as UTF-8, or as Windows-1252 where that is plausible."""

from __future__ import annotations

import codecs
import re
from typing import Final

from ragpg.errors import DocumentError

# UTF-32 first: its little-endian mark begins with UTF-16's.
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SAMPLE = 65_536
_FEW = 4
_CONTROLS = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_MULTIBYTE = re.compile(rb"[\xc3-\xf4][\x80-\xbf]")
_HIGH_RUN = re.compile(rb"[\x80-\xff]+")
# In Western text a letter with an accent stands between plain letters. Three or more in a row, or
# a symbol inside a word, are another alphabet or a multi-byte encoding read as this one.
_HIGH_LETTERS = re.compile(rb"[\xc0-\xff\x8a\x8c\x8e\x9a\x9c\x9e\x9f]{3,}")
_SYMBOL_IN_WORD = re.compile(
    rb"[A-Za-z\xc0-\xff][\xa1-\xa9\xac\xae-\xb1\xb3-\xb6\xb8\xb9\xbc-\xbf\x80-\x89\x8b\x95\x98\x99\x9b]"
    rb"[a-z\xc0-\xff]"
)
_APOSTROPHE: Final = b"\x92"


def decode(content: bytes, *, key: str) -> str:
    """The text of `content` without its byte-order mark; line ends and NULs are kept.

    Raises DocumentError with reason `binary` for content that is no text, and `encoding`, naming
    the place, for text that is neither marked nor UTF-8 and would turn to nonsense as
    Windows-1252. Central European Windows-1250 with letters alone cannot be told from it.
    """
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            try:
                return content[len(mark) :].decode(encoding)
            except UnicodeDecodeError as exc:
                raise _encoding_error(
                    key, f"begins with the mark of {encoding.upper()}", exc
                ) from exc
    _refuse_binary(content, key)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as exc:
        if not _plausible_cp1252(content):
            raise _encoding_error(key, "is read as UTF-8", exc) from exc
        return content.decode("cp1252")


def _encoding_error(key: str, what: str, exc: UnicodeDecodeError) -> DocumentError:
    found = exc.object[exc.start : exc.start + 1].hex()
    return DocumentError(
        f"{key} {what}, but byte 0x{found} at offset {exc.start} does not fit; "
        "save the file as UTF-8.",
        reason="encoding",
    )


def _refuse_binary(content: bytes, key: str) -> None:
    sample = content[:_SAMPLE]
    nuls = sample.count(0)
    if nuls > _FEW and nuls * 4 > len(sample):
        halves = (sample[0::2].count(0), sample[1::2].count(0))
        if min(halves) * 10 < max(halves) and not _CONTROLS.search(sample):
            raise DocumentError(
                f"{key} looks like UTF-16 without a byte-order mark; save the file as UTF-8.",
                reason="encoding",
            )
    controls = len(_CONTROLS.findall(sample))
    odd = nuls + controls
    # A few are common in real text (form feeds, NULs of a scanner's driver); a share is not.
    if (nuls > _FEW and nuls * 10 > len(sample)) or (
        controls > _FEW and controls * 20 > len(sample)
    ):
        raise DocumentError(
            f"{key} is not text: {odd} of its first {len(sample)} bytes are control characters; "
            "convert it to text, or leave it out.",
            reason="binary",
        )


def _plausible_cp1252(content: bytes) -> bool:
    try:
        content.decode("cp1252")
    except UnicodeDecodeError:
        return False
    if _HIGH_LETTERS.search(content) or _SYMBOL_IN_WORD.search(content.replace(_APOSTROPHE, b"'")):
        return False
    if _MULTIBYTE.search(content):
        return False  # broken UTF-8: as Windows-1252 its good characters would turn to nonsense
    runs = _HIGH_RUN.findall(content)
    double = sum(len(run) > 1 for run in runs)
    high = sum(map(len, runs))
    return double * 4 <= len(runs) + 3 and high * 3 <= len(content)
