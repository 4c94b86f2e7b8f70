"""The page of benchmarks is what the results say, in tables."""

from __future__ import annotations

from benchmarks import report


def test_the_page_in_docs_is_the_one_that_the_results_give():
    assert report.TARGET.read_text("utf-8") == report.page()


def test_rows_within_rows_become_a_table_for_each():
    sizes = [
        {"chunks": 10_000, "rows": [{"p50_ms": 1.5}, {"p50_ms": 12.25}]},
        {"chunks": 100_000, "rows": [{"p50_ms": 2.0}]},
    ]
    tables = list(report.tables({"sizes": sizes, "k": 20}))
    assert [names[-1] for names, _ in tables] == ["chunks: 10,000", "chunks: 100,000"]
    assert list(report.table(tables[0][1])) == ["| p50_ms |", "|---|", "| 1.500 |", "| 12.2 |"]


def test_no_cell_of_the_page_holds_json():
    assert not [line for line in report.page().splitlines() if '{"' in line]
