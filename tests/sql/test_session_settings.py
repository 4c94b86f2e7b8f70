"""What a caller sets in its session changes neither what is stored nor what is found."""

from __future__ import annotations

import json
import re

import psycopg
import pytest

from tests.sql.lexical_corpus import RECIPE
from tests.sql.tenancy_seed import STAGE, STAGE_CHUNK, one

TEXT = "The valve of the pump, ERR-1042, was closed in 2024; the pump stood still for days."
SETTINGS = ("extra_float_digits = -15", "standard_conforming_strings = off")


def publish(conn: psycopg.Connection, key: str) -> None:
    """Stage and publish a document of this text."""
    home = {
        "tenant": one(conn, "select ragpg.current_tenant()"),
        "collection": one(conn, "select ragpg.collection_number('docs')"),
        "key": key,
        "text": TEXT,
        "source": "wiki",
        "tag": "a",
        "metadata": '{"due": "2025-01-02"}',
    }
    conn.execute(STAGE, home)
    conn.execute(STAGE_CHUNK, home)
    conn.execute("select ragpg.publish('docs', %s, '00000000-0000-0000-0000-000000000001')", [key])


def session(url: str, setting: str) -> psycopg.Connection:
    """A new session of the tenant acme with this setting: functions keep the plans of an old one."""
    conn = psycopg.connect(url, autocommit=True)
    conn.execute(f"set {setting}")
    conn.execute("set escape_string_warning = off")
    conn.execute("select ragpg.use_tenant('acme', true)")
    return conn


@pytest.fixture
def tenant(owner):
    owner.execute("select ragpg.create_tenant('acme'), ragpg.use_tenant('acme', true)")
    owner.execute("select ragpg.create_collection('docs', %s)", [json.dumps(RECIPE)])
    publish(owner, "plain.md")


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_document_is_published_alike_under_any_setting(owner, database, tenant, setting):
    with session(database.owner_url, setting) as conn:
        publish(conn, "set.md")
    alike = owner.execute(
        """
        select count(distinct weights::text), count(*), count(distinct attributes -> '@instants')
          from ragpg.lexeme_vector join ragpg.embedding using (tenant_id, chunk_id)
        """
    ).fetchone()
    assert alike == (1, 2, 1)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_search_finds_alike_under_any_setting(owner, database, tenant, setting):
    find = "select chunk_id, score from ragpg.search_lexical('docs', 'valve ERR1042 c''est')"
    plain = owner.execute(find, binary=True).fetchall()
    lexemes = one(owner, "select ragpg.tokenize('ERR1042 getUserName v1.2 straße 中文 at&t')")
    with session(database.owner_url, setting) as conn:
        assert conn.execute(find, binary=True).fetchall() == plain != []
        again = one(conn, "select ragpg.tokenize('ERR1042 getUserName v1.2 straße 中文 at&t')")
    assert again == lexemes


def test_a_function_with_a_backslash_in_a_string_says_how_strings_are_read(owner):
    careless = []
    for name, source, settings in owner.execute(
        "select proname, prosrc, coalesce(proconfig::text, '') from pg_proc"
        " where pronamespace = 'ragpg'::regnamespace and strpos(prosrc, chr(92)) > 0"
    ):
        plain = re.sub(r"E'(?:[^'\\]|\\.|'')*'", "", source)
        if "\\" in plain and "standard_conforming_strings=on" not in settings:
            careless.append(name)
    assert careless == []


def test_a_function_that_writes_a_float_as_text_says_how_many_digits(owner):
    careless = owner.execute(
        "select proname from pg_proc where pronamespace = 'ragpg'::regnamespace"
        " and prosrc like '%::real%' and not 'extra_float_digits=1' = any (coalesce(proconfig, '{}'))"
    ).fetchall()
    assert careless == []
