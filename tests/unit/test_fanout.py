from __future__ import annotations

from functools import partial

import anyio
import pytest

from ragpg.errors import InputError
from ragpg.fanout import fan_out, work_ahead
from ragpg.ingestion.tally import Tally

pytestmark = pytest.mark.anyio


async def numbers(stop: int, taken: list[int]):
    for number in range(stop):
        taken.append(number)
        yield number


async def test_results_come_in_the_order_of_the_calls():
    async def late(number: int) -> int:
        await anyio.sleep(0.01 * (3 - number))
        return number

    calls = [partial(late, number) for number in range(3)]
    assert await fan_out(calls, anyio.CapacityLimiter(3)) == [0, 1, 2]


async def test_two_items_are_in_work_at_once_and_no_more_than_one_is_taken_ahead():
    taken: list[int] = []
    working, most, ahead = 0, 0, 0
    done: list[int] = []

    async def work(number: int) -> None:
        nonlocal working, most, ahead
        working += 1
        most = max(most, working)
        await anyio.sleep(0.01)
        ahead = max(ahead, len(taken) - len(done))
        done.append(number)
        working -= 1

    await work_ahead(numbers(6, taken), work, 2)
    assert sorted(done) == [0, 1, 2, 3, 4, 5]
    assert (most, ahead) == (2, 3)


async def test_after_an_error_no_item_is_begun_and_those_in_work_end():
    begun: list[int] = []
    ended: list[int] = []

    async def work(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise InputError("item 1 is bad; leave it out")
        await anyio.sleep(0.02)
        ended.append(number)

    with pytest.raises(InputError, match="item 1 is bad"):
        await work_ahead(numbers(100, []), work, 2)
    assert begun == [0, 1]
    assert ended == [0]


async def test_what_the_items_themselves_raise_comes_through_after_the_work():
    ended: list[int] = []

    async def items():
        yield 1
        await anyio.sleep(0.01)
        raise ZeroDivisionError

    async def work(number: int) -> None:
        await anyio.sleep(0.05)
        ended.append(number)

    with pytest.raises(ZeroDivisionError):
        await work_ahead(items(), work, 2)
    assert ended == [1]


async def test_a_cancelled_call_does_not_wait_for_the_work():
    ended: list[int] = []

    async def work(number: int) -> None:
        await anyio.sleep(60)
        ended.append(number)

    with anyio.move_on_after(0.05) as scope:
        await work_ahead(numbers(5, []), work, 2)
    assert scope.cancelled_caught
    assert ended == []


async def test_a_report_names_documents_as_they_were_given_whichever_group_was_done_first():
    tally = Tally(seen={"a": 0, "b": 1, "c": 2, "d": 3})
    tally.unchanged += ["c", "d", "a"]
    tally.waiting += ["d", "b"]
    report = tally.report()
    assert (report.unchanged, report.waiting) == (("a", "c", "d"), ("b", "d"))
