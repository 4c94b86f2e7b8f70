"""Guards of the house: names, parity, comments, error codes, files of the repository."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import yaml

import ragpg
from ragpg import errors
from ragpg.client import AsyncClient
from ragpg.collection import AsyncCollection
from ragpg.database import SCHEMA_REVISION, function_files
from ragpg.database.sqlstates import RAISED_IN_SQL
from ragpg.sync import Client, Collection

ROOT = Path(__file__).parents[2]


def test_the_exported_names_are_sorted_documented_and_all_there():
    assert ragpg.__all__ == sorted(ragpg.__all__)
    for name in ragpg.__all__:
        value = getattr(ragpg, name)
        assert inspect.getdoc(value), f"{name} has no docstring"


@pytest.mark.parametrize(
    "module",
    sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "benchmarks").rglob("*.py")
    ),
)
def test_every_benchmark_imports_what_it_names(module):
    assert importlib.import_module(module).__doc__


def surface(kind: type) -> dict[str, str]:
    def plain(text: str) -> str:
        text = re.sub(r"AsyncIterator", "Iterator", text)
        return re.sub(r"Async(Client|Collection)", r"\1", text)

    members = {}
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") or name in {
            "aclose",
            "close",
            "transaction",
            "number",
            "portal",
            "inner",
            "providers",
            "url",
            "owner_url",
        }:
            continue
        if callable(member):
            signature = inspect.signature(member)
            kept = [p for p in signature.parameters.values() if p.name != "conn"]
            members[name] = plain(str(signature.replace(parameters=kept)))
        else:
            members[name] = "property"
    return members


@pytest.mark.parametrize(
    ("asynchronous", "blocking"), [(AsyncClient, Client), (AsyncCollection, Collection)]
)
def test_the_blocking_twin_has_the_same_surface(asynchronous, blocking):
    assert surface(blocking) == surface(asynchronous)


def test_help_on_a_blocking_method_is_that_of_its_original():
    assert inspect.getdoc(Collection.ingest) == inspect.getdoc(AsyncCollection.ingest)
    assert str(inspect.signature(Collection.ask)) == str(inspect.signature(AsyncCollection.ask))
    for kind in (Client, Collection):
        undocumented = [n for n in surface(kind) if not inspect.getdoc(getattr(kind, n))]
        assert undocumented == []


def test_every_error_is_documented_and_drawn_in_the_tree():
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.RagpgError)
    ]
    assert len(kinds) > 20
    for kind in kinds:
        assert kind.__doc__
        assert re.search(rf"\b{kind.__name__}\b", errors.__doc__ or ""), kind.__name__


def test_the_codes_raised_in_sql_are_those_that_python_knows():
    raised = {code for _, text in function_files() for code in re.findall(r"'(RG\d{3})'", text)}
    assert raised == set(RAISED_IN_SQL)


def test_the_newest_revision_is_the_one_that_the_code_needs():
    revisions = sorted(path.name[:4] for path in (ROOT / "migrations" / "versions").glob("0*.py"))
    assert revisions == [f"{n:04}" for n in range(1, len(revisions) + 1)]
    assert revisions[-1] == SCHEMA_REVISION


def test_every_object_of_the_schema_has_a_comment(owner: psycopg.Connection):
    rows = owner.execute(
        """
        select 'relation ' || relname from pg_class
         where relnamespace = 'ragpg'::regnamespace and relkind in ('r', 'v', 'p')
           and relname <> 'alembic_version' and obj_description(oid, 'pg_class') is null
        union all
        select 'column ' || relname || '.' || attname from pg_class join pg_attribute on attrelid = oid
         where relnamespace = 'ragpg'::regnamespace and relkind in ('r', 'p') and attnum > 0
           and not attisdropped and relname <> 'alembic_version'
           and col_description(oid, attnum) is null
        union all
        select 'index ' || relname from pg_class join pg_index on indexrelid = oid
         where relnamespace = 'ragpg'::regnamespace
           and not exists (select from pg_constraint where conindid = pg_class.oid)
           and obj_description(pg_class.oid, 'pg_class') is null
        union all
        select 'function ' || proname from pg_proc
         where pronamespace = 'ragpg'::regnamespace and obj_description(oid, 'pg_proc') is null
        """
    ).fetchall()
    assert rows == []


def test_every_table_of_a_tenant_is_sealed_and_every_key_begins_with_the_tenant(
    owner: psycopg.Connection,
):
    unsealed = owner.execute(
        """
        select relname from pg_class
         where relnamespace = 'ragpg'::regnamespace and relkind in ('r', 'p')
           and exists (select from pg_attribute where attrelid = pg_class.oid
                          and attname = 'tenant_id' and not attisdropped)
           and not (relrowsecurity and exists (select from pg_policy where polrelid = pg_class.oid))
        """
    ).fetchall()
    assert unsealed == []
    without_tenant_first = owner.execute(
        """
        select conname from pg_constraint join pg_class on pg_class.oid = conrelid
         where relnamespace = 'ragpg'::regnamespace and contype in ('p', 'u')
           and relname not in ('tenant', 'reader_tenant', 'installation', 'alembic_version', 'dense_setting')
           and (select attname from pg_attribute where attrelid = conrelid and attnum = conkey[1]) <> 'tenant_id'
        """
    ).fetchall()
    assert without_tenant_first == []


def test_every_definer_function_pins_its_search_path(owner: psycopg.Connection):
    loose = owner.execute(
        """
        select proname from pg_proc
         where pronamespace = 'ragpg'::regnamespace and prosecdef
           and not coalesce(array_to_string(proconfig, ' ') like '%search_path=pg_catalog%', false)
        """
    ).fetchall()
    assert loose == []


def test_help_loads_no_driver_no_model_and_no_vendor():
    code = (
        "import sys\n"
        "sys.argv = ['ragpg', '--help']\n"
        "from ragpg.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'anthropic', 'voyageai', 'cohere', 'onnxruntime', 'numpy', 'tokenizers', 'psycopg',"
        " 'sqlalchemy', 'alembic', 'pydantic', 'pypdfium2'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert output.splitlines()[-1] == "[]"


def test_constraints_are_names_and_versions_only():
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert len(lines) > 50
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!]+", line), line


def test_the_compose_file_starts_one_pinned_postgres_with_roles_and_a_health_check():
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    assert list(compose["services"]) == ["postgres"]
    service = compose["services"]["postgres"]
    assert re.fullmatch(r"pgvector/pgvector:\d+\.\d+\.\d+-pg\d+", service["image"])
    # The server that makes the roles listens on a socket alone and is not the one to wait for.
    assert service["healthcheck"]["test"][1:4] == ["pg_isready", "--host", "127.0.0.1"]
    assert any(volume.startswith("data:") for volume in service["volumes"])
    roles = (ROOT / "docker" / "roles.sh").read_text("utf-8")
    assert "./docker/roles.sh:/docker-entrypoint-initdb.d/10-roles.sh:ro" in service["volumes"]
    for role in ("ragpg_owner", "ragpg_app", "ragpg_reader", "ragpg_service"):
        assert f"create role {role} " in roles
    # Only loopback: a database with these passwords is not for the network.
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_no_module_outgrows_what_a_reader_can_hold():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "ragpg").rglob("*.py")
        if (lines := len(path.read_text("utf-8").splitlines())) > 400
    }
    assert long == {}
