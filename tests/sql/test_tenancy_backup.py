"""A backup by an owner who is no superuser, in a database where strangers leave things."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest

from ragpg.embedded import bundled_psql
from tests.sql.tenancy_seed import make_login

ROLES = ("ragpg_dumper", "ragpg_stranger")


@pytest.fixture
def urls(owner, database):
    """Of a login that owns the schema, and of one with no rights at all."""
    yield (
        make_login(owner, database, ROLES[0], groups=["ragpg_owner"]),
        make_login(owner, database, ROLES[1], groups=[]),
    )
    for role in ROLES:
        owner.execute(f"drop owned by {role}")
        owner.execute(f"drop role {role}")


def test_a_large_object_of_a_stranger_does_not_break_the_backup_that_is_documented(
    owner, urls, tmp_path
):
    owner.execute("select ragpg.create_tenant('acme')")
    with psycopg.connect(urls[1], autocommit=True) as conn:
        conn.execute("select lo_create(0)")
    page = (Path(__file__).parents[2] / "docs" / "tenancy.md").read_text("utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("pg_dump ")]
    options = line.split()[1:-1]
    program = Path(bundled_psql()).with_name("pg_dump")
    file = tmp_path / "ragpg.dump"
    given = [option.replace("ragpg.dump", str(file)) for option in options]
    done = subprocess.run(
        [program, *given, urls[0]], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    listed = subprocess.run(
        [program.with_name("pg_restore"), "--list", file],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    for table in ("ragpg document", "ragpg_jobs procrastinate_jobs"):
        assert f"TABLE DATA {table}" in listed
    plain = [
        option for option in given if option != "--no-large-objects" and "schema" not in option
    ]
    refused = subprocess.run(
        [program, *plain, urls[0]], capture_output=True, text=True, check=False, timeout=120
    )
    assert refused.returncode == 1
    assert "permission denied for large object" in refused.stderr
