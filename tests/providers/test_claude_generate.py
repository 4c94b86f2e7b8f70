from __future__ import annotations

from typing import Any

import pytest

from ragpg.errors import (
    ConfigurationError,
    EmptyQueryError,
    InvalidProviderResponse,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
)
from ragpg.providers.claude_generate import GENERATE_SYSTEM, NOT_FOUND, ClaudeGenerator
from ragpg.providers.claude_sources import pieces
from ragpg.types import Answer, AnswerDelta, Hits
from tests.providers.making import hit, hits
from tests.vendor_stub import Reply, Reset, Stall, VendorStub
from tests.vendor_stub_claude import events, sse
from tests.vendor_stub_rules import claude_error

pytestmark = pytest.mark.anyio

BACKUP = (
    "## Backups\n\nBackups of the warehouse run at 02:00 every night. "
    "They are kept for 30 days, then deleted.\n"
)
FOUND = hits(
    hit(11, BACKUP, document_key="ops/backup guide.md", section_path=("Guide", "Backups")),
    hit(12, " \n"),
    hit(13, "Deployments happen on Tuesdays."),
)


def generator(stub: VendorStub, **changes) -> ClaudeGenerator:
    given = {"api_key": "sk-ant-test", "model": "claude-sonnet-5-5", "base_url": stub.anthropic_url}
    return ClaudeGenerator(**{**given, **changes})


async def generate(stub: VendorStub, query: str, found: Hits = FOUND, **changes) -> Answer:
    claude = generator(stub, **changes)
    try:
        return await claude.generate(query, found)
    finally:
        await claude.aclose()


async def stream(
    stub: VendorStub,
    query: str,
    found: Hits = FOUND,
    *,
    into: list[AnswerDelta | Answer] | None = None,
    **changes,
) -> list[AnswerDelta | Answer]:
    """What was yielded; also in `into`, for a stream that fails half-way."""
    claude = generator(stub, **changes)
    yielded = [] if into is None else into
    try:
        async for each in claude.stream(query, found):
            yielded.append(each)
    finally:
        await claude.aclose()
    return yielded


def message(*content: dict[str, Any], stop_reason: str | None = "end_turn", **fields: Any):
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5-5",
        "content": list(content),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "stop_details": None,
        "usage": {"input_tokens": 10, "output_tokens": 3},
        **fields,
    }


def cited(text: str, **changes: Any) -> dict[str, Any]:
    citation = {
        "type": "search_result_location",
        "cited_text": "They are kept for 30 days, then deleted.\n",
        "source": "ragpg://document/ops%2Fbackup%20guide.md/chunk/11",
        "title": "any",
        "search_result_index": 0,
        "start_block_index": 1,
        "end_block_index": 2,
    }
    return {"type": "text", "text": text, "citations": [{**citation, **changes}]}


async def test_a_request_is_search_results_with_citations_on_all_then_the_question(stub):
    found = hits(
        hit(
            11,
            BACKUP,
            document_key="ops/backup guide.md",
            document_title="Backup guide",
            section_path=("Guide", "Backups"),
            context="From the operations handbook.",
            table_header="| a | b |\n|---|---|\n",
        ),
        hit(13, "Deployments happen on Tuesdays."),
    )
    await generate(stub, "When do backups of the warehouse run?", found)
    assert stub.log[0].body == {
        "model": "claude-sonnet-5-5",
        "max_tokens": 8192,
        "system": [{"type": "text", "text": GENERATE_SYSTEM}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "search_result",
                        "source": "ragpg://document/ops%2Fbackup%20guide.md/chunk/11",
                        "title": "Backup guide > Guide > Backups\n"
                        "Context: From the operations handbook.\nTable header: | a | b |",
                        "content": [
                            {
                                "type": "text",
                                "text": "## Backups\n\nBackups of the warehouse run at 02:00 "
                                "every night. ",
                            },
                            {"type": "text", "text": "They are kept for 30 days, then deleted.\n"},
                        ],
                        "citations": {"enabled": True},
                    },
                    {
                        "type": "search_result",
                        "source": "ragpg://document/doc%2F13/chunk/13",
                        "title": "Document 13",
                        "content": [{"type": "text", "text": "Deployments happen on Tuesdays."}],
                        "citations": {"enabled": True},
                        "cache_control": {"type": "ephemeral"},
                    },
                    {"type": "text", "text": "When do backups of the warehouse run?"},
                ],
            }
        ],
    }


async def test_an_answer_leads_back_to_the_characters_of_the_document(stub):
    answer = await generate(stub, "How long are backups kept, how many days?")
    assert answer.text == (
        "The documents say: They are kept for 30 days, then deleted. That is all."
    )
    (citation,) = answer.citations
    assert (citation.number, citation.document_key, citation.chunk_id) == (
        1,
        "ops/backup guide.md",
        11,
    )
    assert citation.quote == "They are kept for 30 days, then deleted."
    assert BACKUP[citation.start - 11_000 : citation.stop - 11_000] == citation.quote
    assert citation.section_path == ("Guide", "Backups")
    assert (answer.supported, answer.extractive, answer.stop_reason) == (True, False, "end_turn")
    assert (answer.provider, answer.model, answer.notices) == ("claude", "claude-sonnet-5-5", ())
    (usage,) = answer.usage
    assert (usage.operation, usage.request_id) == ("generate", "req_stub")
    assert usage.cost_usd == pytest.approx(
        (2 * usage.input_tokens + 10 * usage.output_tokens) / 1_000_000
    )


async def test_each_block_keeps_its_own_citations_and_uncited_ones_show_as_uncited(stub):
    stub.push(
        Reply(
            200,
            message(
                {"type": "thinking", "thinking": "", "signature": "x"},
                {"type": "text", "text": "Backups run at night"},
                cited(" for 30 days"),
                {"type": "text", "text": " and that is a month."},
            ),
        )
    )
    answer = await generate(stub, "backups?")
    assert answer.text == "Backups run at night for 30 days and that is a month."
    assert [(block.text, len(block.citations)) for block in answer.blocks] == [
        ("Backups run at night", 0),
        (" for 30 days", 1),
        (" and that is a month.", 0),
    ]


async def test_a_passage_cited_twice_keeps_its_number(stub):
    other = {
        "cited_text": "Deployments happen on Tuesdays.",
        "source": "ragpg://document/doc%2F13/chunk/13",
        "start_block_index": 0,
        "end_block_index": 1,
    }
    stub.push(Reply(200, message(cited("a"), cited("b", **other), cited("c"))))
    answer = await generate(stub, "backups?")
    assert [[c.number for c in block.citations] for block in answer.blocks] == [[1], [2], [1]]
    assert [c.number for c in answer.citations] == [1, 2]


async def test_a_citation_of_several_blocks_quotes_them_all(stub):
    stub.push(Reply(200, message(cited("x", cited_text=BACKUP, start_block_index=0))))
    (citation,) = (await generate(stub, "backups?")).citations
    assert citation.quote == BACKUP.rstrip("\n")
    assert (citation.start, citation.stop) == (11_000, 11_000 + len(BACKUP) - 1)


BAD_CITATIONS = [
    ({"source": "ragpg://document/x/chunk/99"}, "cited ragpg://document/x/chunk/99, which was not"),
    ({"source": "ragpg://document/doc%2F12/chunk/12"}, "chunk/12, which was not sent"),
    ({"cited_text": "They are kept for ever."}, "cited words that blocks 1 to 2 of .* lack"),
    ({"end_block_index": 3}, "cited blocks 1 to 3 of 2"),
    ({"start_block_index": 2}, "cited blocks 2 to 2 of 2"),
    ({"type": "brand_new_location"}, "cited a brand_new_location, where only search results"),
]


@pytest.mark.parametrize(("change", "fault"), BAD_CITATIONS)
async def test_a_citation_of_something_that_was_not_sent_is_refused(stub, change, fault):
    stub.push(Reply(200, message(cited("x", **change))))
    with pytest.raises(InvalidProviderResponse, match=fault):
        await generate(stub, "backups?")


@pytest.mark.parametrize(("change", "fault"), BAD_CITATIONS)
async def test_the_same_in_a_stream_says_that_the_answer_is_partial(stub, change, fault):
    whole = message({"type": "text", "text": "Backups "}, cited("x", **change))
    stub.push(Reply(200, sse(*events(whole)), {"content-type": "text/event-stream"}))
    with pytest.raises(InvalidProviderResponse, match=f"so far is partial: .*{fault}"):
        await stream(stub, "backups?")
    assert len(stub.log) == 1


async def test_a_question_that_the_hits_do_not_answer_is_said_to_be_unanswered(stub):
    answer = await generate(stub, "Who won the cup in 1954?")
    assert (answer.text, answer.supported, answer.citations) == (NOT_FOUND, False, ())


@pytest.mark.parametrize("found", [hits(), hits(hit(1, " "), hit(2, "\n"))])
async def test_without_a_hit_that_holds_text_no_call_is_made(stub, found):
    answer = await generate(stub, "Who won?", found)
    assert (answer.text, answer.supported, answer.usage) == (NOT_FOUND, False, ())
    *deltas, streamed = await stream(stub, "Who won?", found)
    assert deltas == [AnswerDelta(text=NOT_FOUND)]
    assert isinstance(streamed, Answer)
    assert (streamed.text, streamed.supported) == (NOT_FOUND, False)
    assert stub.log == []


@pytest.mark.parametrize("query", ["", "   ", "\u200b"])
async def test_a_blank_query_is_refused_before_any_call(stub, query):
    with pytest.raises(EmptyQueryError):
        await generate(stub, query)
    with pytest.raises(EmptyQueryError):
        await stream(stub, query)
    assert stub.log == []


async def test_a_refusal_is_an_answer_that_says_so(stub):
    details = {"type": "refusal", "category": "cyber", "explanation": None}
    refused = message(stop_reason="refusal", stop_details=details)
    stub.push(Reply(200, refused))
    answer = await generate(stub, "backups?")
    assert (answer.text, answer.supported, answer.stop_reason) == ("", False, "refusal")
    assert answer.notices == ("claude-sonnet-5-5 refused to answer (cyber)",)
    stub.push(Reply(200, sse(*events(refused)), {"content-type": "text/event-stream"}))
    (streamed,) = await stream(stub, "backups?")
    assert isinstance(streamed, Answer)
    assert streamed.notices == ("claude-sonnet-5-5 refused to answer (cyber)",)


async def test_an_answer_that_is_cut_off_or_cites_nothing_says_so(stub):
    stub.push(
        Reply(200, message({"type": "text", "text": "Backups"}, stop_reason="max_tokens")),
    )
    answer = await generate(stub, "backups?")
    assert answer.notices == (
        "the answer is cut off: claude-sonnet-5-5 stopped at max_tokens",
        "the answer cites none of the documents",
    )


async def test_a_second_question_about_the_same_hits_reads_them_from_the_cache(stub):
    found = hits(hit(1, " ".join(f"Rule {i} holds on day {i}." for i in range(200))))
    await generate(stub, "What about rule 7 and day 7?", found)
    answer = await generate(stub, "What about rule 9 and day 9?", found)
    assert answer.usage[0].cache_read_tokens > 512
    assert answer.usage[0].input_tokens < 20


async def test_a_stream_yields_the_same_answer_piece_by_piece(stub):
    query = "How long are backups kept, how many days?"
    whole = await generate(stub, query)
    *deltas, streamed = await stream(stub, query)
    assert isinstance(streamed, Answer)
    assert all(isinstance(delta, AnswerDelta) for delta in deltas)
    assert "".join(delta.text for delta in deltas if isinstance(delta, AnswerDelta)) == whole.text
    assert len(deltas) > 4
    shown = [d.citation for d in deltas if isinstance(d, AnswerDelta) and d.citation]
    assert tuple(shown) == streamed.citations == whole.citations
    assert (streamed.text, streamed.blocks) == (whole.text, whole.blocks)
    assert streamed.usage[0].output_tokens == whole.usage[0].output_tokens
    assert streamed.usage[0].input_tokens == whole.usage[0].input_tokens
    assert streamed.usage[0].request_id == "req_stub"
    assert stub.log[1].body["stream"] is True


WHOLE = message(
    {"type": "text", "text": "Backups are kept "}, cited("30 days"), {"type": "text", "text": "."}
)
OVERLOAD = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
STREAM = {"content-type": "text/event-stream"}


def broken(*, shown: bool, how: str) -> Reply | Reset:
    """A stream that breaks before or after its first words."""
    sent = list(events(WHOLE))[: 4 if shown else 2]
    if how == "error":
        return Reply(200, sse(*sent, OVERLOAD), STREAM)
    if how == "no event lines":
        # The SDK passes over events without their `event:` line.
        lines = sse(*events(WHOLE)).splitlines(keepends=True)
        return Reply(200, b"".join(x for x in lines if not x.startswith(b"event:")), STREAM)
    return Reset(sse(*sent)) if how == "reset" else Reply(200, sse(*sent), STREAM)


@pytest.mark.parametrize("how", ["error", "reset", "end", "no event lines"])
async def test_a_stream_that_breaks_before_its_first_words_is_tried_again(stub, how):
    stub.push(broken(shown=False, how=how), Reply(200, sse(*events(WHOLE)), STREAM))
    *deltas, answer = await stream(stub, "backups?")
    assert isinstance(answer, Answer)
    assert answer.text == "Backups are kept 30 days."
    assert "".join(d.text for d in deltas if isinstance(d, AnswerDelta)) == answer.text
    assert len(stub.log) == 2


@pytest.mark.parametrize("how", ["error", "reset", "end"])
async def test_a_stream_that_breaks_after_its_first_words_is_a_partial_answer(stub, how):
    stub.push(broken(shown=True, how=how), Reply(200, sse(*events(WHOLE)), STREAM))
    shown: list[AnswerDelta | Answer] = []
    with pytest.raises(ProviderUnavailable, match="the answer shown so far is partial") as caught:
        await stream(stub, "backups?", into=shown)
    assert shown == [AnswerDelta(text="Backups are kept ")]
    assert caught.value.retryable
    assert len(stub.log) == 1


async def test_a_stream_that_stalls_after_its_first_words_is_a_partial_answer(stub):
    stub.push(Stall(sse(*list(events(WHOLE))[:4])))
    shown: list[AnswerDelta | Answer] = []
    with pytest.raises(ProviderUnavailable, match=r"partial: .* did not answer within 0\.3 s"):
        await stream(stub, "backups?", into=shown, timeout_s=0.3)
    assert shown == [AnswerDelta(text="Backups are kept ")]


async def test_a_reader_that_leaves_a_stream_half_way_gives_the_connection_back(stub):
    claude = generator(stub, concurrency=1)
    streaming = claude.stream("How long are backups kept, how many days?", FOUND)
    assert isinstance(await anext(streaming), AnswerDelta)
    await streaming.aclose()  # type: ignore[attr-defined]
    answer = await claude.generate("How long are backups kept, how many days?", FOUND)
    await claude.aclose()
    assert answer.supported


async def test_unknown_events_and_blocks_of_a_stream_are_passed_over(stub):
    known = list(events(WHOLE))
    odd = {"type": "brand_new_event", "index": 0}
    block = {
        "type": "content_block_start",
        "index": 9,
        "content_block": {"type": "brand_new_block"},
    }
    sent = [known[0], odd, block, {"type": "ping"}, *known[1:]]
    stub.push(Reply(200, sse(*sent), STREAM))
    *_, answer = await stream(stub, "backups?")
    assert isinstance(answer, Answer)
    assert answer.text == "Backups are kept 30 days."


STATUSES = [
    (400, "invalid_request_error", ProviderRejected),
    (401, "authentication_error", ProviderRejected),
    (402, "billing_error", ProviderRejected),
    (403, "permission_error", ProviderRejected),
    (404, "not_found_error", ProviderRejected),
    (413, "request_too_large", ProviderRejected),
    (409, "conflict_error", ProviderUnavailable),
    (500, "api_error", ProviderUnavailable),
    (504, "timeout_error", ProviderUnavailable),
    (529, "overloaded_error", ProviderUnavailable),
]


@pytest.mark.parametrize(("status", "kind", "error"), STATUSES)
async def test_a_status_becomes_our_error_whole_or_streamed(stub, status, kind, error):
    for call in (generate, stream):
        stub.log.clear()
        stub.push(*[Reply(status, claude_error(kind, "no luck"))] * 2)
        with pytest.raises(ProviderError, match=f"answered {status}: no luck") as caught:
            await call(stub, "backups?", deadline_s=3.0)
        assert (type(caught.value), caught.value.request_id) == (error, "req_stub")
        assert len(stub.log) == (1 if error is ProviderRejected else 2)


async def test_a_page_of_a_proxy_with_status_200_is_refused(stub):
    stub.push(Reply(200, b"<html>hi</html>", {"content-type": "text/html"}))
    with pytest.raises(InvalidProviderResponse, match="returned a body that is no message"):
        await generate(stub, "backups?")


async def test_a_slow_answer_is_a_timeout_and_a_dead_address_unavailable(stub):
    stub.latency_s = 0.4
    for call in (generate, stream):
        with pytest.raises(ProviderTimeout, match=r"within 0\.1 s"):
            await call(stub, "backups?", timeout_s=0.1, deadline_s=0.2)
        with pytest.raises(ProviderUnavailable, match="claude claude-sonnet-5-5 failed"):
            await call(stub, "backups?", base_url="http://127.0.0.1:9", deadline_s=0.5)


def test_a_missing_key_is_named_before_any_work():
    with pytest.raises(ConfigurationError, match="set ANTHROPIC_API_KEY"):
        ClaudeGenerator(api_key="", model="claude-sonnet-5-5")


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("One.", ["One."]),
        (
            "A sentence that is long enough.  Another that is long enough! End",
            ["A sentence that is long enough.  ", "Another that is long enough! ", "End"],
        ),
        (
            "\n\n# Heading\n\nSome text below the heading.\n\n\u200b\n",
            ["\n\n# Heading\n\nSome text below the heading.\n\n\u200b\n"],
        ),
        ("| a | b |\n| 1234567890 | 1234567890 |\n| c | d |\n", None),
        ("これは十分に長い文章であり、二十五文字を超えるはずです。次の文。", None),
    ],
)
def test_pieces_are_exact_slices_that_make_up_the_text(text, cut):
    found = list(pieces(text))
    assert "".join(piece for _, piece in found) == text
    assert all(text[start : start + len(piece)] == piece for start, piece in found)
    if cut is None:
        assert len(found) == 2
    else:
        assert [piece for _, piece in found] == cut
