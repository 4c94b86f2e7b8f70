"""What others wrote, as text that Postgres holds and a terminal prints."""

from __future__ import annotations


def storable_text(text: str) -> str:
    """The text without NUL, and with U+FFFD for each half of a surrogate pair that stands alone.

    Two halves that belong together become their character. JSON can say all of these, so a vendor's
    answer can hold them.
    """
    text = text.replace("\0", "")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
