"""The command line: ragpg migrate | ingest | sync | search | ask | evaluate | index | doctor | sql.

Exit codes: 0 done; 1 done, but some documents failed or a check did; 2 the arguments or what they
name are wrong; 3 a setting, a key or the schema is; 4 the database failed; 5 a vendor did.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragpg import errors
from ragpg.cli import care, delete, documents, index, sync, worker
from ragpg.cli.session import AsJson, Collection, Tenant, interrupted, with_client, with_collection
from ragpg.inputs import without_middle
from ragpg.types import Expansion

if TYPE_CHECKING:
    from ragpg.client import AsyncClient
    from ragpg.filters import Filter

EXIT_CODES: tuple[tuple[type[errors.RagpgError], int], ...] = (
    (errors.InputError, 2),
    (errors.NotFoundError, 2),
    (errors.ConflictError, 2),
    (errors.ConfigurationError, 3),
    (errors.SchemaError, 3),
    (errors.TenantNotSetError, 2),
    (errors.DatabaseError, 4),
    (errors.ProviderError, 5),
)

app = typer.Typer(
    name="ragpg",
    help="Contextual Retrieval on one Postgres. Without RAGPG_DATABASE_URL an embedded Postgres is"
    " used, without vendor keys the offline parts.",
    epilog="Exit codes: 0 done; 1 done, but something failed and is named; 2 wrong arguments;"
    " 3 wrong settings, key or schema; 4 database; 5 vendor.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(index.app, name="index")
app.command(name="ingest")(sync.ingest)
app.command(name="sync")(sync.sync)
app.add_typer(worker.app)
app.add_typer(documents.app)
app.add_typer(care.app)
app.add_typer(delete.app)
_options = {"debug": False}
# As a shell says it: 128 and the number of the signal, SIGINT or SIGTERM.
INTERRUPTED = 130
TERMINATED = 143
# Characters of an error. What it names may be as long as an argument can be, and the next step
# stands at its end.
LONGEST_SAID = 1000

Where = Annotated[
    str | None, typer.Option("--where", help='A filter as JSON, e.g. {"year": {">=": 2025}}.')
]
Expand = Annotated[
    Expansion | None,
    typer.Option(help="Add the chunk before and after each hit, or those under its headings."),
]
Deduplicate = Annotated[
    bool, typer.Option("--deduplicate", help="Each text once, however many documents have it.")
]


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"ragpg {version('ragpg')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and logs.")] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Contextual Retrieval on one Postgres."""
    _options["debug"] = debug
    if debug:
        import logging

        logging.basicConfig(level=logging.INFO)


@app.command()
def migrate(as_json: AsJson = False) -> None:
    """Bring the database to this version's schema; safe to run several times at once."""
    from ragpg import terminal
    from ragpg.database.migrate import migrate as run
    from ragpg.settings import Settings

    with index.owner_url(Settings.from_env()) as url:
        report = run(url)
    if as_json:
        typer.echo(terminal.to_json(report))
        return
    if not report.changed:
        typer.echo(f"nothing to do: the schema is at revision {report.revision}")
    else:
        before = "an empty database" if report.found is None else f"revision {report.found}"
        typer.echo(f"migrated {before} to revision {report.revision}; functions and views applied")
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    tenant: Tenant = "default",
    collection: Collection = "default",
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="How many hits.")] = 20,
    where: Where = None,
    depth: Annotated[
        int, typer.Option(min=1, max=1000, help="How many hits are fused and reranked.")
    ] = 150,
    after: Annotated[
        int | None,
        typer.Option(help="The next page: chunk_id of the last hit before it, see --json."),
    ] = None,
    exclude: Annotated[
        list[int] | None,
        typer.Option(metavar="CHUNK_ID", help="Leave this chunk out; may be given several times."),
    ] = None,
    expand: Expand = None,
    deduplicate: Deduplicate = False,
    as_json: AsJson = False,
) -> None:
    """Retrieve, fuse and rerank; shows each hit's rank in both arms."""
    from ragpg import terminal

    condition = _filter(where)
    hits = with_collection(
        tenant,
        collection,
        lambda handle: handle.search(
            query,
            where=condition,
            k=k,
            depth=depth,
            exclude=exclude or (),
            after=after,
            expand=expand,
            deduplicate=deduplicate,
        ),
    )
    if as_json:
        typer.echo(terminal.to_json(hits))
    else:
        terminal.print_hits(hits)


@app.command()
def ask(
    query: Annotated[str, typer.Argument(help="The question.")],
    tenant: Tenant = "default",
    collection: Collection = "default",
    k: Annotated[
        int,
        typer.Option(
            "-k", min=1, max=1000, help="How many hits the answer may use, if not all is read."
        ),
    ] = 20,
    where: Where = None,
    expand: Expand = None,
    deduplicate: Deduplicate = False,
    as_json: AsJson = False,
) -> None:
    """Search, or read a small collection whole, then answer with citations."""
    from ragpg import terminal

    condition = _filter(where)
    answer = with_collection(
        tenant,
        collection,
        lambda handle: handle.ask(
            query, where=condition, k=k, expand=expand, deduplicate=deduplicate
        ),
    )
    if as_json:
        typer.echo(terminal.to_json(answer))
        return
    terminal.print_hits(answer.hits, limit=8)
    terminal.print_answer(answer)


@app.command()
def evaluate(
    directory: Annotated[
        Path, typer.Argument(help="Folder of corpus or chunks, queries and qrels.")
    ],
    language: Annotated[
        str | None, typer.Option(help="Text search configuration of words, e.g. german.")
    ] = None,
    splitter: Annotated[str | None, typer.Option(help="section, fixed, semantic or whole.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Size of a chunk.")] = None,
    dense_weight: Annotated[
        float | None, typer.Option(help="Of the dense arm in the fusion; the lexical one has 1.")
    ] = None,
    misses: Annotated[
        bool, typer.Option(help="Name the judgements that are not in the first five, with ranks.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the ladder of configurations with their measures, on data of your own."""
    from dataclasses import replace

    from ragpg import ladder, ladder_report, terminal
    from ragpg.evaluation_data import read_evaluation
    from ragpg.retrieve import Weights

    data = read_evaluation(directory)
    given: dict[str, Any] = {"language": language, "splitter": splitter, "max_tokens": max_tokens}
    chosen = {name: value for name, value in given.items() if value is not None}

    async def run(client: AsyncClient) -> Any:
        with terminal.progress_bar() as bar:
            task = bar.add_task("starting", total=None)
            return await ladder.climb(
                client,
                data,
                directory=directory,
                recipe=replace(client.providers.default_recipe(), **chosen),
                weights=Weights() if dense_weight is None else Weights(dense=dense_weight),
                progress=lambda step, done, total: bar.update(
                    task, description=step, completed=done, total=total
                ),
            )

    result = with_client(run)
    if as_json:
        typer.echo(terminal.to_json(result))
    else:
        ladder_report.print_ladder(result, misses=misses)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Look at settings, keys, model, server and schema, and say what to mend."""
    from ragpg import terminal
    from ragpg.doctor import examine
    from ragpg.settings import Settings

    findings = asyncio.run(examine(Settings.from_env()))
    if as_json:
        typer.echo(terminal.to_json(findings))
    else:
        terminal.print_table(
            ("check", "state", "finding"), [(f.name, f.state, f.message) for f in findings]
        )
    if any(finding.state == "failed" for finding in findings):
        raise typer.Exit(1)


@app.command()
def sql(
    statement: Annotated[
        str | None, typer.Argument(help="One statement; without it psql is opened.")
    ] = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Run SQL as the service role with the tenant set, or open psql so."""
    from ragpg import terminal

    async def run(client: AsyncClient) -> tuple[list[str], list[Any]] | None:
        async with client.transaction(tenant) as conn:
            if statement is None:
                cursor = await conn.execute("select ragpg.current_tenant()")
                row = await cursor.fetchone()
                number = 0 if row is None else int(row[0])
            else:
                # The person at the keyboard is the author of this statement, not a value.
                cursor = await conn.execute(statement)
                if cursor.description is None:
                    return [], []
                return [column.name for column in cursor.description], await cursor.fetchall()
        _psql(client.url, number)
        return None

    result = with_client(run, tenant=tenant)
    if result is None:
        return
    columns, rows = result
    if as_json:
        typer.echo(terminal.to_json([dict(zip(columns, row, strict=True)) for row in rows]))
    else:
        terminal.print_table(columns, rows)


def _psql(url: str, tenant_number: int) -> None:
    program = shutil.which("psql")
    if program is None:
        from ragpg.embedded import bundled_psql

        program = str(bundled_psql())
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    # Arguments of a process are for every user of the machine to see, its environment is not.
    parts = conninfo_to_dict(url)
    password = parts.pop("password", None)
    environment = os.environ | {"PGOPTIONS": f"-c ragpg.tenant_id={tenant_number}"}
    if password is not None:
        environment["PGPASSWORD"] = str(password)
    import subprocess

    address = make_conninfo("", **parts)
    subprocess.run([program, address], env=environment, check=False)  # noqa: S603  the user's psql


def _filter(where: str | None) -> Filter | None:
    if where is None:
        return None
    from ragpg.filters import Filter as Condition

    try:
        return Condition.from_json(json.loads(where))
    except json.JSONDecodeError as exc:
        raise errors.FilterError(
            f"--where is not JSON ({exc.msg} at character {exc.pos}); write it like"
            ' {"year": {">=": 2025}}'
        ) from exc


def _exit_code(exc: errors.RagpgError) -> int:
    return next((code for kind, code in EXIT_CODES if isinstance(exc, kind)), 1)


def _stop(_signal: int, _frame: object) -> None:
    raise SystemExit(TERMINATED)


def main() -> None:
    """Run the command line; an error is one sentence on standard error and an exit code."""
    # By default SIGTERM ends Python at once, and an embedded server would go on without us.
    signal.signal(signal.SIGTERM, _stop)
    try:
        app()
    except SystemExit as exc:
        if exc.code in (INTERRUPTED, TERMINATED):
            typer.echo(interrupted(), err=True)
        raise
    except errors.RagpgError as exc:
        if _options["debug"]:
            raise
        notes = getattr(exc, "__notes__", ())
        said = "; ".join((str(exc).rstrip("."), *notes)) if notes else str(exc)
        from ragpg.terminal import printable

        said = without_middle(printable(said), LONGEST_SAID)
        typer.echo(f"ragpg: {said}", err=True)
        sys.exit(_exit_code(exc))
