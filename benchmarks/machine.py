"""What a benchmark's figures were measured on."""

from __future__ import annotations

import datetime as dt
import os
import platform
from typing import Any


def machine() -> dict[str, Any]:
    """Processors, memory, versions, and how busy the machine was at the end of the run."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {pages * size // 1024**3} GiB",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[1], 1),
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
    }
