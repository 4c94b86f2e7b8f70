"""`ragpg delete`, `delete-collection` and `delete-tenant` as their user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ragpg as library
from ragpg import errors
from ragpg.settings import Settings
from tests.cli.test_commands import CommandLine


@pytest.fixture
def ragpg(database) -> CommandLine:
    return CommandLine({"RAGPG_DATABASE_URL": database.service_url})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.md", "b.md", "c.md"):
        (tmp_path / name).write_text(f"About valve {name}.\n")
    return tmp_path


def test_documents_are_deleted_by_key_and_a_key_that_is_not_there_is_named(ragpg, folder, owner):
    ragpg("ingest", str(folder), "-t", "acme", "-c", "docs")
    done = ragpg("delete", "a.md", "x.md", "-t", "acme", "-c", "docs", code=1)
    assert (done.stdout, done.stderr) == (
        "1 deleted\n",
        "there is no document 'x.md' in 'docs'\n",
    )
    done = ragpg("delete", "b.md", "-t", "acme", "-c", "docs", "--json")
    assert json.loads(done.stdout) == {"deleted": ["b.md"], "missing": []}
    assert owner.execute("select key from ragpg.document").fetchall() == [("c.md",)]


def test_a_collection_is_deleted_by_its_own_name_and_only_with_consent(ragpg, folder, owner):
    ragpg("ingest", str(folder), "-t", "acme", "-c", "docs-2")
    ragpg("sql", "select ragpg.set_alias('docs', 'docs-2')", "-t", "acme")
    refused = ragpg("delete-collection", "docs-2", "-t", "acme", code=2)
    assert refused.stderr == (
        "ragpg: this would delete collection 'docs-2' of tenant 'acme', with 3 documents;"
        " allow it with --yes\n"
    )
    refused = ragpg("delete-collection", "docs", "-t", "acme", "--yes", code=2)
    assert "has no collection 'docs'; give its own name, not an alias" in refused.stderr
    assert owner.execute("select count(*) from ragpg.document").fetchone() == (3,)
    done = ragpg("delete-collection", "docs-2", "-t", "acme", "--yes")
    assert done.stdout == "collection 'docs-2' is deleted\n"
    assert owner.execute("select count(*) from ragpg.collection").fetchone() == (0,)


def test_a_tenant_is_deleted_with_consent_and_its_neighbour_stays(ragpg, folder, owner, database):
    for tenant in ("acme", "globex"):
        ragpg("ingest", str(folder), "-t", tenant)
    refused = ragpg("delete-tenant", "acme", code=2)
    assert "would delete tenant 'acme', with 1 collections, 3 documents" in refused.stderr
    assert ragpg("delete-tenant", "acme", "--yes").stdout == "tenant 'acme' is deleted\n"
    assert owner.execute("select key from ragpg.tenant").fetchall() == [("globex",)]
    assert "there is no tenant 'acme'" in ragpg("delete-tenant", "acme", "--yes", code=2).stderr
    with library.Client(Settings(database_url=database.service_url)) as client:
        client.delete_tenant("globex")
        with pytest.raises(errors.TenantNotFound):
            client.delete_tenant("globex")
    assert owner.execute("select count(*) from ragpg.document").fetchone() == (0,)


def test_what_was_made_and_deleted_is_told_as_json(ragpg, folder):
    def told(*arguments: str) -> object:
        return json.loads(ragpg(*arguments, "--json").stdout)

    assert told("create-tenant", "acme") == {"tenant": "acme", "created": True}
    assert told("create-tenant", "acme") == {"tenant": "acme", "created": False}
    for collection in ("docs", "more", "rest"):
        ragpg("ingest", str(folder), "-t", "acme", "-c", collection)
    assert told("delete-collection", "docs", "-t", "acme", "--yes") == {
        "deleted": "docs",
        "documents": 3,
    }
    refused = ragpg("delete-tenant", "acme", "--json", code=2)
    assert (refused.stdout, "allow it with --yes" in refused.stderr) == ("", True)
    assert told("delete-tenant", "acme", "--yes") == {
        "deleted": "acme",
        "collections": 2,
        "documents": 6,
    }
