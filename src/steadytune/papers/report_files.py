"""A paper report in the terminal, and as files: Markdown, CSV, JSON, SVG and PNG; and each study's own page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from steadytune.papers.catalogue import PAPERS
from steadytune.papers.experiment import Computed
from steadytune.papers.experiments import find_experiment
from steadytune.papers.report import PaperReport
from steadytune.papers.run import Workshop, command, make_folder, read_part
from steadytune.report.card import escape
from steadytune.report.study.naming import p_value
from steadytune.report.study.table_formats import Table
from steadytune.study.new_file import write_text

if TYPE_CHECKING:
    from rich.console import Console


def stem(made: PaperReport) -> str:
    return made.item.id.replace("/", "-")


def write_files(made: PaperReport, folder: Path, formats: Sequence[str] = ("svg", "png")) -> list[Path]:
    """`folder/mixout-table-1.md`, .csv, .json, and its figures."""
    make_folder(folder)
    name = stem(made)
    paths: list[Path] = []
    drawn: list[str] = []
    for number, figure in enumerate(made.figures, start=1):
        called = name if number == 1 else f"{name}-{number}"
        paths += replace(figure, name=called).save(folder, formats)
        drawn.append(f"![{escape(figure.title)}]({called}.svg)\n\n{escape(figure.caption)}")
    texts = {".md": markdown(made, drawn), ".json": json.dumps(made.record(), indent=1, ensure_ascii=False) + "\n"}
    if made.cells:
        texts[".csv"] = cells_csv(made)
    elif made.tables:
        texts[".csv"] = made.tables[0].csv()
    for suffix, text in texts.items():
        paths.append(folder / f"{name}{suffix}")
        write_text(paths[-1], text)
    return paths


def write_pages(id: str, workshop: Workshop) -> list[Path]:
    """The page of every study whose runs the item shows."""
    from steadytune.report.study.write import write_report

    experiment = find_experiment(id)
    if isinstance(experiment, Computed):
        return []
    return [
        write_report(read_part(workshop, name), workshop.folder(name)) for name in experiment.parts_at(workshop.scale)
    ]


def markdown(made: PaperReport, drawn: Sequence[str]) -> str:
    parts = [f"# {escape(made.title)}", f"{escape(PAPERS[made.item.paper].citation)}", *map(escape, made.notes)]
    parts += [table.markdown() for table in made.tables]
    parts += ["## What the paper claims", _verdict_table(made), *drawn]
    again = [command(what, made.item.id, made.workshop).partition(" --out")[0] for what in ("run", "report")]
    parts.append("```\n" + "\n".join(again) + "\n```")
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _verdict_table(made: PaperReport) -> str:
    lines = ["| claim | verdict | p | n | measured | test | source |", "|---|---|---:|---:|---|---|---|"]
    for each in made.verdicts:
        p = p_value(each.p_value)
        cells = (each.text, made.word(each), p, f"{each.n:,}", each.measured, each.how, each.source)
        lines.append("| " + " | ".join(escape(cell) if cell else "" for cell in cells) + " |")
    return "\n".join(lines)


def cells_csv(made: PaperReport) -> str:
    """One line per cell; the score of every seed stands in the last one."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(made.cells[0])
    for cell in made.cells:
        values = [" ".join(map(str, each)) if isinstance(each, list) else each for each in cell.values()]
        writer.writerow([f"'{each}" if str(each).startswith(("=", "@")) else each for each in values])
    return stream.getvalue()


def print_report(made: PaperReport, console: Console) -> None:
    console.print(made.title, style="bold", markup=False, highlight=False)
    console.print(PAPERS[made.item.paper].citation, style="dim", markup=False, highlight=False)
    for note in made.notes:
        console.print(note, style="dim", markup=False, highlight=False)
    for table in made.tables:
        console.print()
        console.print(_rich(table))
        console.print(table.caption, style="dim", markup=False, highlight=False)
    console.print()
    colours = {True: "green", False: "red", None: "yellow"}
    for each in made.verdicts:
        p = "" if each.p_value is None else f", p {p_value(each.p_value)}".replace("p 0", "p = 0")
        console.print(f"[{colours[each.holds]}]{made.word(each)}[/{colours[each.holds]}]{p}, n = {each.n:,}", end=": ")
        console.print(each.text, markup=False, highlight=False)
        for line in filter(None, (each.measured, each.how)):
            console.print(f"    {line}", style="dim", markup=False, highlight=False)


def _rich(table: Table) -> object:
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        made.add_column(Text(column.title), justify="right" if column.number else "left")
    last = ""
    for row in table.texts():
        label = "" if row[0] == last else row[0]
        made.add_row(Text(label), *map(Text, row[1:]), style="dim" if row[1] == "paper" else "")
        last = row[0]
    return made
