"""ragpg.expand: the chunks around a hit, of its own document and tenant, each once."""

from __future__ import annotations

import datetime as dt

import psycopg
import pytest

from tests.sql.hybrid_seed import Passage, Source, add, hybrid, make_home, single, use_tenant


def expand(conn, chunk_ids, unit="neighbours", collection="docs"):
    """Pairs of (chunk, origin or None) in order; places are checked to count from 1."""
    rows = conn.execute(
        "select place, chunk_id, expanded_from from ragpg.expand(%s, %s, %s) order by place",
        [collection, chunk_ids, unit],
    ).fetchall()
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    return [row[1:] for row in rows]


def paged(key: str, sections: str, **fields) -> Source:
    """A document with a chunk per letter, whose section path is that letter."""
    return Source(
        key=key,
        passages=[
            Passage(text=f"{key} {n}.", section=("Guide", letter))
            for n, letter in enumerate(sections)
        ],
        **fields,
    )


def test_neighbours_are_the_chunk_before_and_the_chunk_after(owner):
    ids = add(owner, make_home(owner, "acme"), paged("a", "xxyyz"), paged("b", "xx"))
    assert expand(owner, [ids[2]]) == [(ids[2], None), (ids[1], ids[2]), (ids[3], ids[2])]
    # The first and last chunk of a document have one neighbour; the next document is not near.
    assert expand(owner, [ids[4]]) == [(ids[4], None), (ids[3], ids[4])]
    assert expand(owner, [ids[5]]) == [(ids[5], None), (ids[6], ids[5])]


def test_a_chunk_appears_once_and_a_hit_stays_a_hit(owner):
    ids = add(owner, make_home(owner, "acme"), paged("a", "xxxxx"))
    assert expand(owner, [ids[3], ids[1], ids[3], ids[0]]) == [
        (ids[3], None),
        (ids[2], ids[3]),
        (ids[4], ids[3]),
        (ids[1], None),
        (ids[0], None),
    ]


def test_a_section_is_the_unbroken_run_of_one_path(owner):
    ids = add(owner, make_home(owner, "acme"), paged("a", "xyyyxyy"))
    assert expand(owner, [ids[2]], "section") == [
        (ids[2], None),
        (ids[1], ids[2]),
        (ids[3], ids[2]),
    ]
    assert expand(owner, [ids[0]], "section") == [(ids[0], None)]
    assert expand(owner, [ids[6]], "section") == [(ids[6], None), (ids[5], ids[6])]


def test_a_section_reaches_20_chunks_each_way_and_no_further(owner):
    ids = add(owner, make_home(owner, "acme"), paged("a", "x" * 60))
    found = expand(owner, [ids[30]], "section")
    assert [chunk_id for chunk_id, _ in found] == [ids[30], *ids[10:30], *ids[31:51]]


def test_nothing_of_another_tenant_collection_or_of_an_expired_document_comes_back(owner, database):
    foreign = add(owner, make_home(owner, "globex"), paged("g", "xxx"))
    past = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    ids = add(
        owner, make_home(owner, "acme"), paged("a", "xxx"), paged("old", "xxx", expires_at=past)
    )
    other = add(owner, make_home(owner, "acme", "other"), paged("o", "xxx"))
    everything = [*foreign, *ids, *other, 987_654]
    for url in (database.service_url, database.reader_url):
        with psycopg.connect(url, autocommit=True) as conn:
            with pytest.raises(psycopg.Error) as refused:
                expand(conn, ids)
            assert refused.value.sqlstate == "RG001"
            use_tenant(conn, "acme")
            for unit in ("neighbours", "section"):
                assert {row[0] for row in expand(conn, everything, unit)} == set(ids[:3])
                assert expand(conn, [foreign[1], ids[4], other[1]], unit) == []


def test_nothing_in_is_nothing_out_and_an_unknown_unit_is_refused(owner):
    make_home(owner, "acme")
    assert expand(owner, []) == []
    assert expand(owner, None) == []
    for unit in ("page", None):
        with pytest.raises(psycopg.Error, match="it must be neighbours or section") as refused:
            expand(owner, [], unit)
        assert refused.value.sqlstate == "RG009"
    with pytest.raises(psycopg.Error, match="1001 chunks are to be expanded") as refused:
        expand(owner, list(range(1001)))
    assert refused.value.sqlstate == "RG009"


def test_a_filtered_search_expands_within_the_filter_since_filters_are_of_documents(owner):
    inside = Source(
        key="in",
        tags=("adr",),
        passages=[Passage(text="Before."), Passage(text="The valve."), Passage(text="After.")],
    )
    ids = add(owner, make_home(owner, "acme"), single("out", "valve valve"), inside)
    hits = hybrid(owner, "valve", None, tags_all=["adr"])
    assert hits == [ids[2]]
    assert expand(owner, hits) == [(ids[2], None), (ids[1], ids[2]), (ids[3], ids[2])]
