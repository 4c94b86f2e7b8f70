"""Brings a database to this code's schema: roles, extension, revisions, functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, NullPool, create_engine, text

from ragpg.database import (
    SCHEMA_REVISION,
    SQLALCHEMY_DRIVER,
    function_files,
    functions_digest,
    judge_schema,
)
from ragpg.database_errors import translated
from ragpg.dsn import connect_args
from ragpg.errors import ConfigurationError, SchemaOutdated
from ragpg.server_checks import (
    KNOWS_LETTERS,
    judge_server,
    locale_warnings,
    pgvector_warnings,
)

# Any number that no other program on the server uses; "ragpg" in ASCII.
MIGRATION_LOCK = 0x7261677067
# The job queue is procrastinate's, whose tables know no tenants, so it has a schema of its own.
SCHEMAS = ("ragpg", "ragpg_jobs")
ROLES = {
    "ragpg_owner": "owns the schema; migrations act as it, a service never does",
    "ragpg_app": "the service; row-level security applies",
    "ragpg_reader": "inspection; may be bound to one tenant in ragpg.reader_tenant",
}


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
    SchemaTooNew, ConfigurationError, DatabaseError.
    """
    engine = create_engine(SQLALCHEMY_DRIVER, poolclass=NullPool, connect_args=connect_args(url))
    with translated(), engine.connect() as connection:
        connection.execute(text("select pg_advisory_lock(:lock)"), {"lock": MIGRATION_LOCK})
        connection.commit()
        try:
            return _migrate_locked(connection)
        finally:
            connection.rollback()
            connection.execute(text("select pg_advisory_unlock(:lock)"), {"lock": MIGRATION_LOCK})
            connection.commit()


def _migrate_locked(connection: Connection) -> MigrationReport:
    found, digest = _installed(connection)
    if found is not None:
        try:
            judge_schema(found, digest or "")
        except SchemaOutdated:
            pass
        else:
            return MigrationReport(found=found, revision=found, functions_applied=False)
    connection.rollback()
    _prepare(connection)
    connection.commit()
    with connection.begin():
        connection.execute(text("set local lock_timeout = '10s'"))
        connection.execute(text("set local role ragpg_owner"))
        config = Config()
        config.set_main_option("script_location", str(_migrations()))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        _apply_functions(connection)
    return MigrationReport(
        found=found,
        revision=SCHEMA_REVISION,
        functions_applied=True,
        warnings=_warnings(connection),
    )


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
    if not connection.scalar(text("select pg_has_role(current_user, 'ragpg_owner', 'member')")):
        connection.execute(text("grant ragpg_owner to current_user"))
    if not connection.scalar(text("select true from pg_extension where extname = 'vector'")):
        _driver(connection).execute("create extension vector")
    judge_server(
        connection.scalar(text("select current_setting('server_version_num')::integer")) or 0,
        _pgvector(connection),
    )
    for schema in SCHEMAS:
        known = text("select true from pg_namespace where nspname = :name")
        if not connection.scalar(known, {"name": schema}):
            _driver(connection).execute(f"create schema {schema} authorization ragpg_owner")


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
        *pgvector_warnings(_pgvector(connection)),
        *locale_warnings(knows_letters=connection.scalar(text(KNOWS_LETTERS))),
    )


def _pgvector(connection: Connection) -> str:
    statement = text("select extversion from pg_extension where extname = 'vector'")
    return str(connection.scalar(statement))


def _driver(connection: Connection) -> Any:
    """The psycopg connection beneath: SQLAlchemy would read % and : in function bodies."""
    return connection.connection.driver_connection


def _migrations() -> Path:
    """The revisions: inside the wheel, or at the top of a checkout."""
    package = Path(__file__).parent
    for folder in (package / "_migrations", package.parent / "migrations"):
        if (folder / "env.py").exists():
            return folder
    raise ConfigurationError(f"no migrations beside {package}; reinstall ragpg")
