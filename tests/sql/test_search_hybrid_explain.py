"""ragpg.explain_hybrid: the plans that both arms run, and nothing about other tenants."""

from __future__ import annotations

import re

import psycopg
import pytest

from tests.sql.hybrid_seed import COLUMNS, add, make_home, single, use_tenant


def explain(conn, query, vector, collection="docs", **arguments):
    """The lines of each arm."""
    types = {**COLUMNS, "analyze_plans": "boolean"}
    named = "".join(f", {name} => %({name})s::{types[name]}" for name in arguments)
    lines: dict[str, list[str]] = {}
    for arm, line in conn.execute(
        f"select arm, line from ragpg.explain_hybrid(%(c)s, %(q)s, %(v)s::halfvec{named})",
        {"c": collection, "q": query, "v": vector, **arguments},
    ):
        lines.setdefault(arm, []).append(line)
    return lines


def filled(owner, tenant, count=30, **fields):
    home = make_home(owner, tenant)
    add(owner, home, *(single(f"d{n}", f"valve {n}", f"[1,{n},0]", **fields) for n in range(count)))
    return home


def test_each_arm_tells_its_mode_and_then_its_plan(owner):
    filled(owner, "acme")
    lines = explain(owner, "valve", "[1,0,0]")
    assert list(lines) == ["dense", "lexical"]
    assert lines["dense"][0] == "mode: exact"
    assert lines["lexical"][0] == "mode: scan"
    dense, lexical = "\n".join(lines["dense"]), "\n".join(lines["lexical"])
    assert re.search(r"Scan.* on embedding", dense)
    assert "Limit" in dense
    assert re.search(r"Scan.* on lexeme_vector", lexical)
    assert "actual" not in dense + lexical
    assert "<=> '..'::halfvec" in dense


def test_an_arm_without_a_query_is_left_out_and_the_depth_is_the_limit_of_the_scan(owner):
    filled(owner, "acme")
    assert list(explain(owner, "valve", None)) == ["lexical"]
    assert list(explain(owner, None, "[1,0,0]")) == ["dense"]
    analyzed = explain(owner, None, "[1,0,0]", depth=7, analyze_plans=True)["dense"]
    limit = next(line for line in analyzed if "Limit" in line)
    assert re.search(r"actual .*rows=7(\.00)? ", limit)


def test_analyze_adds_rows_and_times(owner):
    filled(owner, "acme", source="wiki")
    lines = explain(owner, "valve", "[1,0,0]", sources=["wiki"], analyze_plans=True)
    for arm in ("dense", "lexical"):
        text = "\n".join(lines[arm])
        assert "actual time=" in text
        assert "Execution Time" in text


def test_a_filter_is_run_once_and_the_lexical_arm_takes_what_passed(owner):
    filled(owner, "acme", source="wiki")
    lines = explain(owner, "valve", "[1,0,0]", sources=["wiki"])
    assert lines["lexical"][0] == "mode: filtered"
    assert "'{wiki}'" in "\n".join(lines["dense"])
    lexical = "\n".join(lines["lexical"])
    assert "'{wiki}'" not in lexical
    assert "chunk_id = ANY" in lexical
    assert lexical.count("Aggregate") == 1


def test_without_a_vector_the_lexical_arm_runs_the_filter_itself(owner):
    filled(owner, "acme", source="wiki")
    lexical = "\n".join(explain(owner, "valve", None, sources=["wiki"])["lexical"])
    assert lexical.startswith("mode: filtered")
    assert "'{wiki}'" in lexical


def test_a_query_for_which_nothing_is_run_says_so(owner):
    filled(owner, "acme")
    assert explain(owner, "the", None) == {"lexical": ["mode: nothing found"]}


def test_the_plan_of_an_index_search_names_the_index(owner):
    home = make_home(owner, "acme")
    with owner.transaction():
        # One document of many chunks; the search reads no document.
        owner.execute("set local session_replication_role = replica")
        owner.execute(
            "insert into ragpg.chunk (tenant_id, collection_id, document_id, position, start, stop,"
            " section_path, table_header, text, text_hash)"
            " select %s, %s, 1, n, 0, length(word), '{}', '', word, ''"
            " from generate_series(1, 8000) as n, lateral (select 'word' || n %% 900 as word) as made",
            [home.tenant, home.collection],
        )
        owner.execute(
            "insert into ragpg.embedding (tenant_id, chunk_id, collection_id, document_key, tags,"
            " attributes, embedding) select tenant_id, chunk_id, collection_id, 'd', '{}', '{}',"
            " '[1,0,0]' from ragpg.chunk"
        )
        owner.execute(
            "select ragpg.lexical_add(%s, %s, array(select chunk_id from ragpg.chunk))",
            [home.tenant, home.collection],
        )
    lines = explain(owner, "word7 word8", None)["lexical"]
    assert lines[0] == "mode: index"
    assert any("lexeme_vector_keys" in line for line in lines)


def test_nothing_tells_how_many_rows_another_tenant_has(owner):
    filled(owner, "acme", tags=("adr",), count=20)
    filled(owner, "globex", tags=("adr",), count=500)
    use_tenant(owner, "acme")
    lines = explain(owner, "valve", "[1,0,0]", tags_any=["adr"], analyze_plans=True)
    text = "\n".join(lines["dense"] + lines["lexical"])
    counts = {float(count) for count in re.findall(r"rows=([\d.]+)", text)}
    assert max(counts) == 20
    assert "Removed" not in text


def test_a_search_afterwards_is_not_explained_and_a_failure_leaves_nothing_set(owner, database):
    filled(owner, "acme")
    with psycopg.connect(database.service_url) as conn:
        conn.execute("select ragpg.use_tenant('acme')")
        explain(conn, "valve", "[1,0,0]")
        row = conn.execute(
            "select current_setting('ragpg.explain'), current_setting('ragpg.explained')"
        ).fetchone()
        assert row == ("", "")
        with pytest.raises(psycopg.Error) as refused, conn.transaction():
            explain(conn, "valve", "[1,0]")
        assert refused.value.sqlstate == "RG005"
        assert conn.execute("select current_setting('ragpg.explain')").fetchone() == ("",)


def test_roles_may_explain_at_their_tenant_only(owner, database):
    filled(owner, "acme")
    for url in (database.service_url, database.reader_url):
        with psycopg.connect(url, autocommit=True) as conn:
            with pytest.raises(psycopg.Error) as refused:
                explain(conn, "valve", "[1,0,0]")
            assert refused.value.sqlstate == "RG001"
            use_tenant(conn, "acme")
            assert explain(conn, "valve", "[1,0,0]")["dense"][0] == "mode: exact"
            with pytest.raises(psycopg.Error) as refused:
                explain(conn, "valve", "[1,0,0]", depth=0)
            assert refused.value.sqlstate == "RG009"
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(
                    "select ragpg._planned_rows('1', null, null, null, null, null, null, null, null)"
                )
