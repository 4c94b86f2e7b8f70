"""The JSON form: its keys are a promise, its types are JSON's own, and it reads back as it was."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ragpg.care import StaleDocument
from ragpg.documents import DocumentOverview
from ragpg.errors import InputError
from ragpg.ingestion.corpus_sync import SyncReport
from ragpg.json_form import JsonForm
from ragpg.search_explanation import ChunkExplanation
from ragpg.search_log import LoggedHit, LoggedSearch, SearchOverview
from ragpg.types import (
    Answer,
    AnswerBlock,
    AnswerDelta,
    Citation,
    Document,
    DocumentFailure,
    Enqueued,
    Hit,
    Hits,
    IngestReport,
    PassedOver,
    Usage,
)

DOCS = (Path(__file__).parents[2] / "docs" / "json.md").read_text("utf-8")
KINDS: tuple[Any, ...] = (
    Answer, AnswerBlock, AnswerDelta, ChunkExplanation, Citation, Document, DocumentFailure,
    DocumentOverview, Enqueued, Hit, Hits, IngestReport, LoggedHit, LoggedSearch, PassedOver,
    SearchOverview, StaleDocument, SyncReport, Usage,
)  # fmt: skip
BERLIN = dt.timezone(dt.timedelta(hours=2))
HIT = Hit(
    rank=1,
    chunk_id=7,
    document_key="hr/leave.pdf",
    document_title=None,
    source="wiki",
    section_path=("Leave", "Parents"),
    position=2,
    start=900,
    stop=931,
    page=3,
    text="Parents have 12 months of leave.",
    table_header="",
    context="About parents.",
    tags=("hr",),
    metadata={"year": 2025, "deep": {"list": [1.5, None, True]}},
    modified_at=dt.datetime(2025, 7, 1, 14, 30, tzinfo=BERLIN),
    dense_rank=None,
    dense_score=0.25,
    lexical_rank=1,
    lexical_score=4.5,
    fused_score=1 / 61,
    rerank_score=0.75,
    duplicates=(9, 11),
    page_breaks=(910,),
)
HIT_JSON = {
    "rank": 1,
    "chunk_id": 7,
    "document_key": "hr/leave.pdf",
    "document_title": None,
    "source": "wiki",
    "section_path": ["Leave", "Parents"],
    "position": 2,
    "start": 900,
    "stop": 931,
    "page": 3,
    "text": "Parents have 12 months of leave.",
    "table_header": "",
    "context": "About parents.",
    "tags": ["hr"],
    "metadata": {"year": 2025, "deep": {"list": [1.5, None, True]}},
    "modified_at": "2025-07-01T12:30:00+00:00",
    "dense_rank": None,
    "dense_score": 0.25,
    "lexical_rank": 1,
    "lexical_score": 4.5,
    "fused_score": 0.01639344262295082,
    "rerank_score": 0.75,
    "duplicates": [9, 11],
    "expanded_from": None,
    "page_breaks": [910],
}
PAID = Usage(provider="cohere", model="rerank-v4.0-fast", operation="rerank", cost_usd=0.002)
PAID_JSON = {
    "provider": "cohere",
    "model": "rerank-v4.0-fast",
    "operation": "rerank",
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_write_tokens": 0,
    "cache_read_tokens": 0,
    "cost_usd": 0.002,
    "duration_s": 0.0,
    "request_id": None,
}
HITS = Hits(
    hits=(HIT,),
    query="How long?",
    dense_mode="exact",
    reranker="cohere rerank-v4.0-fast",
    notices=("the query holds no keyword",),
    degraded=("reranking failed: 503",),
    timings_s={"embed": 0.004},
    usage=(PAID,),
    search_id=12,
)
HITS_JSON = {
    "hits": [HIT_JSON],
    "query": "How long?",
    "mode": "retrieved",
    "dense_mode": "exact",
    "lexical_mode": None,
    "reranker": "cohere rerank-v4.0-fast",
    "notices": ["the query holds no keyword"],
    "degraded": ["reranking failed: 503"],
    "timings_s": {"embed": 0.004},
    "usage": [PAID_JSON],
    "search_id": 12,
}
CITATION = Citation(
    number=1,
    document_key="hr/leave.pdf",
    document_title=None,
    section_path=("Leave", "Parents"),
    page=3,
    chunk_id=7,
    start=913,
    stop=922,
    quote="12 months",
)
CITATION_JSON = {
    "number": 1,
    "document_key": "hr/leave.pdf",
    "document_title": None,
    "section_path": ["Leave", "Parents"],
    "page": 3,
    "chunk_id": 7,
    "start": 913,
    "stop": 922,
    "quote": "12 months",
}
ANSWER = Answer(
    query="How long?",
    text="12 months.",
    blocks=(AnswerBlock(text="12 months.", citations=(CITATION,)),),
    citations=(CITATION,),
    supported=True,
    extractive=False,
    provider="claude",
    model="claude-sonnet-5-5",
    stop_reason="end_turn",
    hits=HITS,
)


def test_an_answer_is_written_with_every_field_under_its_name():
    assert ANSWER.to_json() == {
        "query": "How long?",
        "text": "12 months.",
        "blocks": [{"text": "12 months.", "citations": [CITATION_JSON]}],
        "citations": [CITATION_JSON],
        "supported": True,
        "extractive": False,
        "provider": "claude",
        "model": "claude-sonnet-5-5",
        "stop_reason": "end_turn",
        "hits": HITS_JSON,
        "mode": "retrieved",
        "notices": [],
        "timings_s": {},
        "usage": [],
    }


@pytest.mark.parametrize("value", [HIT, HITS, CITATION, ANSWER, AnswerDelta(citation=CITATION)])
def test_what_was_written_reads_back_as_an_equal_value(value: JsonForm):
    assert type(value).from_json(json.loads(json.dumps(value.to_json(), allow_nan=False))) == value


def test_a_document_reads_dates_with_and_without_a_time_and_a_zone():
    document = Document.from_json(
        {
            "key": "a.md",
            "text": "Turn the valve.",
            "tags": ["pump"],
            "modified_at": "2025-07-01T14:30:00+02:00",
            "expires_at": "2030-01-31",
            "review_by": "2027-01-31",
        }
    )
    assert document == Document(
        key="a.md",
        text="Turn the valve.",
        tags=("pump",),
        modified_at=dt.datetime(2025, 7, 1, 12, 30, tzinfo=dt.UTC),
        expires_at=dt.datetime(2030, 1, 31, tzinfo=dt.UTC),
        review_by=dt.date(2027, 1, 31),
    )


def test_a_document_without_a_zone_is_written_as_it_is_stored_in_utc():
    document = Document(
        key="a.md",
        text="a",
        modified_at=dt.datetime(2025, 7, 1, 14, 30),  # noqa: DTZ001
        metadata={"seen": dt.date(2025, 7, 2)},
    )
    written = document.to_json()
    assert written["modified_at"] == "2025-07-01T14:30:00+00:00"
    assert written["metadata"] == {"seen": "2025-07-02"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a.md", "Document is 'a.md'; give an object"),
        ({"key": "a.md"}, "Document lacks 'text'; give it"),
        ({"key": 7, "text": "a"}, "Document.key is 7; give text"),
        ({"key": "a", "text": "a", "tags": "hr"}, "Document.tags is 'hr'; give a list"),
        ({"key": "a", "text": "a", "tags": ["hr", 1]}, "Document.tags[1] is 1; give text"),
        ({"key": "a", "text": "a", "metadata": []}, "Document.metadata is []; give an object"),
        (
            {"key": "a", "text": "a", "page_starts": [True]},
            "Document.page_starts[0] is True; give a whole number",
        ),
        (
            {"key": "a", "text": "a", "modified_at": "soon"},
            "Document.modified_at is 'soon'; give an instant such as '2025-01-31T12:00:00+00:00'",
        ),
        (
            {"key": "a", "text": "a", "review_by": 20250131},
            "Document.review_by is 20250131; give a date such as '2025-01-31'",
        ),
        (
            {"key": "a", "text": "a", "media_type": "rtf"},
            "Document.media_type is 'rtf'; give one of 'markdown', 'text', 'html', 'pdf', 'docx'",
        ),
    ],
)
def test_what_is_no_document_is_refused_with_its_place(value: object, message: str):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        Document.from_json(value)


def test_a_number_that_is_too_large_is_refused_with_its_place():
    usage = {"provider": "own", "model": "m", "operation": "embed", "cost_usd": 10**400}
    with pytest.raises(InputError, match=r"Usage\.cost_usd is 1000.*; give a number of up to 308"):
        Usage.from_json(usage)


@pytest.mark.parametrize("moment", ["9999-12-31T23:00:00-02:00", "0001-01-01T01:00:00+02:00"])
def test_an_instant_that_utc_has_no_year_for_keeps_its_offset(moment: str):
    document = Document.from_json({"key": "a.md", "text": "Rest.", "modified_at": moment})
    assert document.to_json()["modified_at"] == moment


def test_an_unknown_field_is_refused_with_the_names_that_there_are():
    with pytest.raises(InputError, match=r"^Citation has no field 'titel'; it may have number, do"):
        Citation.from_json({"titel": "a"})


def test_the_documentation_lists_the_keys_of_every_kind_and_no_others():
    listed = {
        kind: re.findall(r"`(\w+)`", keys)
        for kind, keys in re.findall(r"^\| `(\w+)` \| (.+) \|$", DOCS, flags=re.MULTILINE)
    }
    assert listed == {
        kind.__name__: [each.name for each in dataclasses.fields(kind)] for kind in KINDS
    }


def test_every_kind_that_has_a_json_form_is_known_here():
    def below(kind: type[JsonForm]) -> set[type[JsonForm]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    # A slotted dataclass leaves the class that it was made of behind.
    assert {kind.__name__ for kind in below(JsonForm) - {JsonForm}} == {k.__name__ for k in KINDS}
