"""The limiter: a shared pace that halves on a 429, keeps everybody waiting, and grows back."""

from __future__ import annotations

import anyio
import pytest

from ragpg.composition import Given, Providers
from ragpg.errors import ConfigurationError, RateLimited
from ragpg.providers.claude import ClaudeContextWriter
from ragpg.providers.failures import Vendor, failed
from ragpg.providers.limiter import Limiter, Limiters, Turn
from ragpg.providers.prices import RateLimits, rate_limits
from ragpg.providers.retry import Retry
from ragpg.settings import Settings
from ragpg.types import Recipe, WrittenContext
from tests.providers.making import cut, document
from tests.vendor_stub import Reply, VendorStub
from tests.vendor_stub_rules import claude_error

pytestmark = pytest.mark.anyio


class Clock:
    """Seconds that pass only while somebody sleeps; `slept` are the waits in order."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def limiter(clock: Clock, *, requests: float = 60, tokens: float = 1_000, most: float = 8):
    start = RateLimits(requests=requests, tokens=tokens)
    return Limiter("voyage voyage-4", start, most=most, clock=clock, sleep=clock.sleep)


async def begin(paced: Limiter, calls: int = 1, *, tokens: float = 0) -> Turn:
    for _ in range(calls):
        turn = await paced.turn(patience_s=600, tokens=tokens)
    return turn


async def test_a_minutes_requests_pass_at_once_and_the_next_one_waits_its_share():
    clock = Clock()
    paced = limiter(clock, requests=60)
    await begin(paced, 60)
    assert clock.slept == []
    await begin(paced, 2)
    assert clock.now_s == pytest.approx(2.0)


async def test_tokens_beyond_an_estimate_are_charged_when_they_are_known_and_waited_off():
    clock = Clock()
    paced = limiter(clock, tokens=1_000)
    paced.succeeded(await begin(paced), 1_500)
    await begin(paced)
    assert clock.now_s == pytest.approx(30.0)


async def test_a_call_is_charged_its_estimate_before_it_begins_and_gets_back_what_it_did_not_use():
    clock = Clock()
    paced = limiter(clock, tokens=1_000)
    first = await begin(paced, tokens=800)
    # The first is in flight still, so the second waits for 400 to flow into the bucket of 200.
    second = await begin(paced, tokens=600)
    assert clock.now_s == pytest.approx(24.0)
    paced.succeeded(first, 300)
    paced.refused(second)
    await begin(paced, tokens=1_000)
    assert clock.now_s == pytest.approx(24.0)


async def test_a_429_halves_both_limits_once_for_all_calls_that_were_in_flight(caplog):
    clock = Clock()
    paced = limiter(clock, requests=64, tokens=1_000)
    calls = [await begin(paced) for _ in range(3)]
    clock.now_s = 5.0
    for turn in calls:
        paced.limited(turn, 0.0)
    assert paced.limits == RateLimits(requests=32, tokens=500)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "voyage voyage-4: 32 requests and 500 tokens a minute because of a 429, before 64 and 1000"
    )
    paced.limited(await begin(paced), 0.0)
    assert paced.limits == RateLimits(requests=16, tokens=250)


async def test_after_a_429_every_call_waits_and_then_they_come_back_one_by_one():
    clock = Clock()
    paced = limiter(clock, requests=60)
    paced.limited(await begin(paced), 20.0)
    assert (await begin(paced)).at == pytest.approx(22.0)
    assert (await begin(paced)).at == pytest.approx(24.0)


async def test_a_limit_is_never_under_one_a_minute():
    clock = Clock()
    paced = limiter(clock, requests=3, tokens=10)
    for _ in range(10):
        clock.now_s += 1.0
        paced.limited(Turn(clock.now_s, 0), 0.0)
    assert paced.limits == RateLimits(requests=1, tokens=1)


async def test_each_minute_of_success_gives_a_tenth_of_the_start_back(caplog):
    clock = Clock()
    paced = limiter(clock, requests=100, tokens=1_000)
    paced.limited(await begin(paced), 30.0)
    caplog.clear()
    seen = []
    for clock.now_s in (89.0, 90.0, 100.0, 150.0, 210.0, 270.0, 330.0, 390.0):
        paced.succeeded(Turn(0, 0), 0)
        seen.append(round(paced.limits.requests))
    # Full again at 100; beyond the start only where calls had to wait.
    assert seen == [50, 60, 60, 70, 80, 90, 100, 100]
    assert len(caplog.records) == 5


async def test_documented_limits_that_hold_calls_back_grow_and_configured_ones_do_not():
    for most, expected in ((8.0, 66), (1.0, 60)):
        clock = Clock()
        paced = limiter(clock, requests=60, most=most)
        turn = await begin(paced, 61)
        clock.now_s += 60.0
        paced.succeeded(turn, 0)
        assert paced.limits.requests == pytest.approx(expected)


async def test_a_call_that_cannot_wait_that_long_is_told_at_once():
    clock = Clock()
    paced = limiter(clock)
    paced.limited(await begin(paced), 30.0)
    with pytest.raises(RateLimited, match=r"the next call may begin in 32\.0 s") as caught:
        await paced.turn(patience_s=5.0)
    assert clock.slept == []
    assert (caught.value.provider, caught.value.model) == ("voyage", "voyage-4")
    assert caught.value.retryable
    assert caught.value.retry_after_s == pytest.approx(32.0)


def vendor(**changes: str) -> Vendor:
    fields = {"provider": "voyage", "model": "voyage-4", "key_variable": "V", "api_key": "k"}
    return Vendor(**{**fields, **changes})


def test_calls_share_a_limiter_by_vendor_model_and_key():
    all_of_them = Limiters()
    assert all_of_them.of(vendor()) is all_of_them.of(vendor())
    assert all_of_them.of(vendor()) is not all_of_them.of(vendor(api_key="other"))
    assert all_of_them.of(vendor()) is not all_of_them.of(vendor(model="voyage-4-lite"))
    all_of_them.of(vendor(api_key="s3cr"))
    assert "s3cr" not in repr(all_of_them)


def test_limits_start_as_configured_or_else_as_the_vendor_documents_its_lowest_tier():
    chosen = RateLimits(requests=3, tokens=10_000)
    all_of_them = Limiters(configured={("voyage", "voyage-4"): chosen})
    assert all_of_them.of(vendor()).limits == chosen
    lite = all_of_them.of(vendor(model="voyage-4-lite"))
    assert lite.limits == RateLimits(requests=2_000, tokens=16_000_000)
    assert rate_limits("claude", "claude-haiku-5-5").requests == 1_000


@pytest.mark.parametrize("quota", [1, 2, 3, 7, 10, 60, 500])
async def test_no_minute_has_more_calls_than_a_configured_limit(quota):
    clock = Clock()
    limits = {("voyage", ""): RateLimits(requests=quota, tokens=1e12)}
    paced = Limiters(configured=limits, clock=clock, sleep=clock.sleep).of(vendor())
    began = []
    while clock.now_s < 300:
        turn = await begin(paced)
        began.append(clock.now_s)
        paced.succeeded(turn, 100)
    most = max(sum(start <= other < start + 60 for other in began) for start in began)
    assert most <= quota
    # And not so careful that the quota is wasted: nine tenths of it in the long run.
    assert len(began) >= int(quota * 0.89 * 300 / 60)


def strict(clock: Clock, *, tokens: float) -> Limiter:
    limits = {("voyage", ""): RateLimits(requests=1e12, tokens=tokens)}
    return Limiters(configured=limits, clock=clock, sleep=clock.sleep).of(vendor())


@pytest.mark.parametrize("sizes", [(900,), (4_000,), (9_000,), (300, 7_000, 50), (6_000, 6_000)])
async def test_no_minute_has_more_tokens_than_a_configured_limit_though_no_call_has_ended(sizes):
    clock = Clock()
    paced = strict(clock, tokens=10_000)
    turns: list[Turn] = []
    while clock.now_s < 600:
        turns.append(await begin(paced, tokens=sizes[len(turns) % len(sizes)]))
    most = max(
        sum(other.tokens for other in turns if turn.at <= other.at < turn.at + 60) for turn in turns
    )
    assert most <= 10_000
    # The quota is used as far as whole calls fit into it.
    assert sum(turn.tokens for turn in turns) >= 10 * (10_000 - max(sizes))


async def test_a_call_beyond_a_configured_limit_goes_alone():
    clock = Clock()
    paced = strict(clock, tokens=1_000)
    began = [(await begin(paced, tokens=tokens)).at for tokens in (10, 5_000, 10)]
    assert began == [0.0, 60.0, 120.0]


async def test_tokens_that_were_not_used_make_room_and_those_beyond_the_estimate_take_it():
    clock = Clock()
    paced = strict(clock, tokens=1_000)
    paced.succeeded(await begin(paced, tokens=1_000), 400)
    turn = await begin(paced, tokens=500)
    assert clock.now_s == 0.0
    paced.succeeded(turn, 600)
    await begin(paced, tokens=1)
    assert clock.now_s == pytest.approx(60.0)


async def test_a_large_call_has_its_turn_before_small_ones_that_ask_later():
    clock = Clock()
    paced = strict(clock, tokens=1_000)
    await begin(paced, tokens=500)
    order: list[str] = []

    async def call(name: str, tokens: int) -> None:
        await paced.turn(patience_s=600, tokens=tokens)
        order.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(call, "large", 900)
        for number in range(3):
            group.start_soon(call, f"small {number}", 20)
    assert order == ["large", "small 0", "small 1", "small 2"]


async def test_a_call_that_waits_when_a_429_comes_waits_for_what_that_asks_as_well():
    clock = Clock()
    limits = {("voyage", ""): RateLimits(requests=1e12, tokens=1_000)}
    refused: list[Turn] = []

    async def sleep(seconds: float) -> None:
        while refused:
            paced.limited(refused.pop(), 90.0)
        await clock.sleep(seconds)

    paced = Limiters(configured=limits, clock=clock, sleep=sleep).of(vendor())
    refused.append(await begin(paced, tokens=1_000))
    assert (await begin(paced, tokens=500)).at == pytest.approx(90.0, abs=0.1)
    assert paced.limits.tokens == 500


def test_a_limit_of_a_vendor_is_that_of_each_model_without_one_of_its_own():
    every, own = RateLimits(requests=3, tokens=10), RateLimits(requests=9, tokens=99)
    all_of_them = Limiters(configured={("voyage", ""): every, ("voyage", "voyage-4-lite"): own})
    assert all_of_them.of(vendor()).limits == every
    assert all_of_them.of(vendor(model="rerank-2.5")).limits == every
    assert all_of_them.of(vendor(model="voyage-4-lite")).limits == own
    assert all_of_them.of(vendor(provider="claude", model="m")).limits.requests == 1_000


def test_limits_configured_later_hold_from_the_next_turn_and_the_same_again_keep_the_pace():
    all_of_them = Limiters()
    before, of_claude = all_of_them.of(vendor()), all_of_them.of(vendor(provider="claude"))
    limits = {("voyage", ""): RateLimits(requests=3, tokens=10)}
    all_of_them.configure(limits)
    held = all_of_them.of(vendor())
    assert held is not before
    assert held.limits.requests == 3
    all_of_them.configure(limits)
    assert all_of_them.of(vendor()) is held
    assert all_of_them.of(vendor(provider="claude")) is of_claude


async def test_a_setting_holds_the_calls_of_an_embedder_under_the_teams_quota(
    stub, limiters, monkeypatch
):
    monkeypatch.setenv("VOYAGE_API_KEY", "pa-test")
    monkeypatch.setenv("RAGPG_VOYAGE_BASE_URL", stub.voyage_url)
    monkeypatch.setenv("RAGPG_RATE_LIMITS", '{"voyage": {"requests": 6}, "claude": {"tokens": 9}}')
    providers = Providers(Settings.from_env(), Given())
    recipe = Recipe(embedding_provider="voyage", embedding_model="voyage-4", dimensions=256)
    embedder = providers.embedder(recipe, "docs")
    began = []
    for number in range(13):
        await embedder.embed([f"text {number}"], purpose="query")
        began.append(limiters.clock())
    await providers.aclose()
    assert len(stub.calls("/embeddings")) == 13
    assert max(sum(start <= other < start + 60 for other in began) for start in began) == 6
    assert began[-1] == pytest.approx(12 * 60 / (6 * 0.9), abs=0.1)


async def test_embedding_calls_in_flight_together_stay_under_the_teams_tokens_a_minute(
    stub, limiters, monkeypatch
):
    monkeypatch.setenv("VOYAGE_API_KEY", "pa-test")
    monkeypatch.setenv("RAGPG_VOYAGE_BASE_URL", stub.voyage_url)
    monkeypatch.setenv("RAGPG_RATE_LIMITS", '{"voyage": {"tokens": 4000}}')
    stub.latency_s = 0.05
    providers = Providers(Settings.from_env(), Given())
    recipe = Recipe(embedding_provider="voyage", embedding_model="voyage-4", dimensions=256)
    embedder = providers.embedder(recipe, "docs")

    async def embed() -> None:
        await embedder.embed(["word " * 1_000], purpose="document")

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(embed)
    await providers.aclose()
    assert len(stub.calls("/embeddings")) == 4
    # Three of 1,000 / 0.8 fill the minute, though none has been answered when the fourth asks.
    assert limiters.clock() == pytest.approx(60.0)


async def test_contexts_in_flight_are_charged_what_the_cache_does_not_hold(stub, limiters):
    limiters.configure({("claude", ""): RateLimits(requests=1e12, tokens=1e6)})
    usages = [usage for each in await write_four(stub) for usage in each.usage]
    fresh = sum(usage.input_tokens + usage.cache_write_tokens for usage in usages)
    turns = limiters.of(HAIKU)._minute.calls
    assert sum(turn.tokens for turn in turns) == fresh
    # What all four send would be thrice as much, and a limit of half of it holds nobody up.
    everything = fresh + sum(usage.cache_read_tokens for usage in usages)
    limiters.configure({("claude", ""): RateLimits(requests=1e12, tokens=everything / 2)})
    await write_four(stub)
    assert limiters.clock() == 0.0


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ('{"claud": {"requests": 3}}', "RAGPG_RATE_LIMITS is wrong: 'claud' begins with no vendor"),
        ('{"claude": {"requests": 0}}', "RAGPG_RATE_LIMITS at claude.requests is wrong: Input sho"),
        (
            '{"claude": {"rpm": 5}}',
            "RAGPG_RATE_LIMITS at claude.rpm is wrong: Extra inputs are not",
        ),
        ("50", "RAGPG_RATE_LIMITS is wrong: Input should be a valid dictionary"),
        ("{claude", "RAGPG_RATE_LIMITS is no JSON: Expecting property name"),
    ],
)
def test_a_wrong_rate_limit_is_refused_by_its_place(monkeypatch, given, complaint):
    monkeypatch.setenv("RAGPG_RATE_LIMITS", given)
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_env()
    assert str(caught.value).startswith(complaint)


async def test_the_wish_of_one_call_holds_back_another_that_was_not_refused(limiters: Limiters):
    retry = Retry(vendor=vendor(), timeout_s=5, deadline_s=300)
    refused = [failed(vendor(), 429, "slow", headers={"retry-after": "20"})]

    async def attempt() -> float:
        if refused:
            raise refused.pop()
        return limiters.clock()

    assert await retry(attempt) >= 20.0
    limiters.of(vendor()).limited(Turn(limiters.clock() + 1, 0), 30.0)
    began = limiters.clock()
    assert await Retry(vendor=vendor(), timeout_s=5, deadline_s=300)(attempt) >= began + 30.0
    limiters.of(vendor()).limited(Turn(limiters.clock() + 1, 0), 30.0)
    with pytest.raises(RateLimited, match="is held to"):
        await Retry(vendor=vendor(), timeout_s=5, deadline_s=5)(attempt)


async def test_a_spending_limit_is_no_reason_to_slow_down(limiters):
    error = failed(vendor(), 429, "spent", retryable=False)

    async def attempt() -> None:
        raise error

    with pytest.raises(RateLimited):
        await Retry(vendor=vendor(), timeout_s=5, deadline_s=300)(attempt)
    assert limiters.of(vendor()).limits == rate_limits("voyage", "voyage-4")


HAIKU = Vendor(provider="claude", model="claude-haiku-5-5", key_variable="A", api_key="k")


async def write_four(stub: VendorStub) -> list[WrittenContext]:
    claude = ClaudeContextWriter(api_key="k", model="claude-haiku-5-5", base_url=stub.anthropic_url)
    source = document(lines=200)
    written = [each async for each in claude.write(source, cut(source, into=4))]
    await claude.aclose()
    return written


async def test_a_writer_is_slowed_by_a_429_of_the_api(stub, limiters):
    stub.push(Reply(429, claude_error("rate_limit_error", "slow"), {"retry-after": "7"}))
    assert [each.error for each in await write_four(stub)] == [None] * 4
    assert limiters.of(HAIKU).limits == RateLimits(requests=500, tokens=250_000)
    assert limiters.clock() >= 7.0


async def test_cached_reads_do_not_count_toward_the_tokens_a_minute(stub, limiters):
    usages = [usage for each in await write_four(stub) for usage in each.usage]
    charged = sum(usage.input_tokens + usage.cache_write_tokens for usage in usages)
    assert sum(usage.cache_read_tokens for usage in usages) > charged
    assert limiters.of(HAIKU)._tokens.level == pytest.approx(500_000 - charged)


async def test_threads_with_event_loops_of_their_own_share_the_buckets():
    paced = Limiter(
        "voyage voyage-4",
        RateLimits(requests=40, tokens=1e9),
        most=1,
        clock=lambda: 0.0,
        sleep=anyio.sleep,
    )

    async def twenty() -> None:
        for _ in range(20):
            await paced.turn(patience_s=1)

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(anyio.to_thread.run_sync, lambda: anyio.run(twenty))
    with pytest.raises(RateLimited):
        await paced.turn(patience_s=1)
