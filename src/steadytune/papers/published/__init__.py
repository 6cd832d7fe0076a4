"""The numbers that the papers print, as data with their source. Nothing measured here stands among them.

One CSV file per table or figure, `<paper>/<table or figure>.csv`. Lines at the top that begin with `# ` say where it
comes from: `source` (the paper), `place` (table, section, page), `about`, `n` (runs behind each number, where the paper
says it) and any number of `note`. Then one printed number per line:

    row         what was done, as the table names it: "mixout(w_pre, 0.7)", "Re-init"
    column      on what: "RTE", "RTE (1k)", "IWSLT14 De-En"
    setting     a third name where a table has one: "longer", "p=0.8", "XLNet"; else empty
    statistic   mean, std, max, min; `value` for a single number; degenerate (failed runs) and a few others
    value       as printed
    unit        percent, fraction, BLEU, seconds, runs, ...
    note        what the reader must know about this one number; short quotations in single quotes

Figures have numbers here only where their text states them; nothing was read off a plot. D8, D11, ... are items of the
acceptance list: where a paper disagrees with itself or with its code.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from steadytune.errors import SteadytuneError
from steadytune.strict import nearest

UNITS = (
    *("percent", "fraction", "BLEU", "number", "rank"),
    *("seconds", "milliseconds", "runs", "rows", "tokens", "steps", "epochs", "count"),
)
COLUMNS = ("row", "column", "setting", "statistic", "value", "unit", "note")


@dataclass(frozen=True)
class Number:
    """One printed number."""

    row: str
    column: str
    setting: str
    statistic: str
    printed: str  # with the paper's decimals
    unit: str
    note: str = ""

    @property
    def value(self) -> float:
        return float(self.printed)

    @property
    def scaled(self) -> float:
        """As this library measures: percent as a fraction, milliseconds as seconds, everything else as printed."""
        return self.value / {"percent": 100.0, "milliseconds": 1000.0}.get(self.unit, 1.0)


@dataclass(frozen=True)
class Published:
    """What a paper prints in one table, or says about one figure."""

    id: str  # "mixout/table-1"
    source: str
    place: str
    about: str
    n: int | None
    notes: tuple[str, ...]
    numbers: tuple[Number, ...]

    def find(self, row: str, column: str, setting: str = "", statistic: str = "mean") -> Number | None:
        for number in self.numbers:
            if (number.row, number.column, number.setting, number.statistic) == (row, column, setting, statistic):
                return number
        return None

    def rows(self) -> tuple[str, ...]:
        """The names of the rows, in the paper's order."""
        return tuple(dict.fromkeys(number.row for number in self.numbers))

    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(number.column for number in self.numbers))

    def settings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(number.setting for number in self.numbers))


def available() -> tuple[str, ...]:
    """The ids of all tables and figures that have published numbers."""
    found = []
    for folder in resources.files(__name__).iterdir():
        if folder.is_dir():
            names = (file.name for file in folder.iterdir())
            found += [f"{folder.name}/{name.removesuffix('.csv')}" for name in names if name.endswith(".csv")]
    return tuple(sorted(found))


@cache
def load(id: str) -> Published:
    """The published numbers of one table or figure, by its id."""
    known = available()
    if id not in known:
        raise SteadytuneError(f"There are no published numbers for {id!r}. {nearest(id, known)}")
    paper, name = id.split("/")
    text = (resources.files(__name__) / paper / f"{name}.csv").read_text(encoding="utf-8")
    return parse(id, text.splitlines())


def parse(id: str, lines: Iterable[str]) -> Published:
    """A file of published numbers; every line is checked, and an error names the line."""
    head: dict[str, list[str]] = {}
    body: list[str] = []
    for line in lines:
        if line.startswith("# ") and not body:
            key, _, text = line[2:].partition(": ")
            head.setdefault(key, []).append(text)
        else:
            body.append(line)
    for key in ("source", "place", "about"):
        if len(head.get(key, ())) != 1:
            raise SteadytuneError(f"The published numbers of {id} need exactly one line '# {key}: ...' at the top.")
    reader = csv.DictReader(body, strict=True)
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise SteadytuneError(f"The published numbers of {id} must have the columns {', '.join(COLUMNS)}.")
    start = sum(len(texts) for texts in head.values())
    numbers = tuple(_number(f"{id}, line {start + reader.line_num}", record) for record in reader)
    n = int(head["n"][0]) if "n" in head else None
    made = Published(id, head["source"][0], head["place"][0], head["about"][0], n, tuple(head.get("note", ())), numbers)
    _refuse_doubles(made)
    return made


def _number(where: str, record: dict[str, str]) -> Number:
    if None in record or None in record.values():  # what csv makes of too many or too few cells
        raise SteadytuneError(f"Published numbers, {where}: there must be {len(COLUMNS)} cells.")
    try:
        finite = math.isfinite(float(record["value"]))
    except ValueError:
        finite = False
    if not finite:
        raise SteadytuneError(f"Published numbers, {where}: {record['value']!r} is not a number.")
    if record["unit"] not in UNITS:
        raise SteadytuneError(
            f"Published numbers, {where}: unknown unit {record['unit']!r}. {nearest(record['unit'], UNITS)}"
        )
    return Number(*(record[name] for name in COLUMNS))


def _refuse_doubles(published: Published) -> None:
    seen = set()
    for number in published.numbers:
        name = (number.row, number.column, number.setting, number.statistic)
        if name in seen:
            raise SteadytuneError(
                f"The published numbers of {published.id} have {', '.join(filter(None, name))} twice."
            )
        seen.add(name)
