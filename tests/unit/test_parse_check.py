"""Which documents can be stored, and what is said of those that cannot."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragpg import parse
from ragpg.blocks import has_words, markdown_blocks
from ragpg.errors import DocumentError
from ragpg.types import Document


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"key": ""}, "document '' cannot be stored: its key has 0 characters; give 1 to 1000"),
        ({"key": " \n"}, "its key has 2 characters; give 1 to 1000, not all blank"),
        ({"key": "k" * 1001}, "its key has 1001 characters; give 1 to 1000"),
        ({"key": "😀" * 700}, "its key has 2800 bytes in UTF-8; give at most 2600"),
        ({"key": "a\0b"}, "its key holds NUL"),
        ({"key": "a\udc00"}, "its key holds half of a surrogate pair"),
        ({"key": 5}, "document 5 cannot be stored: its key is of type int; give it as text (str)"),
        ({"key": None}, "its key is of type NoneType"),
        ({"key": ["a"]}, "its key is of type list"),
        ({"text": None}, "text is None; give text (str)"),
        ({"text": b"hello"}, "text is bytes b'hello'; give text (str); ragpg.parse.parse_bytes"),
        ({"title": 5}, "title is 5; give text (str) or None"),
        ({"source": b"x"}, "source is bytes b'x'; give text (str) or None"),
        ({"source": "s" * 2601}, "source has a text of 2601 bytes; give at most 2600"),
        ({"owner": ["ada"]}, "owner is list ['ada']; give text (str) or None"),
        ({"tags": "finance"}, "tags is 'finance'; give a tuple of texts, such as ('finance',)"),
        ({"tags": ("a", 5)}, "tags is tuple ('a', 5); give a tuple of texts"),
        ({"tags": None}, "tags is None; give a tuple of texts"),
        ({"tags": ("t" * 2601,)}, "tags has a text of 2601 bytes; give at most 2600"),
        ({"metadata": None}, "metadata is None; give a mapping, such as {'year': 2026}"),
        ({"metadata": [1]}, "metadata is list [1]; give a mapping"),
        ({"review_by": "tomorrowish"}, "review_by is 'tomorrowish'; give a datetime.date or None"),
        ({"modified_at": "2026-01-01"}, "modified_at is '2026-01-01'; give a datetime.datetime"),
        ({"modified_at": dt.date(2026, 1, 1)}, "modified_at is date datetime.date(2026, 1, 1)"),
        (
            {"modified_at": dt.datetime.max.replace(tzinfo=dt.UTC)},
            "of a year from 2 to 9998, or None",
        ),
        (
            {"modified_at": dt.datetime.min.replace(tzinfo=dt.UTC)},
            "of a year from 2 to 9998, or None",
        ),
        (
            {
                "expires_at": dt.datetime(
                    9999, 12, 31, 23, tzinfo=dt.timezone(dt.timedelta(hours=-2))
                )
            },
            "of a year from 2 to 9999, in UTC too",
        ),
        ({"expires_at": 1_800_000_000}, "expires_at is 1800000000; give a datetime.datetime"),
        ({"media_type": "pptx"}, "media_type is 'pptx'; give one of markdown, text, html, pdf"),
        ({"media_type": ["text"]}, "media_type is list ['text']; give one of markdown"),
        ({"page_starts": ("0",)}, "page_starts is tuple ('0',); give a tuple of whole numbers"),
        ({"page_starts": (0, 99)}, "page_starts are not offsets in a text of 19 characters"),
        ({"page_starts": (5, 0)}, "page_starts are not offsets in a text of 19 characters"),
    ],
)
def test_a_field_of_a_wrong_type_or_length_is_named_with_its_value(
    fields: dict[str, Any], fault: str
):
    with pytest.raises(DocumentError) as refused:
        parse.clean(Document(**({"key": "plan.md", "text": "Everybody may rest."} | fields)))
    assert fault in str(refused.value)
    assert refused.value.reason == "invalid"


def test_fields_at_the_ends_of_their_ranges_are_taken():
    document, _ = parse.clean(
        Document(
            key="k" * 1000,
            text="Everybody may rest.",
            source="s" * 2600,
            tags=["t" * 2600],  # type: ignore[arg-type]
            review_by=dt.date(2027, 1, 31),
            expires_at=dt.datetime.max.replace(tzinfo=dt.UTC),
            page_starts=(0, 19),
        )
    )
    assert (document.tags, document.page_starts) == (("t" * 2600,), (0, 19))


def test_an_instant_without_a_zone_is_read_as_utc():
    naive = dt.datetime(2026, 5, 4, 8, 30)  # noqa: DTZ001  what this is about
    document, _ = parse.clean(
        Document(key="plan.md", text="Everybody may rest.", modified_at=naive, expires_at=naive)
    )
    utc = dt.datetime(2026, 5, 4, 8, 30, tzinfo=dt.UTC)
    assert (document.modified_at, document.expires_at) == (utc, utc)


def test_a_date_that_a_tool_left_at_year_1_is_no_date():
    text = b"---\ndate: 0001-01-01T00:00:00Z\nexpires: 9999-12-31\n---\nEverybody may rest.\n"
    document = parse.parse_bytes(text, key="plan.md")
    assert document.modified_at is None
    assert document.expires_at == dt.datetime(9999, 12, 31, tzinfo=dt.UTC)


LINES = st.sampled_from(
    ["", "", "Word", "two words", "# Head", "## ", "===", "---", "- x", "> q", "```", "    code",
     "[a]: http://x", "[a]:", "<div>", "<!-- note", "-->", "| a | b |", "|---|---|", "(x)=", "***"]
)  # fmt: skip


@given(st.lists(LINES, min_size=1, max_size=8), st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_document_is_refused_exactly_where_none_of_its_blocks_says_anything(lines, end):
    text = end.join(lines) + end
    document = Document(key="a.md", text=text)
    if has_words(text, markdown_blocks(text)):
        assert parse.clean(document)[0].text == text
    else:
        with pytest.raises(DocumentError) as refused:
            parse.clean(document)
        assert refused.value.reason == "no_text"
