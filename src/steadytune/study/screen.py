"""A study in the terminal: the plan, the state, and a live view of both. Rich text out of `Status` and `Plan`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from steadytune.study.status import Running, Status, read_status

_BAR = 60  # characters
_SHOWN = 12  # running trials that fit on a screen
_COLOURS = {"finished": "green", "running": "cyan", "pending": "dim", "diverged": "yellow", "failed": "red"}


def duration(seconds: float | None) -> str:
    """`2 h 5 min`, `3 min 20 s`, `12 s`."""
    if seconds is None:
        return "unknown"
    whole = max(0, round(seconds))
    if whole >= 86_400:
        return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def show_status(status: Status) -> RenderableType:
    """Counts, time left, what runs, the best so far, and what failed."""
    title = Text.assemble((status.name, "bold"), f"   {status.ended} of {status.total} trials have ended")
    counts = Text("   ").join(
        Text(f"{count} {name}", style=_COLOURS[name]) for name, count in status.counts.items() if count
    )
    left = "" if status.over else f"   time left: {duration(status.seconds_left)}"
    if status.unplanned:
        left += f", and {status.unplanned} trials more, which wait for a choice"
    done = _BAR * status.ended // max(1, status.total)
    bar = Text.assemble(("━" * done, "green"), ("━" * (_BAR - done), "dim"))
    parts: list[RenderableType] = [title, bar, counts + Text(left)]
    if status.running:
        parts += [Text(), _running(status)]
    if status.leaders:
        parts += [Text(), _leaders(status)]
    if status.failures:
        parts += [Text(), _failures(status)]
    return Group(*parts)


def watch(folder: str | Path, console: Console, every: float = 1.0, stop: Callable[[], bool] | None = None) -> Status:
    """Redraw until every trial has ended, or `stop` says so."""
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            status = read_status(folder)
            live.update(show_status(status), refresh=True)
            if status.over or (stop is not None and stop()):
                return status
            time.sleep(every)


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Aligned lines of plain text: ten thousand of them in no time, and easy to grep."""
    cleaned = [[" ".join(cell.split()) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cleaned)]
    for row in cleaned:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths) if width).rstrip()


def table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> Table:
    """(name, "left" or "right") columns; cells are plain text, never markup."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name, side in columns:
        made.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    return made


def _running(status: Status) -> Table:
    def cells(run: Running) -> list[str]:
        step = f"{run.step}/{run.steps}" if run.step is not None else "starting"
        loss = "" if run.loss is None else f"{run.loss:.3f}"
        score = "" if run.validation is None else f"{run.validation:.3f}"
        left = "" if run.left is None else duration(run.left)
        return [run.task, run.variant, run.seed, step, loss, score, duration(run.seconds), left]

    columns = [("running", ""), ("variant", ""), ("seed", "right"), ("step", "right"), ("loss", "right")]
    columns += [("validation", "right"), ("for", "right"), ("left", "right")]
    made = table(columns, [cells(each) for each in status.running[:_SHOWN]])
    if len(status.running) > _SHOWN:
        made.add_row(f"and {len(status.running) - _SHOWN} more")
    return made


def _leaders(status: Status) -> Table:
    rows = [[each.task, each.variant, each.metric, f"{each.mean:.4f}", str(each.runs)] for each in status.leaders]
    columns = [("best so far", ""), ("variant", ""), ("metric", ""), ("mean", "right"), ("runs", "right")]
    return table(columns, rows)


def _failures(status: Status) -> Table:
    rows = [[what, why] for what, why in status.failures[:5]]
    made = table([("failed", ""), ("because", "")], rows)
    if len(status.failures) > 5:
        made.add_row(f"and {len(status.failures) - 5} more")
    return made
