from __future__ import annotations

from itertools import pairwise

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragpg.errors import InputError
from ragpg.split import split_semantic
from ragpg.tokens import count_tokens, is_blank
from ragpg.types import Document


async def by_subject(texts):
    """A vector that says whether a text speaks of ships."""
    assert not any(map(is_blank, texts))
    return [[1.0, 0.0] if "ship" in text.lower() else [0.0, 1.0] for text in texts]


def spans_of(text, *, max_tokens=400, embed=by_subject):
    async def run():
        return await split_semantic(
            Document(key="a.md", text=text), max_tokens=max_tokens, embed=embed
        )

    return anyio.run(run)


def test_a_span_ends_where_the_subject_changes():
    ships = "The ship left port. A second ship followed. No ship came back. "
    bread = "Bread needs time. Flour and water rest. The oven is hot."
    spans = spans_of(ships + bread)
    assert [(ships + bread)[span.start : span.stop] for span in spans] == [ships, bread]


def test_a_section_begins_a_span_and_keeps_its_heading():
    text = "# One\n\nThe ship left. The ship came.\n\n# Two\n\nThe ship sank.\n"
    spans = spans_of(text)
    assert [span.section_path for span in spans] == [("One",), ("Two",)]
    assert text[spans[1].start :].startswith("# Two")


def test_nothing_is_lost_and_the_limit_holds():
    table = "| a | b |\n|---|---|\n" + "".join(f"| {n} | ship {n} |\n" for n in range(60))
    text = (
        f"# T\n\n{'Bread is good. ' * 60}\n\n{table}\n```\n{'x = 1;' * 200}\n```\n\n- {'a' * 900}\n"
    )
    spans = spans_of(text, max_tokens=80)
    assert spans[0].start == 0
    assert spans[-1].stop == len(text)
    assert all(a.stop == b.start for a, b in pairwise(spans))
    for span in spans:
        assert count_tokens(span.table_header + text[span.start : span.stop]) <= 80


_LINES = st.sampled_from(
    [
        "# One",
        "## Two",
        "```",
        "- item",
        "| a | b |",
        "|---|---|",
        "| 1 | 2 |",
        "",
        "",
        "<!-- c -->",
        "---",
        "One thing. Another thing!",
        "数据库。连接池。",
        "\u200b",
        "w" * 90,
        "é👩\u200d👧🇨🇭",
        "Then:",
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_LINES, max_size=40).map("\n".join), st.sampled_from([8, 20, 60]))
def test_nothing_is_lost_for_any_text(text, limit):
    spans = spans_of(text, max_tokens=limit)
    if is_blank(text):
        assert spans == []
        return
    assert (spans[0].start, spans[-1].stop) == (0, len(text))
    assert all(before.stop == after.start for before, after in pairwise(spans))
    for span in spans:
        assert 0 < count_tokens(span.table_header + text[span.start : span.stop]) <= limit


def test_an_embedder_that_returns_too_few_vectors_is_refused():
    async def short(texts):
        return [[1.0]] * (len(texts) - 1)

    with pytest.raises(InputError, match="1 vectors for 2 sentences"):
        spans_of("One thing. Another thing.", embed=short)
