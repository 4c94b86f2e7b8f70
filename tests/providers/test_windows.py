from __future__ import annotations

import itertools

from ragpg.providers.windows import windows
from ragpg.tokens import count_tokens
from tests.providers.making import cut, document


def test_a_document_that_fits_is_one_window_with_all_its_chunks():
    source = document(lines=100)
    chunks = cut(source, into=3)
    (window,) = windows(source.text, chunks, max_tokens=10_000)
    assert (window.start, window.stop, window.text) == (0, len(source.text), source.text)
    assert window.chunks == tuple(chunks)


def test_windows_stay_under_the_limit_overlap_and_leave_no_chunk_out():
    source = document(lines=3_000)
    chunks = cut(source, into=300)
    found = windows(source.text, chunks, max_tokens=8_000)
    assert len(found) > 2
    assert all(count_tokens(window.text) <= 8_000 * 1.01 for window in found)
    assert all(a.stop > b.start for a, b in itertools.pairwise(found))
    placed = [chunk.position for window in found for chunk in window.chunks]
    assert placed == list(range(300))
    for window in found:
        assert window.text == source.text[window.start : window.stop]
        for chunk in window.chunks:
            assert window.start <= chunk.start < chunk.stop <= window.stop
            # A chunk in the middle of the document sees text on both sides of it.
            if 0 < chunk.position < 299:
                assert window.start < chunk.start or window.start == 0
                assert chunk.stop < window.stop or window.stop == len(source.text)


def test_a_chunk_as_long_as_the_document_is_read_in_the_window_that_shows_most_of_it():
    source = document(lines=3_000)
    chunks = cut(source, into=1)
    (window,) = windows(source.text, chunks, max_tokens=8_000)
    assert window.chunks == tuple(chunks)


def test_dense_text_behind_loose_text_does_not_burst_a_window():
    text = "abc def ghi jkl.\n" * 2_000 + "漢字" * 20_000
    source = document(lines=0)
    chunks = cut(type(source)(key="k", text=text), into=40)
    for window in windows(text, chunks, max_tokens=6_000):
        assert count_tokens(window.text) <= 6_100
