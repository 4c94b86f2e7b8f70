"""The command line of what changes a collection: ragpg ingest | sync, and the plan of each."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragpg import errors
from ragpg.cli.session import AsJson, Collection, Tenant, will_go_on, with_collection

if TYPE_CHECKING:
    from rich.progress import Progress

    from ragpg.collection import AsyncCollection
    from ragpg.ingestion.corpus_sync import SyncReport
    from ragpg.ingestion.plan import Plan
    from ragpg.ingestion.tally import IngestProgress

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would happen and cost; write nothing.")
]
Recontextualize = Annotated[
    bool,
    typer.Option(
        "--recontextualize",
        help="New contexts for all of a changed document, and for texts that were refused.",
    ),
]
Batch = Annotated[
    bool, typer.Option("--batch", help="Contexts in batches: within a day, at half the price.")
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="With --batch: submit and return; resume later.")
]


def ingest(
    # As text: Path("") is the working directory.
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Files, or folders to take whole.")
    ] = None,
    tenant: Tenant = "default",
    collection: Collection = "default",
    dry_run: DryRun = False,
    recontextualize: Recontextualize = False,
    batch: Batch = False,
    no_wait: NoWait = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Publish what earlier batches have written.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make documents live: parse, split, contextualize, embed, publish; unchanged ones are free."""
    from ragpg import terminal

    chosen = paths or []
    if resume == bool(chosen):
        raise errors.InputError("give files or folders to ingest, or --resume alone")
    if resume and dry_run:
        raise errors.InputError("--resume has no --dry-run: what it publishes is paid for already")
    if not dry_run:
        will_go_on()
    how = {"recontextualize": recontextualize, "batch": batch}

    async def run(handle: AsyncCollection) -> Any:
        with terminal.progress_bar(share=not dry_run) as bar:
            if dry_run:
                looked = _looking(bar)
                return await handle.plan_files(chosen, **how, progress=looked)
            if resume:
                return await handle.resume(wait=not no_wait, progress=_following(bar, None))
            # Walking the folder once more is only for the bar.
            total = None if bar.disable else _count(chosen)
            return await handle.ingest_files(
                chosen, **how, wait=not no_wait, progress=_following(bar, total)
            )

    result = with_collection(tenant, collection, run, fills=not (dry_run or resume))
    if dry_run:
        _show_plan(result, as_json=as_json)
        return
    if as_json:
        typer.echo(terminal.to_json(result))
    else:
        terminal.print_report(result)
    if result.failed or result.contexts_failed:
        raise typer.Exit(1)


def sync(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder to mirror.")],
    tenant: Tenant = "default",
    collection: Collection = "default",
    dry_run: DryRun = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Remove more than a tenth without asking.")
    ] = False,
    recontextualize: Recontextualize = False,
    batch: Batch = False,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Make a collection mirror a folder: add, update, rename, remove; the rest costs nothing."""
    from ragpg import terminal

    if not dry_run:
        will_go_on()
    how = {"recontextualize": recontextualize, "batch": batch}

    async def run(handle: AsyncCollection) -> Any:
        with terminal.progress_bar() as bar:
            plan = await handle.plan(folder, **how, progress=_looking(bar))
        if dry_run:
            return plan
        allowed = _allowed(plan, yes=yes)
        typer.echo(_summary(plan), err=True)
        with terminal.progress_bar(share=True) as bar:
            return await handle.sync(
                folder,
                plan=plan,
                allow_removals=allowed,
                **how,
                wait=not no_wait,
                progress=_following(bar, len(plan.keys("add", "update", "fail"))),
            )

    result = with_collection(tenant, collection, run, fills=not dry_run)
    if dry_run:
        _show_plan(result, as_json=as_json)
        return
    if as_json:
        typer.echo(terminal.to_json(result))
    else:
        _print_sync(result)
    if result.failed or result.ingested.failed or result.ingested.contexts_failed:
        raise typer.Exit(1)


def _allowed(plan: Plan, *, yes: bool) -> bool:
    """Whether the plan may remove what it removes; asks where somebody can answer."""
    if yes or not plan.removes_much or not sys.stdin.isatty():
        return yes
    removed = len(plan.keys("remove"))
    question = f"{removed} of {plan.live} live documents are no longer in {plan.root}. Remove them?"
    if not typer.confirm(question, err=True):
        raise errors.InputError("nothing was changed: the removal was declined; check the folder")
    return True


def _count(paths: list[str]) -> int:
    from ragpg.parse import find_files

    return len(find_files(paths).files)


def _looking(bar: Progress) -> Callable[[int], None]:
    """Shows how many files a plan has looked at."""
    task = bar.add_task("planning", total=None)
    return lambda done: bar.update(task, completed=done)


def _following(bar: Progress, total: int | None) -> Callable[[IngestProgress], None]:
    """Shows what is done of the `total` documents, cost so far, and what waits in batches.

    The bar and the time left go by contexts and vectors: those of documents that were not taken
    yet are assumed to be as many as those of the others.
    """
    from ragpg.terminal import shortened

    # The whole is 1 throughout: a bar whose total changes forgets its speed.
    task = bar.add_task("ingesting", total=None if total is None else 1.0)
    started = time.monotonic()
    of = "" if total is None else f"/{total}"
    share = 0.0

    def show(now: IngestProgress) -> None:
        nonlocal share
        rate = (now.contextualized + now.embedded) / max(time.monotonic() - started, 1e-9)
        steps = f"{now.contextualized} contexts and {now.embedded} vectors of {now.staged} chunks"
        parts = [
            f"{now.documents}{of} documents",
            f"{steps} ({rate:.1f}/s)",
            f"${now.cost_usd:.4f}",
        ]
        if now.outcome == "waiting":
            parts.append(f"{now.waiting_contexts} contexts wait in batches")
        else:
            parts.append(shortened(now.key, 40))
        if total is not None and now.work:
            expected = now.work * max(1.0, total / now.taken)
            share = max(share, now.work_done / expected)
        bar.update(task, completed=share, description=", ".join(parts))

    return show


def _summary(plan: Plan) -> str:
    counts = [f"{number} {action}" for action, number in sorted(plan.counts.items())]
    cost = plan.cost_usd
    price = "cost not known" if cost is None else f"about {cost:.4f} US dollars"
    return f"plan: {', '.join(counts) or 'nothing to do'}; {price}"


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    from ragpg import terminal

    if as_json:
        shown = {
            "root": plan.root,
            "live": plan.live,
            "counts": plan.counts,
            "documents": plan.documents,
            "usage": plan.usage,
            "cost_usd": plan.cost_usd,
            "at_once_usd": plan.at_once_usd,
            "oldest_reused_context": plan.oldest_reused_context,
            "notes": plan.notes,
            "passed_over": plan.passed_over,
        }
        typer.echo(terminal.to_json(shown))
    else:
        _print_plan(plan)
    if plan.keys("fail"):
        raise typer.Exit(1)


def _print_plan(plan: Plan) -> None:
    from ragpg import terminal

    changed = [document for document in plan.documents if document.action != "unchanged"]
    if changed:
        terminal.print_table(
            ("action", "document", "chunks", "kept", "note"),
            [
                (
                    one.action,
                    one.key,
                    one.chunks or None,
                    one.kept_chunks if one.chunks else None,
                    f"was {one.from_key}" if one.from_key is not None else one.reason,
                )
                for one in changed
            ],
        )
    if plan.usage:
        terminal.print_table(
            ("for", "vendor", "model", "input", "output", "cache write", "cache read", "dollars"),
            [
                (
                    one.operation,
                    one.provider,
                    one.model,
                    one.input_tokens,
                    one.output_tokens,
                    one.cache_write_tokens,
                    one.cache_read_tokens,
                    None if one.cost_usd is None else f"{one.cost_usd:.4f}",
                )
                for one in plan.usage
            ],
        )
    if plan.oldest_reused_context is not None:
        typer.echo(f"the oldest context that is kept was written {plan.oldest_reused_context:%F}")
    terminal.print_passed_over(plan.passed_over)
    for note in plan.notes:
        typer.echo(terminal.printable(f"note: {note}"))
    typer.echo(_summary(plan))


def _print_sync(report: SyncReport) -> None:
    from ragpg import terminal

    for old, new in report.renamed.items():
        typer.echo(terminal.printable(f"renamed: {old} is now {new}"))
    typer.echo(
        f"{len(report.renamed)} renamed, {len(report.removed)} removed,"
        f" {len(report.foreign)} from elsewhere left alone"
    )
    for failure in report.failed:
        typer.echo(terminal.printable(f"failed: {failure.message} ({failure.reason})"))
    terminal.print_report(report.ingested)
