"""What `ragpg doctor` looks at: settings, the embedded server, the database, keys, the model."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import psycopg

from ragpg.database import SCHEMA_REVISION, check_role, check_schema, pgvector_warnings, translated
from ragpg.embedded import embedded_state, start_embedded, stop_embedded
from ragpg.errors import RagpgError
from ragpg.settings import Settings

State = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: State
    message: str


async def examine(settings: Settings) -> list[Finding]:
    """Findings in the order in which a reader should mend them; changes nothing that is stored.

    The embedded server is started, if it is the database and was initialised before.
    """
    findings = [_ok("python", platform.python_version()), *_keys(settings), _model()]
    if settings.database_url is not None:
        url = settings.database_url.get_secret_value()
        return findings + await _database(url)
    state = embedded_state(settings.home)
    running = "stopped" if state.pid is None else f"running as process {state.pid}"
    if not state.initialized:
        return [
            *findings,
            Finding(
                name="embedded Postgres",
                state="warning",
                message=f"not made yet in {state.data_directory}; run `ragpg migrate`",
            ),
        ]
    findings.append(_ok("embedded Postgres", f"{running}, in {state.data_directory}"))
    try:
        embedded = start_embedded(settings.home)
    except RagpgError as exc:
        return [*findings, _failed("database", exc)]
    try:
        return findings + await _database(embedded.service_url)
    finally:
        stop_embedded(embedded)


def _ok(name: str, message: str) -> Finding:
    return Finding(name=name, state="ok", message=message)


def _failed(name: str, exc: Exception) -> Finding:
    return Finding(name=name, state="failed", message=str(exc))


def _keys(settings: Settings) -> list[Finding]:
    keys = {
        "VOYAGE_API_KEY": settings.voyage_api_key,
        "ANTHROPIC_API_KEY": settings.anthropic_api_key,
        "CO_API_KEY": settings.cohere_api_key,
    }
    return [
        _ok(name, "set" if key is not None else "not set; the offline part is used")
        for name, key in keys.items()
    ]


def _model() -> Finding:
    from ragpg.providers.local import LocalEmbedder

    try:
        embedder = LocalEmbedder()
    except RagpgError as exc:
        return _failed("local model", exc)
    return _ok("local model", f"{embedder.model}, {embedder.dimensions} dimensions, checksum right")


async def _database(url: str) -> list[Finding]:
    try:
        with translated():
            async with await psycopg.AsyncConnection.connect(url, connect_timeout=10) as conn:
                return await _connected(conn)
    except RagpgError as exc:
        return [_failed("database", exc)]


async def _connected(conn: psycopg.AsyncConnection[Any]) -> list[Finding]:
    findings = []
    cursor = await conn.execute(
        "select current_setting('server_version'), current_user,"
        " (select extversion from pg_extension where extname = 'vector')"
    )
    version, role, vector = cast("tuple[str, str, str | None]", await cursor.fetchone())
    findings.append(_ok("database", f"PostgreSQL {version}, as {role}"))
    if vector is None:
        message = "the extension is not installed; run `ragpg migrate`"
        findings.append(Finding(name="pgvector", state="failed", message=message))
    else:
        findings += [
            Finding(name="pgvector", state="warning", message=warning)
            for warning in pgvector_warnings(vector)
        ] or [_ok("pgvector", vector)]
    findings.append(await _checked("role", "bound by row-level security", conn, check_role))
    findings.append(await _checked("schema", f"at revision {SCHEMA_REVISION}", conn, check_schema))
    return findings


async def _checked(
    name: str, message: str, conn: psycopg.AsyncConnection[Any], check: Callable[..., Any]
) -> Finding:
    try:
        await check(conn)
    except RagpgError as exc:
        return _failed(name, exc)
    return _ok(name, message)
