"""A mistyped tenant on the command line, and tenants that are made on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_commands import CommandLine


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "leave.md").write_text("Everybody has thirty days of leave.\n")
    return str(tmp_path)


def test_a_tenant_that_is_about_to_be_made_beside_one_of_a_similar_key_is_told(
    database, folder: str
):
    ragpg = CommandLine({"RAGPG_DATABASE_URL": database.service_url})
    assert ragpg("ingest", folder, "-t", "acme").stderr == ""
    typo = ragpg("enqueue", folder, "-t", "acme-typo")
    assert typo.stderr == "tenant 'acme-typo' is new; of a similar key there is 'acme'\n"
    assert ragpg("enqueue", folder, "-t", "acme-typo").stderr == ""
    assert ragpg("status", "-t", "acmee", code=2).stderr == (
        "ragpg: there is no tenant 'acmee'; check the key, or make it with ragpg.create_tenant; a"
        " role that is bound to a tenant may use that one only; tenants of a similar key: 'acme',"
        " 'acme-typo'\n"
    )


def test_a_service_that_makes_tenants_on_purpose_refuses_others(database, folder: str):
    ragpg = CommandLine(
        {"RAGPG_DATABASE_URL": database.service_url, "RAGPG_CREATE_TENANTS": "false"}
    )
    refused = ragpg("sync", folder, "-t", "acme", code=2).stderr
    assert refused.startswith(
        "ragpg: there is no tenant 'acme', and RAGPG_CREATE_TENANTS is false;"
    )
    assert ragpg("create-tenant", "acme").stdout == "tenant 'acme' is made\n"
    assert ragpg("create-tenant", "acme").stdout == "tenant 'acme' is there already\n"
    ragpg("sync", folder, "-t", "acme")
    typo = ragpg("ingest", folder, "-t", "acme-typo", code=2).stderr
    assert typo.endswith("client.create_tenant; tenants of a similar key: 'acme'\n")
