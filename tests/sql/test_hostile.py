"""Thousands of generated attempts to read globex as somebody who may see acme only."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import partial

import psycopg
import pytest
from psycopg import sql

import ragpg.filters as ragpg
from ragpg.errors import InputError
from ragpg.filters.jsonpath import compile_filter
from tests.sql import dense_seed
from tests.sql.tenancy_seed import CANARY, FOREIGN, LEAK, World, make_world, relations

# Runs one statement under its preparation and returns all that it says: rows, or the error.
ATTEMPT = """
create function pg_temp.attempt(prepare text, statement text) returns bytea language plpgsql as $$
declare
    said text; detail text; hint text; place text;
begin
    if prepare <> '' then
        execute prepare;
    end if;
    execute 'select coalesce(json_agg(to_json(answer))::text, '''') from (' || statement || ') as answer'
       into said;
    raise exception using errcode = 'ZZ000', message = 'rows ' || said;
exception when others then
    get stacked diagnostics detail = pg_exception_detail, hint = pg_exception_hint,
                            place = pg_exception_context;
    -- As bytes, since jsonpath cuts characters in half in the messages of its parser.
    return textsend(sqlstate || ' ' || sqlerrm || ' ' || detail || hint
                    || case sqlstate when 'ZZ000' then '' else place end);
end $$
"""
PIECES = (
    "'", "''", '"', "\\", "\\'", ";", "--", "/*", "*/", "$$", "$1", "%s", "%", "{", "}", "(", ")",
    " or 1=1", "' or '1'='1", "'; drop table ragpg.chunk; --", "' union select text from ragpg.chunk --",
    "1) or (tenant_id > 0", "'::tsquery || 'a'::tsquery", "' | 'leave", "!leave", "leave & !policy",
    "docs", "globex", "acme", "leave", "policy", "handbook.md", "wiki/", "year", "secret", "@key",
    "@collection", "$.secret", "**", ".*", "\u2019", "\uff07", "\u202e", "\n", "\t", "tenant_id <> 1",
    "2", "0", "-1", "ragpg.tenant_id", "set_config('ragpg.tenant_id','2',true)",
)  # fmt: skip
ARGUMENTS = {
    "sources": "text[]",
    "tags_all": "text[]",
    "tags_any": "text[]",
    "key_prefix": "text",
    "modified_from": "timestamptz",
    "modified_before": "timestamptz",
    "filter": "jsonpath",
}

Attempt = tuple[str, str]


def hostile_text(rng: random.Random) -> str:
    return "".join(rng.choices(PIECES, k=rng.randint(1, 4)))


def quoted(value: object) -> str:
    return sql.Literal(value).as_string(None)


def texts_as_query_name_and_filter(rng: random.Random, count: int) -> Iterator[Attempt]:
    """Bound values: the literal is what a driver sends."""
    for _ in range(count):
        text = quoted(hostile_text(rng))
        yield "", rng.choice([
            f"select * from ragpg.search_lexical('docs', {text})",
            f"select * from ragpg.query_lexemes('docs', {text})",
            f"select * from ragpg.search_lexical({text}, 'leave')",
            f"select ragpg.collection_number({text})",
            f"select ragpg.use_tenant({text} || 'globex')",
            f"select * from ragpg.search_lexical('docs', 'leave', key_prefix => {text})",
            f"select * from ragpg.search_lexical('docs', 'leave', sources => array[{text}])",
            f"select * from ragpg.search_dense('docs', '[1,0,0]', tags_any => array[{text}])",
            f"select * from ragpg.search_dense('docs', '[1,0,0]', tags_all => array[{text}])",
            f"select * from ragpg.chunk_overview where document_key like '%' || {text}",
            f"select * from ragpg.search_log where query = {text} or true",
            f"select ragpg.tokenize({text})",
            f"select ragpg.publish('docs', {text}, '00000000-0000-0000-0000-000000000001')",
            f"select ragpg.delete_document('docs', {text})",
            f"select ragpg.create_collection({text}, '{{}}')",
            f"select * from ragpg.whole_corpus({text})",
            f"select * from ragpg.whole_corpus('docs', key_prefix => {text})",
            f"select * from ragpg.whole_corpus('docs', tags_any => array[{text}])",
            f"select ragpg.set_whole_corpus_tokens({text}, 100000)",
        ])  # fmt: skip


def statements_with_text_unquoted(rng: random.Random, count: int) -> Iterator[Attempt]:
    """What a caller who pastes strings into SQL would send: the attempt is then any SQL."""
    for _ in range(count):
        text = hostile_text(rng)
        yield "", rng.choice([
            f"select * from ragpg.chunk where text = '{text}'",
            f"select * from ragpg.document where key = {text}",
            f"select * from ragpg.search_lexical('docs', '{text}')",
        ])  # fmt: skip


def jsonpaths(rng: random.Random, count: int) -> Iterator[Attempt]:
    for _ in range(count):
        key = rng.choice(["secret", "@key", "@source", "@tags", "@collection", "year"])
        path = rng.choice([
            f'$."{key}" starts with "leave"', f'exists($."{key}")', "$.** == 2025", f"$.{hostile_text(rng)}",
            f'!($."{key}" == 1)', f'$."{key}" == 1 || 1 == 1', f'($."{key}" == {FOREIGN}) is unknown',
            f'strict $."{key}" like_regex "k.*v"', f'1 == 1) || ($."{key}" == {FOREIGN}', "$", "$.a", "1 == 1",
            f'$."@collection" == {FOREIGN}', 'strict !($."@collection" == 1)', "$.year == $x",
            '$.secret starts with "leave policy k" && "2020-01-01".datetime() < "2020-01-01T00:00:00Z".datetime()',
        ])  # fmt: skip
        search = rng.choice([
            "search_lexical('docs', 'leave'", "search_dense('docs', '[1,0,0]'", "whole_corpus('docs'",
        ])  # fmt: skip
        yield "", f"select * from ragpg.{search}, filter => {quoted(path)}::jsonpath)"


def filters_of_the_library(rng: random.Random, count: int) -> Iterator[Attempt]:
    while count:
        key, value = hostile_text(rng), hostile_text(rng)
        try:
            field = ragpg.field(key)
            compiled = compile_filter(rng.choice(wheres(field, value)))
        except InputError:
            continue
        arguments = "".join(
            f", {name} => {quoted(list(given) if isinstance(given, tuple) else given)}::{kind}"
            for name, kind in ARGUMENTS.items()
            if (given := getattr(compiled, name)) is not None
        )
        count -= 1
        yield "", f"select * from ragpg.search_lexical('docs', 'leave policy'{arguments})"


def wheres(field: ragpg.Ordered, value: str) -> list[ragpg.Filter]:
    return [
        field == value, field != value, ~(field == value), field.in_([value, 1]), field.exists(),
        field.contains(value), (field == 2025) | (ragpg.source != value), ragpg.source == value,
        ragpg.tags.any(value),
    ]  # fmt: skip


def guessed_numbers(rng: random.Random, count: int) -> Iterator[Attempt]:
    for _ in range(count):
        number = FOREIGN + rng.randint(0, 6)
        yield "", rng.choice([
            f"select * from ragpg.explain_lexical('docs', 'leave policy', {number})",
            f"select * from ragpg.expand('docs', array[1, {number}]::bigint[], 'section')",
            f"select * from ragpg.search_hybrid('docs', 'leave', '[1,0,0]', after => {number})",
            f"select * from ragpg.search_hybrid('docs', 'leave', '[1,0,0]', exclude => '{{{number}}}')",
            f"select * from ragpg.score_dense({FOREIGN}, {FOREIGN}, '[1,0,0]', '{{{number}}}')",
            f"select * from ragpg.score_lexical({FOREIGN}, {FOREIGN}, 'leave', '{{{number}}}')",
            f"select * from ragpg._search_dense({FOREIGN}, {FOREIGN}, '[1,0,0]')",
            f"select ragpg.has_outdated_lexemes({number})",
            f"select * from ragpg.chunk where chunk_id = {number}",
            f"select * from ragpg.chunk_overview where chunk_id = {number}",
            f"select * from ragpg.search_log where search_id = {number}",
            f"select * from ragpg.document where tenant_id = {FOREIGN} and document_id = {number}",
            f"select * from ragpg.embedding where chunk_id = {number}",
            f"select currval('ragpg.chunk_chunk_id_seq'), {rng.random()}",
        ])  # fmt: skip


def settings_and_roles(tables: Sequence[str], rng: random.Random, count: int) -> Iterator[Attempt]:
    """Of a bound reader only: the service may choose a tenant."""
    for _ in range(count):
        value = rng.choice(
            [str(FOREIGN), "+7770001", " 7770001", "07770001", "7770001.0", "7770001;", "1,7770001"]
        )
        yield (
            rng.choice(
                [
                    f"set local ragpg.tenant_id = {quoted(value)}",
                    f"set session ragpg.tenant_id = {quoted(value)}",
                    f"select set_config('ragpg.tenant_id', {quoted(value)}, {rng.choice(['true', 'false'])})",
                    "select ragpg.use_tenant('globex')",
                    "reset ragpg.tenant_id",
                    "set role ragpg_reader",
                    "set role none",
                    "set role ragpg_app",
                    "set role ragpg_owner",
                    "set role postgres",
                    "set session authorization postgres",
                    "set row_security = off",
                    "set local search_path = pg_temp, public, ragpg",
                    "set session_replication_role = replica",
                    f'set local "RAGPG.TENANT_ID" = {quoted(value)}',
                    "set local ragpg.tenant_id to default",
                ]
            ),
            rng.choice(
                [
                    f"select * from ragpg.{rng.choice(tables)}",
                    "select ragpg.current_tenant()",
                    "select * from ragpg.search_lexical('docs', 'leave')",
                ]
            ),
        )


def reads_of_every_table(
    tables: Sequence[str], rng: random.Random, count: int
) -> Iterator[Attempt]:
    for place in range(count):
        table = tables[place % len(tables)]
        yield "", rng.choice([
            f"select * from ragpg.{table}",
            f"select {table}::text from ragpg.{table} where pg_temp.tell({table}::text)",
            f"select count(*) > {FOREIGN} from ragpg.{table} where tenant_id <> 1 or tenant_id is null",
            f"select query_to_xml('select * from ragpg.{table}', true, true, '')::text",
            f"select * from ragpg.{table} where tenant_id = {FOREIGN} or {rng.randint(1, 9)} > 0",
            f"select 1 / (tenant_id - {FOREIGN}) from ragpg.{table} where tenant_id = {FOREIGN}",
            f"select (tenant_id::text || 'x')::integer from ragpg.{table} where tenant_id <> 1",
            f"select most_common_vals::text from pg_stats where schemaname = 'ragpg' and tablename = '{table}'",
            f"select histogram_bounds::text from pg_stats where schemaname = 'ragpg' and tablename = '{table}'",
            f"select stavalues1::text from pg_statistic where starelid = 'ragpg.{table}'::regclass",
            "select query from pg_stat_activity", "select statement from pg_prepared_statements",
            "select loid, data from pg_largeobject", "select lo_import('/etc/hostname')",
            f"select * from ragpg.{table} left join ragpg.chunk on true",
            f"select pg_read_file('base/' || oid) from pg_database where {rng.random()} < 2",
        ])  # fmt: skip


def writes(rng: random.Random, count: int) -> Iterator[Attempt]:
    """Inserts with the foreign tenant or a foreign parent, and changes of rows by number."""
    for _ in range(count):
        number = FOREIGN + rng.randint(0, 6)
        tenant = rng.choice([1, FOREIGN])
        yield (
            rng.choice(
                [
                    f"insert into ragpg.search (tenant_id, collection_id, query, k, notices, degraded, timings_ms) values ({tenant}, {number}, 'x', 1, '{{}}', '{{}}', '{{}}')",
                    f"insert into ragpg.search_hit (tenant_id, search_id, chunk_id, fused_rank, fused_score) values ({tenant}, {number}, {number}, 1, 1)",
                    f"insert into ragpg.golden_query (tenant_id, query_id, query) values ({FOREIGN}, 'q{number}', 'x') on conflict (tenant_id, query_id) do update set query = 'x'",
                    f"insert into ragpg.qrel (tenant_id, query_id, document_key, relevance) values ({FOREIGN}, 'q1', 'x', 1)",
                    f"update ragpg.staged_document set tenant_id = {FOREIGN}, collection_id = {number}",
                    f"update ragpg.staged_chunk set chunk_id = {number}",
                    f"delete from ragpg.search where search_id = {number}",
                    "delete from ragpg.staged_document where tenant_id <> 1",
                    f"update ragpg.search_hit set chunk_id = {number}",
                    "select ragpg.delete_collection('docs')",
                    f"insert into ragpg.usage (tenant_id, provider, model, operation, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, duration_ms) values ({FOREIGN}, 'x', 'x', 'embed', 1, 1, 1, 1, 1)",
                ]
            ),
            rng.choice(
                [
                    "select text, document_key from ragpg.chunk_overview",
                    "select query, beginning, document_key from ragpg.search_log",
                    "select text, last_error from ragpg.staged_document",
                    "select * from ragpg.publish('docs', 'draft.md', '00000000-0000-0000-0000-000000000001')",
                ]
            ),
        )


@pytest.fixture
def world(owner: psycopg.Connection, database) -> World:
    return make_world(owner, database)


def fingerprint(owner: psycopg.Connection) -> list[str]:
    """All that globex has, table by table."""
    tables = owner.execute(
        "select table_name from information_schema.columns natural join information_schema.tables"
        " where table_schema = 'ragpg' and column_name = 'tenant_id' and table_type = 'BASE TABLE'"
        " order by 1"
    ).fetchall()
    return [
        repr(owner.execute(f"select t::text from ragpg.{t} as t where tenant_id = %s order by 1",
                           [FOREIGN]).fetchall())
        for (t,) in tables
    ]  # fmt: skip


def leaks(url: str, acme: int, attempts: list[Attempt]) -> tuple[list[tuple[Attempt, str]], int]:
    """The attempts whose rows, errors or notices hold anything of globex, and how many got rows."""
    found: list[tuple[Attempt, str]] = []
    answered = 0
    heard: list[str] = []
    with psycopg.connect(url, autocommit=True) as conn:
        conn.add_notice_handler(lambda diag: heard.append(f"{diag.message_primary} {diag.context}"))
        conn.execute(ATTEMPT)
        conn.execute(
            "create function pg_temp.tell(text) returns boolean language plpgsql cost 0.0001"
            " as $$begin raise notice '%', $1; return true; end$$"
        )
        for first in range(0, len(attempts), 500):
            batch = attempts[first : first + 500]
            conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(acme)])
            said = conn.execute(
                "select pg_temp.attempt(one ->> 0, one ->> 1)"
                "  from json_array_elements(%s::json) with ordinality as given(one, place) order by place",
                [json.dumps(batch)],
            ).fetchall()
            for attempt, (spoken,) in zip(batch, said, strict=True):
                text = spoken.decode(errors="replace")
                answered += text.startswith("ZZ000 rows [")
                # A number that was typed may come back in a message, and is no leak there.
                if CANARY in text or (text.startswith("ZZ000") and LEAK.search(text)):
                    found.append((attempt, text))
    found += [(("notice", ""), text) for text in heard if LEAK.search(text)]
    return found, answered


def test_ten_thousand_hostile_attempts_show_nothing_of_another_tenant(owner, world):
    rng = random.Random(55)  # noqa: S311
    before = fingerprint(owner)
    tables = relations(owner)
    reads, settings = partial(reads_of_every_table, tables), partial(settings_and_roles, tables)
    made = answered = 0
    chosen = (
        (texts_as_query_name_and_filter, 800), (statements_with_text_unquoted, 300), (jsonpaths, 500),
        (filters_of_the_library, 250), (guessed_numbers, 400), (reads, 400),
    )  # fmt: skip
    for login, more in (
        ("service", ((writes, 500),)),
        ("reader", ()),
        ("bound", ((settings, 600),)),
        ("grouped", ((settings, 600),)),
    ):
        attempts = [attempt for make, count in (*chosen, *more) for attempt in make(rng, count)]
        found, with_rows = leaks(world.urls()[login], world.acme, attempts)
        assert found == []
        made += len(attempts)
        answered += with_rows
    assert made >= 10_000, made
    # Rows of acme come back from many, so what is tried reaches the tables.
    assert answered >= 2_500, answered
    assert fingerprint(owner) == before


def test_the_hostile_suite_notices_a_leak_in_rows_errors_and_notices(owner, world):
    owner.execute("alter table ragpg.chunk disable row level security")
    attempts = [
        ("", "select text from ragpg.chunk"),
        ("", "select chunk_id from ragpg.chunk"),
        ("", "select text::integer from ragpg.chunk where tenant_id <> 1"),
        ("", "select 1 from ragpg.chunk where pg_temp.tell(text) and false"),
        ("", "select 1 from ragpg.chunk where pg_temp.tell(text)"),
        ("", "select 1"),
    ]
    found, _answered = leaks(world.reader, world.acme, attempts)
    assert {attempt for attempt, _text in found} == {*attempts[:3], ("notice", "")}


TELLS = '"2020-01-01".datetime() < "2020-01-01T00:00:00+00:00".datetime()'


@pytest.mark.parametrize("search", ["search_dense('{}', '[1,0]'", "search_lexical('{}', 'leave'"])
def test_an_error_in_a_filter_does_not_tell_what_rows_of_another_tenant_hold(
    owner, database, search
):
    # jsonpath compares a date with a timestamp by an error that "@@" does not hold back, so a filter
    # "guess and error" would tell whether any row on which the planner or an index recheck evaluates
    # it fits the guess. Both read rows of all tenants: statistics, and a GIN index over all.
    owner.execute("update ragpg.dense_setting set exact_max = 10")
    rows = [dense_seed.Row(chunk_id=i, vector="[1,0]", metadata={"pay": 10}) for i in range(1, 900)]
    dense_seed.insert_rows(owner, dense_seed.make_collection(owner, tenant="acme"), rows)
    secret = [
        dense_seed.Row(chunk_id=i, vector="[1,0]", metadata={"pay": 77}) for i in range(1, 300)
    ]
    dense_seed.insert_rows(owner, dense_seed.make_collection(owner, tenant="globex"), secret)
    owner.execute(
        "insert into ragpg.lexical_reference select tenant_id, collection_id, 1 from ragpg.collection"
    )
    owner.execute(
        "insert into ragpg.lexeme_count (tenant_id, collection_id, slice, level, first_number,"
        " last_number, chunks, total_length, counts)"
        " select tenant_id, collection_id, 0, 0, number, number, 1, 1,"
        "        ('{' || number || ':1}/1000000000')::sparsevec"
        "   from ragpg.collection, ragpg.lexeme_number('leav') as number"
    )
    owner.execute("analyze ragpg.embedding")
    with psycopg.connect(database.service_url, autocommit=True) as conn:
        conn.execute("select ragpg.use_tenant('acme', true)")

        def tells(guess: str) -> bool:
            call = f"select count(*) from ragpg.{search.format('docs')}, filter => %s::jsonpath)"
            try:
                conn.execute(call, [f"{guess} && {TELLS}"])
            except psycopg.errors.FeatureNotSupported:
                return True
            return False

        assert tells("$.pay == 10")
        assert not tells("$.pay == 11")
        for guess in ("$.pay == 77", "$.pay > 70", "strict $.pay == 77", "!($.pay == 10)"):
            assert not tells(guess), guess


def test_a_filter_that_is_no_condition_is_refused(world):
    with psycopg.connect(world.service, autocommit=True) as conn:
        conn.execute("select ragpg.use_tenant('acme', true)")
        with pytest.raises(psycopg.Error, match="is not a condition") as refused:
            conn.execute("select * from ragpg.search_lexical('docs', 'leave', filter => '$.year')")
    assert refused.value.sqlstate == "RG009"
