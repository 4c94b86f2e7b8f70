"""What `ragpg doctor` looks at: settings, the embedded server, the database, keys, the model."""

from __future__ import annotations

import difflib
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import anyio.to_thread
import psycopg

from ragpg.database import SCHEMA_REVISION, check_role, check_schema, fetch_rows, statements
from ragpg.database.connections import is_read_only
from ragpg.database.server_checks import (
    BOUND_SERVICES,
    CREATORS_IN_PUBLIC,
    KNOWS_LETTERS,
    LOST_READERS,
    OWNER_OF_SCHEMA,
    SCHEMA_OF_PGVECTOR,
    SHUT_OUT_OF_PUBLIC,
    UNBOUND_READERS,
    judge_encoding,
    judge_owner,
    judge_public,
    judge_server,
    judge_usage,
    locale_warnings,
    pgvector_warnings,
    reader_warnings,
    unbound_sentence,
)
from ragpg.database.sqlstates import translated
from ragpg.embedded import embedded_state, start_embedded, stop_embedded
from ragpg.errors import RagpgError
from ragpg.jobs import maintenance
from ragpg.settings import Settings
from ragpg.upkeep import dense_index

PREFIX = "RAGPG_"
# What docker-compose.yml reads.
OF_COMPOSE = ("RAGPG_OWNER_PASSWORD", "RAGPG_SERVICE_PASSWORD")
LONG_WAIT_S = 3600
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
            *await _examined(url, None if owner is None else owner.get_secret_value()),
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
        return [*findings, *await _examined(embedded.service_url, embedded.owner_url)]
    finally:
        stop_embedded(embedded)


async def _examined(service_url: str, owner_url: str | None) -> list[Finding]:
    findings = [*await _database(service_url), await _maintenance(owner_url)]
    sound = {one.name for one in findings if one.state == "ok"}
    if owner_url is not None and sound >= {"schema", "index maintenance"}:
        findings += await anyio.to_thread.run_sync(_owners_view, owner_url)
    return findings


def _owners_view(owner_url: str) -> list[Finding]:
    try:
        with dense_index.acting_as_owner(owner_url, None) as conn:
            return [judge_readers(conn), *_invalid_indexes(conn)]
    except RagpgError as exc:
        return [_failed("index maintenance", exc)]


def _invalid_indexes(conn: psycopg.Connection[Any]) -> list[Finding]:
    left = conn.execute(
        "select index_name from ragpg.dense_index where state = 'invalid' order by index_name"
    ).fetchall()
    if not left:
        return []
    message = (
        f"left invalid by a build that failed: {', '.join(name for (name,) in left)}; searches go"
        " on without, more slowly; `ragpg index apply` mends it, as do workers by schedule"
    )
    return [Finding(name="vector indexes", state="warning", message=message)]


def judge_readers(conn: psycopg.Connection[Any]) -> Finding:
    """Failed where a binding was lost, a warning for readers that have none beside some that do."""
    lost = conn.execute(LOST_READERS).fetchall()
    if lost:
        (warning,) = reader_warnings(lost)
        return Finding(name="readers", state="failed", message=warning)
    serving = ", ".join(name for (name,) in conn.execute(BOUND_SERVICES))
    if serving:
        message = (
            f"{serving} may do the work of all tenants, as a member of ragpg_app, though bound to"
            f" one as a reader; run `revoke ragpg_app from {serving}`, or delete the binding"
        )
        return Finding(name="readers", state="failed", message=message)
    unbound = [name for (name,) in conn.execute(UNBOUND_READERS)]
    if not unbound:
        return _ok("readers", "each is bound to a tenant, or there are none")
    binds = conn.execute("select exists (select from ragpg.reader_tenant)").fetchone() == (True,)
    return Finding(
        name="readers",
        state="warning" if binds else "ok",
        message=unbound_sentence(unbound),
    )


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
            async with await psycopg.AsyncConnection.connect(
                url, connect_timeout=10, autocommit=True
            ) as conn:
                judge_encoding(conn.info.parameter_status("server_encoding"))
                return await _connected(conn)
    except RagpgError as exc:
        return [_failed("database", exc)]


async def _connected(conn: psycopg.AsyncConnection[Any]) -> list[Finding]:
    findings = []
    cursor = await conn.execute(
        "select current_setting('server_version'), current_setting('server_version_num')::integer,"
        " current_user, (select extversion from pg_extension where extname = 'vector'),"
        " coalesce((select has_schema_privilege(oid, 'usage') from pg_namespace"
        " where nspname = 'ragpg'), true)"
    )
    version, number, role, vector, may_look = cast(
        "tuple[str, int, str, str | None, bool]", await cursor.fetchone()
    )
    (letters,) = await (await conn.execute(KNOWS_LETTERS)).fetchone() or (None,)
    alone = ", which takes no writes: it can be searched, and nothing is logged"
    findings.append(
        _ok("database", f"PostgreSQL {version}, as {role}{alone if is_read_only(conn) else ''}")
    )
    findings += [
        Finding(name="locale", state="warning", message=warning)
        for warning in locale_warnings(knows_letters=letters)
    ]
    findings += _pgvector(number, vector)
    findings += await _schema_owner(conn)
    findings += await _public_schema(conn)
    findings.append(await _checked("role", "bound by row-level security", conn, check_role))
    if may_look:
        right = f"at revision {SCHEMA_REVISION}"
        findings.append(await _checked("schema", right, conn, check_schema))
        if findings[-1].state == "ok":
            findings += await _queue(conn)
    elif findings[-1].state == "ok":
        message = (
            f"{role!r} may not use schema ragpg though it is a member of ragpg_app; as a superuser"
            " `grant usage on schema ragpg to ragpg_app`, or restore a dump that has its grants"
        )
        findings.append(Finding(name="schema", state="failed", message=message))
    return findings


async def _queue(conn: psycopg.AsyncConnection[Any]) -> list[Finding]:
    """Whether somebody works on what waits; nothing for a role that may not ask."""
    try:
        (row,) = await fetch_rows(conn, statements("jobs")["queue_health"], {"stalled_after_s": 30})
    except psycopg.errors.InsufficientPrivilege:
        return []
    return [judge_queue(row)]


def judge_queue(row: Mapping[str, Any]) -> Finding:
    """Failed where documents wait and no worker lives, a warning where they have for an hour."""
    waiting = row["ready"] + row["later"]
    message = f"{row['workers']} alive, {row['in_work']} documents in work, {waiting} waiting"
    if not waiting:
        return _ok("workers", message)
    message = f"{message}, the oldest for {row['waited_s'] // 60:.0f} minutes"
    if not row["workers"]:
        message = f"{message}; nobody makes them live: start `ragpg worker`, or see why it ended"
        return Finding(name="workers", state="failed", message=message)
    if row["waited_s"] < LONG_WAIT_S:
        return _ok("workers", message)
    message = (
        f"{message}, {row['later']} of them for another try after an error; `ragpg status` of a"
        " tenant has the errors, more workers shorten a queue"
    )
    return Finding(name="workers", state="warning", message=message)


async def _schema_owner(conn: psycopg.AsyncConnection[Any]) -> list[Finding]:
    (owner,) = await (await conn.execute(OWNER_OF_SCHEMA)).fetchone() or (None,)
    try:
        judge_owner(owner)
    except RagpgError as exc:
        return [_failed("restore", exc)]
    return []


async def _public_schema(conn: psycopg.AsyncConnection[Any]) -> list[Finding]:
    (home,) = await (await conn.execute(SCHEMA_OF_PGVECTOR)).fetchone() or (None,)
    creators = [name for (name,) in await (await conn.execute(CREATORS_IN_PUBLIC)).fetchall()]
    shut_out = [name for (name,) in await (await conn.execute(SHUT_OUT_OF_PUBLIC)).fetchall()]
    try:
        judge_public(home, creators, migrator=None)
        judge_usage(shut_out)
    except RagpgError as exc:
        return [_failed("schema public", exc)]
    return []


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
        return _ok("index maintenance", "workers maintain indexes by schedule")
    message = f"workers with these settings maintain no indexes: {reason}"
    return Finding(name="index maintenance", state="warning", message=message)


async def _checked(
    name: str, message: str, conn: psycopg.AsyncConnection[Any], check: Callable[..., Any]
) -> Finding:
    try:
        await check(conn)
    except RagpgError as exc:
        return _failed(name, exc)
    return _ok(name, message)
