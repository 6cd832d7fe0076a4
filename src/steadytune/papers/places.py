"""Where the runs of a claim's cell are, for each form that tables and figures have."""

from __future__ import annotations

from steadytune.papers.catalogue import Cell
from steadytune.papers.samples import Place
from steadytune.papers.settings import BLOCKS, Scale


def plain(cell: Cell) -> Place:
    """("Re-init", "RTE", "longer"): variant `Re-init, longer`, task RTE."""
    return Place(f"{cell.row}, {cell.setting}" if cell.setting else cell.row, cell.column)


def by_split(cell: Cell) -> Place:
    """("Bias correction", "MNLI", "dev"): the same runs on two splits."""
    return Place(cell.row, cell.column, split={"dev": "validation"}.get(cell.setting, cell.setting))


def by_block(cell: Cell) -> Place:
    """("Re-init 3", "block 18", "RTE"): a block of the paper's 24; `at_scale` says which it is in a smaller model."""
    return Place(cell.row, cell.setting, block=int(cell.column.removeprefix("block ")))


def by_seed(cell: Cell) -> Place:
    """("Standard", "order 3", "every init"), and ("Standard", "average", "init fixed")."""
    if cell.column == "average":
        return Place(cell.row, "RTE", fixed=cell.setting.removesuffix(" fixed"))
    named = (cell.column.split(), cell.setting.split())
    return Place(cell.row, "RTE", streams={kind: int(number) for kind, number in named if number.isdigit()})


def by_trials(cell: Cell) -> Place:
    """("Bias correction", "RTE", "n=5"): the best of 5 runs; without a number, of all there are."""
    return Place(cell.row, cell.column, best_of=int(cell.setting.removeprefix("n=") or 0))


def by_minutes(cell: Cell) -> Place:
    return Place(cell.row, cell.column, minutes=float(cell.setting.split()[0]))


def with_step_time(cell: Cell) -> Place:
    """Runs of one task; those of the column `time per step` are timed."""
    return Place(cell.row, cell.column, per_step=cell.column == "time per step")


def at_scale(place: Place, scale: Scale, stand_ins: dict[str, str]) -> Place:
    """The same place where a smaller model has fewer blocks, and other data stands for the paper's."""
    block = None if place.block is None else -(-place.block * BLOCKS[scale] // 24)
    task = stand_ins.get(place.task, place.task) if scale == "small" else place.task
    return Place(**{**vars(place), "block": block, "task": task})
