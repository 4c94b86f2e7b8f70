from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
import Stemmer  # type: ignore[import-not-found]

from ragpg.providers.extractive import ExtractiveGenerator
from ragpg.providers.local import LocalEmbedder
from ragpg.providers.sentences import quotable
from ragpg.testing import HashEmbedder
from ragpg.types import AnswerDelta, Citation, Hit, Hits

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTIONS = json.loads((EXAMPLES.parent / "demo" / "questions.json").read_text(encoding="utf-8"))

KEYS = (
    "## Rotation\n\nAccess keys are rotated every ninety days. The rota is on the wiki.\n\n"
    "| Key | Owner |\n|---|---|\n| payments | the billing team |\n| search | the index team |\n"
)
LUNCH = "## Lunch\n\nThe canteen opens at noon. On Fridays there is soup.\n"


def hit(rank, text, *, key="guide", section_path=("Guide",), start=0):
    return Hit(
        rank=rank,
        chunk_id=100 + rank,
        document_key=key,
        document_title="Office guide",
        source=None,
        section_path=section_path,
        position=rank,
        start=start,
        stop=start + len(text),
        page=None,
        text=text,
        table_header="",
        context=None,
        tags=(),
        metadata={},
        modified_at=None,
        dense_rank=rank,
        dense_score=0.5,
        lexical_rank=None,
        lexical_score=None,
        fused_score=1 / (60 + rank),
    )


HITS = Hits(hits=(hit(1, LUNCH, start=500), hit(2, KEYS, start=40)))


def answer(query, hits=HITS, embedder=None):
    async def call():
        return await ExtractiveGenerator(embedder or LocalEmbedder()).generate(query, hits)

    return anyio.run(call)


def test_the_answer_is_a_sentence_word_for_word_with_its_place_in_the_document():
    found = answer("How often do we rotate access keys?")
    sentence = "Access keys are rotated every ninety days."
    assert found.text.startswith(sentence)
    assert found.citations[0] == Citation(
        number=1,
        document_key="guide",
        document_title="Office guide",
        section_path=("Guide",),
        page=None,
        chunk_id=102,
        start=40 + KEYS.index(sentence),
        stop=40 + KEYS.index(sentence) + len(sentence),
        quote=sentence,
    )
    assert (found.supported, found.extractive, found.provider, found.model) == (
        True,
        True,
        "extractive",
        "sentences-1",
    )


def test_every_quote_is_the_slice_that_its_citation_names_and_the_text_is_the_quotes():
    found = answer("who owns the payments key, and how often are access keys rotated?")
    texts = {101: (LUNCH, 500), 102: (KEYS, 40)}
    for citation in found.citations:
        text, start = texts[citation.chunk_id]
        assert text[citation.start - start : citation.stop - start] == citation.quote
    assert found.text == " ".join(citation.quote for citation in found.citations)
    assert found.text == "".join(block.text for block in found.blocks)
    assert [citation.number for citation in found.citations] == list(
        range(1, len(found.citations) + 1)
    )


def test_a_table_answers_with_a_whole_row():
    found = answer("Which team owns the payments key?")
    assert found.citations[0].quote == "| payments | the billing team |"


def test_a_paraphrase_without_a_common_word_is_answered():
    sentence = "Exhausted colleagues may hand back a shift without giving a reason."
    hits = Hits(hits=(hit(1, KEYS), hit(2, f"## Rota\n\nSix people share it. {sentence}\n")))
    found = answer("Can tired employees decline their duty?", hits)
    assert [citation.quote for citation in found.citations] == [sentence]


@pytest.mark.parametrize(
    "query", ["What is the capital of Mongolia?", "Who won the chess match?", "parental leave"]
)
def test_a_question_that_nothing_supports_is_told_so_without_citations(query):
    found = answer(query)
    assert (found.text, found.supported, found.citations) == (
        "The documents do not answer this.",
        False,
        (),
    )
    assert [block.text for block in found.blocks] == ["The documents do not answer this."]


def test_a_question_that_names_a_date_is_answered_only_from_what_stands_under_it():
    may = hit(1, "What happened: a disk was full.", section_path=("Incident 2025-05-02",))
    june = hit(2, "What happened: a key ran out.", section_path=("Incident 2025-06-30",))
    found = answer("What happened on 2025-06-30?", Hits(hits=(may, june)))
    assert [citation.chunk_id for citation in found.citations] == [102]


def test_no_hits_and_hits_without_a_sentence_are_no_support():
    assert not answer("keys?", Hits(hits=())).supported
    assert not answer("keys?", Hits(hits=(hit(1, "# Keys\n\n---\n"),))).supported


def test_a_sentence_that_two_hits_hold_is_quoted_once():
    hits = Hits(hits=(hit(1, "Keys rotate yearly."), hit(2, "Keys rotate yearly.", key="other")))
    found = answer("Keys rotate yearly", hits, HashEmbedder())
    assert [citation.document_key for citation in found.citations] == ["guide"]


def test_at_most_three_sentences_are_quoted():
    text = " ".join(f"Keys rotate yearly in region {name}." for name in "abcdef")
    found = answer("Keys rotate yearly in region", Hits(hits=(hit(1, text),)), HashEmbedder())
    assert len(found.citations) == 3


def test_a_stream_is_each_sentence_and_its_citation_then_the_whole_answer():
    async def call():
        generator = ExtractiveGenerator(LocalEmbedder())
        return [item async for item in generator.stream("Which team owns the payments key?", HITS)]

    *deltas, whole = anyio.run(call)
    expected = []
    for block in whole.blocks:
        expected += [AnswerDelta(text=block.text), AnswerDelta(citation=block.citations[0])]
    assert deltas == expected
    assert "".join(delta.text for delta in deltas) == whole.text


def test_usage_names_the_embedding_calls_and_the_generation():
    usage = answer("How often do we rotate access keys?").usage
    assert [each.operation for each in usage] == ["embed", "embed", "generate"]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["query"])
def test_the_questions_of_the_examples_are_answered_as_they_claim(question):
    sections = []
    for path in sorted(EXAMPLES.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        starts = [match.start() for match in re.finditer(r"^#{1,3} ", text, re.MULTILINE)]
        for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
            heading = text[start : text.index("\n", start)].lstrip("# ")
            passage = hit(1, text[start:stop], key=path.name, section_path=(heading,), start=start)
            sections.append(replace(passage, document_title=None))
    # All sections at once, three at a time: whatever the retrieval, the answer must hold.
    found = [
        answer(question["query"], Hits(hits=tuple(sections[at : at + 3])))
        for at in range(0, len(sections), 3)
    ]
    supported = [each for each in found if each.supported]
    assert bool(supported) == question["supported"]
    if question["supported"]:
        quotes = [
            (citation.document_key, citation.quote)
            for each in supported
            for citation in each.citations
        ]
        assert any(
            key == question["document"] and question["answer"] in quote for key, quote in quotes
        )


def test_no_content_word_of_the_paraphrase_is_in_the_examples():
    stem = Stemmer.Stemmer("english").stemWord
    words = {
        stem(word)
        for path in EXAMPLES.glob("*.md")
        for word in re.findall(r"[a-z]+", path.read_text(encoding="utf-8").lower())
    }
    asked = {stem(word) for word in ("tired", "employees", "decline", "duty")}
    assert QUESTIONS[1]["query"] == "Can tired employees decline their duty?"
    assert asked & words == set()


def parts(text):
    ranges = quotable(text)
    assert all(text[start:stop] == text[start:stop].strip() for start, stop in ranges)
    return [text[start:stop] for start, stop in ranges]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "One is here. Two is, e.g. this. Three?",
            ["One is here.", "Two is, e.g. this.", "Three?"],
        ),
        ("Version 1.2.3 is out. See v2.", ["Version 1.2.3 is out.", "See v2."]),
        ('She said "stop it." Then he left.', ['She said "stop it."', "Then he left."]),
        ("**Cause.** A disk was full.", ["**Cause.** A disk was full."]),
        ("**What happened.** It fell. Up.", ["**What happened.** It fell.", "Up."]),
        ("**Timeline.**\n\nIt took an hour.", ["It took an hour."]),
        ("A line\nthat wraps. Next one.", ["A line\nthat wraps.", "Next one."]),
        ("# Head\n\nText here.\n\nUnder\n-----\n\nMore.", ["Text here.", "More."]),
        ("- first item\n- second item\n  goes on", ["first item", "second item\n  goes on"]),
        ("1. do this\n2. do that\n- [x] done it", ["do this", "do that", "done it"]),
        ("> quoted words\n> go on", ["quoted words\n> go on"]),
        ("| a | b |\n|---|---|\n| 1 | x |\n\nEnd it.", ["| 1 | x |", "End it."]),
        ("a | b\n--- | ---\n\nEnd it.", ["End it."]),
        ("```sql\nselect 1;\nfrom x\n\nselect 2;\n```\nDone it.", None),
        ("---\ntitle: x\n---\nText here.", ["Text here."]),
        (
            "备份在夜里进行。恢复需要一小时！好吗？",
            ["备份在夜里进行。", "恢复需要一小时！", "好吗？"],
        ),
        ("यह एक वाक्य है। यह दूसरा है।", ["यह एक वाक्य है।", "यह दूसरा है।"]),
        ("", []),
        ("---\n\n***\n", []),
    ],
)
def test_what_can_be_quoted_of_markdown(text, expected):
    if expected is None:
        expected = ["select 1;\nfrom x", "select 2;", "Done it."]
    assert parts(text) == expected


def test_a_long_run_of_code_is_quoted_line_by_line():
    text = "```\n" + "\n".join(f"call_number_{n}(argument)" for n in range(20)) + "\n```\n"
    assert parts(text)[:2] == ["call_number_0(argument)", "call_number_1(argument)"]


def test_a_fence_that_is_never_closed_still_gives_its_lines():
    assert parts("```\nmake all\n") == ["make all"]
