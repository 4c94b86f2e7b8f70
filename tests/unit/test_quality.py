from __future__ import annotations

import json

import pytest

from benchmarks import quality_choice, quality_headings, quality_report
from benchmarks.quality_parts import chosen, parts, recut
from benchmarks.quality_reference import EQUAL
from ragpg.evaluation_data import read_evaluation


@pytest.fixture
def two_languages(tmp_path):
    """Two documents and four queries in English, one of each in German."""
    documents = [("en:1", "en"), ("en:2", "en"), ("de:1", "de")]
    queries = [(f"q{number}", "de" if number == 2 else "en") for number in range(5)]
    (tmp_path / "corpus.jsonl").write_text(
        "".join(
            json.dumps({"_id": key, "text": f"text {key}", "metadata": {"lang": lang}}) + "\n"
            for key, lang in documents
        )
    )
    (tmp_path / "queries.jsonl").write_text(
        "".join(
            json.dumps({"_id": key, "text": key, "metadata": {"lang": lang}}) + "\n"
            for key, lang in queries
        )
    )
    (tmp_path / "qrels.tsv").write_text(
        "".join(f"{key}\t{'de:1' if lang == 'de' else 'en:1'}\t1\n" for key, lang in queries)
    )
    return tmp_path


def test_a_language_is_a_part_of_its_own_documents_queries_and_tokenizer(two_languages):
    english, german = parts(two_languages, ["en", "de"], 1)
    assert (english.name, english.language) == (f"{two_languages.name} en", "english")
    assert [document.key for document in english.plan.data.documents] == ["en:1", "en:2"]
    assert [query.id for query in english.plan.data.queries] == ["q0", "q1", "q3", "q4"]
    assert german.language == "german"
    assert [(qrel.query_id, qrel.id) for qrel in german.plan.data.qrels] == [("q2", "de:1")]


def test_one_question_in_three_keeps_all_documents(two_languages):
    (part,) = parts(two_languages, ["en"], 3)
    assert part.name == f"{two_languages.name} en, one question in 3"
    assert len(part.plan.data.documents) == 2
    assert [query.id for query in part.plan.data.queries] == ["q0", "q4"]


def test_a_part_that_is_cut_anew_says_so_in_its_name(two_languages):
    (part,) = parts(two_languages, [], 1)
    assert recut(part, "section") == part
    fixed, whole = recut(part, "fixed"), recut(part, "whole")
    assert (fixed.cut, fixed.name) == ("fixed", f"{two_languages.name}, chunks of 300 tokens")
    assert (whole.cut, whole.name) == ("whole", f"{two_languages.name}, whole documents")


def test_judgements_of_queries_that_are_left_out_are_left_out(two_languages):
    data = read_evaluation(two_languages)
    assert [qrel.query_id for qrel in chosen(data, data.queries[:2]).qrels] == ["q0", "q1"]


def test_parts_count_the_same_whatever_their_number_of_queries():
    small, large = {1.0: [100.0]}, {1.0: [0.0, 0.0, 0.0]}
    assert quality_choice.mean([small, large], 1.0) == 50.0


def test_of_weights_that_tie_the_one_nearest_to_one_is_chosen():
    part = {0.2: [90.0], 0.6: [90.1], 0.8: [89.95], 1.0: [89.8], 2.5: [90.0]}
    assert quality_choice.choose([part]) == 0.8


def test_the_interval_of_equal_weights_is_nought_and_of_a_better_one_above_it():
    part = {0.6: [0.0, 100.0] * 20, 1.0: [50.0, 100.0] * 20}
    assert quality_choice.interval([part], 0.6, 0.6) == (0.0, 0.0)
    low, high = quality_choice.interval([part], 1.0, 0.6)
    assert 0 < low < 25 < high < 50


def test_a_figure_below_the_reference_is_bold_and_stands_beside_it():
    result = {
        "name": "cookbook-code",
        "contexts": "given",
        "queries": 200,
        "rows": {name: [90.63, 90.64, 92.58, 99.0] for name in ("dense", EQUAL, "blend", "BM25")},
    }
    assert list(quality_report.comparison([result]))[1] == {
        "data": "cookbook-code",
        "contexts": "given",
        "row": "BM25",
        "@5": "90.6",
        "reference @5": "86.6",
        "difference @5": "+4.0",
        "@10": "90.6",
        "reference @10": "91.1",
        "difference @10": "**-0.5**",
        "@20": "92.6",
        "reference @20": "93.6",
        "difference @20": "**-1.0**",
        "one query is": "0.50",
    }


def test_headings_in_code_short_ones_repeated_ones_and_old_queries_are_no_new_queries():
    text = """# The title of it all
## How to install the thing
```
## this is a shell comment
```
## Too short
### What *is* said twice here
### What *is* said twice here
## Known as a query already
## See [the long guide](guide.md) to `config` {#config}
"""
    document = {"_id": "a", "title": "A", "text": text, "metadata": {"tenant": "t"}}
    found = list(quality_headings.chosen([document], {"known as a query already"}))
    assert sorted(found) == [
        ("t", "How to install the thing", "a", 1),
        ("t", "See the long guide to config", "a", 9),
    ]
