"""The main job with the three real SDKs against the loopback stub: nothing offline takes part."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest
from pydantic import SecretStr

import ragpg
from ragpg import errors
from ragpg.client import AsyncClient
from ragpg.settings import Settings
from ragpg.types import Answer, AnswerDelta, Document
from tests.vendor_stub import VendorStub

pytestmark = pytest.mark.anyio

KEYS = {
    "voyage_api_key": SecretStr("pa-voyage-word"),
    "anthropic_api_key": SecretStr("sk-ant-claude-word"),
    "cohere_api_key": SecretStr("co-cohere-word"),
}
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def stub():
    with VendorStub() as running:
        yield running


def settings(database, stub: VendorStub, **changes) -> Settings:
    return Settings(
        database_url=SecretStr(database.service_url),
        voyage_base_url=stub.voyage_url,
        anthropic_base_url=stub.anthropic_url,
        cohere_base_url=stub.cohere_url,
        **KEYS | changes,
    )


async def test_documents_go_in_and_a_cited_answer_comes_out(database, stub, owner):
    async with AsyncClient(settings(database, stub)) as client:
        runbooks = client.collection(tenant="acme", name="runbooks")
        report = await runbooks.ingest_files([EXAMPLES])
        assert (len(report.created), report.failed, report.contexts_failed) == (3, (), 0)
        recipe = await runbooks.recipe()
        assert (recipe.embedding_provider, recipe.embedding_model) == ("voyage", "voyage-4")
        assert (recipe.context_provider, recipe.context_model) == ("claude", "claude-haiku-5-5")
        # So small a collection would be read whole, without Voyage and Cohere.
        await runbooks.create(dataclasses.replace(recipe, whole_corpus_tokens=0))
        answer = await runbooks.ask("What happened in incident 2025-05-18?")
        assert answer.provider == "claude"
        assert answer.hits.reranker == "cohere rerank-v4.0-fast"
        assert answer.citations
        for citation in answer.citations:
            document = await runbooks.document(citation.document_key)
            assert document.text[citation.start : citation.stop] == citation.quote
        pieces = [item async for item in runbooks.stream("What is COST-103?", answer.hits)]
        assert isinstance(pieces[-1], Answer)
        text = "".join(piece.text for piece in pieces if isinstance(piece, AnswerDelta))
        assert text == pieces[-1].text
    spent = owner.execute(
        "select provider, operation, count(*) > 0, sum(input_tokens) > 0 from ragpg.usage"
        " group by provider, operation order by provider, operation"
    ).fetchall()
    assert [(row[0], row[1]) for row in spent] == [
        ("claude", "context"),
        ("claude", "generate"),
        ("cohere", "rerank"),
        ("voyage", "embed"),
    ]
    cached = owner.execute(
        "select sum(cache_read_tokens) > 0, sum(cost_usd) > 0 from ragpg.usage where operation = 'context'"
    ).fetchone()
    assert cached == (True, True)
    assert owner.execute("select count(*) from ragpg.search_hit where cited").fetchone() != (0,)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("voyage_api_key", "VOYAGE_API_KEY"),
        ("anthropic_api_key", "ANTHROPIC_API_KEY"),
    ],
)
async def test_a_wrong_key_is_one_sentence_that_names_its_variable_and_not_the_key(
    database, stub, owner, caplog, name, variable
):
    caplog.set_level(logging.DEBUG)
    wrong = {name: SecretStr("wrong")}
    async with AsyncClient(settings(database, stub, **wrong)) as client:
        with pytest.raises(errors.ProviderRejected) as caught:
            await client.collection(tenant="acme", name="runbooks").ingest_files([EXAMPLES])
    assert variable in str(caught.value)
    assert caught.value.status == 401
    assert owner.execute("select count(*) from ragpg.document").fetchone() == (0,)
    for secret in ("pa-voyage-word", "sk-ant-claude-word", "co-cohere-word"):
        assert secret not in caplog.text
        assert secret not in str(caught.value)


async def test_a_reranker_that_fails_leaves_the_fused_order_and_says_so(database, stub, owner):
    wrong = {"cohere_api_key": SecretStr("wrong")}
    async with AsyncClient(settings(database, stub, **wrong)) as client:
        runbooks = client.collection(tenant="acme", name="runbooks")
        await runbooks.ingest([Document(key="a.md", text="# Pumps\n\nTurn the valve.\n")])
        hits = await runbooks.search("valve")
    assert [hit.rerank_score for hit in hits] == [None]
    (sentence,) = hits.degraded
    assert sentence.startswith("cohere rerank-v4.0-fast did not rerank:")
    assert sentence.endswith("the fused order is shown")
    logged = owner.execute("select degraded from ragpg.search").fetchone()
    assert logged == ([sentence],)


async def test_a_collection_made_with_a_vendor_says_which_key_it_needs(database, stub):
    async with AsyncClient(settings(database, stub)) as client:
        await client.collection(tenant="acme", name="runbooks").create()
    offline = Settings(database_url=SecretStr(database.service_url))
    async with AsyncClient(offline) as client:
        runbooks = client.collection(tenant="acme", name="runbooks")
        with pytest.raises(
            errors.ConfigurationError, match="needs VOYAGE_API_KEY, which is not set"
        ):
            await runbooks.search("valve")


async def test_a_voyage_context_recipe_embeds_the_chunks_of_a_document_together(database, stub):
    recipe = ragpg.Recipe(
        embedding_provider="voyage",
        embedding_model="voyage-context-4",
        dimensions=256,
        context_provider="none",
        context_model="none",
        max_tokens=60,
    )
    async with AsyncClient(settings(database, stub)) as client:
        runbooks = client.collection(tenant="acme", name="runbooks")
        await runbooks.create(recipe)
        report = await runbooks.ingest(
            [Document(key="a.md", text=(EXAMPLES / "data-quality-runbook.md").read_text())]
        )
        assert report.created == ("a.md",)
        assert report.chunks > 10
        assert await runbooks.search("late files")
