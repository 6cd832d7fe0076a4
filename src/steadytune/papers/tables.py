"""A paper's table with what was measured beside what is printed: every row twice, `here` and `paper`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from steadytune.papers import published
from steadytune.papers.catalogue import Cell
from steadytune.papers.samples import Sample
from steadytune.report.study.table_formats import Column, Item, Table
from steadytune.report.words import number

WIDEST = 6  # columns, above which rows and columns change places
_NOTHING = Item(None, "–")


def beside(
    name: str,
    title: str,
    caption: str,
    here: Mapping[Cell, Item],
    printed: Mapping[Cell, Item],
    heading: Callable[[str], str] = str,
) -> Table:
    """Rows (with their settings) and columns in the paper's order; `heading` is how a column is called."""
    cells = list(dict.fromkeys([*printed, *here]))
    rows = list(dict.fromkeys([*((cell.row, cell.setting) for cell in printed), *_in_order(here)]))
    columns = list(dict.fromkeys(cell.column for cell in cells))
    if len(columns) > WIDEST and len(rows) < len(columns):
        made = [(heading(column), [Cell(row, column, setting) for row, setting in rows], column) for column in columns]
        heads = [_label(row, setting) for row, setting in rows]
    else:
        made = [(_label(*row), [Cell(row[0], column, row[1]) for column in columns], row[0]) for row in rows]
        heads = [heading(column) for column in columns]
    lines: list[tuple[Item, ...]] = []
    for label, places, _ in made:
        for whose, found in (("here", here), ("paper", printed)):
            items = [found.get(cell, _NOTHING) for cell in places]
            if any(item is not _NOTHING for item in items):
                lines.append((Item(label, label), Item(whose, whose), *items))
    first = (Column("row", "", False), Column("whose", "", False))
    return Table(name, title, caption, (*first, *(Column(head, head) for head in heads)), tuple(lines))


def _in_order(here: Iterable[Cell]) -> list[tuple[str, str]]:
    """Rows of which the paper prints no numbers: each with its settings by their number, p=0.1 before p=0.3."""
    rows = list(dict.fromkeys((cell.row, cell.setting) for cell in here))
    first = {row: place for place, (row, _) in reversed(list(enumerate(rows)))}

    def place(row: tuple[str, str]) -> tuple[int, float]:
        found = re.search(r"-?\d+(\.\d+)?", row[1])
        return first[row[0]], float(found[0]) if found else -math.inf

    return sorted(rows, key=place)


def _label(row: str, setting: str) -> str:
    return f"{row}, {setting}" if setting else row


def printed_items(id: str, listed: Callable[[Cell], bool] = lambda cell: True) -> dict[Cell, Item]:
    """The published numbers of an item, one cell each, on the scale that is measured here."""
    if id not in published.available():
        return {}
    numbers: dict[Cell, dict[str, published.Number]] = {}
    for each in published.load(id).numbers:
        cell = Cell(each.row, each.column, each.setting)
        if listed(cell):
            numbers.setdefault(cell, {})[each.statistic] = each
    return {cell: _printed(found) for cell, found in numbers.items()}


def printed_number(id: str, cell: Cell, statistic: str) -> float | None:
    """One published number of an item, on the scale that is measured here."""
    if id not in published.available():
        return None
    found = published.load(id).find(*cell, statistic)
    return None if found is None else found.scaled


def _printed(found: Mapping[str, published.Number]) -> Item:
    centre = found.get("mean") or found.get("value")
    words = []
    if centre is not None:
        spread = f" ± {_like(found['std'])}" if "std" in found else ""
        words.append(_like(centre) + spread)
    for statistic, each in found.items():
        if statistic in ("max", "min"):
            words.append(f"{statistic} {_like(each)}")
        elif statistic.startswith("degenerate"):  # or "degenerate, at least"
            words.append(f"{statistic.removeprefix('degenerate').removeprefix(', ')} {each.printed} failed".lstrip())
        elif statistic not in ("mean", "std", "value"):
            words.append(f"{statistic} {_like(each)}")
    return Item(None if centre is None else centre.scaled, ", ".join(words))


def _like(each: published.Number) -> str:
    """With the paper's digits: 69.5 percent is 0.695."""
    if each.unit != "percent":
        return f"{each.printed} ms" if each.unit == "milliseconds" else each.printed
    digits = len(each.printed.partition(".")[2]) + 2
    return f"{each.scaled:.{digits}f}"


def own_std(sample: Sample) -> float | None:
    """Of the numbers of a sample, also where these are standard deviations (then `number` has their mean)."""
    if not sample.place.fixed:
        return sample.number("std")
    return float(sample.values.std(ddof=1)) if sample.n > 1 else None


def measured_item(sample: Sample, extras: Sequence[str] = ()) -> Item:
    """mean ± std, and what the paper prints besides: `max`, `degenerate`."""
    mean, std = sample.number("mean"), own_std(sample)
    if mean is None:
        return Item(None, f"{sample.missing} to run" if sample.missing else "–")
    words = [number(mean) + (f" ± {std:.{3 if abs(mean) < 10 else 2}f}" if std is not None else "")]
    for extra in extras:
        value = sample.number(extra)
        if value is not None:
            words.append(f"{int(value)} failed" if extra == "degenerate" else f"{extra} {number(value)}")
    if sample.missing:
        words.append(f"{sample.missing} to run")
    return Item(mean, ", ".join(words))
