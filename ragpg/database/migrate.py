"""Brings a database to this code's schema: roles, extension, revisions, functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from ragpg.database import (
    SCHEMA_REVISION,
    function_files,
    functions_digest,
    judge_schema,
)
from ragpg.database.connections import SQLALCHEMY_DRIVER, pooler_warnings
from ragpg.database.migration_locks import only_migration, patiently, take_tables
from ragpg.database.server_checks import (
    CREATORS_IN_PUBLIC,
    KNOWS_LETTERS,
    LOST_READERS,
    OWNER_OF_SCHEMA,
    SCHEMA_OF_PGVECTOR,
    SHUT_OUT_OF_PUBLIC,
    judge_encoding,
    judge_owner,
    judge_public,
    judge_server,
    judge_usage,
    locale_warnings,
    pgvector_warnings,
    reader_warnings,
)
from ragpg.database.sqlstates import translated
from ragpg.dsn import connect_args
from ragpg.errors import ConfigurationError, SchemaOutdated

# The job queue is procrastinate's, whose tables know no tenants, so it has a schema of its own.
SCHEMAS = ("ragpg", "ragpg_jobs")
ROLES = {
    "ragpg_owner": "owns the schema; migrations act as it, a service never does",
    "ragpg_app": "the service; row-level security applies",
    "ragpg_reader": "inspection; may be bound to one tenant in ragpg.reader_tenant",
}

# Since PostgreSQL 16 who makes a role without being superuser is a member that may grant it, to
# itself too, and not yet act as it.
MAY_ACT_AS_OWNER = """
select pg_has_role(current_user, 'ragpg_owner',
                   case when current_setting('server_version_num')::integer < 160000
                        then 'member' else 'set' end)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationReport:
    """What a migration did: revisions before and after, and whether functions were applied."""

    found: str | None
    revision: str
    functions_applied: bool
    warnings: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything was done."""
        return self.found != self.revision or self.functions_applied


def migrate(url: str) -> MigrationReport:
    """Migrate the database at `url`, whose role may create roles and the extension, or finds them.

    Safe to start several times at once: an advisory lock lets one work while the others wait, find
    nothing to do and say so. All or nothing: revisions and functions share one transaction. Raises
    SchemaTooNew, ConfigurationError, ConflictError while somebody is in the way, DatabaseError.
    """
    engine = create_engine(SQLALCHEMY_DRIVER, poolclass=NullPool, connect_args=connect_args(url))
    with translated(), engine.connect() as connection, only_migration(connection):
        return _migrate_locked(connection)


def _migrate_locked(connection: Connection) -> MigrationReport:
    judge_encoding(_driver(connection).info.parameter_status("server_encoding"))
    judge_public(
        connection.scalar(text(SCHEMA_OF_PGVECTOR)),
        [row[0] for row in connection.execute(text(CREATORS_IN_PUBLIC))],
        migrator=connection.scalar(text("select current_user::text")),
    )
    found, digest = _installed(connection)
    if found is not None:
        judge_owner(connection.scalar(text(OWNER_OF_SCHEMA)))
        try:
            judge_schema(found, digest or "")
        except SchemaOutdated:
            pass
        else:
            return MigrationReport(
                found=found,
                revision=found,
                functions_applied=False,
                warnings=(*pooler_warnings(_driver(connection)), *_lost_readers(connection)),
            )
    connection.rollback()
    with _rights_explained():
        _prepare(connection)
    connection.commit()
    patiently(connection, lambda: _upgrade(connection, found))
    return MigrationReport(
        found=found,
        revision=SCHEMA_REVISION,
        functions_applied=True,
        warnings=_warnings(connection),
    )


def _upgrade(connection: Connection, found: str | None) -> None:
    """Revisions and functions, as ragpg_owner, whatever the session is set to."""
    connection.execute(text("set local role ragpg_owner"))
    connection.execute(text("set local standard_conforming_strings = on"))
    connection.execute(text("set local search_path = pg_catalog, public"))
    if found not in (None, SCHEMA_REVISION):
        take_tables(connection)
    config = Config()
    config.set_main_option("script_location", str(_migrations()))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    # Functions name pgvector's schema themselves, so that nothing else in it can take their place.
    connection.execute(text("set local search_path = pg_catalog, pg_temp"))
    _apply_functions(connection)


def _installed(connection: Connection) -> tuple[str | None, str | None]:
    if not connection.scalar(text("select to_regclass('ragpg.installation') is not null")):
        return None, None
    row = connection.execute(
        text(
            "select version_num, functions_digest from ragpg.alembic_version"
            " left join ragpg.installation on true"
        )
    ).one_or_none()
    return (None, None) if row is None else (row[0], row[1])


def _prepare(connection: Connection) -> None:
    """Roles, extension and schema: what may need more rights than ragpg_owner has."""
    for role, purpose in ROLES.items():
        if not connection.scalar(text("select true from pg_roles where rolname = :r"), {"r": role}):
            # Two databases of one cluster may be migrated at once, and roles belong to the cluster.
            _driver(connection).execute(
                f"do $$ begin create role {role} nologin;"
                f" comment on role {role} is 'ragpg: {purpose}';"
                " exception when duplicate_object or unique_violation then null; end $$"
            )
    if not connection.scalar(text(MAY_ACT_AS_OWNER)):
        connection.execute(text("grant ragpg_owner to current_user"))
    if not connection.scalar(text("select true from pg_extension where extname = 'vector'")):
        _driver(connection).execute("create extension vector schema public")
    judge_server(
        connection.scalar(text("select current_setting('server_version_num')::integer")) or 0,
        _pgvector(connection),
    )
    for schema in SCHEMAS:
        known = text("select true from pg_namespace where nspname = :name")
        if not connection.scalar(known, {"name": schema}):
            _driver(connection).execute(f"create schema {schema} authorization ragpg_owner")
    _open_public(connection)


def _open_public(connection: Connection) -> None:
    """Let the roles look into schema public where that was taken from everybody."""
    shut_out = [row[0] for row in connection.execute(text(SHUT_OUT_OF_PUBLIC))]
    may_grant = text(
        "select has_schema_privilege(current_user, 'public', 'usage with grant option')"
    )
    if not shut_out or not connection.scalar(may_grant):
        judge_usage(shut_out)
        return
    _driver(connection).execute(f"grant usage on schema public to {', '.join(shut_out)}")


@contextmanager
def _rights_explained() -> Iterator[None]:
    """Turn a missing right into a ConfigurationError that says who has it."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as exc:
        raise _lacks_rights(exc) from exc
    except DBAPIError as exc:
        if isinstance(exc.orig, psycopg.errors.InsufficientPrivilege):
            raise _lacks_rights(exc.orig) from exc
        raise


def _lacks_rights(exc: psycopg.Error) -> ConfigurationError:
    return ConfigurationError(
        f"this role may not make what the schema needs ({exc.diag.message_primary}); set"
        " RAGPG_OWNER_DATABASE_URL to the address of a superuser for the first migration, or have"
        " one make the extension vector, the roles ragpg_owner, ragpg_app and ragpg_reader, and a"
        " member of ragpg_owner that may create schemas here, as docker/roles.sh does"
    )


def _apply_functions(connection: Connection) -> None:
    for _name, body in function_files():
        _driver(connection).execute(body)
    connection.execute(
        text(
            "insert into ragpg.installation (functions_digest) values (:digest)"
            " on conflict (only_row) do update"
            " set functions_digest = excluded.functions_digest, migrated_at = now()"
        ),
        {"digest": functions_digest()},
    )


def _warnings(connection: Connection) -> tuple[str, ...]:
    return (
        *pooler_warnings(_driver(connection)),
        *pgvector_warnings(_pgvector(connection)),
        *locale_warnings(knows_letters=connection.scalar(text(KNOWS_LETTERS))),
        *_lost_readers(connection),
    )


def _lost_readers(connection: Connection) -> tuple[str, ...]:
    """A warning for bindings that a restore lost, to whoever may know of them."""
    if not connection.scalar(text("select pg_has_role(current_user, 'ragpg_owner', 'usage')")):
        return ()
    return reader_warnings([(row[0], row[1]) for row in connection.execute(text(LOST_READERS))])


def _pgvector(connection: Connection) -> str:
    statement = text("select extversion from pg_extension where extname = 'vector'")
    return str(connection.scalar(statement))


def _driver(connection: Connection) -> Any:
    """The psycopg connection beneath: SQLAlchemy would read % and : in function bodies."""
    return connection.connection.driver_connection


def _migrations() -> Path:
    """The revisions: inside the wheel, or at the top of a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "_migrations", package.parent / "migrations"):
        if (folder / "env.py").exists():
            return folder
    raise ConfigurationError(f"no migrations beside {package}; reinstall ragpg")
