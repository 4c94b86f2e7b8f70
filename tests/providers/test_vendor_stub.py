"""The stub against the SDKs: it must refuse what the vendors refuse, and count as they count."""

from __future__ import annotations

import anthropic
import pytest

from tests.vendor_stub import VendorStub

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
RESULT = {
    "type": "search_result",
    "source": "s",
    "title": "t",
    "content": [{"type": "text", "text": "many words"}],
    "citations": {"enabled": True},
}
PLAIN_RESULT = {name: value for name, value in RESULT.items() if name != "citations"}
CACHED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
CITED = {"type": "text", "text": "x", "citations": [{"type": "char_location"}]}


async def send(stub: VendorStub, **body):
    given = {"model": "claude-haiku-5-5", "max_tokens": 100, "messages": [USER]}
    async with anthropic.AsyncAnthropic(
        api_key="sk-ant-test", base_url=stub.anthropic_url, max_retries=0
    ) as client:
        return await client.post("/v1/messages", body={**given, **body}, cast_to=object)


def user(*blocks):
    return [{"role": "user", "content": list(blocks)}]


TOOL = [
    USER,
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "n", "input": {}}],
    },
]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"temperature": 0}, "temperature"),
        ({"top_p": 1}, "top_p"),
        ({"top_k": 1}, "top_k"),
        ({"messages": [USER, {"role": "assistant", "content": "I"}]}, "prefill"),
        ({"messages": user(RESULT, PLAIN_RESULT)}, "the same for all search results"),
        (
            {"messages": user(RESULT), "output_config": {"format": {"type": "json_schema"}}},
            "not compatible with citations",
        ),
        ({"messages": user(*[CACHED] * 5)}, "A maximum of 4 blocks"),
        (
            {
                "messages": user(
                    CACHED, {**CACHED, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
                )
            },
            "must not come after",
        ),
        ({"messages": user({"type": "text", "text": " \n"})}, "non-whitespace text"),
        ({"messages": user({**RESULT, "content": []})}, "are required"),
        ({"messages": user(CITED)}, "not permitted in user messages"),
        ({"messages": [USER, {"role": "assistant", "content": [RESULT]}, USER]}, "assistant"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.type"),
        (
            {"model": "claude-sonnet-5-5", "tool_choice": {"type": "any"}},
            "does not support forced tool use",
        ),
        ({"max_tokens": 0, "stream": True}, "max_tokens: 0"),
        ({"messages": [*TOOL, USER]}, "without tool_result"),
        (
            {
                "messages": [
                    *TOOL,
                    *user(
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_1",
                            "content": [RESULT, {"type": "text", "text": "x"}],
                        }
                    ),
                ]
            },
            "cannot be mixed",
        ),
        ({"messages": user({"type": "text", "text": "a " * 800_000})}, "prompt is too long"),
    ],
)
async def test_what_the_api_refuses_the_stub_refuses(stub, body, message):
    with pytest.raises(anthropic.BadRequestError, match=message) as caught:
        await send(stub, **body)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id == "req_stub"


async def test_a_forced_tool_and_cited_text_of_an_assistant_are_fine_where_the_api_says_so(stub):
    await send(stub, tool_choice={"type": "any"})
    await send(stub, messages=[USER, {"role": "assistant", "content": [CITED]}, USER])
    assert [call.status for call in stub.log] == [200, 200]


def cached(text: str, *, ttl: str = "5m", **body):
    mark = {"type": "ephemeral", "ttl": ttl}
    block = {"type": "text", "text": text, "cache_control": mark}
    return {"messages": user(block, {"type": "text", "text": "question"}), **body}


async def counters(stub: VendorStub, body) -> tuple[int, int, int]:
    await send(stub, **body)
    usage = stub.log[-1].answer["usage"]
    return (
        usage["input_tokens"],
        usage["cache_creation_input_tokens"],
        usage["cache_read_input_tokens"],
    )


async def test_a_prefix_is_written_once_and_then_read_while_everything_before_it_is_equal(stub):
    text = "word " * 1_000
    assert await counters(stub, cached(text)) == (1, 1_300, 0)
    assert await counters(stub, cached(text)) == (1, 0, 1_300)
    assert await counters(stub, cached(text, model="claude-sonnet-5-5")) == (1, 1_300, 0)
    assert await counters(stub, cached(text, output_config={"effort": "low"})) == (1, 1_300, 0)
    assert await counters(stub, cached(f"{text}.")) == (1, 1_301, 0)


async def test_an_entry_lives_from_its_last_use_as_long_as_its_ttl(stub):
    text = "word " * 1_000
    await send(stub, **cached(text))
    await send(stub, **cached(f"{text}.", ttl="1h"))
    stub.claude.clock_s = 290
    assert (await counters(stub, cached(text)))[2] == 1_300
    stub.claude.clock_s = 580
    assert (await counters(stub, cached(text)))[2] == 1_300
    stub.claude.clock_s = 900
    assert (await counters(stub, cached(text)))[2] == 0
    assert (await counters(stub, cached(f"{text}.", ttl="1h")))[2] == 1_301
    split = stub.log[1].answer["usage"]["cache_creation"]
    assert split == {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 1_301}


@pytest.mark.parametrize(
    ("model", "words", "written"),
    [
        ("claude-haiku-5-5", 390, 0),
        ("claude-haiku-5-5", 394, 512),
        ("claude-haiku-4-5", 4_095, 0),
        ("claude-haiku-4-5", 4_096, 4_096),
    ],
)
async def test_a_prefix_below_the_models_minimum_is_silently_not_cached(
    stub, model, words, written
):
    body = cached("word " * words, model=model)
    assert (await counters(stub, body))[1] == written
    assert (await counters(stub, body))[2] == written


async def test_a_warm_up_of_no_tokens_writes_the_prefix(stub):
    body = cached("word " * 1_000)
    assert await counters(stub, {**body, "max_tokens": 0}) == (1, 1_300, 0)
    assert stub.log[0].answer["content"] == []
    assert await counters(stub, body) == (1, 0, 1_300)


async def test_the_sdks_own_accumulator_reads_the_stubs_stream(stub):
    async with (
        anthropic.AsyncAnthropic(api_key="sk-ant-test", base_url=stub.anthropic_url) as client,
        client.messages.stream(
            model="claude-haiku-5-5", max_tokens=100, messages=user(RESULT, USER_QUESTION)
        ) as streaming,
    ):
        final = await streaming.get_final_message()
    assert final.stop_reason == "end_turn"
    citations = [
        citation.cited_text
        for block in final.content
        if block.type == "text"
        for citation in block.citations or ()
    ]
    assert citations == ["many words"]


USER_QUESTION = {"type": "text", "text": "many words?"}


async def test_tokens_are_counted_without_an_answer(stub):
    async with anthropic.AsyncAnthropic(api_key="k", base_url=stub.anthropic_url) as client:
        counted = await client.messages.count_tokens(
            model="claude-haiku-4-5", messages=[{"role": "user", "content": "one two three"}]
        )
    assert counted.input_tokens == 3
