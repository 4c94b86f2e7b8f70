"""Embedding calls of several requests, one of which fails: what was answered is kept and paid once."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator

import pytest
import stamina
from pydantic import SecretStr

from ragpg import errors
from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.settings import Settings
from ragpg.types import Document, Recipe
from tests.vendor_stub import Call, Reply, Scripted, VendorStub, voyage_error

pytestmark = pytest.mark.anyio

# One chunk a document, of about 20,000 tokens: four fit into a request of 0.8 x 120,000.
PAGES = [Document(key=f"{n}.md", text=f"page{n} " + "word " * 20_000) for n in range(8)]
RECIPE = Recipe(
    splitter="whole",
    max_tokens=30_000,
    embedding_provider="voyage",
    embedding_model="voyage-4-large",
    dimensions=256,
    context_provider="none",
)


class Storm(VendorStub):
    """Answers `reply` to embedding requests that hold this page, until it is None."""

    def __init__(self) -> None:
        super().__init__()
        self.page = "page6 "
        self.reply: Reply | None = None

    def begin(self, call: Call) -> Scripted | None:
        scripted = super().begin(call)
        if any(text.startswith(self.page) for text in call.body.get("input", ())):
            return self.reply or scripted
        return scripted

    def paid(self) -> list[str]:
        """The first words of the texts that were answered, as often as they were."""
        answered = [call.body["input"] for call in self.calls("/embeddings") if call.status == 200]
        return sorted(text.split()[0] for texts in answered for text in texts)


@pytest.fixture
def stub() -> Iterator[Storm]:
    with Storm() as server, stamina.set_testing(True, attempts=60, cap=True):
        yield server


@pytest.fixture
async def docs(database, stub) -> AsyncIterator[AsyncCollection]:
    settings = Settings(
        database_url=SecretStr(database.service_url),
        voyage_api_key=SecretStr("pa-test"),
        voyage_base_url=stub.voyage_url,
        provider_deadline_s=5,
        provider_concurrency=1,
    )
    async with AsyncClient(settings) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.create(RECIPE)
        yield docs


EVERY_PAGE = [f"page{n}" for n in range(8)]


async def test_the_vectors_of_a_request_outlive_the_failure_of_its_neighbour(docs, stub, owner):
    stub.reply = voyage_error(503, "overloaded")
    with pytest.raises(errors.ProviderUnavailable):
        await docs.ingest(PAGES)
    assert stub.paid() == ["page0", "page1", "page2", "page3"]
    kept = owner.execute(
        "select document_key from ragpg.staged_chunk where embedding is not null order by 1"
    ).fetchall()
    assert [key for (key,) in kept] == ["0.md", "1.md", "2.md", "3.md"]
    assert owner.execute("select count(*) from ragpg.usage").fetchone() == (1,)
    stub.reply = None
    report = await docs.ingest(PAGES)
    assert len(report.created) == 8
    assert stub.paid() == EVERY_PAGE
    assert owner.execute("select count(*) from ragpg.usage").fetchone() == (2,)


async def test_a_text_that_is_refused_for_itself_costs_its_neighbours_no_second_call(docs, stub):
    stub.reply = voyage_error(400, "Input contains a forbidden sequence.")
    report = await docs.ingest(PAGES)
    assert [(one.key, one.reason) for one in report.failed] == [("6.md", "provider")]
    assert len(report.created) == 7
    assert stub.paid() == [page for page in EVERY_PAGE if page != "page6"]


async def test_a_wrong_key_in_the_middle_of_a_call_ends_it_and_keeps_what_was_paid(docs, stub):
    stub.reply = voyage_error(401, "Provided API key is invalid.")
    with pytest.raises(errors.ProviderRejected, match="VOYAGE_API_KEY"):
        await docs.ingest(PAGES)
    stub.reply = None
    assert len((await docs.ingest(PAGES)).created) == 8
    assert stub.paid() == EVERY_PAGE


async def test_embeddings_that_only_find_where_to_cut_are_on_the_bill_too(database, stub, owner):
    settings = Settings(
        database_url=SecretStr(database.service_url),
        voyage_api_key=SecretStr("pa-test"),
        voyage_base_url=stub.voyage_url,
    )
    text = "Herons wade at dawn. They eat small fish. Invoices are due in May. Late ones cost more."
    async with AsyncClient(settings) as client:
        docs = client.collection(tenant="acme", name="cut")
        await docs.create(
            dataclasses.replace(RECIPE, splitter="semantic", max_tokens=20, overlap_tokens=0)
        )
        await docs.ingest([Document(key="a.md", text=text)])
    answered = [call for call in stub.calls("/embeddings") if call.status == 200]
    assert len(answered) == 2
    recorded = owner.execute("select count(*), min(input_tokens) > 0 from ragpg.usage").fetchone()
    assert recorded == (2, True)
