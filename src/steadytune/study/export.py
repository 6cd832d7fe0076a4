"""A study as one flat table, for other programs: one row per trial, to CSV, JSONL or Parquet.

The columns are the same in all three; what is not a number or a name (recipe, history, versions, notes) is one cell of
JSON. A value that is missing or not a finite number is an empty cell in CSV and null in the others. The loss of every
step and the predictions are left out: they are in the ledger.

Spreadsheets take a cell that begins with = + - @, or with a tab or line break, for a formula, and names come from
files that others wrote. So in CSV a text cell that begins with one of these, or with an apostrophe, has an apostrophe
put before it; who reads the file in a program takes one away again. JSONL and Parquet hold the names as they are.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from steadytune.errors import SteadytuneError
from steadytune.study.flat_rows import Kind, kinds_of_columns, rows
from steadytune.study.new_file import new_file
from steadytune.study.results import StudyResults

FORMULA_STARTS = tuple("=+-@＝＋－＠\t\r\n'")


def export(results: StudyResults, path: str | Path) -> Path:
    """Write every trial of the study to `path`; the ending of its name says how: .csv, .jsonl or .parquet."""
    path = Path(path)
    write = WRITERS.get(path.suffix.lower())
    if write is None:
        raise SteadytuneError(f"{path.name} could be any format; end its name in {', '.join(WRITERS)}.")
    columns = kinds_of_columns(results)
    with new_file(path) as hidden:
        write(hidden, columns, rows(results))
    return path


def _write_csv(path: Path, columns: Mapping[str, Kind], found: Iterator[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([_csv_cell(name) for name in columns])
        writer.writerows([_csv_cell(value) for value in row.values()] for row in found)


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return value  # None becomes an empty cell; floats are written so that they read back equal
    guarded = f"'{value}" if value.startswith(FORMULA_STARTS) else value
    return guarded.replace("\0", "\N{REPLACEMENT CHARACTER}")  # many readers stop at a null


def _write_jsonl(path: Path, columns: Mapping[str, Kind], found: Iterator[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as stream:
        for row in found:
            stream.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def _write_parquet(path: Path, columns: Mapping[str, Kind], found: Iterator[dict[str, Any]]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SteadytuneError(
            "Parquet needs pyarrow, which is not installed: pip install 'steadytune[data]', or export to .csv or "
            ".jsonl."
        ) from error
    types = {
        "text": pyarrow.string(),
        "whole": pyarrow.int64(),
        "number": pyarrow.float64(),
        "yes or no": pyarrow.bool_(),
    }
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(found), schema=schema), path)


WRITERS: dict[str, Callable[[Path, Mapping[str, Kind], Iterator[dict[str, Any]]], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
