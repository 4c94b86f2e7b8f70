"""Known faults of keyword search on Postgres (cases C09 to C20), each with a text of our own."""

from __future__ import annotations

import pytest

from tests.sql.lexical_corpus import add, make_home, search


class Passages:
    """Named passages of one collection."""

    def __init__(self, conn):
        self.conn = conn
        self.home = make_home(conn)
        self.names: dict[int, str] = {}

    def add(self, given: dict[str, str]) -> None:
        ids = add(self.conn, self.home, list(given.values()))
        self.names |= dict(zip(ids, given, strict=True))

    def __call__(self, query: str) -> list[str]:
        """The names of the passages found, best first."""
        return [self.names[chunk_id] for chunk_id, _ in search(self.conn, self.home, query)]


@pytest.fixture
def ranked(owner):
    return Passages(owner)


def test_c09_text_that_tsquery_refuses_finds_what_its_words_find(ranked):
    ranked.add({"rules": "The password policy asks for twelve signs.", "lunch": "Lunch at noon."})
    for query in [
        "What's the password policy?",
        "password:* & policy",
        "(password",
        "password | !policy",
        "password <-> policy",
        "'password'; drop table chunk; --",
        '"policy',
        "policy\\",
        "%s password %(x)s",
        "{password}^2~",
        "C:\\password\\policy.txt",
    ]:
        assert ranked(query) == ["rules"], query
    for query in ["!!!", ":*", "\\", "...", "", " ", "\t", "'", "🚀"]:
        assert ranked(query) == [], query


def test_c10_a_long_question_finds_the_chunk_that_holds_most_of_its_words(ranked):
    ranked.add(
        {
            "keys": "Change the signing keys of the release server twice a year with the job rekey.",
            "server": "The release server runs in rack nine.",
            "garden": "The roses in the garden need water.",
        }
    )
    found = ranked("How would I change the signing keys on our release server, please?")
    assert found == ["keys", "server"]


def test_c11_a_code_is_found_in_all_spellings_and_outranks_prose_with_its_parts(ranked):
    ranked.add(
        {
            "codes": "PAY-2210 means the card was declined. See CVE-2021-4428 of 2024-11-03, part KX-880N.",
            "prose": "We pay 2210 invoices a week and 880 refunds; pay day is the third, 2024 was good.",
        }
    )
    for query in [
        "PAY-2210",
        "pay-2210",
        "PAY 2210",
        "PAY2210",
        "why PAY-2210?",
        "CVE-2021-4428",
        "2024-11-03",
        "KX-880N",
        "kx-880n",
    ]:
        assert ranked(query)[0] == "codes", query
    for query in ["2210", "880", "4428"]:
        assert "codes" in ranked(query), query


def test_c12_names_are_found_whole_and_in_parts_and_the_whole_name_ranks_first(ranked):
    ranked.add(
        {
            "setting": "Raise `max_lock_count` and watch pg_lock_wait.",
            "words": "The max count of any lock is a matter of taste, max lock count, count the lock.",
            "path": "It lives in /srv/web/proxy.conf on cache.internal (10.9.0.7), client v3.1.4, a.pdf.",
            "alert": "NodeDiskFillingUp fires after ten minutes.",
            "language": "C++ and F# differ, .NET runs one; R&D likes both. Keep x<y and y>z.",
            "quote": "Anna’s ﬂoor plan is ＰＡＹ－２２１０.",
        }
    )
    assert ranked("max_lock_count")[0] == "setting"
    assert set(ranked("max lock count")) == {"setting", "words"}
    for query, name in {
        "lock_wait": "setting",
        "proxy.conf": "path",
        "proxy": "path",
        "10.9.0.7": "path",
        "3.1.4": "path",
        "/srv/web/proxy.conf": "path",
        "disk filling": "alert",
        "NodeDiskFillingUp": "alert",
        "C++": "language",
        "F#": "language",
        ".NET": "language",
        "R&D": "language",
        "x<y and y>z": "language",
        "Anna's floor": "quote",
        "PAY-2210": "quote",
    }.items():
        assert ranked(query)[0] == name, query


def test_c13_dashes_are_plain_text(ranked):
    ranked.add(
        {
            "commands": "Pack with tar -czf site.tgz and list with kubectl get nodes -n edge-net.",
            "serial": "Unit QX07-B-33019-002 stands in rack four.",
        }
    )
    for query, name in {
        "tar -czf site": "commands",
        "kubectl get nodes -n edge-net": "commands",
        "QX07-B-33019-002": "serial",
        "QX07 -B -33019 -002": "serial",
    }.items():
        assert ranked(query)[0] == name, query
    assert ranked("rsync --verbose -q") == []


def test_c15_stop_words_alone_find_nothing_and_names_made_of_them_are_found(ranked):
    ranked.add(
        {
            "desk": "Ask the IT desk.",
            "person": "Talk to Don about it.",
            "other": "It will be as it was.",
        }
    )
    for query in ["who are you", "the", "to be or not to be", "What is it?", "?"]:
        assert ranked(query) == [], query
    assert ranked("IT") == ["desk"]
    assert ranked("Don") == ["person"]


def test_c17_a_huge_vocabulary_is_indexed_as_far_as_it_goes_and_the_rest_is_reported(owner):
    home = make_home(owner)
    many = "lighthouse " + " ".join(f"w{number:032x}" for number in range(40_000))
    ids = add(owner, home, [many, "bundle " + "QUJDREVG" * 400 + " of lighthouse", "a third one"])
    assert {chunk_id for chunk_id, _ in search(owner, home, "lighthouse")} == set(ids[:2])
    left_out, chunks = owner.execute("select left_out, chunks from ragpg.lexical_health").fetchone()
    assert left_out > 0
    assert chunks == 3


def test_c18_scripts_without_spaces_are_found_by_any_two_characters(ranked):
    ranked.add(
        {
            "chinese": "服务器内存不足时，请关闭缓存。",
            "japanese": "来月の予算を部長が確認しました。",
            "korean": "회의록을 오늘 검토했습니다.",
            "thai": "เครื่องแม่ข่ายหยุดทำงาน",
        }
    )
    for query, name in {
        "内存": "chinese",
        "缓": "chinese",
        "予算": "japanese",
        "確認": "japanese",
        "회의록": "korean",
        "검토": "korean",
        "แม่ข่าย": "thai",
    }.items():
        assert ranked(query)[0] == name, query


def test_c20_a_short_exact_page_outranks_a_long_one_stuffed_with_a_common_word(ranked):
    ranked.add(
        {
            "stuffed": "The printer. " * 200 + "Toner is sold by the kiosk.",
            "focused": "Replace the toner of the printer drum with the grey handle.",
            "one": "The printer is here.",
            "two": "The printer is there.",
            "three": "A printer.",
        }
    )
    assert ranked("printer toner drum")[0] == "focused"
