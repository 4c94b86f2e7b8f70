"""Database errors in ragpg's own terms: which class a SQLSTATE is, and a sentence for each."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ragpg import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

# SQLSTATEs that ragpg's own functions raise; tests/house holds this equal to the SQL.
RAISED_IN_SQL: dict[str, type[errors.RagpgError]] = {
    "RG001": errors.TenantNotSetError,
    "RG002": errors.TenantNotFound,
    "RG003": errors.CollectionNotFound,
    "RG004": errors.TenantNotSetError,
    "RG005": errors.DimensionError,
    "RG006": errors.CollectionExists,
    "RG007": errors.ConflictError,
    "RG008": errors.ConflictError,
    "RG009": errors.InputError,
    "RG010": errors.DocumentNotFound,
    "RG011": errors.ConflictError,
}
# Serialization failure, deadlock, lock not available, and the classes of lost connections,
# exhausted resources and operator intervention (PostgreSQL documentation, appendix A).
RETRYABLE = re.compile(r"^(40001|40P01|55P03|08...|53...|57P0.)$")


@contextmanager
def translated(tenant: str | None = None) -> Iterator[None]:
    """Turn every psycopg and pool error raised inside into one of ours, with its cause.

    In a transaction of `tenant` a tenant that is missing was deleted meanwhile.
    """
    try:
        yield
    except psycopg.Error as exc:
        raise _ours(exc, tenant) from exc
    except DBAPIError as exc:
        if isinstance(exc.orig, psycopg.Error):
            raise _ours(exc.orig, tenant) from exc
        raise
    except UnicodeEncodeError as exc:
        raise errors.InputError(
            f"a value cannot be sent to Postgres: it holds half a character, {_half(exc)};"
            " change it"
        ) from exc
    except PoolTimeout as exc:
        raise errors.DatabaseUnavailable(
            "no database connection became free in time; raise RAGPG_POOL_MAX_SIZE or search less"
            " at once",
            retryable=True,
        ) from exc


def _half(exc: UnicodeEncodeError) -> str:
    return f"U+{ord(exc.object[exc.start]):04X} at place {exc.start}"


def _ours(exc: psycopg.Error, tenant: str | None) -> errors.RagpgError:
    # What was sent after a wrong statement is passed over and says only that.
    while isinstance(exc, psycopg.errors.PipelineAborted) and isinstance(
        exc.__context__, psycopg.Error
    ):
        exc = exc.__context__
    message = (exc.diag.message_primary or str(exc).splitlines()[0]).strip()
    if exc.diag.message_hint:
        message = f"{message}; {exc.diag.message_hint[0].lower()}{exc.diag.message_hint[1:]}"
    if exc.sqlstate is None:
        return _of_the_driver(exc, message)
    return _deleted(exc, tenant) or _of_the_server(exc.sqlstate, message)


def _of_the_driver(exc: psycopg.Error, message: str) -> errors.RagpgError:
    if "unsupported startup parameter" in message:
        return errors.ConfigurationError(
            f"a pooler stands before the database and refuses what only a direct connection has"
            f" ({message}); give workers and upkeep the address of the server itself"
        )
    if isinstance(exc, psycopg.DataError):
        return errors.InputError(f"a value cannot be sent to Postgres: {message}; change it")
    if isinstance(exc, psycopg.OperationalError):
        return _unavailable(message, None)
    return errors.DatabaseError(f"a statement cannot be sent to Postgres: {message}; mend it")


def _deleted(exc: psycopg.Error, tenant: str | None) -> errors.RagpgError | None:
    missing = str(exc.diag.constraint_name) if exc.sqlstate == "23503" else ""
    unset = RAISED_IN_SQL.get(exc.sqlstate or "") is errors.TenantNotSetError
    if tenant is not None and (unset or missing.endswith("_tenant_id_fkey")):
        return errors.TenantNotFound(f"there is no tenant {tenant!r} any more; it was deleted")
    if missing.endswith("_collection_id_fkey"):
        return errors.CollectionNotFound("there is no such collection any more; it was deleted")
    return None


def _of_the_server(state: str, message: str) -> errors.RagpgError:
    if state in RAISED_IN_SQL:
        return RAISED_IN_SQL[state](message)
    if state in {"3F000", "42P01"} and "ragpg" in message:
        return errors.SchemaMissing(f"{message}; run `ragpg migrate`")
    if state in {"26000", "42P05", "08P01"} and "prepared statement" in message:
        return errors.ConfigurationError(
            f"a pooler between here and Postgres mixes up prepared statements ({message}); set"
            " RAGPG_PREPARED_STATEMENTS=false, or for an engine of your own"
            " connect_args={'prepare_threshold': None}"
        )
    if state == "25006" or (state == "0A000" and "during recovery" in message):
        return errors.DatabaseError(
            f"this server takes no writes ({message}), as a standby or by an administrator's"
            " setting: it can be searched; for all else set RAGPG_DATABASE_URL, and for upkeep"
            " RAGPG_OWNER_DATABASE_URL, to the address of the primary",
            sqlstate=state,
        )
    if state.startswith(("08", "57P")):
        return _unavailable(message, state)
    return errors.DatabaseError(
        f"Postgres refused a statement ({state}): {message}",
        sqlstate=state,
        retryable=bool(RETRYABLE.match(state)),
    )


def _unavailable(message: str, state: str | None) -> errors.DatabaseUnavailable:
    return errors.DatabaseUnavailable(
        f"the database cannot be reached: {message}; check RAGPG_DATABASE_URL, or for upkeep and"
        " migration RAGPG_OWNER_DATABASE_URL, and that the server runs",
        sqlstate=state,
        retryable=True,
    )
