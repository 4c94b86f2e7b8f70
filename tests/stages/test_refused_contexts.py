"""Contexts that a model refuses for good: tried once, remembered with the reason, and then left."""

from __future__ import annotations

import dataclasses

import pytest

from ragpg import errors
from ragpg.jobs import work
from ragpg.types import Document
from tests.cli.test_commands import CommandLine
from tests.stages.test_batch_jobs import STEADY
from tests.stages.test_failed_contexts import BUSY, GUIDE, RECIPE, client, docs, stub
from tests.vendor_stub import Reply
from tests.vendor_stub_rules import claude_error

__all__ = ["client", "docs", "stub"]
pytestmark = pytest.mark.anyio

REJECTED = Reply(400, claude_error("invalid_request_error", "this text cannot be processed"))
REFUSED = Reply(
    200,
    {
        "id": "msg_01Refused",
        "type": "message",
        "role": "assistant",
        "model": RECIPE.context_model,
        "content": [],
        "stop_reason": "refusal",
        "stop_sequence": None,
        "stop_details": {"type": "refusal", "category": "cyber", "explanation": None},
        "usage": {"input_tokens": 200, "output_tokens": 1},
    },
)
GAPS = "select position, context_refused, context_error from ragpg.context_gap order by position"
NOBODY = (0, 0)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (REFUSED, "refused to write the context (cyber)"),
        (REJECTED, "this text cannot be processed"),
    ],
    ids=["refusal", "400"],
)
async def test_a_refused_text_is_asked_about_once_and_its_reason_is_kept(
    docs, stub, owner, tmp_path, reply, reason
):
    stub.reply = reply
    (tmp_path / "boiler.md").write_text(GUIDE)
    report = await docs.ingest_files([tmp_path])
    assert (report.created, report.contexts_failed, report.contexts_refused) == (
        ("boiler.md",),
        1,
        1,
    )
    assert stub.asked() == (3, 3)
    ((position, refused, error),) = owner.execute(GAPS).fetchall()
    assert (position, refused) == (2, True)
    assert reason in error

    report = await docs.ingest_files([tmp_path])
    assert (report.unchanged, report.contexts_failed, report.contexts_refused) == (
        ("boiler.md",),
        0,
        1,
    )
    assert (await docs.plan(tmp_path)).keys("unchanged") == ["boiler.md"]
    assert (await docs.sync(tmp_path)).ingested.contexts_refused == 1
    assert (await docs.enqueue_files([tmp_path])).queued == ()
    assert stub.asked() == NOBODY
    assert owner.execute("select refused_contexts from ragpg.ingest_status").fetchall() == [(1,)]


async def test_recontextualize_asks_again_about_the_refused_text_alone(docs, stub, owner, tmp_path):
    stub.reply = REFUSED
    (tmp_path / "boiler.md").write_text(GUIDE)
    await docs.ingest_files([tmp_path])
    others = "select chunk_id, context, contextualized_at from ragpg.chunk where position < 2"
    before = owner.execute(others).fetchall()
    stub.asked()
    stub.words = None
    plan = await docs.plan(tmp_path, recontextualize=True)
    assert [(one.action, one.chunks, one.kept_chunks) for one in plan.documents] == [
        ("update", 3, 2)
    ]
    report = (await docs.sync(tmp_path, recontextualize=True)).ingested
    assert (report.updated, report.contexts_refused) == (("boiler.md",), 0)
    assert stub.asked() == (1, 1)
    assert owner.execute(GAPS).fetchall() == []
    assert sorted(owner.execute(others).fetchall()) == sorted(before)


async def test_a_text_that_is_refused_again_costs_one_call_for_each_time_somebody_asks(
    docs, stub, owner, tmp_path
):
    stub.reply = REFUSED
    (tmp_path / "boiler.md").write_text(GUIDE)
    await docs.ingest_files([tmp_path])
    stub.asked()
    await docs.ingest_files([tmp_path], recontextualize=True)
    await docs.ingest_files([tmp_path])
    assert stub.asked() == (1, 0)
    assert [row[:2] for row in owner.execute(GAPS)] == [(2, True)]


async def test_asked_again_and_not_answered_the_text_is_tried_at_the_next_ingest(
    docs, stub, owner, tmp_path
):
    stub.reply = REFUSED
    (tmp_path / "boiler.md").write_text(GUIDE)
    await docs.ingest_files([tmp_path])
    stub.reply = BUSY
    report = await docs.ingest_files([tmp_path], recontextualize=True)
    assert (report.contexts_failed, report.contexts_refused) == (1, 0)
    ((position, refused, error),) = owner.execute(GAPS).fetchall()
    assert (position, refused) == (2, False)
    assert "529" in error
    stub.words = None
    stub.asked()
    assert (await docs.ingest_files([tmp_path])).updated == ("boiler.md",)
    assert stub.asked() == (1, 1)


async def test_an_edit_elsewhere_leaves_the_refused_text_alone_and_an_edit_of_it_asks(
    docs, stub, owner
):
    stub.reply = REFUSED
    await docs.ingest([Document(key="boiler.md", text=GUIDE)])
    stub.asked()
    elsewhere = GUIDE.replace("Purge the chamber", "Purge the dry chamber")
    await docs.ingest([Document(key="boiler.md", text=elsewhere)])
    assert stub.asked() == (1, 1)
    assert [row[:2] for row in owner.execute(GAPS)] == [(2, True)]
    there = elsewhere.replace("citric acid", "vinegar")
    report = await docs.ingest([Document(key="boiler.md", text=there)])
    assert (report.contexts_failed, report.contexts_refused) == (0, 0)
    assert stub.asked() == (1, 1)


async def test_where_contexts_belong_to_the_whole_document_an_edit_asks_about_the_refused_one_too(
    client, stub
):
    whole = client.collection(tenant="acme", name="whole")
    await whole.create(dataclasses.replace(RECIPE, context_reuse="document"))
    stub.reply = REFUSED
    await whole.ingest([Document(key="boiler.md", text=GUIDE)])
    stub.asked()
    await whole.ingest([Document(key="boiler.md", text=GUIDE, tags=("heat",))])
    assert stub.asked() == NOBODY
    await whole.ingest([Document(key="boiler.md", text=GUIDE.replace("plant", "house"))])
    assert stub.asked() == (3, 3)


@pytest.mark.parametrize(
    "message",
    [
        "You have reached your specified API usage limits. You will regain access on 2026-12-01.",
        "Your credit balance is too low to access the Claude API.",
    ],
)
async def test_a_400_about_the_account_refuses_no_text_and_ends_the_ingest(
    docs, stub, owner, message
):
    stub.reply = Reply(400, claude_error("invalid_request_error", message))
    with pytest.raises(errors.ProviderRejected, match="answered 400"):
        await docs.ingest([Document(key="boiler.md", text=GUIDE)])
    assert owner.execute(
        "select count(*) from ragpg.staged_chunk where context_refused"
    ).fetchone() == (0,)
    stub.words = None
    report = await docs.ingest([Document(key="boiler.md", text=GUIDE)])
    assert (report.created, report.contexts_failed) == (("boiler.md",), 0)


@pytest.fixture
async def held(client):
    held = client.collection(tenant="acme", name="held")
    await held.create(dataclasses.replace(RECIPE, failed_contexts="hold"))
    return held


async def test_a_document_that_is_held_back_for_a_refusal_is_not_asked_about_at_every_ingest(
    held, stub, owner
):
    stub.reply = REFUSED
    guide = Document(key="boiler.md", text=GUIDE)
    (failure,) = (await held.ingest([guide])).failed
    assert (failure.reason, failure.retryable) == ("context", False)
    assert "refused for good: change the text, or ask again with --recontextualize" in (
        failure.message
    )
    assert stub.asked() == (3, 0)
    assert (await held.ingest([guide])).failed == (failure,)
    assert stub.asked() == NOBODY
    shown = owner.execute("select status, refused_contexts, last_error from ragpg.pending")
    assert shown.fetchall() == [("failed", 1, failure.message)]
    stub.words = None
    assert (await held.ingest([guide], recontextualize=True)).created == ("boiler.md",)
    assert stub.asked() == (1, 3)


async def test_a_worker_tries_a_document_that_a_refusal_holds_back_once(client, held, stub, owner):
    stub.reply = REFUSED
    await held.enqueue([Document(key="boiler.md", text=GUIDE)])
    await work(client, limits=STEADY, drain=True)
    row = owner.execute("select status, attempts from ragpg.staged_document").fetchone()
    assert row == ("failed", 1)
    assert stub.asked() == (3, 0)
    assert await held.retry() == 1
    await work(client, limits=STEADY, drain=True)
    assert stub.asked() == NOBODY


async def test_a_text_that_a_batch_refuses_is_left_alone_and_a_key_that_it_refuses_is_not(
    docs, stub, owner
):
    guide = Document(key="boiler.md", text=GUIDE)
    for kind, refused in (("invalid_request_error", 1), ("permission_error", 0)):
        await docs.delete("boiler.md")
        await docs.ingest([guide], batch=True, wait=False)
        stub.batches.end({2: kind})
        report = await docs.resume()
        assert (report.created, report.contexts_failed) == (("boiler.md",), 1)
        assert report.contexts_refused == refused
        stub.words = None
        stub.asked()
        again = await docs.ingest([guide])
        assert (len(again.unchanged), stub.asked()) == (refused, (1 - refused, 1 - refused))


def test_a_refused_text_is_exit_code_1_when_it_is_met_and_a_line_from_then_on(
    database, stub, tmp_path
):
    stub.reply = REFUSED
    (tmp_path / "boiler.md").write_text("# Boiler\n\nRinse it with citric acid.\n")
    ragpg = CommandLine(
        {
            "RAGPG_DATABASE_URL": database.service_url,
            "VOYAGE_API_KEY": "pa-test",
            "ANTHROPIC_API_KEY": "sk-ant-test",
            "RAGPG_VOYAGE_BASE_URL": stub.voyage_url,
            "RAGPG_ANTHROPIC_BASE_URL": stub.anthropic_url,
        }
    )
    assert "1 chunks have no context" in ragpg("ingest", str(tmp_path), code=1).stdout
    again = ragpg("sync", str(tmp_path)).stdout
    assert "1 chunks of the collection have no context since their text was refused" in again
    assert "`--recontextualize` asks again" in again
    stub.words = None
    done = ragpg("ingest", "--recontextualize", str(tmp_path)).stdout
    assert "0 created, 1 updated" in done
    assert "refused" not in done
