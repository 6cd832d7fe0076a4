"""The eight GLUE tasks as their files lie on disk, with the few-sample paper's splits (V7, V8, D11).

    data = glue.load("glue", "RTE")                    # train; the dev file halved into validation and test (138/139)
    data = glue.load("glue", "SST-2", rows=1000)       # 1k of train; 1k others of train validate, dev tests
    data = glue.load("glue", "CoLA", halves=False)     # the mixout paper's way (M17): validate on the dev file, no test

Small tasks (RTE, MRPC, CoLA, STS-B) halve their dev file; large ones take 1,000 class-balanced rows of train to
validate and keep the dev file for test. `rows` draws that many class-balanced training rows. Each split is fixed,
and for classes it is the public code's row for row; see `splits`. Files are never quoted; BOMs, missing last
newlines and CoLA's missing header are as they are in the wild.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.tasks import splits
from steadytune.tasks.base import Data, Kind, Rows, Task
from steadytune.tasks.files import Format, read_rows
from steadytune.tasks.text import finish, label_rows

VALIDATION_ROWS = 1000  # taken from the train file of a large task


@dataclass(frozen=True)
class Glue:
    """One GLUE task: its columns, metric, classes, and the sizes of the official files."""

    text: tuple[str, ...]
    label: str
    metric: str
    labels: tuple[str, ...]
    train_rows: int
    dev_rows: int
    small: bool = False  # fewer than 10k training rows: the dev file is halved
    dev: str = "dev.tsv"
    header: tuple[str, ...] | None = None

    @property
    def kind(self) -> Kind:
        return "classification" if self.labels else "regression"


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_BINARY = ("0", "1")

TASKS: dict[str, Glue] = {
    "RTE": Glue(_PAIR, "label", "accuracy", _ENTAILMENT, 2490, 277, small=True),
    "MRPC": Glue(("#1 String", "#2 String"), "Quality", "f1", _BINARY, 3668, 408, small=True),
    "STS-B": Glue(_PAIR, "score", "spearman", (), 5749, 1500, small=True),
    "CoLA": Glue(
        ("sentence",), "label", "mcc", _BINARY, 8551, 1043, small=True, header=("source", "label", "note", "sentence")
    ),
    "SST-2": Glue(("sentence",), "label", "accuracy", _BINARY, 67349, 872),
    "QNLI": Glue(("question", "sentence"), "label", "accuracy", _ENTAILMENT, 104743, 5463),
    "QQP": Glue(("question1", "question2"), "is_duplicate", "accuracy", _BINARY, 363846, 40430),
    "MNLI": Glue(
        _PAIR,
        "gold_label",
        "accuracy",
        ("contradiction", "entailment", "neutral"),
        392702,
        9815,
        dev="dev_matched.tsv",
    ),
}


def detect(directory: str | Path) -> str | None:
    """The task a folder holds, by its name and files; None when it is no GLUE folder."""
    directory = Path(directory)
    for name, glue in TASKS.items():
        if directory.name.lower() == name.lower() and all((directory / f).exists() for f in ("train.tsv", glue.dev)):
            return name
    return None


def _what_is_missing(directory: Path) -> str:
    """Of a folder that is named after a task, its files; of another, the task's name."""
    for name, glue in TASKS.items():
        if directory.name.lower() == name.lower():
            files = ("train.tsv", glue.dev)
            if not directory.is_dir():
                return f"There is no folder {directory}, which would hold {' and '.join(files)} of GLUE's {name}."
            absent = [file for file in files if not (directory / file).exists()]
            return f"{directory} has no {' and no '.join(absent)}, which GLUE's {name} has."
    return f"{directory} is not a GLUE folder; name the task: {', '.join(TASKS)}."


def load(
    directory: str | Path,
    name: str | None = None,
    *,
    rows: int | None = None,
    halves: bool = True,
    metric: str | None = None,
) -> Data:
    """A GLUE task from `directory` (its own folder, or the one that holds all of them and `name`).

    Papers score the same task by different metrics; `metric` stands in for that of TASKS, which is the few-sample
    paper's.
    """
    directory = Path(directory)
    if name is None:
        name = detect(directory)
        if name is None:
            raise SteadytuneError(_what_is_missing(directory))
    else:
        canonical = {other.lower().replace("-", ""): other for other in TASKS}
        key = name.lower().replace("-", "")
        if key not in canonical:
            raise SteadytuneError(f"{name!r} is not a GLUE task; choose from {', '.join(TASKS)}.")
        name = canonical[key]
        directory = directory if detect(directory) == name else directory / name
    glue = TASKS[name]
    task = Task(name, glue.kind, metric or glue.metric, glue.labels, glue.text, glue.label)
    said: list[str] = []
    train = _read(task, glue, directory / "train.tsv", glue.train_rows, said)
    dev = _read(task, glue, directory / glue.dev, glue.dev_rows, said)
    found = {"train": train, "validation": dev}
    if glue.small or not halves:
        if rows is not None:
            found["train"] = train.take(splits.public_sample(np.asarray(train.labels), rows, 0)[0])
        if halves:
            validation, test = splits.public_halves(np.asarray(dev.labels))
            found |= {"validation": dev.take(validation), "test": dev.take(test)}
    else:
        kept, validation = splits.public_sample(np.asarray(train.labels), rows, VALIDATION_ROWS)
        found = {"train": train.take(kept), "validation": train.take(validation), "test": dev}
    return finish(task, found, said)


def _read(task: Task, glue: Glue, path: Path, official: int, said: list[str]) -> Rows:
    # The official QQP train file has a few torn lines, which every public reader leaves out; here they are counted.
    format = Format(delimiter="\t", quoted=False, header=glue.header, skip_ragged=task.name == "QQP")
    found = label_rows(task, read_rows(path, (*glue.text, glue.label), format=format), False, said)
    if len(found) != official:
        name = f"{path.parent.name}/{path.name}"  # not where it lies: records show this sentence
        said.append(f"{name} has {len(found):,} rows and GLUE's file {official:,}: scores on it are not GLUE scores.")
    return found
