"""What a caller may pass, and what the refusal of the rest says."""

from __future__ import annotations

from typing import Any

import pytest

from ragpg.dsn import LIVENESS, connect_args, libpq_dsn
from ragpg.errors import ConfigurationError, FilterError, InputError
from ragpg.filters import as_filter, field
from ragpg.inputs import checked_count, checked_name, checked_recipe, checked_texts, without_middle
from ragpg.settings import Settings
from ragpg.types import Recipe


@pytest.mark.parametrize(
    "wrong", [0, -1, 1001, pytest.param(10**5000, id="huge"), 2.5, 2.0, "5", True, None, [5]]
)
def test_a_count_is_a_whole_number_in_its_range_and_no_bool(wrong: object):
    with pytest.raises(InputError, match="it must be 1 to 1000; give a whole number"):
        checked_count("k", wrong)
    assert (checked_count("k", 1), checked_count("k", 1000)) == (1, 1000)


@pytest.mark.parametrize("wrong", ["", "  ", "x" * 201, "a\0b", "\ud800", None, 5, b"acme"])
def test_a_name_is_1_to_200_characters_of_text(wrong: object):
    with pytest.raises(InputError, match=r"tenant is .*; give "):
        checked_name("tenant", wrong)
    assert checked_name("tenant", "ж" * 200) == "ж" * 200


def test_a_text_alone_is_no_list_of_texts():
    with pytest.raises(InputError, match="; give a list of texts"):
        checked_texts("keys", "hr/leave.md")
    with pytest.raises(InputError, match=r"keys\[1\] is 5; give it as text"):
        checked_texts("keys", ["a", 5])


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_tokens": 0}, "max_tokens is 0, it must be 1 to 2147483647; give a whole number"),
        ({"max_tokens": 2**31}, "max_tokens is 2147483648, it must be 1 to 2147483647"),
        (
            {"max_tokens": 10},
            "overlap_tokens is 50 and max_tokens 10; an overlap is smaller than a chunk, so give both",
        ),
        ({"overlap_tokens": -1}, "overlap_tokens is -1, it must be 0 to"),
        ({"dimensions": 4001}, "dimensions is 4001, it must be 1 to 4000"),
        ({"dimensions": "384"}, "dimensions is '384', it must be 1 to 4000"),
        ({"whole_corpus_tokens": -1}, "whole_corpus_tokens is -1, it must be 0 to"),
        ({"context_prompt_version": 1.0}, "context_prompt_version is 1.0, it must be 0 to"),
        (
            {"splitter": "sections"},
            "splitter is 'sections'; it may be 'section', 'fixed', 'semantic', 'whole'",
        ),
        ({"embedding_dtype": "binary"}, "embedding_dtype is 'binary'; it may be 'float', 'int8'"),
        ({"context_reuse": None}, "context_reuse is None; it may be 'chunk', 'document'"),
        ({"embedding_model": " "}, "embedding_model is ' '; name one"),
        ({"language": 7}, "language is 7; give it as text (str)"),
        ({"glossary": "a\0b"}, "glossary holds NUL"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_with_its_value_and_what_may_be(
    fields: dict[str, Any], sentence: str
):
    with pytest.raises(InputError) as refused:
        checked_recipe(Recipe(**fields))
    assert str(refused.value).startswith(sentence)


def test_a_recipe_at_the_ends_of_its_ranges_is_taken():
    smallest = Recipe(dimensions=1, max_tokens=1, overlap_tokens=0, whole_corpus_tokens=0)
    assert checked_recipe(smallest) == smallest
    with pytest.raises(InputError, match="; give a ragpg"):
        checked_recipe({})


def test_a_filter_may_be_given_in_its_json_form():
    where = field("year") >= 2025
    assert as_filter({"year": {">=": 2025}}) == where
    assert as_filter(where) is where
    assert as_filter(None) is None
    for wrong in ("year", ["year"], 5):
        with pytest.raises(FilterError, match="a filter is an object such as"):
            as_filter(wrong)  # type: ignore[arg-type]


def test_only_filters_are_joined():
    with pytest.raises(FilterError, match="dict is no filter; join with"):
        (field("year") >= 2025) & {"lang": "en"}  # type: ignore[operator]


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ada:s3cret%40@db.example:5433/rag?sslmode=require",
        "postgres://ada:s3cret%40@db.example:5433/rag?sslmode=require",
        "postgresql+psycopg://ada:s3cret%40@db.example:5433/rag?sslmode=require",
        "host=db.example port=5433 dbname=rag user=ada password='s3cret@' sslmode=require",
    ],
)
def test_every_form_of_an_address_is_read_alike(address: str):
    assert connect_args(address) == LIVENESS | {
        "client_encoding": "utf8",
        "host": "db.example",
        "port": "5433",
        "dbname": "rag",
        "user": "ada",
        "password": "s3cret@",
        "sslmode": "require",
    }


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("s3cret", "is neither a URL nor a key=value string"),
        ("", "is empty"),
        ("mysql://ada:s3cret@db/rag", "begins with mysql://, which is no Postgres"),
        ("sqlite+aiosqlite:///s3cret", "begins with sqlite+aiosqlite://, which is no Postgres"),
        ("postgresql://ada:s3cret%zz@db/rag", "is neither a URL nor a key=value string"),
        ("postgresql://ada:x@s3cret@db/rag", "has more than one @"),
        ("postgresql://ada:s3cret/x@db/rag", "has a port that is no number"),
        ("postgresql://ada@db/rag?s3cret=1", "is neither a URL nor a key=value string"),
        ("host=db s3cret=1", "is neither a URL nor a key=value string"),
    ],
)
def test_what_is_no_address_is_refused_in_one_sentence_without_it(address: str, fault: str):
    with pytest.raises(ConfigurationError) as refused:
        libpq_dsn(address)
    assert str(refused.value).startswith(f"the address of the database {fault}; write it like ")
    assert "s3cret" not in str(refused.value)


def test_dimensions_that_no_vector_has_are_no_setting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAGPG_EMBEDDING_DIMENSIONS", "4001")
    with pytest.raises(ConfigurationError, match="RAGPG_EMBEDDING_DIMENSIONS is wrong"):
        Settings.from_env()


def test_a_wrong_address_in_the_environment_names_its_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAGPG_OWNER_DATABASE_URL", "nonsense")
    with pytest.raises(ConfigurationError, match="RAGPG_OWNER_DATABASE_URL is neither a URL"):
        Settings.from_env()
    monkeypatch.setenv("RAGPG_OWNER_DATABASE_URL", "postgresql+psycopg://ada@/rag?host=/run/pg")
    url = Settings.from_env().owner_database_url
    assert url is not None
    assert url.get_secret_value() == "postgresql://ada@/rag?host=/run/pg"


def test_a_long_path_is_told_without_its_middle_and_one_of_a_usual_length_whole():
    assert without_middle("/srv/" + "a" * 295) == "/srv/" + "a" * 295
    cut = without_middle("/srv/" + "a" * 300 + "/b.md")
    assert cut == "/srv/" + "a" * 192 + "..." + "a" * 95 + "/b.md"
    assert len(cut) == 300
    assert without_middle("abcdefghij", 9) == "abc...hij"
