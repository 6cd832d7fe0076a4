"""All records of a folder on one page: `steadytune paper results docs/results` writes docs/results.md.

    first    how many claims hold, the main questions in short (in_short.py), and every claim with its verdict
    then     each item: the numbers measured beside the published ones, each claim with its test, and the command
    last     what has not been run

The page is a function of the records (report.py) and of the published numbers, so a test can make it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadytune.errors import SteadytuneError
from steadytune.papers import published
from steadytune.papers.catalogue import ITEMS, PAPERS, Cell, Item
from steadytune.papers.experiment import Shown
from steadytune.papers.experiments import EXPERIMENTS
from steadytune.papers.in_short import answers
from steadytune.papers.report import word
from steadytune.papers.tables import beside, printed_items
from steadytune.papers.verdicts import Verdict
from steadytune.report.card import escape
from steadytune.report.study.naming import p_value
from steadytune.report.study.table_formats import Item as TableItem
from steadytune.report.words import number

_ABOUT = """\
What this project measured of the claims of three papers, claim by claim, also where it came out otherwise. Every number
is made by the command beside it ([how the papers are run](papers.md)). The record of a study, or of the digits, has
every seed; theory is computed again. Published numbers stand in rows of their own, with their source, and none of them
was measured here.

A claim *holds* where its test has p < 0.05 (a dash: numbers were compared, not tested, or one of the cases had nothing
to test), and *does not hold at this scale* where it has not: that is not yet the opposite, which `measured` names where
it is shown. *Holds as far as run*: it does on the datasets and settings that were run, and `measured` says how many
were not. *Cannot be said*: too few runs, or none that could decide it. *Not counted*: identities, which cannot come out
otherwise, checks of this project's own code, and claims that another table or figure counts already. What a figure
shows is said on the page beside its record."""
_IN_SHORT = """\
Means over all seeds, and how many runs failed. A claim is the paper's where it does not say *ours*; its test is in its
section."""
_ORDER = {True: "hold", False: "do not hold", None: "cannot be said"}


@dataclass(frozen=True)
class Record:
    """One JSON file of the folder."""

    item: Item
    data: Mapping[str, Any]
    verdicts: tuple[Verdict, ...]

    @property
    def stem(self) -> str:
        return self.item.id.replace("/", "-")

    def word(self, verdict: Verdict) -> str:
        return word(verdict, self.item)


def read_records(folder: Path) -> list[Record]:
    """In the order of the papers."""
    if not folder.is_dir():
        raise SteadytuneError(f"There is no folder {folder}. Make records with `steadytune paper report --record DIR`.")
    found: dict[str, Record] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            verdicts = tuple(Verdict.from_data(each) for each in data["verdicts"])
            record = Record(ITEMS[data["id"]], data, verdicts)
        except (ValueError, KeyError, TypeError) as error:
            raise SteadytuneError(f"{path} is no record of a table or figure ({error!r}). Make it again.") from error
        if path.stem != record.stem:
            raise SteadytuneError(f"{path} is the record of {record.item.id}, and would be called {record.stem}.json.")
        found[record.item.id] = record
    return [found[id] for id in EXPERIMENTS if id in found]


def results_page(folder: Path) -> str:
    """The Markdown of the page that stands beside the folder."""
    records = read_records(folder)
    parts = ["# What came out", _ABOUT, _counts(records), _in_short(records), "## Every claim"]
    parts += [_overview(records, paper) for paper in PAPERS]
    for record in records:
        parts += _section(record, folder)
    parts += ["## Not run", _not_run({record.item.id for record in records})]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _counts(records: Sequence[Record]) -> str:
    every = [verdict for record in records for verdict in record.verdicts]
    verdicts = [verdict for verdict in every if not verdict.uncounted]
    holds = [verdict.holds for verdict in verdicts]
    told = ", ".join(f"{holds.count(which)} {words}" for which, words in _ORDER.items())
    partly = sum(verdict.holds is True and verdict.in_part for verdict in verdicts)
    told = told.replace(" hold,", f" hold ({partly} of them as far as run),", 1) if partly else told
    items = f"{len(records)} of {len(EXPERIMENTS)} tables, figures and theorems"
    beside = len(every) - len(verdicts)
    more = f" {beside} more are not counted." if beside else ""
    return f"Here are {items}, with {len(holds)} claims: {told}.{more}"


def _in_short(records: Sequence[Record]) -> str:
    by_id = {record.item.id: record for record in records}
    rows = []
    for question, measured, verdict in answers({id: record.data for id, record in by_id.items()}):
        record = by_id[question.item]
        came_out = record.word(verdict) + (f", p {_relation(verdict)}" if verdict.p_value is not None else "")
        link = f"[{record.item.id}](#{_anchor(record)})"
        rows.append((escape(question.text), escape(measured), f"{escape(verdict.text)}: **{came_out}** ({link})"))
    return f"## In short\n\n{_IN_SHORT}\n\n" + _table(("question", "measured", "the claim"), rows) if rows else ""


def _relation(verdict: Verdict) -> str:
    told = p_value(verdict.p_value)
    return told if told.startswith("<") else f"= {told}"


def _overview(records: Sequence[Record], paper: str) -> str:
    rows = [
        (f"[{record.item.id}](#{_anchor(record)})", escape(each.text), record.word(each), p_value(each.p_value))
        for record in records
        if record.item.paper == paper
        for each in record.verdicts
    ]
    if not rows:
        return ""
    return f"{escape(PAPERS[paper].citation)}\n\n" + _table(("item", "claim", "verdict", "p"), rows)


def _section(record: Record, folder: Path) -> list[str]:
    data, item = record.data, record.item
    parts = [f'<a id="{_anchor(record)}"></a>\n\n## {item.id}: {escape(item.title)}']
    parts.append(" ".join(escape(note) for note in data["notes"]) + _machine(data["made_with"]))
    parts.append(_numbers(record))
    rows = [
        (
            *(escape(each.text), record.word(each), p_value(each.p_value), f"{each.n:,}"),
            *(escape(each.measured), escape(each.how), escape(each.source)),
        )
        for each in record.verdicts
    ]
    parts.append(_table(("claim", "verdict", "p", "n", "measured", "test", "source"), rows))
    about = ""
    if (folder / f"{record.stem}.svg").is_file():
        parts.append(f"![{escape(item.title)}]({folder.name}/{record.stem}.svg)")
        about = f"[What the figure shows]({folder.name}/{record.stem}.md). "
    report = f"steadytune paper report {item.id} --scale {data['scale']} --record DIR"
    again = f"{data['command']} --data DIR\n{report}"
    return [*parts, f"{about}[The record]({folder.name}/{record.stem}.json), made again by:\n\n```\n{again}\n```"]


def _numbers(record: Record) -> str:
    """Every measured cell, with the published one below it."""
    cells = record.data["cells"]
    if not cells:
        return ""
    here = {Cell(each["row"], each["column"], each["setting"]): _measured(each) for each in cells}
    experiment = EXPERIMENTS[record.item.id]
    stand_ins = experiment.stand_ins if isinstance(experiment, Shown) and record.data["scale"] == "small" else {}

    def heading(column: str) -> str:
        return f"{column} (here {stand_ins[column]})" if column in stand_ins else column

    printed = printed_items(record.item.id)
    shown = {cell: item for cell, item in printed.items() if cell in here}
    made = beside(record.stem, "", "", here, shown, heading)
    source = ""
    if shown:
        found = published.load(record.item.id)
        source = f"\n\nPaper: {escape(found.place)}" + (f", n = {found.n}." if found.n else ".")
        source += f" {len(printed) - len(shown)} published cells have no run here." if len(printed) > len(shown) else ""
    return _table([column.title for column in made.columns], made.texts(), plain=True) + source


def _measured(cell: Mapping[str, Any]) -> TableItem:
    """`0.612 ± 0.031, n = 20, 3 failed`."""
    if cell["mean"] is None:
        return TableItem(None, f"{cell['missing']} to run")
    words = number(cell["mean"]) + (f" ± {number(cell['std'])}" if cell["std"] is not None else "")
    words += f", n = {cell['n']}" + (f", {cell['failed']} failed" if cell["failed"] else "")
    return TableItem(cell["mean"], words + (f", {cell['crashed']} crashed" if cell["crashed"] else ""))


def _machine(made_with: Mapping[str, Any]) -> str:
    told = ", ".join(f"{name} {value}" for name, value in made_with.items())
    return f" Made with {escape(told)}." if told else ""


def _anchor(record: Record) -> str:
    return record.stem.replace(".", "-")


def _not_run(there: set[str]) -> str:
    missing = [id for id in EXPERIMENTS if id not in there]
    if not missing:
        return "Nothing: every table and figure has a record."
    rows = [(id, escape(ITEMS[id].title), f"`steadytune paper run {id} --scale small --data DIR`") for id in missing]
    return _table(("item", "shows", "command"), rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], *, plain: bool = False) -> str:
    """A Markdown table; `plain` cells are escaped here."""
    heads = [escape(each) for each in head]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        lines.append("| " + " | ".join(escape(each) if plain else each for each in row) + " |")
    return "\n".join(lines)
