"""Files of every format through the client: what is stored, where it is cited, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from ragpg.providers.extractive import ExtractiveGenerator
from ragpg.testing import HashEmbedder
from ragpg.types import Document
from tests.conftest import client_on
from tests.stages.test_ingest import recipe
from tests.unit.parse_fixtures import docx, pdf

pytestmark = pytest.mark.anyio


def manual() -> bytes:
    """Three pages; the section Toner begins on the second and goes on, unheaded, on the third."""
    return pdf(
        [(20, 740, "Printer manual"), (11, 700, "Load the paper into the lower tray first.")],
        [(15, 740, "Toner"), (11, 710, "Shake the cartridge five times.")],
        [(11, 740, "Recycle the empty cartridge at reception.")],
    )


async def test_a_citation_of_a_pdf_names_the_page_that_holds_its_words(database, tmp_path: Path):
    (tmp_path / "printer.pdf").write_bytes(manual())
    embedder = HashEmbedder()
    async with client_on(
        database, embedder=embedder, generator=ExtractiveGenerator(embedder)
    ) as client:
        manuals = client.collection(tenant="acme", name="manuals")
        await manuals.ingest_files([tmp_path])
        stored = await manuals.document("printer.pdf")
        for words, page in (
            ("Load the paper into the lower tray first.", 1),
            ("Shake the cartridge five times.", 2),
            ("Recycle the empty cartridge at reception.", 3),
        ):
            answer = await manuals.ask(words)
            citation = answer.citations[0]
            assert (citation.quote, citation.page) == (words, page)
            assert stored.text[citation.start : citation.stop] == words


async def test_a_chunk_of_a_pdf_has_the_headings_that_the_font_shows(
    client, owner: psycopg.Connection, tmp_path: Path
):
    (tmp_path / "printer.pdf").write_bytes(manual())
    manuals = client.collection(tenant="acme", name="manuals")
    await manuals.create(recipe())
    await manuals.ingest_files([tmp_path])
    rows = owner.execute("select section_path, page from ragpg.chunk order by position").fetchall()
    assert rows == [(["Printer manual"], 1), (["Printer manual", "Toner"], 2)]


async def test_a_pdf_without_a_text_layer_is_reported_and_is_not_live(
    client, owner: psycopg.Connection, tmp_path: Path
):
    (tmp_path / "scan.pdf").write_bytes(pdf([], []))
    (tmp_path / "printer.pdf").write_bytes(manual())
    manuals = client.collection(tenant="acme", name="manuals")
    report = await manuals.ingest_files([tmp_path])
    assert report.created == ("printer.pdf",)
    assert [(failure.key, failure.reason) for failure in report.failed] == [("scan.pdf", "no_text")]
    assert owner.execute("select key, status from ragpg.pending").fetchall() == [
        ("scan.pdf", "no_text")
    ]
    assert owner.execute("select key from ragpg.document").fetchall() == [("printer.pdf",)]


async def test_word_and_html_files_are_found_by_their_content_and_not_by_their_boilerplate(
    client, tmp_path: Path
):
    (tmp_path / "leave.docx").write_bytes(
        docx(("Heading1", "Leave policy"), ("Normal", "Twenty-five days of holiday."))
    )
    (tmp_path / "pumps.html").write_text(
        "<html><body><nav>Careers Imprint</nav><h1>Pumps</h1><p>Close the valve.</p>"
        "<footer>Copyright Acme</footer></body></html>"
    )
    pages = client.collection(tenant="acme", name="pages")
    await pages.ingest_files([tmp_path])
    assert (await pages.retrieve("holiday"))[0].section_path == ("Leave policy",)
    assert (await pages.retrieve("valve"))[0].section_path == ("Pumps",)
    stored = await pages.document("pumps.html")
    assert stored.text == "# Pumps\n\nClose the valve.\n"


PYTHON = '''import os


class Pump:
    """Moves water."""

    def start(self):
        open_valve()

    def drain(self):
        first = 1
        second = 2

        third = 3
        return first + second + third


@decorated
def stop_all():
    return halt_every_pump_in_the_building()
'''
SQL = """create table orders (
    id integer,

    name text
);

create function total() returns integer language plpgsql as $$
declare
    found integer;

begin
    return found;

end $$;

select total() from orders;
"""
TYPESCRIPT = """export interface Order {
  id: number;
}

export class Cart {
  items: Order[] = [];

  add(item: Order) {
    check(item);

    this.items.push(item);
  }

  clear() {
    this.items = [];
    this.total = 0;

}
}
"""


@pytest.mark.parametrize(
    ("document", "max_tokens", "first", "after"),
    [
        (
            Document(key="pump.py", text=PYTHON, media_type="text"),
            36,
            "    def drain",
            "@decorated",
        ),
        (Document(key="orders.sql", text=SQL, media_type="text"), 36, "create func", "\n\nselect"),
        (Document(key="cart.ts", text=TYPESCRIPT, media_type="text"), 30, "  add(", "\n\n  clear"),
    ],
)
async def test_a_function_that_fits_is_in_one_chunk_with_its_blank_lines(
    client, owner: psycopg.Connection, document, max_tokens, first, after
):
    code = client.collection(tenant="acme", name="code")
    await code.create(replace(recipe(), max_tokens=max_tokens, overlap_tokens=0))
    await code.ingest([document])
    chunks = [text for (text,) in owner.execute("select text from ragpg.chunk order by position")]
    assert len(chunks) > 1
    assert "".join(chunks) == document.text
    start = document.text.index(first)
    whole = document.text[start : document.text.index(after, start)].strip()
    assert "\n\n" in whole
    assert [chunk for chunk in chunks if whole in chunk], chunks


async def test_pages_without_text_are_told_by_each_ingest_and_kept_with_the_document(
    database, tmp_path: Path
):
    words = [(11, 700, "Load the paper into the lower tray first.")]
    (tmp_path / "half.pdf").write_bytes(pdf(words, [], [], words, []))
    (tmp_path / "whole.pdf").write_bytes(manual())
    told = (
        (
            "half.pdf holds no text on pages 2-3, 5 of 5; if they are scans, run text recognition on"
            " the file and ingest it again"
        ),
    )
    async with client_on(database) as client:
        manuals = client.collection(tenant="acme", name="manuals")
        await manuals.create(recipe())
        assert (await manuals.plan(tmp_path)).notes[-1:] == told
        for keys in ("created", "unchanged"):
            report = await manuals.ingest_files([tmp_path])
            assert getattr(report, keys) == ("half.pdf", "whole.pdf")
            assert report.notices == told
        assert (await manuals.enqueue_files([tmp_path])).notices == told
        assert [one.pages_without_text for one in await manuals.documents()] == [(2, 3, 5), ()]
