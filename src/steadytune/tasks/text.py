"""Text classification and regression from the files a user has: `load` for training, `iter_texts` for predicting.

data = text.load("reviews.csv", text="text", label="label")                         # splits it, stratified
data = text.load("train.tsv", text=["premise", "hypothesis"], label="gold", validation="dev.tsv", test=None)
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.tasks import baselines, checks, labels, splits
from steadytune.tasks.base import SPLITS, Data, Kind, Rows, Source, Task, at
from steadytune.tasks.files import AUTO, SUFFIXES, Chunk, Format, find_part, iter_rows, parts, read_rows
from steadytune.tasks.metrics import DEFAULT_METRIC
from steadytune.tasks.records import HUB, is_datasets_directory

Place = str | Path


def load(
    train: Place,
    *,
    text: str | Sequence[str],
    label: str,
    validation: Place | float | None = 0.15,
    test: Place | float | None = 0.15,
    kind: Kind | None = None,
    classes: Sequence[str] | None = None,
    metric: str | None = None,
    positive: str | None = None,
    split: int = 0,
    missing: Literal["error", "drop"] = "error",
    format: Format = AUTO,
    name: str | None = None,
) -> Data:
    """Rows of a CSV, TSV, JSONL or Parquet file, a datasets directory or `hub:owner/name`, as a classification or
    regression task.

    validation, test: a file of their own, or a fraction of the training file (of all its rows; stratified by class,
    drawn from the stream `split`), or None for no such split. A directory or hub dataset that has its own validation
    or test split is used with it. kind: decided by the rule in `labels` when not said. classes: the class names in
    model order, when they are not to be taken from the training rows.
    """
    columns = (text,) if isinstance(text, str) else tuple(text)
    if not columns or label in columns or len(set(columns)) != len(columns):
        raise SteadytuneError(f"Text columns {columns} and label column {label!r} should be different columns.")
    if missing not in ("error", "drop"):
        raise SteadytuneError(f"missing is {missing!r}; it should be 'error' or 'drop'.")
    wanted: dict[str, Place | float | None] = {"train": train, "validation": validation, "test": test}
    chunks = {
        part: read_rows(place, (*columns, label), format=format, part=inside)
        for part, (place, inside) in _places(wanted).items()
    }
    said: list[str] = []
    last = len(columns)
    for part in ("validation", "test"):  # some datasets carry a test split whose labels are kept secret
        bare = part in chunks and all(labels.class_name(cells[last]) is None for cells in chunks[part].cells)
        if bare and not isinstance(wanted[part], (str, Path)):
            said.append(f"{chunks.pop(part).file} has no labels and was left aside.")
    why = ""
    if kind is None and classes is None:
        kind, why = labels.decide(chunks["train"], last)
        said.append(why)
    kind = kind or "classification"
    if kind not in ("classification", "regression"):
        raise SteadytuneError(f"A {kind} task is not read from text and label columns; see the module of that name.")
    names: tuple[str, ...] = ()
    if kind == "classification":
        names = tuple(classes) if classes is not None else labels.find_classes(chunks["train"], last, why)
    task = Task(
        name=name or Path(str(train)).stem or str(train),
        kind=kind,
        metric=metric or DEFAULT_METRIC[kind],
        labels=names,
        text_columns=columns,
        label_column=label,
        positive=positive,
    )
    trained = chunks["train"].file
    found = {part: label_rows(task, chunk, missing == "drop", said, trained) for part, chunk in chunks.items()}
    found = cut(found, wanted, split)
    if kind == "classification":
        counts = np.bincount(np.asarray(found["train"].labels), minlength=len(names)).tolist()
        said += [f"The class {name!r} has {n} training rows." for name, n in zip(names, counts) if n < 2]
    return finish(task, found, said)


def label_rows(task: Task, chunk: Chunk, drop: bool, said: list[str], trained: str = "") -> Rows:
    """Rows from a chunk whose last column is the label; what was left out is added to `said`."""
    last = len(task.text_columns)
    if task.kind == "regression":
        kept, values = labels.encode_numbers(chunk, last, drop)
    else:
        kept, values = labels.encode(chunk, last, task.labels, drop, trained)
    if not len(kept):
        raise SteadytuneError(f"{at(chunk.file, column=task.label_column)}: all {len(chunk.cells)} rows lack a label.")
    if len(kept) < len(chunk.cells):
        said.append(f"{len(chunk.cells) - len(kept)} rows of {chunk.file} without a label were left out.")
    if chunk.skipped:
        said.append(
            f"{len(chunk.skipped)} ragged rows of {chunk.file} were left out, the first in row {chunk.skipped[0]}."
        )
    texts = as_texts(chunk, last)
    if not any(cell.strip() for row in texts for cell in row):
        raise SteadytuneError(f"{at(chunk.file, column=task.text_columns[0])}: no row has any text.")
    source = Source(chunk.file, np.array(chunk.numbers, dtype=np.int64))
    return Rows(source.take(kept), texts=[texts[i] for i in kept], labels=values)


def as_texts(chunk: Chunk, columns: int) -> list[tuple[str, ...]]:
    """The first `columns` cells of every row as texts. Numbers become digits, null and NaN an empty text."""
    return [tuple(_text(chunk, row, i) for i in range(columns)) for row in range(len(chunk.cells))]


def _text(chunk: Chunk, row: int, column: int) -> str:
    cell = chunk.cells[row][column]
    if isinstance(cell, bool):
        place = at(chunk.file, chunk.numbers[row], chunk.columns[column])
        raise SteadytuneError(f"{place}: the cell is a truth value; a text is needed.")
    return "" if cell is None or cell != cell else str(cell)  # NaN is how pandas has a text that is missing


def iter_texts(
    path: Place, columns: Sequence[str], *, chunk: int = 1000, format: Format = AUTO, part: str | None = None
) -> Iterator[tuple[list[int], list[tuple[str, ...]]]]:
    """(row numbers, texts) in chunks, for predicting on files larger than memory. No label column is needed."""
    for some in iter_rows(path, columns, chunk=chunk, format=format, part=part):
        yield some.numbers, as_texts(some, len(columns))


def cut(found: dict[str, Rows], wanted: dict[str, Place | float | None], split: int) -> dict[str, Rows]:
    """Takes the splits asked for as fractions out of train; those that have rows of their own stay as they are."""
    whole = found["train"]
    sizes = {}
    for part in ("validation", "test"):
        share = wanted[part]
        fraction = share if isinstance(share, (int, float)) and part not in found else 0.0
        sizes[part] = splits.size(len(whole), fraction, part)
    if not any(sizes.values()):
        return found
    by_class = whole.labels if whole.labels is not None and whole.labels.dtype.kind == "i" else None
    classes = 1 if by_class is None else len(np.unique(by_class))
    if len(whole) - sum(sizes.values()) < classes:
        raise SteadytuneError(
            f"{whole.source.file}: {len(whole)} rows less {sizes['validation']} for validation and {sizes['test']} for "
            f"test leaves fewer rows than the {classes} classes; label more rows, or give files of their own."
        )
    train, validation, test = splits.stratified(by_class, whole.inputs(), sizes["validation"], sizes["test"], split)
    result = dict(found)
    result["train"] = whole.take(train)
    for part, indices in (("validation", validation), ("test", test)):
        if sizes[part]:
            if not len(indices):
                different = len(set(whole.inputs()))
                equal = f", {different} of them different," if different < len(whole) else ""
                raise SteadytuneError(
                    f"{whole.source.file}: {len(whole)} rows{equal} are too few to take a {part} split from, in which "
                    f"equal rows stay together. Label more rows, or give a {part} file."
                )
            result[part] = whole.take(indices)
    return {part: result[part] for part in SPLITS if part in result}


def finish(task: Task, found: dict[str, Rows], said: Sequence[str] = ()) -> Data:
    """Data from splits: examined, and with its baselines computed."""
    notes = checks.examine(found, tuple(said))
    return Data(
        task=task,
        train=found["train"],
        validation=found.get("validation"),
        test=found.get("test"),
        notes=notes,
        baselines=baselines.compute(task, found),
    )


def _places(wanted: dict[str, Place | float | None]) -> dict[str, tuple[Place, str | None]]:
    """Where each split is read from: (path, part inside it)."""
    train = str(wanted["train"])
    places: dict[str, tuple[Place, str | None]] = {}
    directory = Path(train)
    if not train.startswith(HUB) and directory.is_dir() and not is_datasets_directory(directory):
        for part in SPLITS:
            if path := find_part(directory, part, SUFFIXES):
                places[part] = (path, None)
        if "train" not in places:
            raise SteadytuneError(f"{train} holds no train file ({', '.join('train' + s for s in SUFFIXES[:3])}, ...).")
    else:
        inside = parts(train)
        places["train"] = (train, "train" if inside else None)
        places |= {part: (train, part) for part in inside if part != "train"}
    for part in ("validation", "test"):
        place = wanted[part]
        if place is None:
            places.pop(part, None)
        elif isinstance(place, (str, Path)):
            places[part] = (place, None)
    return {part: places[part] for part in SPLITS if part in places}
