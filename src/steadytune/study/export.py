"""A study as one flat table, for other programs: one row per trial, to CSV, JSONL or Parquet.

The columns are the same in all three; what is not a number or a name (recipe, history, versions, notes) is one cell of
JSON. A value that is missing or not a finite number is an empty cell in CSV and null in the others. The loss of every
step and the predictions are left out: they are in the ledger.

Spreadsheets take a cell that begins with = + - @, or with a tab or line break, for a formula, and names come from
files that others wrote. So in CSV a text cell that begins with one of these, or with an apostrophe, has an apostrophe
put before it; who reads the file in a program takes one away again. JSONL and Parquet hold the names as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
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
        stream.write(_csv_line(columns))
        stream.writelines(_csv_line(row.values()) for row in found)


def _csv_line(cells: Iterable[Any]) -> str:
    return ",".join(_csv_cell(cell) for cell in cells) + "\n"


def _csv_cell(value: Any) -> str:
    """Quoted where it must be. (The writer of Python 3.11 forgets a lone carriage return.)"""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(value)  # true, false, and numbers such that they read back equal
    text = f"'{value}" if value.startswith(FORMULA_STARTS) else value
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")  # many readers stop at a null
    return '"' + text.replace('"', '""') + '"' if any(each in text for each in ',"\r\n') else text


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
