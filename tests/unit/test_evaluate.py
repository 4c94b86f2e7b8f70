from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path

import pytest
import pytrec_eval

from ragpg.errors import InputError
from ragpg.evaluate import evaluate, failure_reduction, gain, rank_of
from ragpg.evaluation_data import GivenChunk, Query, read_evaluation
from ragpg.types import Chunk, Document, Qrel

SHARED = Path(os.environ.get("RAGPG_SHARED", Path(__file__).parents[3] / "shared"))


def qrel(query_id, judged_id, relevance=1.0):
    return Qrel(query_id=query_id, id=judged_id, relevance=relevance)


def test_measures_are_what_a_hand_calculation_gives():
    measures = evaluate(
        [qrel("q", "a"), qrel("q", "b")],
        {"q": ["x", "a", "y", "b"]},
        ["pass@2", "recall@4", "miss@2", "p@4", "rr", "ndcg@3"],
    )
    assert measures.mean == {
        "pass@2": 1 / 2,
        "recall@4": 1.0,
        "miss@2": 1 / 2,
        "p@4": 2 / 4,
        "rr": 1 / 2,
        "ndcg@3": pytest.approx((1 / 1.5849625007) / (1 + 1 / 1.5849625007)),
    }


def test_the_rank_of_a_judgement_is_that_of_the_first_id_of_its_text():
    assert rank_of("b", ["a", "b", "c"]) == 2
    assert rank_of("b", ["a", "c"]) is None
    assert rank_of("copy", ["x", "original", "copy"], twins={"copy": "original"}) == 2


def test_a_gain_has_the_interval_of_the_differences_query_by_query():
    qrels = [qrel("q1", "a"), qrel("q2", "a"), qrel("q3", "a"), qrel("q4", "a")]
    before = evaluate(qrels, {"q1": ["a"]}, ["pass@1"])
    now = evaluate(qrels, {"q1": ["a"], "q2": ["a"]}, ["pass@1"])
    # Differences 0, 1, 0, 0: mean 1/4, standard deviation 1/2.
    assert gain("pass@1", before, now) == pytest.approx((0.25, 1.96 * 0.5 / 2))
    assert gain("pass@1", now, now) == (0.0, 0.0)


def test_the_gain_on_a_single_query_says_nothing():
    before, now = (evaluate([qrel("q", "a")], {"q": ids}, ["rr"]) for ids in ([], ["a"]))
    assert gain("rr", before, now) == (1.0, math.inf)


def test_graded_relevance_counts_in_ndcg():
    measures = evaluate([qrel("q", "a", 3), qrel("q", "b", 1)], {"q": ["b", "a"]}, ["ndcg@10"])
    log3 = 1.5849625007
    assert measures.mean["ndcg@10"] == pytest.approx((1 + 3 / log3) / (3 + 1 / log3))


def test_means_are_over_judged_queries_and_a_query_without_a_list_counts_as_zero():
    measures = evaluate(
        [qrel("q1", "a"), qrel("q2", "b")],
        {"q1": ["a"], "unjudged": ["b"]},
        ["pass@1", "rr", "miss@1"],
    )
    assert measures.queries == 2
    assert measures.mean == {"pass@1": 0.5, "rr": 0.5, "miss@1": 0.5}
    assert measures.by_query["q2"] == {"pass@1": 0.0, "rr": 0.0, "miss@1": 1.0}


def test_a_golden_chunk_is_found_when_a_chunk_of_the_same_text_is_in_the_top():
    qrels = [qrel("q", "copy"), qrel("q", "other")]
    run = {"q": ["original", "x", "copy"]}
    assert evaluate(qrels, run, ["pass@2"]).mean == {"pass@2": 0.0}
    assert evaluate(qrels, run, ["pass@2"], twins={"copy": "original"}).mean == {"pass@2": 0.5}


def test_two_golden_chunks_of_one_text_are_two_for_pass_and_one_for_the_others():
    measures = evaluate(
        [qrel("q", "original"), qrel("q", "copy"), qrel("q", "other")],
        {"q": ["copy", "original", "x"]},
        ["pass@2", "recall@2", "p@2", "rr"],
        twins={"copy": "original"},
    )
    assert measures.mean == {"pass@2": 2 / 3, "recall@2": 1 / 2, "p@2": 1 / 2, "rr": 1.0}


def test_a_repeated_id_uses_up_a_place_and_finds_nothing_new():
    measures = evaluate([qrel("q", "a"), qrel("q", "b")], {"q": ["a", "a", "b"]}, ["recall@2"])
    assert measures.mean == {"recall@2": 0.5}


def test_measures_agree_with_trec_eval_on_random_lists():
    rng = random.Random(7)  # noqa: S311 - a fixed seed
    ids = [f"d{number}" for number in range(60)]
    judged = {
        f"q{number}": {each: rng.randint(1, 3) for each in rng.sample(ids, rng.randint(1, 9))}
        for number in range(40)
    }
    run = {query_id: rng.sample(ids, 40) for query_id in judged}
    ours = evaluate(
        [qrel(query, each, grade) for query, row in judged.items() for each, grade in row.items()],
        run,
        ["recall@5", "recall@20", "p@5", "rr", "ndcg@10"],
    )
    theirs = pytrec_eval.RelevanceEvaluator(
        judged, {"recall.5,20", "P.5", "recip_rank", "ndcg_cut.10"}
    ).evaluate(
        {
            query_id: {each: float(-rank) for rank, each in enumerate(row)}
            for query_id, row in run.items()
        }
    )
    names = {
        "recall@5": "recall_5",
        "recall@20": "recall_20",
        "p@5": "P_5",
        "rr": "recip_rank",
        "ndcg@10": "ndcg_cut_10",
    }
    for query_id, values in theirs.items():
        assert ours.by_query[query_id] == pytest.approx(
            {mine: values[name] for mine, name in names.items()}
        )


@pytest.mark.parametrize("measure", ["ndcg", "pass@0", "rr@10", "f1@5", "pass@", "Pass@5"])
def test_an_unknown_measure_is_refused_with_the_accepted_ones(measure):
    with pytest.raises(InputError, match="use one of rr, pass@k, recall@k, miss@k, p@k, ndcg@k"):
        evaluate([qrel("q", "a")], {"q": ["a"]}, [measure])


def test_nothing_judged_is_refused():
    with pytest.raises(InputError, match="no judgement"):
        evaluate([], {"q": ["a"]}, ["rr"])


def test_a_judgement_of_zero_or_less_is_no_answer():
    judged = [qrel("q", "a", 1), qrel("q", "b", 0), qrel("q", "c", -1), qrel("r", "a", 0)]
    measures = evaluate(judged, {"q": ["b", "c", "a"]}, ["rr", "recall@2", "ndcg@10"])
    assert measures.queries == 1
    assert measures.mean == {"rr": 1 / 3, "recall@2": 0.0, "ndcg@10": pytest.approx(0.5)}
    with pytest.raises(InputError, match="no judgement to evaluate against"):
        evaluate([qrel("q", "a", 0)], {"q": ["a"]}, ["ndcg@10"])


@pytest.mark.parametrize("wrong", [("q", "a", 1), qrel("q", "a", math.nan)])
def test_what_is_no_judgement_is_refused(wrong):
    with pytest.raises(InputError, match=r"is no judgement; give ragpg\.Qrel"):
        evaluate([wrong], {"q": ["a"]}, ["rr"])


def test_the_reduction_is_the_share_of_failures_that_are_gone():
    assert failure_reduction(0.2, 0.05) == pytest.approx(0.75)
    assert failure_reduction(0.2, 0.3) == pytest.approx(-0.5)
    assert failure_reduction(0.0, 0.0) == 0.0


def write(folder, name, rows):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, "corpus.jsonl", [{"_id": "d1", "title": "One", "text": "alpha\n\nbeta"}])
    write(tmp_path, "queries.jsonl", [{"_id": "q1", "text": "which?", "metadata": {"n": 1}}])
    write(tmp_path, "qrels.tsv", ["query-id\tcorpus-id\tscore", "q1\td1\t2"])
    return tmp_path


def add_chunks(folder, *texts):
    rows = [
        {"_id": f"d1::{number}", "doc_id": "d1", "index": number, "text": text}
        for number, text in enumerate(texts)
    ]
    write(folder, "chunks.jsonl", rows)
    write(folder, "qrels_chunks.tsv", ["q1\td1::1\t1"])


def test_a_folder_of_documents_is_read_with_document_judgements(folder):
    data = read_evaluation(folder)
    assert data.documents == (Document(key="d1", title="One", text="alpha\n\nbeta"),)
    assert data.queries == (Query(id="q1", text="which?", metadata={"n": 1}),)
    assert data.qrels == (qrel("q1", "d1", 2.0),)
    assert (data.level, data.chunks, data.contexts, data.twins) == ("document", None, None, {})


def test_given_chunks_lie_in_their_document_and_carry_chunk_judgements(folder):
    add_chunks(folder, "alpha", "beta")
    write(folder, "contexts.jsonl", [{"_id": "d1::0", "context": "The start."}])
    data = read_evaluation(folder)
    assert data.level == "chunk"
    assert data.qrels == (qrel("q1", "d1::1"),)
    assert data.contexts == {"d1::0": "The start."}
    assert data.chunks == (
        GivenChunk(
            id="d1::0",
            document_key="d1",
            chunk=Chunk(position=0, start=0, stop=5, text="alpha"),
        ),
        GivenChunk(
            id="d1::1",
            document_key="d1",
            chunk=Chunk(position=1, start=7, stop=11, text="beta"),
        ),
    )


def test_without_a_corpus_a_document_is_its_chunks_joined(folder):
    (folder / "corpus.jsonl").unlink()
    add_chunks(folder, "gamma", "beta")
    data = read_evaluation(folder)
    assert data.documents == (Document(key="d1", text="gamma\n\nbeta"),)
    assert data.chunks is not None
    assert [(each.chunk.start, each.chunk.stop) for each in data.chunks] == [(0, 5), (7, 11)]


def test_chunks_that_are_no_part_of_the_corpus_text_make_the_document_themselves(folder):
    add_chunks(folder, "alpha", "delta")
    data = read_evaluation(folder)
    assert data.documents == (Document(key="d1", title="One", text="alpha\n\ndelta"),)


def test_judgements_are_found_where_beir_has_them(folder):
    given = read_evaluation(folder).qrels
    (folder / "qrels").mkdir()
    (folder / "qrels.tsv").rename(folder / "qrels" / "test.tsv")
    assert read_evaluation(folder).qrels == given


def test_repeated_texts_have_a_twin_whatever_white_space_is_around_them(folder):
    add_chunks(folder, "same\n", "other", " same")
    assert read_evaluation(folder).twins == {"d1::2": "d1::0"}


def test_judgements_of_zero_are_left_out_and_the_header_may_be_missing(folder):
    write(folder, "corpus.jsonl", [{"_id": "d1", "text": "a"}, {"_id": "d2", "text": "b"}])
    write(folder, "qrels.tsv", ["q1\td1\t0", "q1\td2\t1"])
    assert read_evaluation(folder).qrels == (qrel("q1", "d2"),)


def test_a_line_separator_inside_a_string_does_not_end_the_line(folder):
    write(folder, "queries.jsonl", ['{"_id": "q1", "text": "one\u2028two"}'])
    assert read_evaluation(folder).queries[0].text == "one\u2028two"


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("corpus.jsonl", "{oops", r"corpus.jsonl, line 2 is not JSON .* expected one object"),
        ("corpus.jsonl", "[1]", r"line 2 is a JSON list; expected an object"),
        ("corpus.jsonl", '{"text": "x"}', r'line 2 lacks "_id"; expected a string'),
        ("corpus.jsonl", '{"_id": "d2"}', r'line 2 lacks "text"; expected a string'),
        ("corpus.jsonl", '{"_id": "", "text": "x"}', r'line 2 has an empty "_id"'),
        ("corpus.jsonl", '{"_id": "d1", "text": "x"}', r"line 2 repeats the id 'd1'"),
        ("corpus.jsonl", '{"_id": "d2", "text": 5}', r'line 2 has int as "text"'),
        ("corpus.jsonl", '{"_id": "d2", "text": "x", "metadata": []}', r'has list as "metadata"'),
        ("queries.jsonl", '{"_id": "q2", "text": " "}', r"line 2: the query 'q2' is blank"),
        ("qrels.tsv", "q1 d1 1", r"line 3 has 1 fields; expected query id, document id"),
        ("qrels.tsv", "q9\td1\t1", r"line 3 names the query 'q9', which queries.jsonl lacks"),
        ("qrels.tsv", "q1\td9\t1", r"line 3 names the document 'd9', which the folder lacks"),
        ("qrels.tsv", "q1\td1\tyes", r"line 3 has the relevance 'yes'; expected a number"),
        ("qrels.tsv", "q1\td1\tnan", r"line 3 has the relevance 'nan'; expected a number"),
    ],
)
def test_a_bad_line_is_refused_with_its_file_and_number(folder, name, line, message):
    with (folder / name).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=message):
        read_evaluation(folder)


def test_a_context_of_an_unknown_chunk_is_refused(folder):
    add_chunks(folder, "alpha", "beta")
    write(folder, "contexts.jsonl", [{"_id": "d7::0", "context": "x"}])
    with pytest.raises(InputError, match=r"line 1 names the chunk 'd7::0', which chunks.jsonl"):
        read_evaluation(folder)


def test_a_folder_whose_name_is_too_long_is_refused_as_one_without_documents(tmp_path):
    with pytest.raises(InputError, match=r"neither corpus.jsonl nor chunks.jsonl"):
        read_evaluation(tmp_path / ("x" * 300))


def test_a_folder_without_documents_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"neither corpus.jsonl nor chunks.jsonl"):
        read_evaluation(tmp_path)


def test_a_missing_file_is_named(folder):
    (folder / "queries.jsonl").unlink()
    with pytest.raises(InputError, match=r"queries.jsonl is missing"):
        read_evaluation(folder)


def test_a_file_that_is_not_utf8_is_named_with_the_byte(folder):
    (folder / "queries.jsonl").write_bytes(b'{"_id": "q1", "text": "\xe9"}')
    with pytest.raises(InputError, match=r"queries.jsonl is not UTF-8 at byte 23"):
        read_evaluation(folder)


def test_judgements_without_a_relevant_one_are_refused(folder):
    write(folder, "qrels.tsv", ["q1\td1\t0"])
    with pytest.raises(InputError, match="no judgement above 0"):
        read_evaluation(folder)


@pytest.mark.skipif(not (SHARED / "data").exists(), reason="needs the evaluation data folder")
def test_the_code_search_set_is_read_whole():
    data = read_evaluation(SHARED / "data" / "cookbook-code")
    assert data.chunks is not None
    assert data.contexts is not None
    counts = (len(data.documents), len(data.chunks), len(data.queries), len(data.qrels))
    assert counts == (90, 737, 248, 306)
    assert (data.level, len(data.contexts)) == ("chunk", 737)
    texts = {document.key: document.text for document in data.documents}
    assert all(
        texts[each.document_key][each.chunk.start : each.chunk.stop] == each.chunk.text
        for each in data.chunks
    )
