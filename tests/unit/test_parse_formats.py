from __future__ import annotations

import datetime as dt
import time

import pytest

from ragpg.errors import DocumentError
from ragpg.parse import clean, notices, parse_bytes
from ragpg.parse.html_frame import mark_frame
from ragpg.split import split
from ragpg.types import Document
from tests.unit.parse_fixtures import Block, Cell, docx, pdf

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


def markdown(body, head=""):
    page = f"<!doctype html><html><head>{head}</head><body>{body}</body></html>"
    return parse_bytes(page.encode(), key="a.html").text


def test_a_form_keeps_its_text_and_loses_its_controls():
    text = markdown(
        '<form method="post" action="./Policy.aspx"><input type="hidden" name="__VIEWSTATE"'
        ' value="dDwtMTA4"><h1>Travel policy</h1><p>Trains before planes.</p><fieldset>'
        "<legend>Who may fly</legend><p>Those who travel over 600 km.</p></fieldset>"
        '<label for="q">Cost centre</label><input id="q" value="4711"><select><option>Berlin'
        "<option>Lyon</select><textarea>Type here</textarea><button>Send it</button>"
        '<datalist><option value="x">Listed</datalist></form><p>Ask the desk.</p>'
    )
    assert text == (
        "# Travel policy\n\nTrains before planes.\n\n**Who may fly**\n\n"
        "Those who travel over 600 km.\n\nCost centre\n\nAsk the desk.\n"
    )


def test_a_button_in_a_heading_or_one_that_opens_something_keeps_its_words():
    text = markdown(
        "<h3><button type=button>May I carry leave over?</button></h3><p>Five days.</p>"
        '<button aria-expanded="false" aria-controls="x">What about illness?</button>'
        "<p>Call before nine.</p><button class=share>Share this page</button>"
    )
    assert text == (
        "### May I carry leave over?\n\nFive days.\n\nWhat about illness?\n\nCall before nine.\n"
    )


@pytest.mark.parametrize(
    "kept",
    [
        "<main><p>Text.</p><footer>Kept</footer></main>",
        "<article><p>Text.</p><footer><p>Kept</p></footer></article>",
        "<div role='main'><div><p>Text.</p></div><footer>Kept</footer></div>",
        "<section><h2>Text.</h2><footer>Kept</footer></section>",
        "<blockquote><p>Text.</p><footer>Kept</footer></blockquote>",
        "<main><div><p>Text.</p></div><aside>Kept</aside></main>",
        "<article><p>Text.</p><aside class=sidebar>Kept</aside></article>",
        "<main><p>Text.</p><div class='sidebar'>Kept</div></main>",
        "<p>Text.</p><aside class=note>Kept</aside>",
        "<header><h1>Kept</h1></header><p>Text.</p>",
        "<main><header><h1>Kept</h1></header><p>Text.</p></main>",
        "<div class='sidebar'><main><p>Text. Kept</p></main></div>",
        "<div class='page has-sidebar sidebar-left'><p>Text. Kept</p></div>",
        "<div id=cookie-banner><article>Text. Kept</article></div>",
        "<p>Text.</p><div class='cookies'>Kept</div>",
        "<p>Text.</p><section aria-label='Cookies'>Kept</section>",
        "<p>Text.</p><div title='class=sidebar'>Kept</div>",
        "<p>Text.</p><!-- <footer> --><p>Kept</p><!-- </footer> -->",
        "<p>Text.</p><script>'<footer>'</script><p>Kept</p>",
        "<p>Text. <a title=it's href=x>a</a></p><p data-x='<footer>'>Kept</p><p>it's</p>",
    ],
)
def test_what_may_be_content_of_a_page_is_kept(kept):
    text = markdown(f"{kept}<footer>All rights reserved</footer>")
    assert "Text." in text
    assert "Kept" in text
    assert "rights" not in text


@pytest.mark.parametrize(
    "frame",
    [
        "<footer><div><p>Frame</p></div></footer>",
        "<div class=wrapper><div><footer id=colophon>Frame</footer></div></div>",
        "<FOOTER>Frame</FOOTER>",
        "<nav><ul><li>Frame</ul></nav>",
        "<aside>Frame</aside>",
        "<div role=complementary>Frame</div>",
        "<header><a href=/>Frame</a></header>",
        '<div id="sidebar"><h2>Frame</h2></div>',
        "<div class='col SideBar'>Frame</div>",
        "<div class='box cookie-banner'>We use cookies. Frame<button>Accept</button></div>",
        '<div id="CybotCookiebotDialog">Frame</div>',
        '<div role="dialog" aria-label="Cookie settings">Frame</div>',
        "<div role=banner>Frame</div>",
        "<div role='contentinfo'>Frame</div>",
        '<div role="search"><label>Frame</label></div>',
        "<svg viewBox='0 0 9 9'><title>Frame</title><text x=1>Frame</text></svg>",
    ],
)
def test_what_surrounds_the_content_of_a_page_is_dropped(frame):
    body = "<main><article><h1>Leave</h1><p>Words before it.</p></article></main>"
    assert markdown(frame + body) == "# Leave\n\nWords before it.\n"
    assert markdown(body + frame) == "# Leave\n\nWords before it.\n"


def test_a_cookie_banner_inside_the_content_is_dropped_and_a_drawing_between_words_too():
    text = markdown(
        "<main><p>One <svg><text>icon</text></svg> two.</p><svg width=1 />"
        "<div class=cookie-notice>Accept</div><p>Three.</p></main>"
    )
    assert text == "One two.\n\nThree.\n"


@pytest.mark.parametrize(
    "unit",
    [
        "<div ",
        "<!--",
        "<footer a='",
        "<footer a=",
        "<script>",
        "<td></div>",
        "<h1><button>",
        "<main>",
        '<aside><p a="',
        "<table><td></table>",
        "<div class=sidebar><article>",
    ],
)
def test_a_broken_page_takes_no_more_than_linear_time(unit):
    started = time.process_time()
    mark_frame(unit * 100_000)
    assert time.process_time() - started < 5


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


WORDS = [(11, 700, "Words of a page.")]


@pytest.mark.parametrize(
    ("pages", "named"),
    [
        ([WORDS, [], [], WORDS], "pages 2-3 of 4"),
        ([[], WORDS], "page 1 of 2"),
        ([WORDS, []], "page 2 of 2"),
        ([WORDS, [(11, 700, r"\000\000")]], "page 2 of 2"),
        ([[], WORDS, [(11, 700, "  ")], [], [], WORDS, []], "pages 1, 3-5, 7 of 7"),
    ],
)
def test_the_pages_of_a_pdf_without_text_are_named_by_ranges(pages, named):
    document, _ = clean(parse_bytes(pdf(*pages), key="scan.pdf"))
    assert notices(document) == (
        (
            f"scan.pdf holds no text on {named}; if they are scans, run text recognition on the file"
            " and ingest it again"
        ),
    )


def test_a_document_with_text_on_each_page_or_without_pages_has_no_notice():
    assert notices(parse_bytes(pdf(WORDS, WORDS), key="a.pdf")) == ()
    assert notices(Document(key="a", text="")) == ()


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


@pytest.mark.parametrize("style", ["Title", "Titel"])
def test_the_title_of_a_word_document_is_a_heading_and_its_title(style):
    content = docx(
        (style, "Leave policy"), ("Subtitle", "For all offices"), ("Heading2", "Illness"),
        ("Normal", "Call before nine."),
    )  # fmt: skip
    document = parse_bytes(content, key="leave.docx")
    assert document.title == "Leave policy"
    assert document.text == (
        "# Leave policy\n\nFor all offices\n\n## Illness\n\nCall before nine.\n"
    )


def test_a_table_in_a_cell_of_a_word_document_keeps_its_rows_apart():
    sizes: list[list[Cell]] = [
        ["Size", "Left", "Price"],
        ["S", [], "10"],
        ["M", [("Normal", "12"), [["old", "11"]]]],
    ]
    cell: list[Block] = [("Normal", "Shirts:"), sizes, ("Normal", "each.")]
    document = parse_bytes(docx([["Ware", "Prices"], ["Cotton", cell]]), key="a.docx")
    (row,) = [line for line in document.text.splitlines() if "Cotton" in line]
    assert [part.strip() for part in row.split("|")[1:-1]] == [
        "Cotton",
        "Shirts: Size / Left / Price; S / / 10; M / 12 old / 11 each.",
    ]
    framed = parse_bytes(docx([[[sizes[:2]]]]), key="a.docx")
    assert framed.text == (
        "| Size | Left | Price |\n| ---- | ---- | ----- |\n| S    |      | 10    |\n"
    )
