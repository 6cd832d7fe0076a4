"""From cells to labels: class names or numbers, and which of the two a column holds.

**Class names.** Integers, integral floats and texts such as "1.0" are all the class "1", so that 1 in a JSONL file,
1.0 in a pandas CSV and "1" in a TSV agree. True and False are the classes "True" and "False". White space
around a name does not count; case does; "01" stays "01". An empty cell, null or a float NaN is a missing label; the
words "NA", "none" and "null" are names like any other (Namibia exists).

**Class or number?** `decide` reads a column as numbers to regress when every label is a number and either some are
not whole (4.75) or there are more than 20 different ones. Otherwise as classes. It says which and why; the caller
can overrule it.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.tasks.base import Kind, at
from steadytune.tasks.files import Cell, Chunk

MOST_CLASSES = 20  # more different whole numbers than this read as a quantity
_WHOLE = re.compile(r"([+-]?\d+)\.0*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def class_name(cell: Cell) -> str | None:
    """The class a cell names, or None where the label is missing."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    name = str(cell).strip()
    if whole := _WHOLE.fullmatch(name):
        name = whole[1]
    if name in ("-0", "+0"):
        name = "0"
    return name or None


def number(cell: Cell) -> float | None:
    """The number in a cell; None where it is missing; ValueError where it is something else."""
    if cell is None or class_name(cell) is None:  # empty, or NaN
        return None
    if isinstance(cell, bool):
        raise ValueError(f"{cell} is a truth value, not a number")
    if isinstance(cell, str) and not _NUMBER.fullmatch(cell.strip()):
        comma = "; write a point for the decimal comma" if _NUMBER.fullmatch(cell.strip().replace(",", ".", 1)) else ""
        raise ValueError(f"{_short(cell)} is not a finite number{comma}")
    value = float(cell)
    if not math.isfinite(value):
        raise ValueError(f"{cell} is not a finite number")
    return value


def decide(chunk: Chunk, label: int) -> tuple[Kind, str]:
    """Class or number, by the rule above, with the reason as a sentence."""
    place = f"Column {chunk.columns[label]!r} of {chunk.file}"
    values: set[float] = set()
    word: str | None = None
    for row, cells in zip(chunk.numbers, chunk.cells):
        try:
            value = number(cells[label])
        except ValueError:
            word = word or f"{_short(str(cells[label]))} in row {row}"
            continue
        if value is not None:
            values.add(value)
    if word is not None:  # among numbers it may be a slip that turns a quantity into classes: say where it is
        names = f"names among its numbers, such as {word}" if values else "names"
        return "classification", f"{place} holds {names}, so it is read as classes."
    if any(not value.is_integer() for value in values):
        return "regression", f"{place} holds numbers with fractions, so it is read as a number to regress."
    if len(values) > MOST_CLASSES:
        return "regression", (
            f"{place} holds {len(values)} different whole numbers, more than {MOST_CLASSES}, so it is read as a number "
            "to regress; say kind='classification' (--kind classification) if they are classes."
        )
    return "classification", f"{place} holds {len(values)} different whole numbers, so it is read as classes."


def order(names: set[str]) -> tuple[str, ...]:
    """The fixed order of classes: integers by value, anything else by code point."""
    if all(re.fullmatch(r"[+-]?\d+", name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def find_classes(chunk: Chunk, label: int, why: str = "") -> tuple[str, ...]:
    """The classes of the training rows, refused where they cannot be learned from. `why` says what made them classes,
    for the error."""
    found = Counter(name for cells in chunk.cells if (name := class_name(cells[label])) is not None)
    place = at(chunk.file, column=chunk.columns[label])
    rows, classes = found.total(), len(found)
    if not classes:
        raise SteadytuneError(f"{place}: all {len(chunk.cells)} rows lack a label.")
    if classes == 1:
        raise SteadytuneError(f"{place}: all {rows} rows have the label {next(iter(found))!r}; two classes are needed.")
    if rows < 2 * classes:
        raise SteadytuneError(
            f"{place}: {rows} rows for {classes} classes is fewer than two each.{why and ' '}{why} Is this the label "
            "column? If it is a number, say kind='regression' (--kind regression); if a class, label more rows of each."
        )
    return order(set(found))


def encode(
    chunk: Chunk, label: int, classes: Sequence[str], drop: bool, trained: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """(indices of the rows kept, their class indices). `trained` names the file the classes come from, for the
    error."""
    index = {name: i for i, name in enumerate(classes)}
    names = [class_name(cells[label]) for cells in chunk.cells]
    kept = _present(chunk, label, [name is not None for name in names], drop)
    for i in kept:
        if names[i] not in index:
            near = difflib.get_close_matches(str(names[i]), classes, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            shown = ", ".join(map(repr, classes[:10])) + (", ..." if len(classes) > 10 else "")
            whose = f"the training rows in {trained}" if trained else "the task"
            raise SteadytuneError(
                f"{at(chunk.file, chunk.numbers[i], chunk.columns[label])}: the label {_short(str(names[i]))} is not "
                f"among the classes of {whose}: {shown}.{hint}"
            )
    return kept, np.array([index[str(names[i])] for i in kept], dtype=np.int64)


def encode_numbers(chunk: Chunk, label: int, drop: bool) -> tuple[np.ndarray, np.ndarray]:
    """(indices of the rows kept, their numbers)."""
    values: list[float | None] = []
    for row, cells in zip(chunk.numbers, chunk.cells):
        try:
            values.append(number(cells[label]))
        except ValueError as error:
            raise SteadytuneError(f"{at(chunk.file, row, chunk.columns[label])}: {error}.") from None
    kept = _present(chunk, label, [value is not None for value in values], drop)
    return kept, np.array([values[i] for i in kept], dtype=np.float64)


def _present(chunk: Chunk, label: int, present: list[bool], drop: bool) -> np.ndarray:
    """The rows that have a label; others are refused unless they may be dropped."""
    missing = [number for number, there in zip(chunk.numbers, present) if not there]
    if missing and not drop:
        more = f" (and in {len(missing) - 1} more rows: {', '.join(map(str, missing[1:6]))} ...)" if missing[1:] else ""
        raise SteadytuneError(
            f"{at(chunk.file, missing[0], chunk.columns[label])}: the label is missing{more}. Fill it in, or leave "
            "such rows out with missing='drop' (--missing drop)."
        )
    return np.flatnonzero(present)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
