from __future__ import annotations

import datetime as dt

import pytest

from ragpg.errors import DocumentError
from ragpg.parse import clean, parse_bytes
from ragpg.split import split
from tests.unit.parse_fixtures import docx, pdf

PAGE = """<!doctype html><html><head><title>Leave &amp; holidays | Acme</title><style>p{}</style></head>
<body><header><a href="/">Acme</a></header><nav><a href="/x">Menu</a></nav><main><article>
<header><h1>Leave <em>policy</em></h1></header><p>Twenty-five days a year.</p><!-- draft -->
<table><tr><th>Grade</th><th>Days</th></tr><tr><td>A</td><td>25</td></tr></table>
<pre><code># not a heading</code></pre><p># nor this</p><img src="data:image/png;base64,AAAA" alt="A chart">
<script>track()</script></article></main><footer>Copyright</footer></body></html>"""


def test_html_becomes_markdown_without_what_surrounds_it():
    document = parse_bytes(PAGE.encode(), key="leave.html")
    assert document.title == "Leave & holidays | Acme"
    assert "# Leave *policy*" in document.text
    assert "| Grade | Days |" in document.text
    assert "A chart" in document.text
    for gone in ("Menu", "Copyright", "draft", "track", "Acme", "base64", "p{}"):
        assert gone not in document.text
    spans = split(document, splitter="section", max_tokens=400, overlap_tokens=0)
    assert [span.section_path for span in spans] == [("Leave policy",)]


def test_html_is_decoded_as_it_declares():
    content = '<html><head><meta charset="windows-1251"></head><p>Отпуск</p>'.encode("cp1251")
    assert parse_bytes(content, key="a.html").text == "Отпуск\n"


def test_html_without_a_title_is_called_by_its_first_heading():
    assert parse_bytes(b"<h1>Leave</h1><p>Words</p>", key="a.html").title == "Leave"


def test_pdf_pages_headings_and_properties_are_read():
    content = pdf(
        [
            (20, 740, "Printer manual"),
            (11, 700, "Load the paper first."),
            (11, 686, "Then close it."),
        ],
        [(15, 740, "Toner"), (11, 710, "# is no heading here"), (11, 650, "A new paragraph.")],
        info=rb"/Title (Manual\000\000) /Author (Kim\000) /ModDate (D:20250518093000+02'00')",
    )
    document, removed = clean(parse_bytes(content, key="printer.pdf"))
    assert document.text == (
        "# Printer manual\n\nLoad the paper first.\nThen close it.\n\n"
        "## Toner\n\n\\# is no heading here\n\nA new paragraph.\n\n"
    )
    assert document.page_starts == (0, document.text.index("## Toner"))
    assert document.title == "Manual"
    assert document.metadata == {"author": "Kim"}
    assert removed == 3
    zone = dt.timezone(dt.timedelta(hours=2))
    assert document.modified_at == dt.datetime(2025, 5, 18, 9, 30, tzinfo=zone)


def test_a_pdf_without_a_text_layer_is_refused_as_such():
    with pytest.raises(DocumentError, match="no text layer") as caught:
        parse_bytes(pdf([], []), key="scan.pdf")
    assert caught.value.reason == "no_text"


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"%PDF-1.4 broken", "a.pdf"),
        (b"PK\x03\x04 broken", "a.docx"),
        (docx(("Normal", "x"))[:300], "a.docx"),
    ],
)
def test_a_broken_file_is_refused_as_unreadable(content, key):
    with pytest.raises(DocumentError, match=key) as caught:
        parse_bytes(content, key=key)
    assert caught.value.reason == "unreadable"


def test_a_word_document_becomes_markdown():
    content = docx(
        ("Heading1", "Leave policy"), ("Normal", "Twenty-five days."), ("Heading2", "Illness"),
        ("Normal", "Call before nine."), title="Leave &amp; more",
    )  # fmt: skip
    document = parse_bytes(content, key="leave.docx")
    assert document.title == "Leave & more"
    assert document.metadata == {"author": "Kim"}
    assert document.modified_at == dt.datetime(2025, 5, 18, 10, tzinfo=dt.UTC)
    assert document.text == (
        "# Leave policy\n\nTwenty-five days.\n\n## Illness\n\nCall before nine.\n"
    )
