"""Metadata under the names that the document's own fields have in a filter: never read as those."""

from __future__ import annotations

import datetime as dt
import importlib.util
from pathlib import Path
from typing import Any

import psycopg
import pytest

import ragpg.filters as ragpg
from ragpg.filters import Filter
from tests.sql import dense_seed
from tests.sql.dense_seed import Row
from tests.sql.test_filters_sql import matching

FORGED: dict[str, Any] = {
    "@key": "hr/pay.md",
    "@source": "hr",
    "@tags": ["secret"],
    "@modified_at": "2025-01-01T00:00:00.000000Z",
    "@instants": {"when": "2025-99-99T00:00:00.000000Z"},
    "@collection": 1,
    "@type": "Article",
}
MOMENT = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)


def insert(owner: psycopg.Connection) -> tuple[int, int]:
    home = dense_seed.make_collection(owner, tenant="acme")
    rows = [
        Row(chunk_id=1, vector="[1,0]", key="spoof", metadata=FORGED),
        Row(chunk_id=2, vector="[1,0]", key="hr/1", source="hr", modified_at=MOMENT),
    ]
    dense_seed.insert_rows(owner, home, rows)
    return home


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        (ragpg.source == "hr", [2]),
        ((ragpg.source == "hr") | (ragpg.source == "none"), [2]),
        (ragpg.source.prefix("h"), [2]),
        (ragpg.source.exists(), [2]),
        (ragpg.source != "hr", [1]),
        (ragpg.source == None, [1]),  # noqa: E711
        (ragpg.source != None, [2]),  # noqa: E711
        (ragpg.modified.exists(), [2]),
        (ragpg.modified == None, [1]),  # noqa: E711
        (ragpg.modified.in_([MOMENT, dt.date(2020, 1, 1)]), [2]),
        (ragpg.modified.not_in([MOMENT]), [1]),
        ((ragpg.modified == MOMENT) | (ragpg.key == "none"), [2]),
        (ragpg.field("when") >= dt.date(2024, 1, 1), []),
        (ragpg.tags.any("secret") | (ragpg.key == "hr/pay.md"), []),
        (ragpg.key == "spoof", [1]),
    ],
    ids=str,
)
def test_metadata_does_not_stand_for_a_field_that_the_document_lacks(owner, where: Filter, ids):
    insert(owner)
    assert matching(owner, where) == ids


def test_metadata_whose_name_is_not_taken_is_kept_for_a_jsonpath_of_sql(owner):
    home = insert(owner)
    found = dense_seed.search(owner, "acme", "docs", "[1,0]", filter='$."@type" == "Article"')
    assert [row[0] for row in found] == [1]
    attributes = owner.execute(
        "select attributes from ragpg.embedding where tenant_id = %s and chunk_id = 1", [home[0]]
    ).fetchone()
    assert attributes == (
        {
            "@key": "spoof",
            "@tags": [],
            "@type": "Article",
            "@collection": home[1],
            # The dates of all metadata, by its own names, which a filter cannot ask for either.
            "@instants": {"@modified_at": "2025-01-01T00:00:00.000000Z"},
        },
    )


@pytest.mark.anyio
async def test_documents_stored_with_such_metadata_are_mended_by_the_migration(client, owner):
    from ragpg.types import Document

    real = {"@instants": {"a": "2025-01-01"}, "due": "2025-06-01", "": 5}
    documents = [
        Document(key="spoof.md", text="One valve.", metadata=FORGED),
        Document(key="half.md", text="Two valves.", source="hr", metadata=FORGED | {"due": "2025-06-01"}),
        Document(key="own.md", text="Three valves.", metadata=real),
        Document(key="when.md", text="Four valves.", metadata={"@instants": FORGED["@instants"]}),
    ]  # fmt: skip
    await client.collection(tenant="acme", name="notes").ingest(documents)
    state = "select document_key, attributes - '@collection' from ragpg.embedding"
    mended = dict(owner.execute(state).fetchall())
    # As revision 0016 had stored it: the document's own over the metadata, where there was one.
    owner.execute(
        "update ragpg.embedding set attributes = document.metadata || embedding.attributes"
        "  from ragpg.document where document.key = embedding.document_key"
    )
    forged = dict(owner.execute(state).fetchall())
    assert forged["spoof.md"]["@source"] == "hr"
    assert forged["when.md"]["@instants"] == FORGED["@instants"]
    owner.execute(migration("0017").FORGED)
    assert dict(owner.execute(state).fetchall()) == mended
    assert sorted(mended["spoof.md"]) == ["@instants", "@key", "@tags", "@type"]
    assert mended["half.md"]["@source"] == "hr"
    assert mended["when.md"] == {"@key": "when.md", "@tags": []}
    assert mended["own.md"]["@instants"] == {
        "@instants": {"a": "2025-01-01T00:00:00.000000Z"},
        "due": "2025-06-01T00:00:00.000000Z",
    }
    assert mended["own.md"][""] == 5


def migration(number: str) -> Any:
    (path,) = (Path(__file__).parents[2] / "migrations" / "versions").glob(f"{number}_*.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
