"""Small PDF and DOCX files, written by hand so that each byte has a reason."""

from __future__ import annotations

import io
import zipfile

_CONTENT_TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="xml" ContentType="application/xml"/>'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-'
    'officedocument.wordprocessingml.document.main+xml"/></Types>'
)
_RELATIONS = (
    '<?xml version="1.0"?><Relationships xmlns="http://schemas.openxmlformats.org/package/2006/'
    'relationships"><Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/'
    '2006/relationships/officeDocument" Target="word/document.xml"/></Relationships>'
)
_CORE = (
    '<?xml version="1.0"?><cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/'
    'metadata/core-properties" xmlns:dc="http://purl.org/dc/elements/1.1/" '
    'xmlns:dcterms="http://purl.org/dc/terms/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">'
    "<dc:title>{title}</dc:title><dc:creator>Kim</dc:creator>"
    '<dcterms:modified xsi:type="dcterms:W3CDTF">2025-05-18T10:00:00Z</dcterms:modified>'
    "</cp:coreProperties>"
)


# What Word in German writes: the ids are translated, the names are not.
_STYLES = (
    '<?xml version="1.0"?><w:styles xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/'
    'main"><w:style w:type="paragraph" w:styleId="Titel"><w:name w:val="Title"/></w:style></w:styles>'
)

Block = tuple[str, str] | list[list["Cell"]]
Cell = str | list[Block]


def docx(*blocks: Block, title: str = "") -> bytes:
    """A Word document of (style, text) paragraphs and tables, which are rows of cells.

    A cell is a text or blocks of its own.
    """
    body = "".join(map(_block, blocks))
    document = (
        '<?xml version="1.0"?><w:document xmlns:w="http://schemas.openxmlformats.org/'
        f'wordprocessingml/2006/main"><w:body>{body}</w:body></w:document>'
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("[Content_Types].xml", _CONTENT_TYPES)
        archive.writestr("_rels/.rels", _RELATIONS)
        archive.writestr("word/document.xml", document)
        archive.writestr("word/styles.xml", _STYLES)
        archive.writestr("docProps/core.xml", _CORE.format(title=title))
    return packed.getvalue()


def _block(block: Block) -> str:
    if isinstance(block, tuple):
        style, text = block
        return f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>'
    rows = ("".join(map(_cell, row)) for row in block)
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>"


def _cell(cell: Cell) -> str:
    blocks = [("Normal", cell)] if isinstance(cell, str) else cell
    return f"<w:tc>{''.join(map(_block, blocks))}</w:tc>"


def pdf(*pages: list[tuple[int, int, str]], info: bytes = b"") -> bytes:
    """A PDF of pages of (font size, distance from the bottom, text) lines."""
    font = 3 + 2 * len(pages)
    kids = " ".join(f"{3 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
    ]
    for number, lines in enumerate(pages):
        stream = "".join(
            f"BT /F1 {size} Tf 40 {bottom} Td ({text}) Tj ET\n" for size, bottom, text in lines
        ).encode("latin-1")
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {4 + 2 * number} 0 R "
            f"/Resources << /Font << /F1 {font} 0 R >> >> >>".encode(),
            b"<< /Length %d >>\nstream\n%sendstream" % (len(stream), stream),
        ]
    objects += [b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>", b"<< " + info + b" >>"]
    out = b"%PDF-1.4\n"
    offsets = []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return (
        out
        + b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table)
        + b"trailer << /Size %d /Root 1 0 R /Info %d 0 R >>\n" % (len(objects) + 1, len(objects))
        + b"startxref\n%d\n%%%%EOF\n" % len(out)
    )
