"""What ragpg.tokenize makes of a text, by literal example; the same for documents and queries."""

from __future__ import annotations

import random
import unicodedata

import psycopg
import pytest

from tests.conftest import with_database


@pytest.fixture(scope="module")
def owner(server_url, template):
    """One database for all: tokenize writes nothing."""
    name = f"{template}_words"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"create database {name} template {template}")
    with psycopg.connect(with_database(server_url, name), autocommit=True) as conn:
        yield conn
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"drop database {name}")


def lexemes(conn, text, language="english"):
    row = conn.execute(
        "select tsvector_to_array(ragpg.tokenize(%s, %s))", [text, language]
    ).fetchone()
    return set(row[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What's the retention policy?", {"retent", "polici"}),
        ("PAY-2210", {"pay-2210", "pay", "2210"}),
        ("PAY 2210", {"pay-2210", "pay", "2210"}),
        ("PAY2210", {"pay-2210", "pay2210", "pay", "2210"}),
        ("pay-2210", {"pay-2210", "pay", "2210"}),
        ("CVE-2021-4428", {"cve-2021-4428", "cve", "2021", "4428"}),
        ("2024-11-03", {"2024-11-03", "2024", "11", "03"}),
        ("v4.5.6", {"v4.5.6", "4.5.6", "v4", "5", "6"}),
        ("work_mem_limit", {"work_mem_limit", "work", "mem", "limit"}),
        ("blue-green", {"blue-green", "blue", "green"}),
        ("json.dumps", {"json.dumps", "json", "dump"}),
        ("/var/log/app.log", {"var/log/app.log", "app.log", "var", "log", "app"}),
        (
            "lib/net/http_pool.rs",
            {
                "lib/net/http_pool.rs",
                "http_pool.rs",
                "http_pool",
                "lib",
                "net",
                "http",
                "pool",
                "rs",
            },
        ),
        ("std::map", {"std::map", "std", "map"}),
        ("parseHttpHeader", {"parsehttphead", "pars", "http", "header"}),
        ("XMLWriter", {"xmlwriter", "xml", "writer"}),
        ("sendInvoices", {"sendinvoic", "send", "invoic"}),
        ("mailer.sendInvoices", {"mailer.sendinvoices", "mailer", "sendinvoic", "send", "invoic"}),
        ("MD5SUM", {"md5sum", "md5", "sum"}),
        ("EU2031B", {"eu2031b", "eu", "2031", "b"}),
        ("C++", {"c++", "c"}),
        ("F#", {"f#", "f"}),
        (".NET", {".net", "net"}),
        ("R&D", {"r&d", "r", "d"}),
        ("x<y or y>z", {"x", "y", "z"}),
        ("<script>run()</script>", {"script", "run"}),
        ("kubectl logs -f --tail", {"kubectl", "log", "f", "tail"}),
        ("IT", {"it"}),
        ("the IT desk", {"it", "desk"}),
        ("Don", {"don"}),
        ("call Don today", {"don", "call", "today"}),
        ("see Err-2043 there", {"err-2043", "see", "err", "2043"}),
        ("open Lib/net", {"lib/net", "open", "lib", "net"}),
        ("then call Don. Today", {"don", "call", "today"}),
        ("AWS", {"aw", "aws"}),
        ("the of and", set()),
        ("who is it", set()),
        ("?!", set()),
        ("👍", set()),
        ("   ", set()),
        ("", set()),
        ("x'); drop table chunk; --", {"x", "drop", "tabl", "chunk"}),
        ("a:*b & !c | (d", {"b", "c", "d"}),
        ("100% sure", {"100", "sure"}),
    ],
)
def test_english_text_has_these_lexemes(owner, text, expected):
    assert lexemes(owner, text) == expected


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("Anna’s “report”", 'Anna\'s "report"'),
        ("the ﬁrst oﬃce", "the first office"),
        ("ＰＡＹ－２２１０", "PAY-2210"),
        (
            unicodedata.normalize("NFD", "Málaga señor"),
            unicodedata.normalize("NFC", "Málaga señor"),
        ),
        ("ﾃﾞｰﾀ", "データ"),
        ("soft\u00adware", "software"),
        ("tab\there", "tab here"),
        ("err\u20111042 in a well\u2010known file", "err-1042 in a well-known file"),
        ("word\u2060joiner \u2066max_\u200ewal_size\u2069", "wordjoiner max_wal_size"),
        ("Всё ещё Ёлка", "Все еще Елка"),
        ("سال ۱۴۰۳، ١٤٠٣", "سال 1403 1403"),
        ("धारा २०२४", "धारा 2024"),
        ("ধারা ২০২৪", "ধারা 2024"),
        ("มาตรา ๒๕๖๗", "มาตรา 2567"),
        ("می‌خواهم کتاب", "مي خواهم كتاب"),
        ("שָׁלוֹם", "שלום"),
        ("كِتَــابٌ", "كتاب"),
        ("ज़रूरत क़ानून", "जरूरत कानून"),
        ("हिन्दी, चाँद", "हिंदी, चांद"),
        ("क्\u200dषमा श्री\u200cमान", "क्षमा श्रीमान"),
        ("นํ้า", "น้ำ"),
    ],
)
def test_two_spellings_of_one_text_have_the_same_lexemes(owner, written, asked):
    assert lexemes(owner, written) == lexemes(owner, asked)


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("Das Café in Zürich", "cafe"),
        ("Das Café in Zürich", "zurich"),
        ("Kehrplan der Maßstraße", "massstrasse"),
        ("Fra Øystein til Łódź", "oystein lodz"),
        ("un œuf, Ægir", "oeuf aegir"),
        ("服务器内存不足", "内存"),
        ("服务器内存不足", "存"),
        ("来月の予算を確認", "予算"),
        ("サーバーが落ちた", "サーバー"),
        ("회의록을 검토했다", "회의록"),
        ("회의록을 검토했다", "검토"),
        ("เครื่องแม่ข่ายล่ม", "แม่ข่าย"),
        ("Ошибка сервера", "ошибка"),
        ("see 10.1.2.30 now", "10.1.2.30"),
        ("call pool.getFreeSlot() first", "getFreeSlot"),
        ("crate::jobs::RetryPlanner", "RetryPlanner"),
        ("the α-HbSC/ABc ratio", "HbSC"),
        ("it calls sendInvoices()", "sendinvoices"),
        ("run MD5SUM on it", "md5sum"),
        ("commit C3D4E5F6", "c3d4e5f6"),
        ("the CRC32 of it", "crc32"),
        ("on I18N", "i18n"),
        ("as PAY2210 says", "pay2210"),
    ],
)
def test_everything_asked_is_in_the_text(owner, written, asked):
    assert lexemes(owner, asked)
    assert lexemes(owner, asked) <= lexemes(owner, written)


@pytest.mark.parametrize(
    ("written", "asked", "whole"),
    [
        ("run md5sum on it", "MD5SUM", "md5sum"),
        ("commit c3d4e5f6", "C3D4E5F6", "c3d4e5f6"),
        ("the crc32 of it", "CRC32", "crc32"),
        ("it calls sendinvoices()", "sendInvoices", "sendinvoic"),
    ],
)
def test_capitals_ask_for_the_whole_in_small_letters_too(owner, written, asked, whole):
    assert whole in lexemes(owner, written) & lexemes(owner, asked)


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("german", "die Häuser der Stadt", {"haus", "stadt"}),
        ("french", "les chevaux", {"cheval"}),
        ("simple", "the running dogs", {"the", "running", "dogs"}),
    ],
)
def test_a_recipes_language_stems(owner, language, text, expected):
    assert lexemes(owner, text, language) >= expected


def test_digits_of_every_script_are_those_that_a_keyboard_has(owner):
    zeros = "٠۰०০੦૦୦௦౦೦൦๐໐၀០"
    for zero in zeros:
        written = "".join(chr(ord(zero) + digit) for digit in (4, 0, 7, 1, 9, 2, 8, 3, 5, 6))
        assert lexemes(owner, written, "simple") == {"4071928356"}


def test_a_zero_width_space_parts_words_as_a_blank_does(owner):
    assert lexemes(owner, "alpha\u200bbeta") == {"alpha", "beta"}


def test_a_blob_becomes_one_lexeme_of_its_head(owner):
    blob = "QUJDREVG" * 400
    found = lexemes(owner, f"bundle {blob} of edge")
    assert {"bundl", "edg"} <= found
    assert max(len(lexeme) for lexeme in found) <= 200
    assert found == lexemes(owner, f"bundle {blob[:220]} of edge")


def test_a_text_of_any_length_has_lexemes_and_the_first_words_are_among_them(owner):
    text = "alpha " + " ".join(f"w{number:032x}" for number in range(40_000))
    count, first = owner.execute(
        "select length(ragpg.tokenize(%s)), ragpg.tokenize(%s) @@ 'alpha'", [text, text]
    ).fetchone()
    assert first
    assert 10_000 < count < 40_001
    repeated = "lorem ipsum dolor " * 200_000
    assert {"lorem", "ipsum", "dolor"} <= lexemes(owner, repeated)


def test_no_text_raises(owner):
    rng = random.Random(20)  # noqa: S311
    alphabet = [
        *"'\"\\:*&|!()<>[]{}^~%$#@-_./+=,;`? \t\n\r\x01\x7f",
        *"aZ09éßŁİıſﬁ’“、。ー文가힣กำ้\u200b\u200c\u200d\u202e\u2011\u093c\u094dन१๑ํ٣ی\u05b0\ufeff\u0301\U0001f469\U00020000\ufffd\U0010fffd",
        "ERR-1",
        "a_b",
        "C++",
        "::",
        "//",
        "camelCase",
        "NOT",
        " & ",
        "1e999",
        "-1.5e-7",
    ]
    texts = ["".join(rng.choices(alphabet, k=rng.randint(1, 60))) for _ in range(3000)]
    with owner.cursor() as cursor:
        cursor.execute(
            "select count(ragpg.tokenize(text)), count(ragpg.tokenize(text, 'simple'))"
            " from unnest(%s::text[]) as text",
            [texts],
        )
        assert cursor.fetchone() == (3000, 3000)
