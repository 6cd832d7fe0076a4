"""Tables that carry types: JSONL, Parquet, and Hugging Face datasets (a save_to_disk directory, or
hub:owner/name:config).

Rows are numbered from 1: lines of a JSONL file, positions in the others. pyarrow and datasets are imported only when
such a file is read. Datasets' class labels come as their names, so that 0/1 in one file and names in another do not
disagree.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from steadytune.errors import SteadytuneError
from steadytune.tasks.base import PART_NAMES, at
from steadytune.tasks.lines import Line, read_lines

JSON = (".jsonl", ".ndjson", ".json")
PARQUET = (".parquet", ".pq")
HUB = "hub:"
_FIRST = 1000  # objects of a JSONL file whose keys are its columns


class _Twice(Exception):
    """A key that stands twice in one object; json would silently keep the last."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _Twice(next(key for key in keys if keys.count(key) > 1))
    return found


def _parse(path: str | Path, line: Line) -> dict[str, Any]:
    try:
        found = json.loads(line.text, object_pairs_hook=_pairs)
    except _Twice as twice:
        raise SteadytuneError(f"{at(path, line.number, str(twice))}: the key stands twice in one object.") from twice
    except (ValueError, RecursionError) as error:
        if line.damage:
            raise SteadytuneError(f"{at(path, line.number)}: {line.damage}.") from error
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SteadytuneError(f"{at(path, line.number)} is not a JSON object on one line: {why}.") from error
    if not isinstance(found, dict):
        raise SteadytuneError(
            f"{at(path, line.number)} is JSON, but not an object: one {{...}} per line is needed, with columns as keys."
        )
    if line.damage:
        bad = next((key for key, value in found.items() if _damaged(value)), None)
        raise SteadytuneError(f"{at(path, line.number, bad)}: {line.damage}.")
    return found


def _damaged(value: Any) -> bool:
    return isinstance(value, str) and any("\udc80" <= character <= "\udcff" for character in value)


def _objects(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for line in read_lines(path):
        if line.text.strip():
            yield line.number, _parse(path, line)


def json_names(path: str | Path) -> list[str]:
    """The keys of the first objects, in the order in which they come up: many writers leave out what is null."""
    first = [found for _, found in itertools.islice(_objects(path), _FIRST)]
    if not first:
        raise SteadytuneError(f"{path} is empty.")
    return list(dict.fromkeys(key for found in first for key in found))


def json_rows(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """A key that an object lacks is null there, as in pandas and datasets."""
    for number, found in _objects(path):
        yield number, tuple(found.get(column) for column in columns)


def is_datasets_directory(path: Path) -> bool:
    return (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists()


def arrow_parts(path: str | Path, kind: str) -> list[str]:
    """The split names of a datasets directory or hub dataset, as they stand there."""
    dataset = _open_dataset(path, kind)
    return list(dataset) if isinstance(dataset, dict) else ["train"]


def arrow_names(path: str | Path, kind: str, part: str | None) -> list[str]:
    if kind == "parquet":
        return list(_open_parquet(path).schema_arrow.names)
    return list(_open_part(path, kind, part).column_names)


def arrow_rows(
    path: str | Path, kind: str, columns: Sequence[str], part: str | None, chunk: int
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    number = 0
    for block in (
        _parquet_blocks(path, columns, chunk) if kind == "parquet" else _blocks(path, kind, columns, part, chunk)
    ):
        for cells in zip(*(block[column] for column in columns)):
            number += 1
            yield number, tuple(float(cell) if isinstance(cell, Decimal) else cell for cell in cells)


def _open_parquet(path: str | Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SteadytuneError(f"{path}: Parquet needs pyarrow: pip install steadytune[data].") from error
    if not Path(path).stat().st_size:
        raise SteadytuneError(f"{path} is empty.")
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise SteadytuneError(f"{path} is not a whole Parquet file ({error}); copy or write it again.") from error


def _parquet_blocks(path: str | Path, columns: Sequence[str], chunk: int) -> Iterator[dict[str, list[Any]]]:
    import pyarrow

    file = _open_parquet(path)
    try:
        for batch in file.iter_batches(batch_size=chunk, columns=list(dict.fromkeys(columns))):
            yield batch.to_pydict()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SteadytuneError(f"{path} is damaged ({error}); copy or write it again.") from error


def _open_dataset(path: str | Path, kind: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise SteadytuneError(f"{path}: this needs the datasets package: pip install steadytune[data].") from error
    name, _, config = str(path).removeprefix(HUB).partition(":")
    try:
        # Neither call runs code of the dataset's author: current versions read data files only.
        return datasets.load_dataset(name, config or None) if kind == "hub" else datasets.load_from_disk(str(path))
    except Exception as error:  # the hub client has dozens of errors, and none of them names what the user typed
        what = "could not be fetched from the hub" if kind == "hub" else "could not be read"
        raise SteadytuneError(f"{path} {what}: {type(error).__name__}: {error}") from error


def _open_part(path: str | Path, kind: str, part: str | None) -> Any:
    dataset = _open_dataset(path, kind)
    if not isinstance(dataset, dict):
        return dataset
    wanted = PART_NAMES.get(part or "train", (part,))
    for name in wanted:
        if name in dataset:
            return dataset[name]
    raise SteadytuneError(f"{path} has no split {part or 'train'!r}; it has {', '.join(map(str, dataset))}.")


def _blocks(
    path: str | Path, kind: str, columns: Sequence[str], part: str | None, chunk: int
) -> Iterator[dict[str, list[Any]]]:
    dataset = _open_part(path, kind, part).select_columns(list(dict.fromkeys(columns)))
    names = {column: getattr(dataset.features[column], "names", None) for column in columns}
    for start in range(0, len(dataset), chunk):
        block = dict(dataset[start : start + chunk])
        for column, classes in names.items():
            if classes:  # -1 is how datasets write "no label"
                block[column] = [None if i is None or i < 0 else classes[i] for i in block[column]]
        yield block
