"""A handle that outlives an alias swap follows it; nothing mixes two recipes."""

from __future__ import annotations

import pytest

from ragpg import errors, testing
from ragpg.types import Document
from tests.conftest import client_on

pytestmark = pytest.mark.anyio


async def test_a_handle_kept_over_an_alias_swap_searches_and_logs_in_the_new_collection(
    client, owner
):
    first = client.collection(tenant="acme", name="handbook-1")
    second = client.collection(tenant="acme", name="handbook-2")
    await first.ingest([Document(key="a.md", text="The old leave rule.")])
    await second.ingest([Document(key="a.md", text="The new leave rule.")])
    await first.set_alias("handbook")
    kept = client.collection(tenant="acme", name="handbook")
    assert (await kept.search("leave")).hits[0].text == "The old leave rule."
    await second.set_alias("handbook")
    assert (await kept.search("leave")).hits[0].text == "The new leave rule."
    await kept.ingest([Document(key="b.md", text="A later rule.")])
    logged = owner.execute(
        "select name from ragpg.search join ragpg.collection using (tenant_id, collection_id)"
        " order by search_id"
    ).fetchall()
    assert logged == [("handbook-1",), ("handbook-2",)]
    keys = owner.execute(
        "select name, key from ragpg.document join ragpg.collection using (tenant_id, collection_id)"
        " order by name, key"
    ).fetchall()
    assert keys == [("handbook-1", "a.md"), ("handbook-2", "a.md"), ("handbook-2", "b.md")]


async def test_a_kept_handle_never_asks_a_new_collection_with_the_old_model(database):
    class Other(testing.HashEmbedder):
        """Of the same length as the first, so that no dimension gives the mistake away."""

        def __init__(self) -> None:
            super().__init__()
            self.model = "other-256"

    async with client_on(database, embedder=Other()) as other:
        new = other.collection(tenant="acme", name="handbook-2")
        await new.ingest([Document(key="a.md", text="The new leave rule.")])
    async with client_on(database) as client:
        first = client.collection(tenant="acme", name="handbook-1")
        await first.ingest([Document(key="a.md", text="The old leave rule.")])
        await first.set_alias("handbook")
        kept = client.collection(tenant="acme", name="handbook")
        assert len(await kept.retrieve("leave")) == 1
        await client.collection(tenant="acme", name="handbook-2").set_alias("handbook")
        with pytest.raises(errors.RecipeMismatch, match="other-256"):
            await kept.retrieve("leave")
