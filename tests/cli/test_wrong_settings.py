"""What the command line says of wrong addresses, misspelled settings and wrong arguments."""

from __future__ import annotations

import json

import psycopg
import pytest

from ragpg.database import migrate
from ragpg.errors import ConfigurationError
from tests.cli.test_commands import CommandLine

COMMANDS = (
    ("migrate",),
    ("status",),
    ("search", "crane"),
    ("worker", "--drain"),
    ("index", "plan"),
    ("doctor",),
    ("sql", "select 1"),
)


@pytest.mark.parametrize(
    "address",
    ["s3cret", "mysql://ada:s3cret@db/rag", "postgresql://ada:pa@s3cret@db/rag", ""],
)
def test_a_wrong_address_is_one_sentence_and_exit_code_3_for_every_command(address):
    for command in COMMANDS if address == "s3cret" else COMMANDS[:2]:
        run = CommandLine({"RAGPG_DATABASE_URL": address})
        done = run(*command, code=3)
        assert done.stdout == ""
        assert done.stderr.startswith("ragpg: RAGPG_DATABASE_URL ")
        assert len(done.stderr.strip().splitlines()) == 1
        assert "s3cret" not in done.stderr


def test_a_wrong_address_of_the_owner_is_named_as_such(database):
    run = CommandLine(
        {"RAGPG_DATABASE_URL": database.service_url, "RAGPG_OWNER_DATABASE_URL": "mysql://x"}
    )
    assert run("migrate", code=3).stderr.startswith("ragpg: RAGPG_OWNER_DATABASE_URL begins with")


def test_migrate_refuses_an_address_that_is_none():
    with pytest.raises(ConfigurationError, match="the address of the database is neither a URL"):
        migrate.migrate("nonsense")


def test_an_address_of_keys_and_values_serves_every_command(database):
    def keys_and_values(url: str) -> str:
        return psycopg.conninfo.make_conninfo("", **psycopg.conninfo.conninfo_to_dict(url))

    run = CommandLine(
        {
            "RAGPG_DATABASE_URL": keys_and_values(database.service_url),
            "RAGPG_OWNER_DATABASE_URL": keys_and_values(database.owner_url),
        }
    )
    assert "nothing to do" in run("migrate").stdout
    run("sql", "select ragpg.create_tenant('default')", "--tenant", "default", code=2)
    assert json.loads(run("index", "plan", "--json").stdout)["changes"] == []
    assert json.loads(run("index", "recall", "--json").stdout) == []
    findings = {one["name"]: one["state"] for one in json.loads(run("doctor", "--json").stdout)}
    assert (findings["role"], findings["schema"]) == ("ok", "ok")
    run("worker", "--drain")


def test_doctor_names_misspelled_settings_and_never_their_values(database):
    run = CommandLine(
        {
            "RAGPG_DATABASE_URL": database.service_url,
            "RAGPG_POOL_MAXSIZE": "s3cret",
            "RAGPG_VOYAGE_API_KEY": "s3cret",
            "RAGPG_ZZZZ": "s3cret",
            "RAGPG_SERVICE_PASSWORD": "s3cret",
            "ragpg_pool_max_size": "3",
        }
    )
    done = run("doctor", "--json")
    assert "s3cret" not in done.stdout + done.stderr
    said = [one for one in json.loads(done.stdout) if one["name"] == "settings"]
    assert [(one["state"], one["message"]) for one in said] == [
        (
            "warning",
            "RAGPG_POOL_MAXSIZE is no setting and has no effect; did you mean RAGPG_POOL_MAX_SIZE?",
        ),
        (
            "warning",
            "RAGPG_VOYAGE_API_KEY is no setting and has no effect; did you mean VOYAGE_API_KEY?",
        ),
        (
            "warning",
            "RAGPG_ZZZZ is no setting and has no effect; remove it, or look up its name",
        ),
    ]


def test_a_k_below_1_or_above_1000_is_a_wrong_argument():
    run = CommandLine({})
    for command in ("search", "ask"):
        for k in ("-1", "0", "1001"):
            assert "'-k'" in run(command, "crane", "-k", k, code=2).stderr


def test_an_argument_of_10_000_characters_is_not_told_whole(database):
    run = CommandLine({"RAGPG_DATABASE_URL": database.service_url})
    long = "x" * 10_000
    run("create-tenant", "default")
    for command, end in (
        (("ingest", long), "cannot be read (File name too long); check the path and its rights."),
        (("sync", long), "is not a folder; sync a folder, or ingest single files"),
        (("evaluate", long), "holds neither corpus.jsonl nor chunks.jsonl; add one of them"),
        (("status", "-c", long), "check the name, or create the collection first."),
        (("delete-collection", long), "give its own name, not an alias"),
        (("rename", "a.md", long), "its key has 10000 characters; give 1 to 1000, not all blank"),
    ):
        said = run(*command, code=2).stderr
        assert said.startswith("ragpg: ")
        assert said.endswith(f"{end}\n")
        assert len(said) <= len("ragpg: ") + 1000 + len("\n")


def test_an_actor_that_is_no_utf_8_is_one_sentence_and_exit_code_3(database):
    run = CommandLine({"RAGPG_DATABASE_URL": database.service_url, "RAGPG_ACTOR": "kim\udcff"})
    for command in (("search", "crane"), ("delete", "a.md"), ("doctor",)):
        said = run(*command, code=3).stderr
        assert said == "ragpg: RAGPG_ACTOR is wrong: it holds bytes that are no UTF-8; mend it\n"
    run.environment["RAGPG_ACTOR"] = "Zoë"
    run("create-tenant", "default")
