from __future__ import annotations

import datetime as dt

import anyio
import pytest
import stamina

from ragpg.errors import (
    InputError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
)
from ragpg.fanout import fan_out
from ragpg.providers.failures import Vendor, failed, retry_after_s
from ragpg.providers.retry import Retry

pytestmark = pytest.mark.anyio

VENDOR = Vendor(provider="voyage", model="voyage-4", key_variable="VOYAGE_API_KEY", api_key="s3cr")
NOON = dt.datetime(2026, 11, 30, 12, 0, tzinfo=dt.UTC)


def retry(**changes: float) -> Retry:
    return Retry(vendor=VENDOR, **{"timeout_s": 5.0, "deadline_s": 300.0, **changes})


def failing(*errors: Exception):
    """An attempt that raises these, one a call, and then returns the number of its call."""
    calls: list[None] = []

    async def attempt() -> int:
        calls.append(None)
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]
        return len(calls)

    return attempt, calls


async def test_a_wait_of_an_hour_is_capped_at_a_minute(caplog):
    attempt, _ = failing(failed(VENDOR, 429, "slow", headers={"Retry-After": "3600"}))
    assert await retry()(attempt) == 2
    (record,) = [each for each in caplog.records if hasattr(each, "wait_s")]
    assert record.name == "ragpg"
    assert 60 <= record.wait_s <= 61
    assert record.getMessage().startswith(
        "voyage voyage-4: RateLimited (status 429) at attempt 1, next in 6"
    )


async def test_waits_without_a_wish_of_the_vendor_double_up_to_a_minute(caplog):
    attempt, _ = failing(*[failed(VENDOR, 503, "down")] * 8)
    assert await retry(deadline_s=1_000)(attempt) == 9
    waits = [record.wait_s for record in caplog.records if record.name == "ragpg"]
    for wait, least in zip(waits, [1, 2, 4, 8, 16, 32, 60, 60], strict=True):
        assert least <= wait <= 1.25 * least


async def test_a_refusal_is_raised_at_once():
    attempt, calls = failing(failed(VENDOR, 400, "bad"))
    with pytest.raises(ProviderRejected):
        await retry()(attempt)
    assert len(calls) == 1


async def test_an_error_of_the_caller_is_raised_as_it_is():
    attempt, calls = failing(InputError("bad"))
    with pytest.raises(InputError):
        await retry()(attempt)
    assert len(calls) == 1


async def test_no_wait_is_begun_that_would_outlast_the_deadline():
    attempt, calls = failing(failed(VENDOR, 429, "slow", headers={"retry-after": "30"}))
    with pytest.raises(RateLimited):
        await retry(deadline_s=20)(attempt)
    assert len(calls) == 1


async def test_waiting_is_real_outside_of_testing():
    attempt, _ = failing(failed(VENDOR, 429, "slow", headers={"retry-after-ms": "20"}))
    with stamina.set_testing(False):
        began = anyio.current_time()
        assert await retry()(attempt) == 2
        assert anyio.current_time() - began >= 0.02


async def test_an_attempt_that_hangs_is_cut_off():
    with pytest.raises(ProviderTimeout, match=r"did not answer within 0\.02 s"):
        await retry(timeout_s=0.02, deadline_s=0.03)(anyio.sleep_forever)


async def test_neither_message_nor_repr_nor_log_holds_the_key(caplog):
    error = failed(VENDOR, 503, "the key s3cr is overloaded")
    attempt, _ = failing(error)
    await retry()(attempt)
    assert str(error) == (
        "voyage voyage-4 answered 503: the key [key] is overloaded; try again later"
    )
    assert "s3cr" not in repr(VENDOR) + caplog.text


def test_a_page_of_a_proxy_is_cut_to_one_line():
    error = failed(VENDOR, 502, "<html>\n" + "x" * 10_000)
    assert len(str(error)) < 500
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:07 GMT"}, 7.0),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_what_a_vendor_asks_to_wait_is_read_from_seconds_milliseconds_or_a_date(headers, seconds):
    assert retry_after_s(headers, now=NOON) == seconds


async def test_after_a_failure_no_call_begins_those_in_flight_end_and_it_comes_unwrapped():
    ended = []
    failed_already = anyio.Event()

    async def paid(place: int) -> None:
        await failed_already.wait()
        ended.append(place)

    async def fail() -> None:
        failed_already.set()
        raise failed(VENDOR, 503, "down")

    calls = [lambda: paid(0), lambda: paid(1), fail, lambda: paid(3), lambda: paid(4)]
    with pytest.raises(ProviderUnavailable):
        await fan_out(calls, anyio.CapacityLimiter(3))
    assert ended == [0, 1]
