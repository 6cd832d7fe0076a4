"""Rows of a table, in chunks of bounded memory: CSV, TSV, JSONL, Parquet, a `datasets` directory or hub name.

`iter_rows` is the one way in; `read_rows` collects it. Columns are asked for by name. A cell is text, a number, a truth
value or None; anything that cannot be a text or a label is refused with its file, row and column.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from steadytune.errors import SteadytuneError
from steadytune.tasks import delimited, records
from steadytune.tasks.base import PART_NAMES, SPLITS, at
from steadytune.tasks.lines import MAX_CELL, read_lines, suffix_of

Cell: TypeAlias = str | int | float | bool | None
DELIMITED = (".csv", ".tsv", ".tab", ".txt")
SUFFIXES = (*DELIMITED, *records.JSON, *records.PARQUET)


@dataclass(frozen=True)
class Format:
    """How to read a delimited file, where the rules in `delimited` should not decide."""

    delimiter: str | None = None
    quoted: bool | None = None
    header: tuple[str, ...] | None = None  # the column names of a file that has no header line
    skip_ragged: bool = False  # leave out rows with too few or too many cells, instead of refusing the file


AUTO = Format()


@dataclass(frozen=True)
class Chunk:
    """Some rows of a file, in order. `cells[i]` are the asked-for columns of the row numbered `numbers[i]`."""

    file: str
    columns: tuple[str, ...]
    numbers: list[int] = field(default_factory=list)
    cells: list[tuple[Cell, ...]] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)  # ragged rows left out on request


def column_names(path: str | Path, format: Format = AUTO, part: str | None = None) -> list[str]:
    """The columns of a file, in order; of a JSONL file, the keys of its first objects."""
    kind = _kind(path)
    if kind == "delimited":
        return _open_delimited(path, format)[0]
    return records.json_names(path) if kind == "json" else records.arrow_names(path, kind, part)


def iter_rows(
    path: str | Path,
    columns: Sequence[str],
    *,
    chunk: int = 1000,
    format: Format = AUTO,
    part: str | None = None,
) -> Iterator[Chunk]:
    """The rows of a file, `chunk` at a time. `part` names the split inside a datasets directory or hub dataset."""
    kind = _kind(path)
    names = column_names(path, format, part)
    find_columns(path, names, columns)
    file = str(path) if part is None else f"{path} [{part}]"
    if kind == "delimited":
        rows = _delimited_rows(path, columns, format)
    elif kind == "json":
        rows = records.json_rows(path, columns)
    else:
        rows = records.arrow_rows(path, kind, columns, part, chunk)
    current = Chunk(file, tuple(columns))
    seen = False
    for number, cells in rows:
        if cells is None:
            current.skipped.append(number)
            continue
        seen = True
        current.numbers.append(number)
        current.cells.append(tuple(_checked(file, number, name, cell) for name, cell in zip(columns, cells)))
        if len(current.numbers) == chunk:
            yield current
            current = Chunk(file, tuple(columns))
    if not seen:
        raise SteadytuneError(f"{file} has columns {', '.join(names[:8])} but no rows.")
    if current.numbers or current.skipped:
        yield current


def read_rows(path: str | Path, columns: Sequence[str], *, format: Format = AUTO, part: str | None = None) -> Chunk:
    """All rows at once."""
    chunks = iter_rows(path, columns, format=format, part=part)
    whole = next(chunks)  # there is one: no rows is an error
    for some in chunks:
        whole.numbers.extend(some.numbers)
        whole.cells.extend(some.cells)
        whole.skipped.extend(some.skipped)
    return whole


def find_columns(file: object, names: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Positions of the wanted columns; a missing one is an error with the nearest name."""
    positions = []
    for name in wanted:
        count = list(names).count(name)
        if count > 1:
            raise SteadytuneError(f"{at(file, 1, name)}: {count} columns have this name; rename all but one.")
        if not count:
            lower = {other.lower(): other for other in names}
            near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
            hint = f" Did you mean {lower[near[0]]!r}?" if near else ""
            shown = ", ".join(repr(other if len(other) <= 40 else other[:40] + "...") for other in names[:20])
            raise SteadytuneError(f"{at(file, 1)}: there is no column {name!r}.{hint} The columns are {shown}.")
        positions.append(list(names).index(name))
    return positions


def find_part(directory: Path, part: str, suffixes: Sequence[str]) -> Path | None:
    """The file of a split in a directory: train.csv, valid.txt.gz, ... None where there is none."""
    found = [
        path
        for stem in PART_NAMES[part]
        for path in sorted(directory.glob(f"{stem}.*"))
        if path.name.removeprefix(stem).removesuffix(".gz").lower() in suffixes
    ]
    if len(found) > 1:
        raise SteadytuneError(f"{directory} holds more than one {part} file: {', '.join(p.name for p in found)}.")
    return found[0] if found else None


def parts(path: str | Path) -> list[str]:
    """The splits inside a datasets directory or hub dataset, named as here; [] for a plain file."""
    kind = _kind(path)
    names = records.arrow_parts(path, kind) if kind in ("datasets", "hub") else []
    return [split for split in SPLITS if any(name in PART_NAMES[split] for name in names)]


def _kind(path: str | Path) -> str:
    if str(path).startswith(records.HUB):
        return "hub"
    if Path(path).is_dir():
        if records.is_datasets_directory(Path(path)):
            return "datasets"
        raise SteadytuneError(f"{path} is a directory, and not one that datasets' save_to_disk wrote; name a file.")
    if not Path(path).exists():
        raise SteadytuneError(
            f"{path} does not exist. If a dataset of the Hugging Face hub is meant, write hub:owner/name."
        )
    suffix = suffix_of(path)
    for kind, suffixes in (("delimited", DELIMITED), ("json", records.JSON), ("parquet", records.PARQUET)):
        if suffix in suffixes:
            return kind
    raise SteadytuneError(f"{path}: cannot tell the format from {suffix!r}; use one of {', '.join(SUFFIXES)}.")


def _open_delimited(path: str | Path, format: Format) -> tuple[list[str], Iterator[delimited.Record]]:
    """Column names, and the records after them."""
    delimiter = format.delimiter or delimited.find_delimiter(path)
    quoted = delimited.find_quoted(path, delimiter) if format.quoted is None else format.quoted
    if format.header is not None:
        return list(format.header), delimited.records(read_lines(path), path, delimiter, quoted, format.header)
    first = next(delimited.records(read_lines(path), path, delimiter, quoted), None)
    if first is None:
        raise SteadytuneError(f"{path} is empty.")
    if first.damage:
        raise SteadytuneError(f"{at(path, first.number)}: in the header, {first.damage}.")
    names = [name.strip() for name in first.cells]
    rows = delimited.records(read_lines(path), path, delimiter, quoted, names)
    next(rows)
    return names, rows


def _delimited_rows(
    path: str | Path, columns: Sequence[str], format: Format
) -> Iterator[tuple[int, tuple[Cell, ...] | None]]:
    names, rows = _open_delimited(path, format)
    positions = find_columns(path, names, columns)
    for record in rows:
        cells = record.cells
        if record.damage:
            bad = next((i for i, cell in enumerate(cells) if _has_surrogate(cell)), 0)
            column = names[bad] if bad < len(names) else f"number {bad + 1}"
            raise SteadytuneError(f"{at(path, record.number, column)}: {record.damage}.")
        if len(cells) != len(names):
            if format.skip_ragged:
                yield record.number, None
                continue
            missing = f"nothing for column {names[len(cells)]!r}" if len(cells) < len(names) else "some left over"
            raise SteadytuneError(
                f"{at(path, record.number)} has {len(cells)} cells where the header has {len(names)}, so there is "
                f"{missing}. Quote cells that hold the delimiter, or leave ragged rows out with skip_ragged "
                "(--skip-ragged)."
            )
        yield record.number, tuple(cells[position] for position in positions)


def _checked(file: str, number: int, column: str, cell: object) -> Cell:
    """A cell that can be a text or a label, or a sentence that says why not."""
    if cell is None or isinstance(cell, (bool, int, float)):
        return cell
    if not isinstance(cell, str):
        what = {"dict": "an object", "list": "a list", "bytes": "bytes"}.get(type(cell).__name__, type(cell).__name__)
        raise SteadytuneError(f"{at(file, number, column)}: the cell is {what}; a text or a number is needed.")
    if len(cell) > MAX_CELL:
        raise SteadytuneError(
            f"{at(file, number, column)}: the cell has {len(cell):,} characters, more than {MAX_CELL:,}; cut it, or "
            "look for a quote that is never closed."
        )
    if "\0" in cell:
        raise SteadytuneError(f"{at(file, number, column)}: the cell holds a NUL byte; is this a text file?")
    if not cell.isascii() and _has_surrogate(cell):
        raise SteadytuneError(f"{at(file, number, column)}: the cell holds half a surrogate pair, which is not text.")
    return cell


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
