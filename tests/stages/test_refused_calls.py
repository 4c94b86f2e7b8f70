"""Calls that can never succeed: refused with a next step, before anything is stored or lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import psycopg
import pytest
from pydantic import SecretStr

import ragpg
from ragpg import testing
from ragpg.client import AsyncClient
from ragpg.errors import (
    ClientClosed,
    ConfigurationError,
    DimensionError,
    InputError,
    RecipeMismatch,
)
from ragpg.settings import Settings
from ragpg.types import Document, Embedded, Purpose, Recipe
from tests.conftest import client_on

pytestmark = pytest.mark.anyio

HARBOUR = Document(
    key="harbour.md", text="# Harbour\n\nThe crane lifts forty tons.", metadata={"year": 2025}
)
FERRY = Document(
    key="ferry.md", text="# Ferry\n\nThe ferry leaves at noon.", metadata={"year": 2024}
)


def recipe(**fields: Any) -> Recipe:
    return Recipe(
        **{
            "embedding_provider": "testing",
            "embedding_model": "hash-256",
            "dimensions": 256,
            "context_provider": "testing",
            "context_model": "first-sentence",
            **fields,
        }
    )


@pytest.fixture
async def port(client):
    port = client.collection(tenant="acme", name="port")
    await port.ingest([HARBOUR, FERRY])
    return port


WRONG_COUNTS = [0, -1, 1001, 2.5, "5", True, None]


async def test_every_call_refuses_a_k_that_is_no_count_of_hits(port):
    hits = await port.retrieve("crane", k=5)
    for k in WRONG_COUNTS:
        for call in (port.retrieve, port.search, port.ground, port.ask):
            with pytest.raises(InputError, match=r"k is .*, it must be 1 to 1000"):
                await call("crane", k=k)
        with pytest.raises(InputError, match=r"k is .*, it must be 1 to 1000"):
            await port.rerank("crane", hits, k=k)


async def test_a_search_refuses_a_depth_that_is_no_count_of_hits(port):
    for depth in WRONG_COUNTS:
        with pytest.raises(InputError, match=r"depth is .*, it must be 1 to 1000"):
            await port.search("crane", k=5, depth=depth)


async def test_a_filter_may_be_given_as_its_json_wherever_one_is_taken(port, owner):
    where = {"year": {">=": 2025}}
    assert [hit.document_key for hit in await port.retrieve("leaves", where=where)] == [
        "harbour.md"
    ]
    assert [hit.document_key for hit in await port.search("leaves", where=where)] == ["harbour.md"]
    assert [hit.document_key for hit in await port.ground("leaves", where=where)] == ["harbour.md"]
    answer = await port.ask("leaves", where={"year": 2024})
    assert {hit.document_key for hit in answer.hits} == {"ferry.md"}
    logged = owner.execute("select filter from ragpg.search order by search_id desc").fetchone()
    assert logged == ({"field": ["year"], "==": 2024},)
    with pytest.raises(InputError, match="a filter is an object such as"):
        await port.search("leaves", where="year")


async def test_a_query_that_is_no_text_is_refused(port):
    hits = await port.retrieve("crane")
    for query in (None, b"crane", 5, ["crane"]):
        for call in (port.retrieve, port.search, port.ground, port.ask):
            with pytest.raises(InputError, match=r"query is .*; give it as text \(str\)"):
                await call(query)
        for call in (port.rerank, port.generate):
            with pytest.raises(InputError, match=r"query is .*; give it as text \(str\)"):
                await call(query, hits)


async def test_a_key_or_a_list_of_keys_of_another_type_is_refused(port):
    for key in (["ferry.md"], None, b"ferry.md"):
        with pytest.raises(InputError, match=r"key is .*; give it as text"):
            await port.delete(key)
        with pytest.raises(InputError, match=r"key is .*; give it as text"):
            await port.document(key)
    for broken in ("a\0b", "\ud800"):
        with pytest.raises(InputError, match="the key holds NUL or half a character"):
            await port.delete(broken)
    with pytest.raises(InputError, match=r"a value cannot be sent to Postgres: .*; change it"):
        await port.retry(["a\0b"])
    with pytest.raises(InputError, match="; give a list of texts"):
        await port.retry("ferry.md")
    assert await port.delete("ferry.md") is True


async def test_what_a_page_leaves_out_begins_after_or_expands_to_is_checked(port):
    hits = await port.retrieve("crane")
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"exclude": "12"}, "exclude is '12'; give a list of chunk ids"),
        ({"exclude": [hits[0].chunk_id, "2"]}, "exclude.1. is '2', it must be 1 to"),
        ({"exclude": [2**70]}, "exclude.0. is 1180591620717411303424, it must be 1 to"),
        ({"after": "2"}, "after is '2', it must be 1 to"),
        ({"weights": None}, "weights is None; give ragpg.Weights"),
    )
    for arguments, said in refused:
        with pytest.raises(InputError, match=said):
            await port.retrieve("crane", **arguments)
    for unit in ("page", 5):
        with pytest.raises(InputError, match=r"unit is .*; it may be 'neighbours', 'section'"):
            await port.expand(hits, unit)


async def test_documents_that_are_no_list_of_documents_are_refused(port):
    for wrong, said in ((HARBOUR, "Document"), (None, "NoneType"), (5, "int")):
        with pytest.raises(InputError, match=f"documents is of type {said}; give an iterable of"):
            await port.ingest(wrong)
    with pytest.raises(InputError, match=r"str is no ragpg\.Document; build one"):
        await port.ingest("harbour.md")


async def test_hits_that_are_no_hits_are_refused(port):
    for call in (port.rerank, port.generate):
        with pytest.raises(InputError, match=r"hits is list \[\]; give the ragpg.Hits"):
            await call("crane", [])
    with pytest.raises(InputError, match=r"hits is list \[\]; give the ragpg.Hits"):
        await port.expand([])


async def test_a_name_that_cannot_be_stored_is_refused_where_it_is_given(client, port):
    for name in ("", " ", "n" * 201, None, 7):
        with pytest.raises(InputError, match=r"tenant is .*; give"):
            client.collection(tenant=name, name="port")
        with pytest.raises(InputError, match=r"collection is .*; give"):
            client.collection(tenant="acme", name=name)
        with pytest.raises(InputError, match=r"tenant is .*; give"):
            await client.create_tenant(name)
        with pytest.raises(InputError, match=r"alias is .*; give"):
            await port.set_alias(name)


async def test_a_tenant_of_another_type_is_refused_by_the_calls_of_a_client(client):
    for call in (client.collections, client.status):
        with pytest.raises(InputError, match=r"tenant is 5; give it as text \(str\)"):
            await call(tenant=5)


async def test_a_recipe_that_cannot_be_makes_neither_tenant_nor_collection(client, owner):
    harbour = client.collection(tenant="acme", name="harbour")
    with pytest.raises(InputError, match="splitter is 'lines'; it may be 'section'"):
        await harbour.create(recipe(splitter="lines"))
    assert owner.execute("select count(*) from ragpg.tenant").fetchone() == (0,)


async def test_a_language_that_the_server_does_not_know_is_refused_at_creation(client, owner):
    harbour = client.collection(tenant="acme", name="harbour")
    for language in ("klingon", "no.such", "13"):
        with pytest.raises(InputError, match=rf"language '{language}' is no text search.*german"):
            await harbour.create(recipe(language=language))
    assert owner.execute("select count(*) from ragpg.collection").fetchone() == (0,)
    assert (await harbour.create(recipe(language="german"))).language == "german"


NOT_SERVED: list[tuple[dict[str, Any], str]] = [
    ({"dimensions": 100}, "vectors of local all-MiniLM-L6-v2-int8 100 float, this client"),
    ({"embedding_model": "nope"}, "vectors of local nope 384 float, this client"),
    ({"embedding_dtype": "int8"}, "vectors of local all-MiniLM-L6-v2-int8 384 int8, this"),
    ({"context_model": "x"}, "contexts of rule x 1, this client brings rule rule-1 1"),
    ({"context_prompt_version": 2}, "contexts of rule rule-1 2, this client brings rule rule-1 1"),
]


async def test_a_recipe_that_the_offline_parts_do_not_serve_is_refused_at_creation(database, owner):
    async with AsyncClient(Settings(database_url=SecretStr(database.service_url))) as client:
        for fields, said in NOT_SERVED:
            with pytest.raises(RecipeMismatch, match=said):
                await client.collection(tenant="acme", name="port").create(Recipe(**fields))
    assert owner.execute("select count(*) from ragpg.collection").fetchone() == (0,)


async def test_a_collection_of_another_model_is_refused_before_anything_is_embedded(
    database, client, owner
):
    port = client.collection(tenant="acme", name="port")
    await port.create(recipe())
    owner.execute(
        "update ragpg.collection set embedding_provider = 'local', embedding_model = 'nope',"
        " dimensions = 100, context_provider = 'rule', context_model = 'rule-1'"
    )
    async with AsyncClient(Settings(database_url=SecretStr(database.service_url))) as offline:
        there = offline.collection(tenant="acme", name="port")
        for call in (there.ingest([HARBOUR]), there.search("crane")):
            with pytest.raises(RecipeMismatch, match="vectors of local nope 100 float"):
                await call


class ShrinkingEmbedder(testing.HashEmbedder):
    """Says 256 dimensions until it is asked for vectors, and then has 100."""

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:
        self.dimensions = 100
        return await super().embed(texts, purpose=purpose)


async def test_a_vector_of_the_wrong_length_is_refused_before_it_is_stored(database, owner):
    async with client_on(database, embedder=ShrinkingEmbedder()) as client:
        report = await client.collection(tenant="acme", name="port").ingest([HARBOUR])
    assert [(one.key, one.reason) for one in report.failed] == [("harbour.md", "provider")]
    assert "a vector of length 100 instead of 256" in report.failed[0].message
    stored = owner.execute("select count(embedding) from ragpg.staged_chunk").fetchone()
    assert stored == (0,)


async def test_a_vector_of_the_wrong_length_that_sql_has_staged_is_not_published(client, port):
    async with client.transaction("acme") as conn:
        await conn.execute(
            "insert into ragpg.staged_document (tenant_id, collection_id, key, status, claim, text,"
            " content_hash, tags, metadata, media_type, page_starts)"
            " values (ragpg.current_tenant(), ragpg.collection_number('port'), 'mole.md', 'staged',"
            " '00000000-0000-0000-0000-000000000001', 'The mole is long.', '', '{}', '{}', 'text',"
            " '{}')"
        )
        await conn.execute(
            "insert into ragpg.staged_chunk (tenant_id, collection_id, document_key, position,"
            " start, stop, section_path, table_header, text, text_hash, embedding)"
            " values (ragpg.current_tenant(), ragpg.collection_number('port'), 'mole.md', 0, 0, 17,"
            " '{}', '', 'The mole is long.', '', '[1,0,0]')"
        )
    with pytest.raises(
        DimensionError, match=r"chunk 0 of document 'mole.md' has a vector of 3 dimensions, the"
    ):
        async with client.transaction("acme") as conn:
            await conn.execute(
                "select ragpg.publish('port', 'mole.md', '00000000-0000-0000-0000-000000000001')"
            )


BAD: list[tuple[dict[str, Any], str]] = [
    ({"key": ""}, "its key has 0 characters"),
    ({"key": "k" * 5000}, "its key has 5000 characters"),
    ({"key": "😀" * 900}, "its key has 3600 bytes"),
    ({"key": 5}, "its key is of type int"),
    ({"key": ["a"]}, "its key is of type list"),
    ({"review_by": "tomorrowish"}, "review_by is 'tomorrowish'"),
    ({"text": None}, "text is None"),
    ({"text": b"The quay"}, "text is bytes"),
    ({"metadata": None}, "metadata is None"),
    ({"metadata": ["a"]}, "metadata is list"),
    ({"metadata": {"n": 10**5000}}, "an integer of more than 300 digits"),
    ({"tags": "finance"}, "tags is 'finance'"),
    ({"media_type": "pptx"}, "media_type is 'pptx'"),
    ({"source": "".join(chr(0x4E00 + n) for n in range(900))}, "source has a text of 2700 bytes"),
]


async def test_a_document_that_cannot_be_stored_fails_alone_and_is_named(client):
    port = client.collection(tenant="acme", name="port")
    bad = [
        Document(**({"key": f"quay-{n}.md", "text": "The quay is wet."} | fields))
        for n, (fields, _) in enumerate(BAD)
    ]
    report = await port.ingest([HARBOUR, *bad, FERRY])
    assert report.created == ("harbour.md", "ferry.md")
    assert [one.key for one in report.failed] == [str(one.key) for one in bad]
    for failure, (_, fault) in zip(report.failed, BAD, strict=True):
        assert fault in failure.message
    queued = await port.enqueue([*bad, Document(key="mole.md", text="The mole is long.")])
    assert queued.queued == ("mole.md",)
    assert [one.key for one in queued.failed] == [str(one.key) for one in bad]


async def test_why_a_document_cannot_be_stored_is_kept_where_its_key_can_be(client, owner):
    port = client.collection(tenant="acme", name="port")
    without_text: dict[str, Any] = {"key": "quay.md", "text": None}
    await port.ingest([Document(**without_text), Document(key="", text="Wet.")])
    rows = owner.execute("select key, status, last_error from ragpg.staged_document").fetchall()
    said = "document 'quay.md' cannot be stored: text is None; give text (str);"
    assert [(key, status) for key, status, _ in rows] == [("quay.md", "failed")]
    assert rows[0][2].startswith(said)


async def test_a_source_a_tag_and_a_key_that_fill_an_index_entry_are_stored(client):
    port = client.collection(tenant="acme", name="port")
    # Characters that do not compress, so that the index holds each byte of the 2,600.
    noise = "".join(chr(0x4E00 + (n * 7919) % 20_000) for n in range(866)) + "ab"
    assert (len(noise), len(noise.encode())) == (868, 2600)
    report = await port.ingest([Document(key=noise, text="Wet.", source=noise, tags=(noise,))])
    assert (report.created, report.failed) == ((noise,), ())


async def test_concurrent_calls_on_a_client_that_was_never_entered_share_one_pool(database):
    settings = Settings(database_url=SecretStr(database.service_url), pool_max_size=1)
    client = AsyncClient(settings)
    backends = set()

    async def call() -> None:
        async with client.transaction(None) as conn:
            row = await (await conn.execute("select pg_backend_pid()")).fetchone()
            backends.add(None if row is None else row[0])

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(call)
    assert len(backends) == 1
    await client.aclose()


async def test_a_closed_client_refuses_every_call_until_it_is_entered_again(database):
    async with client_on(database) as client:
        port = client.collection(tenant="acme", name="port")
        await port.ingest([HARBOUR])
        hits = await port.search("crane")
    calls = (
        lambda: port.search("crane"),
        lambda: port.rerank("crane", hits),
        lambda: port.generate("crane", hits),
        lambda: port.ingest([FERRY]),
        lambda: client.collections(tenant="acme"),
        lambda: client.create_tenant("other"),
    )
    for call in calls:
        with pytest.raises(ClientClosed, match="the client is not open"):
            await call()
    async with client:
        assert len(await port.search("crane")) == 1


async def test_a_role_of_readers_is_told_what_it_is_for(database):
    with pytest.raises(ConfigurationError) as refused:
        async with AsyncClient(Settings(database_url=SecretStr(database.reader_url))) as client:
            await client.collection(tenant="acme", name="port").search("crane")
    assert "'ragpg_test_reader', which is no member of ragpg_app;" in str(refused.value)
    assert "a role of ragpg_reader inspects with psql" in str(refused.value)


async def test_a_service_takes_an_address_of_keys_and_values_as_it_takes_a_url(database):
    parts = psycopg.conninfo.conninfo_to_dict(database.service_url)
    address = psycopg.conninfo.make_conninfo("", **parts)
    assert "://" not in address
    async with AsyncClient(Settings(database_url=SecretStr(address))) as client:
        await client.create_tenant("acme")
        assert await client.collections(tenant="acme") == []


def test_the_blocking_twin_refuses_the_same(database):
    with ragpg.Client(
        Settings(database_url=SecretStr(database.service_url)),
        embedder=testing.HashEmbedder(),
        context_writer=testing.FirstSentenceContextWriter(),
        reranker=testing.OverlapReranker(),
    ) as client:
        port = client.collection(tenant="acme", name="port")
        port.ingest([HARBOUR])
        with pytest.raises(InputError, match="k is -1, it must be 1 to 1000"):
            port.search("crane", k=-1)
        assert len(port.search("crane", where={"year": 2025})) == 1


async def test_half_a_character_is_refused_where_a_value_is_sent_as_it_is(client):
    with pytest.raises(InputError) as wrong:
        await client.status(tenant="ac\ud800me")
    assert str(wrong.value) == (
        "a value cannot be sent to Postgres: it holds half a character, U+D800 at place 2; change it"
    )
