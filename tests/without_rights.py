"""A folder that this process cannot read, also where the tests run as root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65_534


@contextmanager
def without_rights(folder: Path, *, mode: int = 0) -> Iterator[None]:
    """Nobody has more rights to `folder` than `mode`; root becomes another user meanwhile."""
    before = folder.stat().st_mode
    is_root = os.geteuid() == 0
    opened: list[tuple[Path, int]] = []
    if is_root:
        # pytest's folders are its user's alone.
        for above in folder.parents:
            rights = above.stat().st_mode
            if rights & 0o005 != 0o005:
                opened.append((above, rights))
                above.chmod(rights | 0o055)
    folder.chmod(mode)
    try:
        if is_root:
            os.seteuid(NOBODY)
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(before)
        for above, rights in opened:
            above.chmod(rights)
