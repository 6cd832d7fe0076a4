"""Finds the runs behind the cells of an item's table, in its view, at the scale that was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steadytune.config import parse_yaml
from steadytune.errors import SteadytuneError
from steadytune.papers.catalogue import Cell, Claim, Item
from steadytune.papers.catalogue.few_sample_terms import STANDARD
from steadytune.papers.experiment import Shown
from steadytune.papers.places import at_scale, by_block, plain
from steadytune.papers.run import Workshop, asked_for, command, read_part
from steadytune.papers.samples import Place, Read, Sample, read
from steadytune.papers.study_parts import PARTS
from steadytune.papers.tables import printed_items, printed_number
from steadytune.papers.views import view


class Reader:
    """Reads an item's studies once; `shown` is its view of them."""

    def __init__(self, experiment: Shown, item: Item, workshop: Workshop) -> None:
        self.experiment, self.item, self.workshop = experiment, item, workshop
        self.stand_ins = dict(experiment.stand_ins) if workshop.scale == "small" else {}
        self.parts = parts = asked_for(experiment, workshop)
        try:
            self.studies = [read_part(workshop, name) for name in parts]
        except SteadytuneError as error:
            raise SteadytuneError(f"{error} All of it: {command('run', item.id, workshop)}") from error
        tasks = experiment.tasks and [self.stand_ins.get(task, task) for task in experiment.tasks]
        self.shown = view(
            self.studies, experiment.lines, tasks=tasks, split=item.split, name=f"{item.id}: {item.number}"
        )
        folder = workshop.folder(parts[0])
        self.numbers = experiment.numbers(folder) if experiment.numbers is not None else {}

    def seeds(self) -> tuple[int, int] | None:
        """How many seeds the studies were run with, and of how many; None where all have all of theirs."""
        fewer = []
        for name, study in zip(self.parts, self.studies):
            whole = PARTS[name].make(self.workshop.setting(name))["seeds"]
            here = parse_yaml(study.text, name).data["seeds"]
            if here != whole:
                fewer.append((_count(here), _count(whole)))
        return min(fewer, default=None)

    def place(self, cell: Cell) -> Place:
        return at_scale(self.experiment.place(cell), self.workshop.scale, self.stand_ins)

    def read(self, cell: Cell, quantity: str) -> Sample | None:
        if cell in self.numbers:
            return _single(self.place(cell), self.numbers[cell])
        return read(self.shown, self.place(cell), quantity, self.item.split)

    def of(self, claim: Claim) -> Read:
        return lambda cell: self.read(cell, claim.quantity)

    def printed(self, cell: Cell, statistic: str) -> float | None:
        return printed_number(self.item.id, cell, statistic)

    def heading(self, column: str) -> str:
        here = self.stand_ins.get(column)
        if self.experiment.place is by_block and self.workshop.scale != "full":
            here = f"block {self.place(Cell('', column)).block}"
        return f"{column} (here {here})" if here else column

    def table_samples(self, claims: Sequence[Claim]) -> dict[Cell, Sample]:
        """The cells of the table that were measured: published ones, those of claims, and lines that are only here."""
        quantities = self.quantities(claims)
        own, listed = self.experiment.more, self.experiment.listed
        cells = [cell for cell in (*printed_items(self.item.id), *own, *quantities) if listed(cell)]
        if self.experiment.place is plain:
            columns = {task: column for column, task in self.stand_ins.items()}
            taken = {(self.place(cell).variant, self.place(cell).task) for cell in cells}
            cells += [
                Cell(variant, columns.get(task, task))
                for task, variant in self.shown.reported
                if (variant, task) not in taken
            ]
        usual = next(iter(quantities.values()), "score")
        found: dict[Any, tuple[Cell, Sample]] = {}
        for cell in _whole_grid(cells) if self.experiment.place is by_block else dict.fromkeys(cells):
            sample = self.read(cell, quantities.get(cell, usual))
            if sample is not None:
                found[sample.place.key] = cell, sample  # of blocks that fall together here, the highest
        return dict(found.values())

    def quantities(self, claims: Sequence[Claim]) -> dict[Cell, str]:
        return {cell: claim.quantity for claim in reversed(claims) for case in claim.cases for cell in case}


def _count(seeds: int | Mapping[str, int]) -> int:
    """Of a grid, on the side that has more."""
    return seeds if isinstance(seeds, int) else max(seeds.values())


def _whole_grid(cells: Sequence[Cell]) -> list[Cell]:
    rows = sorted({(cell.setting, cell.row) for cell in cells}, key=lambda row: (row[1] != STANDARD, len(row[1]), row))
    columns = sorted({cell.column for cell in cells}, key=lambda column: (len(column), column))
    return [Cell(row, column, setting) for setting, row in rows for column in columns]


def _single(place: Place, value: float) -> Sample:
    return Sample(place, np.array([value]), exact=True)
