"""The vendor stub, retries without waiting, and hits and documents made by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import stamina

from ragpg.providers import limiter
from tests.vendor_stub import VendorStub


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[VendorStub]:
    """All three vendors on a port of their own, reached past any proxy of the machine."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    with VendorStub() as server:
        yield server


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """Retries follow at once; what they would have waited is in the log record's `wait_s`."""
    with stamina.set_testing(True, attempts=60, cap=True):
        yield


@pytest.fixture(autouse=True)
def limiters(monkeypatch: pytest.MonkeyPatch) -> limiter.Limiters:
    """Limiters of this test alone; their clock stands still but for what they sleep."""
    seconds = [0.0]

    async def sleep(wait_s: float) -> None:
        seconds[0] += wait_s

    fresh = limiter.Limiters(clock=lambda: seconds[0], sleep=sleep)
    monkeypatch.setattr(limiter, "LIMITERS", fresh)
    return fresh
