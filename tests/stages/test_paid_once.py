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


class Windows(VendorStub):
    """Answers `reply` to a window that holds this chunk, until it is None."""

    chunk = "chunk5 "
    reply: Reply | None = None

    def begin(self, call: Call) -> Scripted | None:
        scripted = super().begin(call)
        if any(self.chunk in text for texts in call.body.get("inputs", ()) for text in texts):
            return self.reply or scripted
        return scripted

    def paid(self) -> list[list[str]]:
        """The first words of the chunks of each window that was answered since the last time."""
        calls = self.calls("/contextualizedembeddings")
        answered = [call.body["inputs"][0] for call in calls if call.status == 200]
        self.log.clear()
        return sorted([text.split()[0] for text in texts] for texts in answered)


@pytest.fixture
def windows() -> Iterator[Windows]:
    with Windows() as server, stamina.set_testing(True, attempts=60, cap=True):
        yield server


@pytest.fixture
async def book(database, windows) -> AsyncIterator[AsyncCollection]:
    settings = Settings(
        database_url=SecretStr(database.service_url),
        voyage_api_key=SecretStr("pa-test"),
        voyage_base_url=windows.voyage_url,
        provider_deadline_s=5,
        provider_concurrency=1,
    )
    recipe = dataclasses.replace(
        RECIPE,
        embedding_model="voyage-context-4",
        splitter="section",
        max_tokens=10_000,
        overlap_tokens=0,
    )
    async with AsyncClient(settings) as client:
        book = client.collection(tenant="acme", name="book")
        await book.create(recipe)
        yield book


def chapters(first: str = "word") -> Document:
    """Eight chunks of about 9,000 tokens: two fit into a window of 0.8 x 32,000."""
    words = [first, *["word"] * 7]
    text = "\n\n".join(f"chunk{n} " + f"{word} " * 8_990 for n, word in enumerate(words))
    return Document(key="book.md", text=text)


VECTORS = (
    "select position, embedding::text from ragpg.embedding"
    " join ragpg.chunk using (tenant_id, chunk_id) order by position"
)
EVERY_WINDOW = [[f"chunk{n}", f"chunk{n + 1}"] for n in (0, 2, 4, 6)]


async def as_if_embedded_at_once(book, owner, document: Document):
    await book.delete(document.key)
    await book.ingest([document])
    return owner.execute(VECTORS).fetchall()


async def test_windows_of_a_document_that_were_answered_outlive_the_failure_of_a_later_one(
    book, windows, owner
):
    windows.reply = voyage_error(503, "overloaded")
    with pytest.raises(errors.ProviderUnavailable):
        await book.ingest([chapters()])
    paid = windows.paid()
    assert EVERY_WINDOW[:2] == paid[:2]
    assert EVERY_WINDOW[2] not in paid
    kept = owner.execute("select count(embedding) from ragpg.staged_chunk").fetchone()
    assert kept == (2 * len(paid),)
    assert owner.execute("select count(*) from ragpg.usage").fetchone() == (len(paid),)
    windows.reply = None
    assert (await book.ingest([chapters()])).created == ("book.md",)
    assert sorted(paid + windows.paid()) == EVERY_WINDOW
    vectors = owner.execute(VECTORS).fetchall()
    assert await as_if_embedded_at_once(book, owner, chapters()) == vectors
    assert windows.paid() == EVERY_WINDOW


async def test_an_edit_after_a_failure_pays_for_the_windows_that_it_changed_and_those_that_failed(
    book, windows, owner
):
    windows.reply = voyage_error(503, "overloaded")
    with pytest.raises(errors.ProviderUnavailable):
        await book.ingest([chapters()])
    paid = windows.paid()
    windows.reply = None
    await book.ingest([chapters("other")])
    assert sorted(paid + windows.paid()) == sorted([EVERY_WINDOW[0], *EVERY_WINDOW])
    vectors = owner.execute(VECTORS).fetchall()
    assert await as_if_embedded_at_once(book, owner, chapters("other")) == vectors


async def test_a_window_that_is_refused_fails_its_document_and_keeps_what_was_paid(book, windows):
    windows.reply = voyage_error(400, "Input contains a forbidden sequence.")
    report = await book.ingest([chapters()])
    assert [(one.key, one.reason) for one in report.failed] == [("book.md", "provider")]
    paid = windows.paid()
    assert EVERY_WINDOW[0] in paid
    windows.reply = None
    assert (await book.ingest([chapters()])).created == ("book.md",)
    assert sorted(paid + windows.paid()) == EVERY_WINDOW
