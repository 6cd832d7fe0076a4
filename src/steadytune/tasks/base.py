"""What is learned, from which rows, and against what: Task, Rows, Data. Plain frozen dataclasses, numpy only.

A `Task` says what is learned and how it is scored, and holds no data, so it can be saved beside a model.
`Rows` is one split. `Data` is a task with its splits, its baselines, and notes on what is odd about the files.

Scores: accuracy, F1, MCC and the correlations are fractions (0.529, not 52.9); BLEU and ROUGE are 0-100 as their tools
print them; perplexity and RMSE are what they are, and smaller is better (`Task.greater_is_better`).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.tasks.metrics import METRICS, f1

Kind = Literal["classification", "regression", "image", "translation", "summarization", "language-model"]
SPLITS = ("train", "validation", "test")
PART_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


def at(file: object, row: int | None = None, column: str | None = None) -> str:
    """The place an error is about: `reviews.csv, row 17, column 'label'`."""
    place = str(file)
    if row is not None:
        place += f", row {row}"
    if column is not None:
        place += f", column {column!r}"
    return place


@dataclass(frozen=True)
class Task:
    """What is learned and how it is scored. `labels` is the order of the model's outputs:

    integers in numeric order, anything else by Unicode code point; so it depends on the set of classes only, never on
    the order of a file. The eight GLUE tasks come out in the order of their public processors.
    """

    name: str
    kind: Kind
    metric: str
    labels: tuple[str, ...] = ()  # class names; empty unless kind is classification or image
    text_columns: tuple[str, ...] = ()  # the columns a row's texts come from, in order (one, or two for pairs)
    label_column: str = ""  # the column the label, number or target text comes from
    positive: str | None = None  # the class F1 is about; the last of two when not said

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise SteadytuneError(f"Task kind {self.kind!r} is not one of {', '.join(get_args(Kind))}.")
        if self.metric not in METRICS:
            raise SteadytuneError(f"Metric {self.metric!r} is not one of {', '.join(METRICS)}.")
        if self.kind not in METRICS[self.metric].kinds:
            fitting = ", ".join(name for name, metric in METRICS.items() if self.kind in metric.kinds)
            raise SteadytuneError(f"Metric {self.metric!r} does not score a {self.kind} task; choose from {fitting}.")
        if self.metric == "f1":
            if len(self.labels) != 2:
                raise SteadytuneError(
                    f"F1 needs two classes and {self.name} has {len(self.labels)}; use macro_f1 or accuracy."
                )
            if self.positive is None:
                object.__setattr__(self, "positive", self.labels[1])
        if self.positive is not None and self.positive not in self.labels:
            raise SteadytuneError(f"The positive class {self.positive!r} is not among {', '.join(self.labels)}.")

    @property
    def greater_is_better(self) -> bool:
        return METRICS[self.metric].greater_is_better

    def score(self, labels: Any, predictions: Any) -> float:
        """The task's metric: class indices or numbers for labels, texts for translation and summaries; for a language
        model, tokens per row and the summed negative log-likelihood per row."""
        if self.metric == "f1" and self.positive is not None:
            return f1(labels, predictions, positive=self.labels.index(self.positive))
        return METRICS[self.metric].compute(labels, predictions)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "Task":
        """The inverse of as_dict, also after a trip through JSON (where tuples come back as lists)."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()
        }
        return cls(**fields)


@dataclass(frozen=True, eq=False)
class Source:
    """Where rows came from, so that errors and predictions can name them."""

    file: str
    numbers: np.ndarray  # row numbers in the file: 1-based line numbers; position in the file for parquet and images
    names: tuple[str, ...] | None = None  # image file names, where a row is a file

    def where(self, index: int) -> str:
        if self.names is not None:
            return f"{self.file}, {self.names[index]}"
        return at(self.file, int(self.numbers[index]))

    def take(self, indices: np.ndarray) -> "Source":
        names = None if self.names is None else tuple(self.names[i] for i in indices)
        return Source(self.file, self.numbers[indices], names)


@dataclass(frozen=True, eq=False)
class Rows:
    """One split. Inputs are `texts` or `images`; what is learned is `labels` or `targets`, or the text itself."""

    source: Source
    texts: Sequence[tuple[str, ...]] = ()  # one tuple per row, one text per column of Task.text_columns
    images: np.ndarray | None = None  # uint8, [rows, height, width] or [rows, height, width, 3]
    labels: np.ndarray | None = None  # int64 indices into Task.labels, or float64 numbers
    targets: Sequence[str] | None = None  # reference translations or summaries

    def __post_init__(self) -> None:
        sizes = {len(self.source.numbers), len(self.texts) if self.images is None else len(self.images)}
        sizes |= {len(part) for part in (self.labels, self.targets) if part is not None}
        if len(sizes) != 1:
            raise SteadytuneError(f"{self.source.file}: inputs and labels differ in length {sorted(sizes)}.")

    def __len__(self) -> int:
        return len(self.source.numbers)

    def take(self, indices: Sequence[int] | np.ndarray) -> "Rows":
        """The rows at these positions, in this order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return Rows(
            source=self.source.take(chosen),
            texts=[self.texts[i] for i in chosen] if self.images is None else (),
            images=None if self.images is None else self.images[chosen],
            labels=None if self.labels is None else self.labels[chosen],
            targets=None if self.targets is None else [self.targets[i] for i in chosen],
        )

    def inputs(self) -> list[Any]:
        """One hashable value per row, equal exactly when the inputs are: what duplicates and leaks are counted by."""
        if self.images is None:
            return list(self.texts)
        return [hashlib.sha256(image.tobytes()).digest() for image in self.images]

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over what training sees, in order: texts, pixels, labels and targets. Not the file's name, format,
        row numbers or other columns, so the same rows as csv and as parquet have the same fingerprint."""
        columns = len(self.texts[0]) if len(self.texts) else 0
        digest = hashlib.sha256(f"steadytune rows 1: {len(self)} rows, {columns} texts\n".encode())
        for texts in self.texts:
            for text in texts:
                _add_text(digest, text)
        for part in (self.images, self.labels):
            if part is not None:
                digest.update(f"{part.dtype.str} {part.shape}\n".encode())
                digest.update(np.ascontiguousarray(part).tobytes())
        for target in self.targets or ():
            _add_text(digest, target)
        return digest.hexdigest()


def _add_text(digest: Any, text: str) -> None:
    """The length goes first, so that ("ab", "c") and ("a", "bc") differ."""
    raw = text.encode()
    digest.update(len(raw).to_bytes(8, "little") + raw)


@dataclass(frozen=True)
class Leak:
    """Rows of a later split whose input stands in an earlier one too."""

    earlier: str
    later: str
    rows: int
    examples: tuple[str, ...]  # the first few, as places in their file


@dataclass(frozen=True)
class Notes:
    """What is odd about the data. Counted and reported; files are never repaired."""

    duplicates: int = 0  # rows of train whose input already stood earlier in train
    conflicts: int = 0  # those of them that carry another label than the first
    empty: int = 0  # rows of train with nothing but white space in every text
    leaks: tuple[Leak, ...] = ()
    said: tuple[str, ...] = ()  # what was decided while reading, in sentences

    def sentences(self) -> list[str]:
        lines = list(self.said)
        if self.duplicates:
            lines.append(
                f"{self.duplicates} training rows repeat an earlier row, {self.conflicts} of them with another answer."
            )
        if self.empty:
            lines.append(f"{self.empty} training rows have no text at all.")
        for leak in self.leaks:
            places = "; ".join(leak.examples)
            lines.append(f"{leak.rows} {leak.later} rows also stand in {leak.earlier}: {places}{_more(leak)}.")
        return lines


def _more(leak: Leak) -> str:
    return "" if leak.rows == len(leak.examples) else f" and {leak.rows - len(leak.examples)} more"


@dataclass(frozen=True)
class Baseline:
    """What one gets without learning; a run that is not better has failed (V3, X3)."""

    name: str
    validation: float | None = None
    test: float | None = None


@dataclass(frozen=True, eq=False)
class Data:
    """A task with its splits. `baselines[0]` is the one to beat."""

    task: Task
    train: Rows
    validation: Rows | None = None
    test: Rows | None = None
    notes: Notes = field(default_factory=Notes)
    baselines: tuple[Baseline, ...] = ()

    def splits(self) -> dict[str, Rows]:
        """The splits there are, by name, in the order train, validation, test."""
        parts = zip(SPLITS, (self.train, self.validation, self.test))
        return {name: rows for name, rows in parts if rows is not None}

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(b"steadytune data 1\n")
        for label in self.task.labels:
            _add_text(digest, label)
        for name, rows in self.splits().items():
            digest.update(f"{name} {rows.fingerprint}\n".encode())
        return digest.hexdigest()
