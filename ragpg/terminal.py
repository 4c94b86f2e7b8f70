"""What the command line prints for people: hits, answers, reports, tables."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from pgvector import HalfVector, SparseVector
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ragpg.json_form import plain
from ragpg.types import Answer, Hit, Hits, IngestReport, PassedOver

# Characters; a table in a pipe takes only what its cells need.
WIDEST = 100_000


# A document may hold what moves a terminal's cursor, sets its title or its clipboard.
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)
}


def printable(text: str) -> str:
    """The text with its control characters written out, but for tab and newline."""
    return text.translate(_CONTROLS)


class _SafeConsole(Console):
    """A console that writes out the control characters of every string that it is given."""

    def render_str(self, text: str, **options: Any) -> Text:
        """The text as rich reads it, without control characters."""
        return super().render_str(printable(text), **options)


def console(*, stderr: bool = False) -> Console:
    """A console; plain and 120 columns wide when the output is not a terminal."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if terminal else 120
    return _SafeConsole(stderr=stderr, highlight=False, soft_wrap=True, width=width)


def progress_bar(*, share: bool = False) -> Progress:
    """A progress display on standard error, where that is a terminal; a pipe gets none.

    It shows how many of how many, or with `share` how many per cent.
    """
    out = console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn() if share else MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )


def to_json(value: Any) -> str:
    """A value of ours as indented JSON, in the form of its `to_json`."""
    return json.dumps(plain(value), default=_of_postgres, indent=2, ensure_ascii=False)


def _of_postgres(value: Any) -> Any:
    """What JSON has no type for, as Postgres writes it; `ragpg sql` shows anything."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, HalfVector | SparseVector):
        return value.to_list()
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)


def print_hits(hits: Hits, *, limit: int | None = None) -> None:
    """The hits, a line each, then notices and times; a whole corpus in one line.

    A chunk that was added around a hit has a plus for its rank, and stands behind that hit.
    """
    out = console()
    if hits.mode == "whole_corpus":
        documents = len({hit.document_key for hit in hits})
        out.print(f"read whole: {len(hits)} chunks of {documents} documents, no search")
        out.print(f"[dim]{times(hits.timings_s)}[/dim]")
        return
    out.print("[dim]  # dense lexical   fused   rerank  document, section, characters[/dim]")
    for hit in hits.hits[:limit]:
        out.print(_line(hit), markup=False)
    if not hits:
        out.print("  no hit")
    print_notes(out, hits)
    out.print(f"[dim]{_modes(hits)}{times(hits.timings_s)}[/dim]")


def _line(hit: Hit) -> str:
    section = f", {shortened(hit.section_path[-1], 60)}" if hit.section_path else ""
    place = f"{hit.document_key}{section}, {hit.start}-{hit.stop}"
    if hit.expanded_from is not None:
        return f"{'+':>3} {'-':>5} {'-':>7} {'-':>7} {'-':>8}  {place}"
    dense = "-" if hit.dense_rank is None else str(hit.dense_rank)
    lexical = "-" if hit.lexical_rank is None else str(hit.lexical_rank)
    reranked = "-" if hit.rerank_score is None else f"{hit.rerank_score:.3f}"
    same = f" ({len(hit.duplicates)} more of this text)" if hit.duplicates else ""
    return (
        f"{hit.rank:3} {dense:>5} {lexical:>7} {hit.fused_score:7.4f} {reranked:>8}  {place}{same}"
    )


def _modes(hits: Hits) -> str:
    if not hits:
        return ""
    dense, lexical = hits.dense_mode or "no hit", hits.lexical_mode or "no hit"
    reranked = f", reranked by {hits.reranker}" if hits.reranker else ""
    return f"dense: {dense}, lexical: {lexical}{reranked}; "


def print_notes(out: Console, hits: Hits) -> None:
    """Notices and what is degraded, each on its line."""
    for notice in hits.notices:
        out.print(f"[yellow]notice:[/yellow] {escape(notice)}")
    for sentence in hits.degraded:
        out.print(f"[red]degraded:[/red] {escape(sentence)}")


def times(timings_s: Mapping[str, float]) -> str:
    """Milliseconds by stage in one line."""
    return "  ".join(f"{stage} {1000 * seconds:.0f} ms" for stage, seconds in timings_s.items())


def print_answer(answer: Answer) -> None:
    """The answer with numbered citations, each with its quoted words."""
    out = console()
    out.print()
    out.print(f"[bold]{escape(numbered(answer))}[/bold]")
    if answer.extractive:
        out.print(f"[dim]({answer.provider} {answer.model}: verbatim, no model wrote this)[/dim]")
    for citation in answer.citations:
        place = " > ".join(citation.section_path) or "beginning"
        page = "" if citation.page is None else f", page {citation.page}"
        out.print(
            f"  [{citation.number}] {citation.document_key}, {place}{page},"
            f" characters {citation.start}-{citation.stop}:",
            markup=False,
        )
        out.print(f'      "{shortened(citation.quote)}"', markup=False)
    for notice in answer.notices:
        out.print(f"[yellow]notice:[/yellow] {escape(notice)}")
    out.print(f"[dim]{times(answer.timings_s)}[/dim]")


def numbered(answer: Answer) -> str:
    """The answer's text with [n] after each run that a citation supports."""
    parts = []
    for block in answer.blocks:
        marks = "".join(f" [{citation.number}]" for citation in block.citations)
        tail = block.text[len(block.text.rstrip()) :]
        parts.append(block.text.rstrip() + marks + tail if marks else block.text)
    return "".join(parts).strip()


def shortened(text: str, limit: int = 300) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 2] + " …"


def print_report(report: IngestReport) -> None:
    """What an ingest did, and each failure with its reason."""
    out = console()
    out.print(
        f"{len(report.created)} created, {len(report.updated)} updated,"
        f" {len(report.unchanged)} unchanged, {len(report.failed)} failed;"
        f" {report.chunks} chunks ({report.reused_chunks} kept)"
    )
    for failure in report.failed:
        out.print(f"[red]failed:[/red] {escape(failure.message)} [dim]({failure.reason})[/dim]")
    print_passed_over(report.passed_over)
    print_notices(report.notices)
    if report.waiting:
        out.print(
            f"{len(report.waiting)} documents wait for their contexts in a batch; `ragpg ingest"
            " --resume` publishes them when they are there"
        )
    if report.oldest_reused_context is not None:
        age = dt.datetime.now(dt.UTC) - report.oldest_reused_context
        out.print(f"the oldest context that was kept is {age.days} days old")
    if report.contexts_failed:
        out.print(
            f"[yellow]{report.contexts_failed} chunks have no context;[/yellow] the reasons are in"
            " ragpg.context_gap, ingest again to retry what was not refused"
        )
    if report.contexts_refused:
        out.print(
            f"{report.contexts_refused} chunks of the collection have no context since their text"
            " was refused (ragpg.context_gap says why); `--recontextualize` asks again"
        )
    if report.nul_characters_removed:
        out.print(f"{report.nul_characters_removed} NUL characters were removed")
    cost = sum(call.cost_usd or 0.0 for call in report.usage)
    if cost:
        out.print(f"cost {cost:.4f} US dollars")
    out.print(f"[dim]{times(report.timings_s)}[/dim]")


def print_notices(notices: Sequence[str]) -> None:
    """Each on a line of its own."""
    for notice in notices:
        console().print(f"notice: {notice}", markup=False)


def print_passed_over(passed_over: Sequence[PassedOver]) -> None:
    """How many files of other kinds were not read, and every link that was not followed."""
    out = console()
    other = sum(one.reason == "other_kind" for one in passed_over)
    if other:
        out.print(f"{other} files of other kinds passed over")
    for one in passed_over:
        if one.reason == "link":
            out.print(f"link passed over: {one.key} leads to no file in the folder", markup=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows under their column names; null is an empty cell. In a pipe a row is one line."""
    table = Table(box=None, pad_edge=False)
    out = console()
    for name in columns:
        table.add_column(escape(name), overflow="fold", min_width=min(len(name), 12))
    for row in rows:
        table.add_row(*("" if value is None else escape(str(value)) for value in row))
    if not out.is_terminal:
        out.width = WIDEST
    out.print(table)
