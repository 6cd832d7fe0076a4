"""The tables of `steadytune fit`, with rich. Cells are `Text`, so that no label or file name is read as markup."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from steadytune.report import words
from steadytune.report.record import FitRecord


def plan(record: FitRecord, steps: int | None = None, out: str = "") -> RenderableType:
    """What will be done: the data, the recipe, and where it goes."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for split in record.splits:
        table.add_row(split.name, Text(f"{split.rows:,} rows of {split.file}{_classes(split.classes)}"))
    if record.baseline is not None:
        scores = [("validation", record.baseline.validation), ("test", record.baseline.test)]
        told = ", ".join(f"{words.number(score)} on {split}" for split, score in scores if score is not None)
        table.add_row("to beat", Text(f"{record.baseline.name}: {words.metric(record)} {told}"))
    about = f" ({record.recipe_about})" if record.recipe_about else ""
    table.add_row("recipe", Text(f"{record.recipe_name}{about}"))
    table.add_row("", Text("  ".join(f"{key} {value}" for key, value in words.settings(record)), style="dim"))
    length = f", {steps:,} steps each" if steps is not None else ""
    table.add_row("seeds", Text(f"{len(record.seeds)}{length}"))
    if out:
        table.add_row("out", Text(out))
    for note in record.notes:
        table.add_row("note", Text(note))
    return table


def result(record: FitRecord) -> RenderableType:
    """Each seed's score, their mean and spread, and what to make of it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("seed", justify="right")
    table.add_column(f"validation {words.metric(record)}", justify="right")
    table.add_column("test", justify="right")
    table.add_column("best step", justify="right")
    table.add_column("time", justify="right")
    table.add_column("")
    for seed in record.seeds:
        style = "red" if seed.status == "diverged" else "bold" if seed.seed == record.chosen else ""
        step = "–" if seed.best_step is None else f"{seed.best_step:,} of {seed.steps:,}"
        cells = [str(seed.seed), words.number(seed.validation), words.number(seed.test), step]
        cells += [words.duration(seed.seconds), words.status(record, seed)]
        table.add_row(*(Text(cell, style=style) for cell in cells))
    table.add_section()
    spreads = [record.spread("validation"), record.spread("test")]
    table.add_row("mean", *(words.number(spread.mean) for spread in spreads))
    table.add_row("std", *(words.number(spread.std) for spread in spreads))
    if record.failed:
        table.add_row("failed", Text(f"{len(record.failed)} of {len(record.seeds)}", style="red"))
    if record.baseline is not None:
        scores = [record.baseline.validation, record.baseline.test]
        table.add_row("baseline", *(words.number(score) for score in scores))
    return Group(table, Text(""), *(Text(sentence) for sentence in words.verdict(record)))


def places(out: Path) -> Text:
    """Where everything is. To be printed with `soft_wrap`, so that a path can be copied."""
    names = {"model": "model", "card": "model/README.md", "report": "report.html", "predictions": "predictions.csv"}
    found = [(what, out / name) for what, name in names.items() if (out / name).exists()]
    return Text("\n".join(f"{what:<12} {path}" for what, path in found))


def as_text(renderable: RenderableType, width: int = 110) -> str:
    """As plain text, for files and for Python."""
    stream = io.StringIO()
    Console(file=stream, width=width, no_color=True).print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def _classes(classes: dict[str, int]) -> str:
    if not classes:
        return ""
    shown = [f"{count:,} {name}" for name, count in list(classes.items())[:6]]
    return f" ({', '.join(shown)}{', ...' if len(classes) > 6 else ''})"
