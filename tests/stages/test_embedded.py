"""The embedded Postgres: started on demand, shared by processes, stopped by the last, kept on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ragpg import embedded, errors
from ragpg.embedded import data_directory, embedded_state, start_embedded

HOLD = (
    "import sys\n"
    "from pathlib import Path\n"
    "from ragpg.embedded import start_embedded\n"
    "start_embedded(Path(sys.argv[1]))\n"
    "print('ready', flush=True)\n"
    "sys.stdin.read()\n"
)
ASK_LETTERS = (
    "import os, sys\n"
    "from pathlib import Path\n"
    "import psycopg\n"
    "from ragpg.embedded import start_embedded\n"
    "with psycopg.connect(start_embedded(Path(sys.argv[1])).service_url) as conn:\n"
    "    letters = conn.execute(\"select lower('É') = 'é'\").fetchone()[0]\n"
    "print(letters, os.environ['LC_ALL'])\n"
)


@pytest.fixture
def home() -> Iterator[Path]:
    # A short path: that of a Unix socket is limited to about 100 characters.
    with tempfile.TemporaryDirectory(prefix="ragpg-") as folder:
        yield Path(folder)


def hold(home: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def release(process: subprocess.Popen[str]) -> None:
    process.communicate("", timeout=60)
    assert process.returncode == 0


def test_processes_share_one_server_and_the_last_one_stops_it(home):
    assert embedded_state(home).initialized is False
    first = hold(home)
    pid = embedded_state(home).pid
    assert pid is not None
    second = hold(home)
    assert embedded_state(home).pid == pid
    release(first)
    assert embedded_state(home).pid == pid
    release(second)
    deadline = time.monotonic() + 60
    while embedded_state(home).pid is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert embedded_state(home).pid is None
    assert embedded_state(home).initialized is True


def test_a_killed_process_does_not_keep_the_server_from_the_next(home):
    first = hold(home)
    first.kill()
    first.communicate(timeout=60)
    second = hold(home)
    assert embedded_state(home).pid is not None
    release(second)
    assert embedded_state(home).pid is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for whom rights are no obstacle")
def test_it_runs_as_root_as_an_ordinary_user_of_the_system(home):
    process = hold(home)
    pid = embedded_state(home).pid
    assert Path(f"/proc/{pid}").stat().st_uid != 0
    release(process)


@pytest.mark.parametrize("locale", ["C", "xx_YY.UTF-8"])
def test_the_environments_locale_does_not_matter(home, locale):
    # The second is not installed, as after ssh to a slim container, and initdb would fail.
    asked = subprocess.run(
        [sys.executable, "-c", ASK_LETTERS, str(home)],
        env=os.environ | {"LC_ALL": locale},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert asked.stdout == f"True {locale}\n"


def test_a_database_takes_the_second_locale_where_the_first_is_not_installed(
    server_url, monkeypatch
):
    name = f"ragpg_locale_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        monkeypatch.setattr(embedded, "CTYPES", ("xx_YY.UTF-8", os.environ["LC_ALL"]))
        embedded.create_database(conn, name)
        found = conn.execute("select datctype from pg_database where datname = %s", [name])
        assert found.fetchone() == (os.environ["LC_ALL"],)
        conn.execute(f"drop database {name}")
        monkeypatch.setattr(embedded, "CTYPES", ("xx_YY.UTF-8",))
        with pytest.raises(psycopg.errors.WrongObjectType):
            embedded.create_database(conn, name)


def test_a_home_that_cannot_be_made_names_the_setting(home):
    (home / "file").write_text("in the way")
    with pytest.raises(errors.ConfigurationError, match="set RAGPG_HOME"):
        start_embedded(home / "file")
    assert data_directory(home) == home / "postgres"
