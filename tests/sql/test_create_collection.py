"""A collection as SQL makes it, with what is said of a recipe that is none, and as recall reads it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from ragpg.errors import InputError
from ragpg.upkeep import dense_recall
from tests.sql.dense_seed import Row, insert_rows, make_collection

REQUIRED: dict[str, Any] = {
    "embedding_provider": "own",
    "embedding_model": "own-1",
    "dimensions": 3,
    "embedding_dtype": "float",
    "context_provider": "none",
    "context_model": "none",
    "context_prompt_version": 1,
    "glossary": "",
    "splitter": "section",
    "max_tokens": 400,
    "overlap_tokens": 50,
    "language": "english",
}
LANGUAGE = REQUIRED | {"language": "klingon"}


@pytest.fixture
def service(database):
    with psycopg.connect(database.service_url, autocommit=True) as conn:
        conn.execute("select ragpg.create_tenant('acme')")
        conn.execute("select ragpg.use_tenant('acme', session => true)")
        yield conn


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ({}, f"the recipe lacks {', '.join(REQUIRED)}"),
        (REQUIRED | {"glossary": None, "language": None}, "the recipe lacks glossary, language"),
        (
            REQUIRED | {"dimensoins": 3, "Splitter": 1},
            "a recipe has no key 'Splitter', 'dimensoins'",
        ),
        ([], "a recipe is a JSON object"),
        (None, "a recipe is a JSON object"),
        (LANGUAGE, "language 'klingon' is no text search configuration of this server"),
        (REQUIRED | {"language": "13"}, "language '13' is no text search configuration"),
    ],
)
def test_a_recipe_that_is_none_is_refused_in_one_sentence(service, recipe, sentence):
    with pytest.raises(psycopg.Error) as refused:
        service.execute("select ragpg.create_collection('c2', %s)", [Jsonb(recipe)])
    assert refused.value.sqlstate == "RG009"
    assert str(refused.value.diag.message_primary).startswith(sentence)
    assert refused.value.diag.message_hint


def test_the_comment_of_the_function_names_every_key_of_a_recipe(owner):
    row = owner.execute(
        "select obj_description('ragpg.create_collection(text, jsonb)'::regprocedure)"
    ).fetchone()
    for key in (*REQUIRED, "context_reuse", "failed_contexts", "whole_corpus_tokens"):
        assert key in row[0]


def test_what_may_be_left_out_has_the_defaults_of_the_recipe(service):
    service.execute("select ragpg.create_collection('c2', %s)", [Jsonb(REQUIRED)])
    shown = service.execute(
        "select context_reuse, failed_contexts, whole_corpus_tokens from ragpg.collection"
    ).fetchone()
    assert shown == ("chunk", "publish", 20_000)


def test_recall_names_the_collection_that_fails_and_measures_the_others(owner, database):
    # The first holds vectors of another length than its recipe says, as older releases let in.
    broken = make_collection(owner, tenant="acme", name="broken", dimensions=3)
    insert_rows(owner, broken, [Row(chunk_id=1, vector="[1,0]")])
    whole = make_collection(owner, tenant="globex", name="whole", dimensions=2)
    insert_rows(owner, whole, [Row(chunk_id=2, vector="[1,0]"), Row(chunk_id=3, vector="[0,1]")])
    failed, check = dense_recall.recall(database.owner_url, queries=5, k=10)
    assert isinstance(failed, dense_recall.RecallFailure)
    assert (failed.tenant, failed.collection) == ("acme", "broken")
    assert failed.advice.startswith("recall of 'broken' of tenant 'acme' was not measured: ")
    assert "2" in failed.message
    assert isinstance(check, dense_recall.RecallCheck)
    assert (check.tenant, check.collection, check.mean_recall) == ("globex", "whole", 1.0)


def test_recall_of_no_queries_is_refused(database):
    with pytest.raises(InputError, match="queries is 0, it must be 1 to 1000"):
        list(dense_recall.recall(database.owner_url, queries=0))
