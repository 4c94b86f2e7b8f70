"""CSV and TSV: every passage after the first carries the header row, and no row is cut."""

from __future__ import annotations

import time

import pytest

from ragpg.split import split, split_semantic
from ragpg.types import Document, Span

HEADER = "pump,site,remark\n"
ROWS = [f"P-{n},plant {n},checked by team {n} in spring\n" for n in range(60)]


def spans(text: str, *, key: str = "pumps.csv", limit: int = 60) -> list[Span]:
    document = Document(key=key, text=text, media_type="text")
    found = split(document, splitter="section", max_tokens=limit, overlap_tokens=0)
    assert "".join(text[span.start : span.stop] for span in found) == text
    return found


def test_each_passage_after_the_first_has_the_header_row_and_whole_rows():
    text = HEADER + "".join(ROWS)
    found = spans(text)
    assert len(found) > 5
    assert [span.table_header for span in found] == ["", *[HEADER] * (len(found) - 1)]
    assert text[found[0].start :].startswith(HEADER)
    for span in found:
        assert text[span.start : span.stop].endswith("\n")
        assert text[span.start :].startswith(("pump,", "P-"))


def test_a_row_that_goes_on_over_line_ends_in_quotes_is_not_cut():
    rows = [f'P-{n},"first line {n}\nsecond, with ""quotes""\n\nthird",done\n' for n in range(30)]
    text = HEADER + "".join(rows)
    starts = {span.start for span in spans(text, limit=50)}
    expected = {0} | {text.index(row) for row in rows}
    assert len(starts) > 5
    assert starts <= expected


def test_a_quote_within_a_cell_opens_nothing():
    text = HEADER + "".join(f'P-{n},5" pipe,tall {n} and 6" wide\n' for n in range(40))
    assert {text[span.start : span.start + 2] for span in spans(text)} == {"pu", "P-"}


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_delimiters_and_line_ends_are_known(delimiter):
    text = "".join([HEADER, *ROWS]).replace(",", delimiter).replace("\n", "\r\n")
    found = spans(text, key="pumps.tsv")
    assert {span.table_header for span in found[1:]} == {
        HEADER.replace(",", delimiter).replace("\n", "\r\n")
    }


def test_a_first_row_with_a_number_is_no_header():
    text = "".join(f"P-{n},{n}.5,checked in spring by the team\n" for n in range(60))
    assert {span.table_header for span in spans(text)} == {""}


def test_a_header_that_takes_more_than_half_of_the_limit_is_not_repeated():
    text = ",".join(f"column_{n}" for n in range(40)) + "\n" + "".join(ROWS)
    assert {span.table_header for span in spans(text)} == {""}


@pytest.mark.parametrize("text", ["a,b\n", "a,b\n1,2\n", "\n\n", "a,b\n\n\n1,2", '"open'])
def test_small_and_odd_texts_stay_whole(text):
    assert [(span.start, span.stop) for span in spans(text)] == [(0, len(text))]


def test_a_megabyte_takes_a_second_also_where_no_quote_is_closed():
    for row in ("a,b c d,e\n", 'a,"b ""c\n', ',"""""\n'):
        text = HEADER + row * (1_000_000 // len(row))
        started = time.perf_counter()
        spans(text, limit=400)
        assert time.perf_counter() - started < 15


@pytest.mark.anyio
async def test_the_semantic_splitter_repeats_the_header_as_well():
    async def embed(texts):
        return [[1.0, float(number % 7)] for number, _ in enumerate(texts)]

    text = HEADER + "".join(ROWS)
    document = Document(key="pumps.csv", text=text, media_type="text")
    found = await split_semantic(document, max_tokens=60, embed=embed)
    assert [span.table_header for span in found] == ["", *[HEADER] * (len(found) - 1)]
