from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import pytest

from ragpg.errors import DocumentError, InputError
from ragpg.parse import clean, find_files, parse_bytes, parse_file
from ragpg.types import Document

SHARED = Path(os.environ.get("RAGPG_SHARED", Path(__file__).parents[2].parent / "shared"))
INPUTS = SHARED / "cases" / "inputs"


def reason(content, key, **rest):
    with pytest.raises(DocumentError) as caught:
        parse_bytes(content, key=key, **rest)
    assert key in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value.reason


def test_yaml_front_matter_becomes_fields_and_metadata():
    content = (
        b"---\nTitle: On-call rota\ntags: [rota, Night Shift]\nowner: Data Platform\n"
        b"review-by: 2026-03-01\nexpires_at: 2027-01-01T00:00:00+02:00\nupdated: 2025-05-18\n"
        b"country: no\nstart: 22:30\ncode: 007\nversion: 1.5\nshifts:\n  - from: 2025-05-18 08:00:00\n"
        b"---\r\n\r\n# Heading\r\n\r\nWords.\r\n"
    )
    document = parse_bytes(content, key="rota.md")
    assert document == Document(
        key="rota.md",
        text="\r\n# Heading\r\n\r\nWords.\r\n",
        title="On-call rota",
        tags=("rota", "Night Shift"),
        owner="Data Platform",
        review_by=dt.date(2026, 3, 1),
        expires_at=dt.datetime(2027, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        modified_at=dt.datetime(2025, 5, 18, tzinfo=dt.UTC),
        metadata={
            "country": "no",
            "start": "22:30",
            "code": "007",
            "version": 1.5,
            "shifts": [{"from": "2025-05-18T08:00:00"}],
        },
    )


def test_toml_front_matter_becomes_fields_and_metadata():
    content = (
        b'+++\ntitle = "Rota"\nsource = "wiki"\ntags = ["a"]\nowner = ["Data", "Search"]\n'
        b"review_by = 2026-03-01\nexpiry = 2027-01-01T00:00:00+02:00\nupdated = 2025-05-18\n"
        b"[extra]\nyear = 2026\n+++\nWords.\n"
    )
    assert parse_bytes(content, key="rota.md") == Document(
        key="rota.md",
        text="Words.\n",
        title="Rota",
        source="wiki",
        tags=("a",),
        owner="Data, Search",
        review_by=dt.date(2026, 3, 1),
        expires_at=dt.datetime(2027, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        modified_at=dt.datetime(2025, 5, 18, tzinfo=dt.UTC),
        metadata={"extra": {"year": 2026}},
    )


def test_a_value_that_its_field_cannot_hold_stays_in_the_metadata():
    document = parse_bytes(b"---\nupdated: soon\ntags: {a: 1}\n---\nWords.\n", key="a.md")
    assert (document.modified_at, document.tags) == (None, ())
    assert document.metadata == {"updated": "soon", "tags": {"a": 1}}


END_OF_2099 = dt.datetime(2099, 12, 31, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        ("2099-12-31", END_OF_2099),
        ('"2099-12-31"', END_OF_2099),
        ("' 2099-12-31 '", END_OF_2099),
        ("!!str 20991231", END_OF_2099),
        ("2099-12-31T08:30:00Z", END_OF_2099.replace(hour=8, minute=30)),
        ("2099-12-31T08:30Z", END_OF_2099.replace(hour=8, minute=30)),
        ("2099-12-31 08:30", END_OF_2099.replace(hour=8, minute=30)),
        ("2099-12-31 10:30:00 +2", END_OF_2099.replace(hour=8, minute=30)),
        ("2099-12-31T08:30:00.25", END_OF_2099.replace(hour=8, minute=30, microsecond=250_000)),
    ],
)
@pytest.mark.parametrize("name", ["expires_at", "Expires-At", "expires", "expiry"])
def test_an_expiry_is_read_in_the_forms_of_iso_8601_and_of_yaml(name, value, moment):
    document = parse_bytes(f"---\n{name}: {value}\n---\nWords.\n".encode(), key="a.md")
    assert document.expires_at == moment
    assert document.metadata == {}
    document = parse_bytes(f"---\nreview-date: {value}\n---\nWords.\n".encode(), key="a.md")
    assert document.review_by == dt.date(2099, 12, 31)


@pytest.mark.parametrize("name", ["review_by", "Review-Date", "expires_at", "expires", "EXPIRY"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("tomorrow", "'tomorrow'"),
        ("31.12.2099", "'31.12.2099'"),
        ("12/31/2099", "'12/31/2099'"),
        ("2099", "2099"),
        ("20991231", "20991231"),
        ("2099-12", "'2099-12'"),
        ('"2099-02-30"', "'2099-02-30'"),
        ("0", "0"),
        ("false", "False"),
        ("[2099-12-31]", "list ["),
        ("{}", "dict {}"),
    ],
)
def test_a_date_of_review_or_expiry_that_cannot_be_read_fails_its_document(name, value, shown):
    with pytest.raises(DocumentError) as caught:
        parse_bytes(f"---\nteam: Ops\n{name}: {value}\n---\nWords.\n".encode(), key="a.md")
    assert caught.value.reason == "front_matter"
    assert str(caught.value).startswith(f"The front matter of a.md has {name}: {shown}")
    assert str(caught.value).endswith(
        ", which is no date that is read; write it like 2099-12-31 or 2099-12-31T18:00:00+02:00,"
        " or remove it."
    )


@pytest.mark.parametrize("value", ['"soon"', '"31.12.2099"', "2099", "08:30:00", "true", "[]"])
@pytest.mark.parametrize("name", ["review_by", "expires_at"])
def test_a_date_in_toml_that_cannot_be_read_fails_its_document(name, value):
    content = f"+++\n{name} = {value}\n+++\nWords.\n".encode()
    assert reason(content, "a.md") == "front_matter"


def test_each_name_of_a_date_must_be_readable_whichever_of_them_counts():
    content = b"---\nexpires_at: 2099-12-31\nexpires: 31.12.2020\n---\nWords.\n"
    assert reason(content, "a.md") == "front_matter"
    content = b"---\nexpires:\nExpires: 31.12.2020\n---\nWords.\n"
    assert reason(content, "a.md") == "front_matter"


@pytest.mark.parametrize("value", ["", "null", '""', '" "', "0001-01-01T00:00:00Z", "0001-01-01"])
def test_a_date_that_is_left_empty_or_that_tools_write_for_none_is_none(value):
    content = f"---\nreview_by: {value}\nexpires: {value}\n---\nWords.\n".encode()
    document = parse_bytes(content, key="a.md")
    assert (document.review_by, document.expires_at) == (None, None)


@pytest.mark.parametrize("field", ["review_by", "expires_at"])
def test_a_document_of_the_callers_with_a_date_that_is_none_is_refused(field):
    fields: dict[str, Any] = {field: "tomorrow"}
    with pytest.raises(DocumentError, match=f"{field} is 'tomorrow'; give a datetime") as caught:
        clean(Document(key="a", text="Words.", **fields))
    assert caught.value.reason == "invalid"


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ("title: [unclosed\nyear: 2025", "(line 3: "),
        ("year: : 2", "(line 2: mapping values are not allowed here)"),
        ("team: ops\ntitle: Pumps: a guide", "(line 3: mapping values are not allowed here)"),
        ("# who\n'title': \"open", "(line 4: found unexpected end of stream)"),
        ('title: {{ name }} "x": y\nweight: 3', "(line 2: "),
        ("team: ops\nsince: 2025-02-30", "(line 3: day is out of range for month)"),
        ("expires: 2025-02-30", "(line 2: day is out of range for month)"),
        ("at:\n  - from: 2025-01-01 25:00:00", "(line 3: hour must be in 0..23"),
        ("on: !!bool maybe", "(line 2: no value of the type !!bool)"),
        ("since: !!timestamp soon", "(line 2: no value of the type !!timestamp)"),
        ('weight: !!int ""', "(line 2: no value of the type !!int)"),
        ("owner: A\nteam: B\nowner: C", "(line 4: owner stands here a second time)"),
        ("a:\n  b: 1\n  'b': 1", "(line 4: b stands here a second time)"),
        ("a: {1: x, '1': y}", "(line 2: 1 stands here a second time)"),
        ("a: &a [*b]", "(line 2: found undefined alias"),
    ],
)
def test_front_matter_that_is_not_valid_fails_its_document_and_says_where(block, sentence):
    with pytest.raises(DocumentError) as caught:
        parse_bytes(f"---\n{block}\n---\nWords.\n".encode(), key="a.md")
    assert caught.value.reason == "front_matter"
    assert str(caught.value).startswith("The front matter of a.md is no valid YAML (")
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(
        "; mend it (quote a value that holds a colon, say), or remove it."
    )


def test_a_merged_yaml_mapping_may_say_again_what_it_merges():
    content = b"---\nb: &b {size: 1}\na: &a\n  <<: *b\n  size: 2\n<<: *a\n---\nWords.\n"
    document = parse_bytes(content, key="a.md")
    assert document.metadata == {"b": {"size": 1}, "a": {"size": 2}, "size": 2}


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ("title = unquoted", "(line 2: Invalid value)"),
        ("a = 1\n\nb = 2\na = 3", "(line 5: Cannot overwrite a value)"),
        ("a = 1\nexpires_at = 2025-02-30", "(line 3: Invalid date or datetime)"),
        ('a = 1\nb = """open', "(Unterminated string (at end of document))"),
    ],
)
def test_toml_front_matter_that_is_not_valid_fails_its_document_and_says_where(block, sentence):
    with pytest.raises(DocumentError) as caught:
        parse_bytes(f"+++\n{block}\n+++\nWords.\n".encode(), key="a.md")
    assert caught.value.reason == "front_matter"
    assert str(caught.value).startswith(f"The front matter of a.md is no valid TOML {sentence}; ")


@pytest.mark.parametrize(
    "text",
    [
        "---\n\nWords between rules.\n\n---\n\nMore.\n",
        "---\nno end\n",
        "---\n\nIt goes: on: and on.\n\nNote: nothing is lost.\n\n---\n",
        "---\n> Words, and a colon: here: too.\n---\n",
    ],
)
def test_rules_at_the_start_are_not_front_matter(text):
    assert parse_bytes(text.encode(), key="a.md").text == text


def test_numbers_that_json_lacks_are_refused():
    assert reason(b"---\nlimit: .inf\n---\nWords.\n", "a.md") == "unreadable"
    assert reason(b"---\nlimit: .nan\n---\nWords.\n", "a.md") == "unreadable"


def test_aliases_that_explode_are_refused():
    layers = "\n".join(f"l{n + 1}: &l{n + 1} [{', '.join([f'*l{n}'] * 9)}]" for n in range(9))
    assert reason(f"---\nl0: &l0 [x]\n{layers}\n---\nWords.\n".encode(), "a.md") == "unreadable"
    assert reason(b"---\na: &a [*a]\n---\nWords.\n", "a.md") == "unreadable"


def test_the_title_is_the_first_heading_of_level_one_outside_fences():
    content = b"```\n# no\n```\n\n## Nor this\n\nThe *real* one\n===\n\nWords.\n"
    assert parse_bytes(content, key="a.md").title == "The real one"


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be", "cp1252"]
)
def test_marked_and_western_encodings_are_decoded(encoding):
    text = "# Prüfliste\n\nGebühr für die Übergabe – 20 € pro Stück, naïve Größen.\n"
    mark = {"utf-16-be": b"\xfe\xff", "utf-32-be": b"\x00\x00\xfe\xff"}.get(encoding, b"")
    document = parse_bytes(mark + text.encode(encoding), key="a.md")
    assert document.text == text
    assert document.title == "Prüfliste"


def test_french_and_typographic_marks_in_cp1252_are_decoded():
    text = "Le cœur de l’œuvre créée à Noël : « été » – 20 °C… “Façade”.\n"
    assert parse_bytes(text.encode("cp1252"), key="a.txt").text == text


def test_front_matter_behind_a_byte_order_mark_is_found():
    document = parse_bytes(b"\xef\xbb\xbf---\nteam: Search\n---\n# Title\n\nWords.\n", key="a.md")
    assert (document.title, document.metadata) == ("Title", {"team": "Search"})


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Проверка перед выпуском версии\n", "cp1251"),
        ("Проверка перед выпуском версии\n", "koi8-r"),
        ("検査の前に確認してください\n", "shift-jis"),
        ("发布之前请检查配置文件\n", "gbk"),
        ("배포하기 전에 확인하세요\n", "euc-kr"),
        ("zażółć gęślą jaźń przed wydaniem\n", "cp1250"),
        ("plain ascii saved wide\n" * 5, "utf-16-le"),
    ],
)
def test_other_encodings_are_refused_by_name_and_never_garbled(text, encoding):
    assert reason(text.encode(encoding), "a.txt") == "encoding"


def test_utf8_with_a_broken_byte_is_refused_with_its_offset():
    with pytest.raises(DocumentError, match="0xff at offset 7"):
        parse_bytes(
            "Gebühr\xff und Prüfung".encode("latin-1").replace(b"\xfc", b"\xc3\xbc"), key="a"
        )


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"", "a.txt"),
        (b" \n\t\xc2\xa0\xe2\x80\x8b\n", "a.md"),
        (b"---\ntitle: Draft\n---\n", "a.md"),
        (b"# One\n\n## Two\n\n---\n\n<!-- todo -->\n", "a.md"),
        (b"<html><head><title>T</title><script>x()</script></head><!-- no --></html>", "a.html"),
    ],
)
def test_a_document_without_text_is_refused_as_such(content, key):
    assert reason(content, key) == "no_text"


def test_binary_content_is_refused_as_such():
    assert reason(bytes(range(256)) * 20, "a.txt") == "binary"
    assert reason(b"\x7fELF\x02\x01\x01" + b"\0" * 200, "a") == "binary"


def test_a_format_that_is_not_read_is_refused_as_such():
    assert reason(b"PK\x03\x04....", "budget.xlsx") == "unsupported"


def test_the_media_type_is_told_by_suffix_else_by_the_first_bytes():
    assert parse_bytes(b"x = 1\n", key="a.py").media_type == "text"
    assert parse_bytes(b"<!DOCTYPE html><p>Words</p>", key="page").media_type == "html"
    assert parse_bytes(b"# Words\n\nmore", key="team.handbook").media_type == "markdown"
    assert parse_bytes(b"<p>Words</p>", key="a.md", media_type="html").text == "Words\n"


def test_nul_characters_are_removed_everywhere_and_counted():
    document = Document(
        key="a",
        text="Page 1\0\0\nwords",
        title="Man\0ual",
        source="s\0",
        tags=("a\0", "\0"),
        metadata={"pro\0ducer": ["Scan\0", {"x": "\0y"}]},
        page_starts=(0, 9),
    )
    cleaned, removed = clean(document)
    assert removed == 9
    assert cleaned == Document(
        key="a",
        text="Page 1\nwords",
        title="Manual",
        source="s",
        tags=("a",),
        metadata={"producer": ["Scan", {"x": "y"}]},
        page_starts=(0, 7),
    )


def test_a_parsed_document_keeps_its_nuls_for_the_caller_to_count():
    assert clean(parse_bytes(b"Toner\0 low\0.\n", key="a.txt"))[1] == 2


def test_surrogate_pairs_are_joined_and_lone_ones_refused():
    assert clean(Document(key="a", text="\ud83d\ude00 smile"))[0].text == "\U0001f600 smile"
    with pytest.raises(DocumentError) as caught:
        clean(Document(key="a", text="lone \ud83d half"))
    assert caught.value.reason == "encoding"


def test_metadata_has_a_size_and_the_document_that_exceeds_it_is_told_both():
    taken, _ = clean(Document(key="a", text="x", metadata={"m": "é" * 49_995}))
    assert len(taken.metadata["m"]) == 49_995
    with pytest.raises(DocumentError, match=r"100001 bytes as JSON, .*; at most 100000 do; change"):
        clean(Document(key="a", text="x", metadata={"m": "é" * 49_996}))


def test_metadata_dates_become_iso_8601_and_other_types_are_refused():
    zone = dt.timezone(dt.timedelta(hours=1))
    moment = dt.datetime(2025, 5, 18, 9, 30, tzinfo=zone)
    cleaned, _ = clean(Document(key="a", text="x", metadata={"at": moment, "on": moment.date()}))
    assert cleaned.metadata == {"at": "2025-05-18T09:30:00+01:00", "on": "2025-05-18"}
    with pytest.raises(DocumentError, match="type object"):
        clean(Document(key="a", text="x", metadata={"at": object()}))


def test_a_folder_gives_its_supported_files_by_relative_path(tmp_path):
    for name in ("b.md", "a/z.txt", "a/.hidden.md", ".git/x.md", "c.exe", "Dockerfile"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("words")
    assert [source.key for source in find_files([tmp_path]).files] == [
        "Dockerfile",
        "a/z.txt",
        "b.md",
    ]


def test_a_file_that_is_named_counts_even_if_it_cannot_be_read(tmp_path):
    (tmp_path / "c.xlsx").write_bytes(b"PK")
    (source,) = find_files([tmp_path / "c.xlsx"]).files
    assert source.key == "c.xlsx"
    with pytest.raises(DocumentError, match="xlsx") as caught:
        parse_file(source.path, key=source.key)
    assert caught.value.reason == "unsupported"


def test_a_file_named_twice_is_read_once_and_two_of_one_key_are_refused(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.md").write_text("words")
    assert len(find_files([tmp_path / "one", tmp_path / "one" / "a.md"]).files) == 1
    with pytest.raises(InputError, match=r"'a\.md'"):
        find_files([tmp_path / "one", tmp_path / "two"])


def test_a_path_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(DocumentError, match=r"nowhere\.md does not exist"):
        find_files([tmp_path / "nowhere.md"])
    with pytest.raises(DocumentError, match=r"nowhere\.md cannot be read"):
        parse_file(tmp_path / "nowhere.md", key="nowhere.md")


def test_a_device_that_never_ends_is_read_no_further_than_a_file_may_be_large():
    with pytest.raises(
        DocumentError, match="at least 100000001 bytes, more than 100000000"
    ) as info:
        parse_file(Path("/dev/zero"), key="zero.md")
    assert info.value.reason == "too_large"


def test_a_files_own_time_counts_where_the_document_names_none(tmp_path):
    path = tmp_path / "a.md"
    path.write_text("words")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    document = parse_file(path, key="k")
    assert document.modified_at == dt.datetime.fromtimestamp(1_700_000_000, tz=dt.UTC)
    path.write_text("---\nmodified: 2024-01-01\n---\nwords")
    assert parse_file(path, key="k").modified_at == dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("C31-front-matter.md", "Pager policy"),
        ("C31-toml-front-matter.md", "Pager policy"),
        ("C32-bom.md", "First heading"),
        ("C32-bom-front-matter.md", "Real heading"),
        ("C32-latin1.txt", "Gebühr für die Prüfung: 20 €\n"),
        ("C32-utf16.txt", "Plain text saved as UTF-16 with a mark.\n"),
        ("C36-comments-only.html", "no_text"),
        ("C36-empty.txt", "no_text"),
        ("C36-front-matter-only.md", "no_text"),
        ("C36-headings-only.md", "no_text"),
        ("C36-no-text-layer.pdf", "no_text"),
        ("C36-whitespace.md", "no_text"),
        ("C56-nul-in-pdf-metadata.pdf", "Manual"),
    ],
)
def test_an_input_of_the_case_log_is_read_or_refused_as_it_says(name, expected):
    if not INPUTS.is_dir():
        pytest.skip(f"{INPUTS} is absent; set RAGPG_SHARED")
    if expected == "no_text":
        with pytest.raises(DocumentError) as caught:
            parse_file(INPUTS / name, key=name)
        assert caught.value.reason == expected
    else:
        document, _ = clean(parse_file(INPUTS / name, key=name))
        assert expected in {document.title, document.text}
