"""ragpg.whole_corpus: what is read whole, in which order, and when it gives up."""

from __future__ import annotations

import psycopg
import pytest

from tests.sql.hybrid_seed import Passage, Source, add, make_home


def whole(conn, max_tokens=None, **filters) -> list[int]:
    """The chunks in their order; places are checked to count from 1."""
    named = "".join(f", {name} => %({name})s" for name in filters)
    rows = conn.execute(
        f"select place, chunk_id from ragpg.whole_corpus('docs', %(max_tokens)s{named})"
        " order by place",
        {"max_tokens": max_tokens, **filters},
    ).fetchall()
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    return [row[1] for row in rows]


def document(key: str, *texts: str, **fields) -> Source:
    return Source(key=key, passages=[Passage(text=text) for text in texts], **fields)


def test_chunks_come_by_key_in_code_point_order_and_then_by_position(owner):
    home = make_home(owner, "acme")
    later = add(owner, home, document("b", "one", "two", "three"))
    umlaut = add(owner, home, document("ä", "four"))
    upper = add(owner, home, document("Z", "five"))
    assert whole(owner) == [*upper, *later, *umlaut]


def test_more_chunks_than_a_sixteenth_of_the_tokens_are_not_looked_at(owner):
    home = make_home(owner, "acme")
    add(owner, home, *(document(f"d{n:02}", "x") for n in range(10)))
    assert len(whole(owner, 160)) == 10
    assert whole(owner, 159) == []
    # A filter makes no large collection small.
    assert whole(owner, 159, key_prefix="d03") == []
    assert len(whole(owner, 160, key_prefix="d03")) == 1


def test_more_than_eight_characters_a_token_are_not_read(owner):
    home = make_home(owner, "acme")
    add(owner, home, document("a", "x" * 800))
    assert len(whole(owner, 100)) == 1
    assert whole(owner, 99) == []


def test_the_recipe_is_the_upper_limit_and_zero_is_never(owner):
    home = make_home(owner, "acme")
    add(owner, home, document("a", "x" * 8000))
    owner.execute("select ragpg.set_whole_corpus_tokens('docs', 999)")
    assert whole(owner) == whole(owner, 5000) == []
    owner.execute("select ragpg.set_whole_corpus_tokens('docs', 1000)")
    assert len(whole(owner)) == len(whole(owner, 5000)) == 1
    assert whole(owner, 999) == whole(owner, -5) == []
    owner.execute("select ragpg.set_whole_corpus_tokens('docs', 0)")
    assert whole(owner) == []


def test_a_wrong_limit_is_refused(owner):
    make_home(owner, "acme")
    for tokens in (-1, None):
        with pytest.raises(psycopg.Error, match="it must be 0 or more") as caught:
            owner.execute("select ragpg.set_whole_corpus_tokens('docs', %s)", [tokens])
        assert caught.value.sqlstate == "RG009"
