from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from ragpg.errors import InputError
from ragpg.parse import clean, parse_file
from ragpg.split import split
from ragpg.tokens import count_tokens, is_blank
from ragpg.types import Document, Span

SHARED = Path(os.environ.get("RAGPG_SHARED", Path(__file__).parents[2].parent / "shared"))
CASES = SHARED / "cases"


def section(text, *, max_tokens=400, overlap_tokens=50, key="a.md", media_type="markdown", **rest):
    document = Document(key=key, text=text, media_type=media_type, **rest)
    return split(document, splitter="section", max_tokens=max_tokens, overlap_tokens=overlap_tokens)


def texts(text, spans):
    return [text[span.start : span.stop] for span in spans]


def check(text: str, spans: list[Span], *, max_tokens: int) -> None:
    covered = 0
    for span in spans:
        assert covered == 0 or spans[0].start <= span.start <= covered
        assert span.stop > max(covered, span.start)
        covered = span.stop
        assert count_tokens(span.table_header + text[span.start : span.stop]) <= max_tokens
    assert covered == len(text)
    assert [span.start for span in spans] == sorted({span.start for span in spans})
    if not is_blank(text):
        assert not [span for span in spans if is_blank(text[span.start : span.stop])]


def test_hash_lines_inside_fences_of_every_kind_are_no_headings():
    text = (
        "# Restore\n\nStop the writer.\n\n```sh\n# stop first\nsystemctl stop w\n```\n\n"
        "~~~\n## not this\n```\n# nor this\n~~~\n\n````md\n```\n# inner\n```\n````\n\n"
        "    # indented\n\n1. step\n\n   ```\n   # in a list\n   ```\n\n> ~~~\n> # in a quote\n> ~~~\n\n"
        "\\# escaped, #tag, `# inline`\n\nThen wait for the queue to drain. Then wait for it.\n\n## Verify ##\n\nRead the row count.\n"
    )
    spans = section(text)
    assert [span.section_path for span in spans] == [("Restore",), ("Restore", "Verify")]
    assert "".join(texts(text, spans)) == text


def test_underlined_headings_are_found_and_rules_are_not_headings():
    text = (
        "Backups\n=======\n\nEvery night.\n\n- kept a month\n---\n\nTwo line\nheading\n---\n\n"
        + "Words of this part. " * 40
        + "\n\n```\nx\n```\n---\n\nEnd.\n"
    )
    spans = section(text, max_tokens=300)
    assert [span.section_path for span in spans] == [("Backups",), ("Backups", "Two line heading")]


def test_a_wide_table_is_cut_between_rows_and_its_header_is_repeated():
    rows = [f"| X{n:03} | part-{n} | wait {n} min |\n" for n in range(150)]
    header = "| Code | Part | Remedy |\n|:--|---|--:|\n"
    text = f"# Codes\n\nAll of them:\n\n{header}{''.join(rows)}\nAfter the table.\n"
    spans = section(text, max_tokens=200)
    check(text, spans, max_tokens=200)
    assert len(spans) > 5
    assert spans[0].table_header == ""
    assert header in text[spans[0].start : spans[0].stop]
    for span in spans[1:]:
        assert span.table_header == header
        assert text[span.start : span.stop].startswith("| X")
    assert text[spans[-1].start :].endswith("|\n\nAfter the table.\n")
    (found,) = [span for span in spans if "X077 " in text[span.start : span.stop]]
    assert "Remedy" in found.table_header
    assert "wait 77 min" in text[found.start : found.stop]


def test_a_row_wider_than_the_limit_is_cut_at_cells():
    text = "| a | b |\n|---|---|\n" + "| " + " | ".join(["some words in a cell"] * 40) + " |\n"
    spans = section(text, max_tokens=50, overlap_tokens=0)
    check(text, spans, max_tokens=50)
    assert all(part.endswith(("| ", "|\n")) for part in texts(text, spans)[1:])


def test_a_table_whose_header_is_wider_than_half_the_limit_is_continued_without_it():
    names = " | ".join(f"column {n}" for n in range(20))
    text = f"| {names} |\n|{'---|' * 20}\n" + f"| {'1 | ' * 20}\n" * 5
    spans = section(text, max_tokens=100)
    check(text, spans, max_tokens=100)
    assert {span.table_header for span in spans} == {""}


def test_a_fence_that_fits_is_never_cut():
    fence = "```py\n" + "value = compute(1)\n" * 30 + "```\n"
    text = "# A\n\n" + "Words before it. " * 60 + f"\n\n{fence}\n" + "Words after it. " * 60
    spans = section(text, max_tokens=250)
    check(text, spans, max_tokens=250)
    assert sum(fence in part for part in texts(text, spans)) == 1


def test_a_fence_that_does_not_fit_is_cut_at_line_ends():
    text = "# A\n\n```py\n" + "value = compute(1)\n" * 300 + "```\n"
    spans = section(text, max_tokens=200)
    check(text, spans, max_tokens=200)
    assert all(part.endswith("\n") for part in texts(text, spans))


def test_a_heading_goes_with_the_content_beneath_it():
    text = "# Title\n\n## Part\n\n### Detail\n\n" + "Some sentence here. " * 150
    spans = section(text, max_tokens=100)
    check(text, spans, max_tokens=100)
    assert "Some sentence" in text[spans[0].start : spans[0].stop]
    assert spans[0].section_path == ("Title", "Part", "Detail")


def test_headings_with_nothing_below_them_at_the_end_go_with_the_section_before():
    text = "# Title\n\nWords.\n\n## Later\n\n### Much later\n"
    (span,) = section(text)
    assert span.section_path == ("Title",)


def test_a_short_paragraph_that_announces_a_fence_stays_with_it():
    fence = "```sh\n" + "run the thing now\n" * 20 + "```\n"
    text = "# A\n\n" + "Long words of an introduction. " * 20 + f"\n\nThen run this:\n\n{fence}"
    spans = section(text, max_tokens=150)
    assert any(part.startswith("Then run this:\n\n```sh") for part in texts(text, spans))


def test_an_announcement_that_cannot_join_its_fence_ends_the_span_before_it():
    fence = "```sh\n" + "run the thing now\n" * 35 + "```\n"
    text = "# A\n\n" + "Words of an introduction. " * 20 + f"\n\nThen run this now:\n\n{fence}"
    spans = section(text, max_tokens=150, overlap_tokens=0)
    check(text, spans, max_tokens=150)
    assert texts(text, spans)[-1] == fence
    assert texts(text, spans)[-2].endswith("Then run this now:\n\n")
    assert len(spans) == 2


def test_a_short_paragraph_right_before_a_table_stays_with_it():
    table = "| Value | Meaning |\n|---|---|\n" + "| one | the first of the values |\n" * 8
    text = "# A\n\n" + "Words of an introduction. " * 20 + f"\n\nKinds has these values.\n\n{table}"
    spans = section(text, max_tokens=150, overlap_tokens=0)
    assert texts(text, spans)[-1] == f"Kinds has these values.\n\n{table}"


def test_a_label_goes_with_the_heading_that_it_names():
    text = "(deploy)=\n\n# Deploy\n\n" + "Plain words of one part. " * 40
    assert [span.section_path for span in section(text)] == [("Deploy",)]


def test_small_sections_of_one_parent_are_joined_under_the_parents_path():
    text = "# Alert\n\n## Meaning\n\nToo slow.\n\n## Impact\n\nUsers wait.\n\n# Other\n\nNo.\n"
    assert [span.section_path for span in section(text)] == [("Alert",), ("Other",)]


def test_small_sections_without_a_common_parent_stand_alone():
    text = "## One\n\nFirst.\n\n## Two\n\nSecond.\n"
    assert [span.section_path for span in section(text)] == [("One",), ("Two",)]


def test_sections_of_some_size_keep_their_own_path():
    words = "Plain words of one part. " * 30
    text = f"# T\n\n## A\n\n{words}\n\n## B\n\n{words}\n"
    assert [span.section_path for span in section(text)] == [("T", "A"), ("T", "B")]


def test_a_path_has_the_words_of_a_heading_without_its_markup():
    text = "# The `run` [guide](http://x) { #the-guide }\n\nWords.\n"
    assert section(text)[0].section_path == ("The run guide",)


def test_windows_line_ends_are_kept_and_understood():
    text = "# A\r\n\r\nOne.\r\n\r\n```\r\n# no\r\n```\r\n\r\n# B\r\n\r\nTwo.\r\n"
    spans = section(text)
    assert [span.section_path for span in spans] == [("A",), ("B",)]
    assert "".join(texts(text, spans)) == text


def test_a_long_paragraph_overlaps_at_sentences():
    text = " ".join(f"Point {n} was made by the group." for n in range(200))
    spans = section(text, max_tokens=100, overlap_tokens=20)
    check(text, spans, max_tokens=100)
    for before, after in pairwise(spans):
        assert before.stop > after.start
        assert count_tokens(text[after.start : before.stop]) <= 20
        assert text[after.start :].startswith("Point ")


def test_code_is_cut_between_its_definitions():
    body = "".join(f"    step_{n} = {n}\n" for n in range(20))
    text = "".join(f"def function_{n}():\n{body}\n    return 1\n\n\n" for n in range(10))
    spans = section(text, key="a.py", media_type="text", max_tokens=200)
    check(text, spans, max_tokens=200)
    assert all(part.startswith("def function_") for part in texts(text, spans))


def test_link_definitions_are_part_of_some_span():
    text = (
        "# A\n\nSee [one].\n\n[one]: http://a.example\n[two]: http://b.example\n\n## B\n\nWords.\n"
    )
    assert "".join(texts(text, section(text))) == text


@pytest.mark.parametrize(
    "text",
    [
        ">" * 3000 + " deep\n",
        "".join("  " * n + "- a\n" for n in range(400)),
        "# " + "[" * 5000 + "\n\ntext\n",
        "# " + "*" * 5000 + "a\n\ntext\n",
    ],
)
def test_deep_nesting_raises_nothing_and_loses_nothing(text):
    check(text, section(text), max_tokens=400)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a" * 10_000, "blob.txt"),
        ("Head " + "b" * 5000, "lead.txt"),
        ("连接池已满时请检查慢查询" * 300, "line.txt"),
        (
            "[" + ",".join(f'{{"id":{n},"hash":"9f86d081884c7d65"}}' for n in range(500)) + "]",
            "m.json",
        ),
        ("talk " * 4000, "talk.md"),
    ],
)
def test_text_without_break_points_is_cut_within_the_limit(text, key):
    spans = section(text, key=key, media_type="text", max_tokens=100, overlap_tokens=0)
    check(text, spans, max_tokens=100)
    assert len(spans) > 5


def test_no_cut_falls_inside_a_grapheme():
    cluster = "👨‍👩‍👦🏴‍☠️👍🏿🇯🇵🇧🇷e\u0301שָׁلِ𝔘"
    text = cluster * 200
    boundaries = {match.end() for match in regex.finditer(r"\X", text)} | {0}
    for splitter in ("section", "fixed"):
        for overlap in (0, 7):
            spans = split(
                Document(key="g.txt", text=text, media_type="text"),
                splitter=splitter,
                max_tokens=40,
                overlap_tokens=overlap,
            )
            check(text, spans, max_tokens=40)
            assert len(spans) > 10
            assert {edge for span in spans for edge in (span.start, span.stop)} <= boundaries


# In a process of its own, which can be ended where a search in the line never does.
_SPLIT_LINE = """
import json, sys, time
from ragpg.split import split
from ragpg.types import Document

def seconds(text):
    document = Document(key=sys.argv[3], text=text, media_type=sys.argv[4])
    started = time.process_time()
    spans = split(document, splitter="section", max_tokens=400, overlap_tokens=50)
    assert spans[0].start == 0 and spans[-1].stop == len(text)
    assert all(b.start <= a.stop < b.stop for a, b in zip(spans, spans[1:]))
    return time.process_time() - started

line = sys.argv[1] * int(sys.argv[2])
seconds(line[:100_000])
print(json.dumps([seconds(line[: len(line) // 8]), seconds(line)]))
"""


@pytest.mark.parametrize(
    ("unit", "megabytes", "key", "media_type"),
    [
        ("a", 20, "a.txt", "text"),
        ("word ", 20, "a.txt", "text"),
        ("word ", 20, "a.md", "markdown"),
        ("连接池已满时请检查慢查询", 20, "a.txt", "text"),
        ("🇨🇭", 2, "a.txt", "text"),
    ],
)
def test_a_line_of_20_megabytes_is_cut_in_linear_time(unit, megabytes, key, media_type):
    times = str(megabytes * 1_000_000 // len(unit.encode()))
    command = [sys.executable, "-c", _SPLIT_LINE, unit, times, key, media_type]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    eighth, whole = json.loads(done.stdout)
    # 8 where it is linear, 64 where it is quadratic.
    assert whole < 20 * eighth


@pytest.mark.parametrize(("max_tokens", "overlap_tokens"), [(0, 0), (10, 10), (10, -1), (10, 11)])
@pytest.mark.parametrize("splitter", ["section", "fixed"])
def test_impossible_sizes_are_refused(splitter, max_tokens, overlap_tokens):
    with pytest.raises(InputError, match=r"max_tokens"):
        split(
            Document(key="a", text="x"),
            splitter=splitter,
            max_tokens=max_tokens,
            overlap_tokens=overlap_tokens,
        )


def test_an_unknown_splitter_is_refused_by_name():
    with pytest.raises(InputError, match="'clever'"):
        split(Document(key="a", text="x"), splitter="clever", max_tokens=1, overlap_tokens=0)  # type: ignore[arg-type]


def test_whole_is_one_span_however_long():
    text = "word " * 10_000
    document = Document(key="a", text=text)
    assert split(document, splitter="whole", max_tokens=1, overlap_tokens=0) == [
        Span(start=0, stop=len(text))
    ]


def test_fixed_spans_overlap_and_keep_to_the_limit():
    text = "\n\n".join(f"# Head {n}\n\nSome words of part {n}." for n in range(100))
    document = Document(key="a", text=text)
    spans = split(document, splitter="fixed", max_tokens=60, overlap_tokens=15)
    check(text, spans, max_tokens=60)
    assert all(after.start < before.stop for before, after in pairwise(spans))


_LINES = st.sampled_from(
    [
        "# One", "## Two", "Head\n===", "```", "~~~", "````", "- item", "  - inner", "> quote",
        "| a | b |", "|---|---|", "| 1 | 2 |", "", "", "    code", "<div>", "<!-- c -->", "---",
        "[x]: http://y", "Plain words of a sentence. And another one!", "数据库连接池。", "\t", "e\u0301👩‍👧🇨🇭",
        "w" * 90, "1. first", "\u200b", "Then:", " | ".join("cells of it" for _ in range(12)),
    ]
)  # fmt: skip
_MARKDOWN = st.builds(
    lambda lines, end: end.join(lines),
    st.lists(st.one_of(_LINES, _LINES, st.text(max_size=30)), max_size=60),
    st.sampled_from(["\n", "\r\n", "\r"]),
)


@settings(max_examples=400, deadline=None)
@given(_MARKDOWN, st.sampled_from([8, 20, 60, 400]), st.sampled_from([0, 3, 7]), st.booleans())
def test_nothing_is_lost_and_limits_hold_for_any_text(text, limit, overlap, markdown):
    text = text.replace("\0", "")
    for key, media_type in (("a.md", "markdown"), ("a.txt", "text"), ("a.py", "text")):
        spans = section(
            text,
            max_tokens=limit,
            overlap_tokens=overlap,
            key=key,
            media_type=media_type,
            title="T" if markdown else None,
        )
        check(text, spans, max_tokens=limit)
    document = Document(key="a.md", text=text)
    fixed = split(document, splitter="fixed", max_tokens=limit, overlap_tokens=overlap)
    check(text, fixed, max_tokens=limit)


def _shared_files():
    if not CASES.is_dir():
        return []
    named = [
        path
        for case in ("C28", "C30", "C31", "C32", "C33", "C34")
        for path in sorted((CASES / "inputs").glob(f"{case}-*"))
        if not path.name.endswith("queries.json")
    ]
    return [*named, *sorted((CASES / "realdocs").glob("[01]*.md"))]


@pytest.mark.parametrize("path", _shared_files(), ids=lambda path: path.name)
def test_a_document_of_the_case_log_keeps_every_invariant(path):
    document, _ = clean(parse_file(path, key=path.name))
    spans = split(document, splitter="section", max_tokens=400, overlap_tokens=50)
    check(document.text, spans, max_tokens=400)


def test_the_case_log_is_there():
    if not CASES.is_dir():
        pytest.skip(f"{CASES} is absent; set RAGPG_SHARED")
    assert len(_shared_files()) >= 28
