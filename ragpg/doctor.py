"""What `ragpg doctor` looks at: settings, the embedded server, the database, keys, the model."""

from __future__ import annotations

import difflib
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import psycopg

from ragpg import maintenance
from ragpg.database import SCHEMA_REVISION, check_role, check_schema
from ragpg.database_errors import translated
from ragpg.embedded import embedded_state, start_embedded, stop_embedded
from ragpg.errors import RagpgError
from ragpg.server_checks import (
    KNOWS_LETTERS,
    judge_server,
    locale_warnings,
    pgvector_warnings,
)
from ragpg.settings import Settings

PREFIX = "RAGPG_"
# What docker-compose.yml reads.
OF_COMPOSE = ("RAGPG_OWNER_PASSWORD", "RAGPG_SERVICE_PASSWORD")
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
    findings = [
        _ok("python", platform.python_version()),
        *_variables(os.environ),
        *_keys(settings),
        _model(),
    ]
    if settings.database_url is not None:
        url = settings.database_url.get_secret_value()
        owner = settings.owner_database_url
        return [
            *findings,
            *await _database(url),
            await _maintenance(None if owner is None else owner.get_secret_value()),
        ]
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
        return [
            *findings,
            *await _database(embedded.service_url),
            await _maintenance(embedded.owner_url),
        ]
    finally:
        stop_embedded(embedded)


def _ok(name: str, message: str) -> Finding:
    return Finding(name=name, state="ok", message=message)


def _failed(name: str, exc: Exception) -> Finding:
    return Finding(name=name, state="failed", message=str(exc))


def _variables(environment: Mapping[str, str]) -> list[Finding]:
    """A warning for each variable that looks like a setting and is none; its value is not shown."""
    known = Settings.variables()
    by_end = {name.removeprefix(PREFIX): name for name in known}
    findings = []
    for name in sorted(environment):
        end = name.upper().removeprefix(PREFIX)
        if not name.upper().startswith(PREFIX) or name.upper() in (*known, *OF_COMPOSE):
            continue
        near = difflib.get_close_matches(end, by_end, n=1)
        advice = f"did you mean {by_end[near[0]]}?" if near else "remove it, or look up its name"
        findings.append(
            Finding(
                name="settings",
                state="warning",
                message=f"{name} is no setting and has no effect; {advice}",
            )
        )
    return findings or [_ok("settings", f"no unknown variable begins with {PREFIX}")]


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
        "select current_setting('server_version'), current_setting('server_version_num')::integer,"
        " current_user, (select extversion from pg_extension where extname = 'vector')"
    )
    version, number, role, vector = cast(
        "tuple[str, int, str, str | None]", await cursor.fetchone()
    )
    (letters,) = await (await conn.execute(KNOWS_LETTERS)).fetchone() or (None,)
    findings.append(_ok("database", f"PostgreSQL {version}, as {role}"))
    findings += [
        Finding(name="locale", state="warning", message=warning)
        for warning in locale_warnings(knows_letters=letters)
    ]
    findings += _pgvector(number, vector)
    findings.append(await _checked("role", "bound by row-level security", conn, check_role))
    findings.append(await _checked("schema", f"at revision {SCHEMA_REVISION}", conn, check_schema))
    return findings


def _pgvector(server: int, version: str | None) -> list[Finding]:
    if version is None:
        message = "the extension is not installed; run `ragpg migrate`"
        return [Finding(name="pgvector", state="failed", message=message)]
    try:
        judge_server(server, version)
    except RagpgError as exc:
        return [_failed("pgvector", exc)]
    return [
        Finding(name="pgvector", state="warning", message=warning)
        for warning in pgvector_warnings(version)
    ] or [_ok("pgvector", version)]


async def _maintenance(owner_url: str | None) -> Finding:
    reason = await maintenance.why_not(owner_url)
    if reason is None:
        return _ok("index maintenance", "workers build vector indexes by schedule")
    return Finding(
        name="index maintenance",
        state="warning",
        message=f"workers with these settings build no vector indexes: {reason}; give them the url"
        " of a role that may act as ragpg_owner, or run `ragpg index apply` by yourself",
    )


async def _checked(
    name: str, message: str, conn: psycopg.AsyncConnection[Any], check: Callable[..., Any]
) -> Finding:
    try:
        await check(conn)
    except RagpgError as exc:
        return _failed(name, exc)
    return _ok(name, message)
