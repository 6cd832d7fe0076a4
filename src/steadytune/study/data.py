"""The tasks of a study file: which loader, which path, which options; and the data they stand for.

    RTE:       {glue: ../data/glue/RTE, rows: 1000}
    MRPC:      {glue: ../data/glue/MRPC, metric: accuracy}    # instead of F1
    reviews:   {file: reviews.csv, text: review, label: stars, kind: regression}
    digits:    {images: ../data/mnist}                 # size: 224 where the files have different sizes
    de-en:     {translation: ../data/multi30k, source: de, target: en}
    summaries: {summarization: news.csv, source: article, target: summary}
    wiki:      {language_model: ../data/wikitext-2}
    demo:      {acceptability: 400}                    # generated sentences: so many to train on

Each may also have `recipe`, settings of its own for every variant, and `limit`, at most so many rows per split. Paths,
those of models too, are relative to the study file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.recipe import Recipe
from steadytune.strict import BadValue, build, nearest
from steadytune.study.results import TaskInfo
from steadytune.tasks import acceptability, baselines, glue, image, language_model, splits, text, translation
from steadytune.tasks.base import SPLITS, Baseline, Data, Kind, Notes, Rows

Place = str | float | None


@dataclass(frozen=True)
class Glue:
    """A GLUE folder: the paper's halves of the development set, and class-balanced samples (V7)."""

    word: ClassVar[str] = "glue"
    glue: str
    task: str | None = None  # where the folder does not say which
    rows: int | None = None  # of train, as the few-sample paper samples them
    halves: bool = True  # the development set is cut into validation and test
    metric: str | None = None  # instead of the few-sample paper's (V8), such as accuracy for MRPC

    def load(self, base: Path) -> Data:
        return glue.load(base / self.glue, self.task, rows=self.rows, halves=self.halves, metric=self.metric)


@dataclass(frozen=True)
class File:
    """A csv, tsv, jsonl or parquet file, a datasets directory, or hub:owner/name."""

    word: ClassVar[str] = "file"
    file: str
    text: str | tuple[str, ...] = "text"
    label: str = "label"
    validation: Place = 0.15
    test: Place = 0.15
    kind: Literal["classification", "regression"] | None = None
    metric: str | None = None
    positive: str | None = None
    missing: Literal["error", "drop"] = "error"

    def load(self, base: Path) -> Data:
        return text.load(
            _place(base, self.file),
            text=self.text,
            label=self.label,
            validation=_place(base, self.validation),
            test=_place(base, self.test),
            kind=self.kind,
            metric=self.metric,
            positive=self.positive,
            missing=self.missing,
        )


@dataclass(frozen=True)
class Images:
    """Folders or a zip of images, idx files, or an npz file."""

    word: ClassVar[str] = "images"
    images: str
    validation: float | None = 0.1
    test: float | None = None
    metric: str = "accuracy"
    size: int | tuple[int, int] | None = None  # of a side, or height and width: image files are resized to it

    def __post_init__(self) -> None:
        if self.size is not None and min(self._sides()) < 1:
            raise BadValue(f"size must be 1 or more, not {self.size}.", ("size",))

    def _sides(self) -> tuple[int, int]:
        assert self.size is not None
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    def load(self, base: Path) -> Data:
        size = None if self.size is None else self._sides()
        return image.load(base / self.images, validation=self.validation, test=self.test, size=size, metric=self.metric)


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Texts that are turned into other texts."""

    source: str
    target: str
    validation: Place = 0.05
    test: Place = 0.05
    metric: str | None = None

    def _load(self, base: Path, path: str, kind: Kind) -> Data:
        def place(value: Place) -> Place:  # a name such as test_2016_flickr is a prefix inside the folder
            return _place(base, value) if isinstance(value, str) and (base / value).exists() else value

        return translation.load(
            _place(base, path),
            source=self.source,
            target=self.target,
            kind=kind,
            validation=place(self.validation),
            test=place(self.test),
            metric=self.metric,
        )


@dataclass(frozen=True, kw_only=True)
class Translation(_Pairs):
    """A folder of parallel files, or a table."""

    word: ClassVar[str] = "translation"
    translation: str

    def load(self, base: Path) -> Data:
        return self._load(base, self.translation, "translation")


@dataclass(frozen=True, kw_only=True)
class Summarization(_Pairs):
    """A table of texts and their summaries."""

    word: ClassVar[str] = "summarization"
    summarization: str

    def load(self, base: Path) -> Data:
        return self._load(base, self.summarization, "summarization")


@dataclass(frozen=True)
class LanguageModel:
    """A text file, or a folder with train.txt and the like."""

    word: ClassVar[str] = "language_model"
    language_model: str
    validation: float | None = 0.05
    test: float | None = 0.05

    def load(self, base: Path) -> Data:
        return language_model.load(base / self.language_model, validation=self.validation, test=self.test)


@dataclass(frozen=True)
class Acceptability:
    """The bundled generator of acceptable and unacceptable sentences."""

    word: ClassVar[str] = "acceptability"
    acceptability: int  # rows to train on
    validation: int = 200
    test: int = 600

    def load(self, base: Path) -> Data:
        with tempfile.TemporaryDirectory() as folder:
            where = acceptability.write(folder, self.acceptability, self.validation, self.test)
            data = text.load(where, text="sentence", label="label", name="acceptability")
        # Generated rows are in no file that anybody could look up.
        return replace(_with(data, {name: _renamed(rows) for name, rows in data.splits().items()}), notes=Notes())


Source = Glue | File | Images | Translation | Summarization | LanguageModel | Acceptability
KINDS: dict[str, type[Source]] = {
    kind.word: kind for kind in (Glue, File, Images, Translation, Summarization, LanguageModel, Acceptability)
}


@dataclass(frozen=True)
class StudyTask:
    """A task of a study file: where its rows are, and what is different in its recipes."""

    source: Source
    recipe: Mapping[str, Any] = field(default_factory=dict)  # changes, for every variant
    limit: Mapping[str, int] = field(default_factory=dict)  # split -> at most so many rows

    @classmethod
    def from_data(cls, data: Any) -> StudyTask:
        if not isinstance(data, Mapping):
            raise BadValue(
                f"A task is written {{glue: FOLDER}} or {{file: FILE, text: ..., label: ...}}, not {data!r}."
            )
        rest = {name: value for name, value in data.items() if name not in ("recipe", "limit")}
        words = [name for name in rest if name in KINDS]
        if len(words) != 1:
            found = f"has {' and '.join(words)}" if words else f"has only {', '.join(rest) or 'nothing'}"
            raise BadValue(f"A task names its data with one of {', '.join(KINDS)}; this one {found}.")
        recipe, limit = data.get("recipe", {}), data.get("limit", {})
        if not isinstance(recipe, Mapping):
            raise BadValue(f"recipe is a list of settings and their values, not {recipe!r}.", ("recipe",))
        if not isinstance(limit, Mapping):
            raise BadValue(f"limit is written {{train: 1000, validation: 200}}, not {limit!r}.", ("limit",))
        for name, rows in limit.items():
            if name not in SPLITS:
                raise BadValue(f"There is no split {name!r}. {nearest(name, SPLITS)}", ("limit", name))
            if type(rows) is not int or rows < 1:
                raise BadValue(f"limit of {name} must be a number of rows, not {rows!r}.", ("limit", name))
        return cls(build(KINDS[words[0]], rest, f"A {words[0]} task"), dict(recipe), dict(limit))

    def to_data(self) -> dict[str, Any]:
        return (
            asdict(self.source)
            | ({"recipe": self.recipe} if self.recipe else {})
            | ({"limit": self.limit} if self.limit else {})
        )

    def load(self, base: Path) -> Data:
        """The rows. `base` is the folder that paths are relative to."""
        data = self.source.load(base)
        if not any(name in self.limit and len(rows) > self.limit[name] for name, rows in data.splits().items()):
            return data
        running = data.task.kind == "language-model"  # a text is cut at its end, not thinned out
        cut = {name: _at_most(rows, self.limit.get(name), running) for name, rows in data.splits().items()}
        said = [
            f"Of {name}, {len(cut[name])} of {len(rows)} rows are used."
            for name, rows in data.splits().items()
            if len(cut[name]) < len(rows)
        ]
        if running:
            return replace(_with(data, cut), baselines=baselines.compute(data.task, cut))
        return text.finish(data.task, cut, (*data.notes.said, *said))


def describe(name: str, task: StudyTask, data: Data, base: Path = Path()) -> TaskInfo:
    """What the ledger and the reports keep of a task; files are named as the study file names them."""
    if data.validation is None:
        raise SteadytuneError(f"{data.train.source.file}: task {name!r} has no validation rows to choose a step on.")
    some = data.train.texts[:: max(1, len(data.train) // 500)]
    return TaskInfo(
        name=name,
        metric=data.task.metric,
        greater_is_better=data.task.greater_is_better,
        rows={split: len(part) for split, part in data.splits().items()},
        baseline=data.baselines[0] if data.baselines else Baseline("none"),
        fingerprint=data.fingerprint,
        source=str(getattr(task.source, task.source.word)),
        notes=tuple(said.replace(f"{base}{os.sep}", "") for said in data.notes.sentences()),
        words=sum(len(text.split()) for texts in some for text in texts) / max(1, len(some)),
    )


def located(recipe: Recipe, base: Path) -> Recipe:
    """With models that are directories beside the study file found there, as its data is."""
    changes = {
        name: str(base / value)
        for name in ("model", "start_from")
        if (value := getattr(recipe, name)) is not None and not Path(value).is_absolute() and (base / value).is_dir()
    }
    return recipe.updated(changes) if changes else recipe


def _place(base: Path, value: Any) -> Any:
    """A path relative to the study file; shares of rows and hub names are what they are."""
    return str(base / value) if isinstance(value, str) and not value.startswith("hub:") else value


def _with(data: Data, rows: Mapping[str, Rows]) -> Data:
    return replace(data, train=rows["train"], validation=rows.get("validation"), test=rows.get("test"))


def _at_most(rows: Rows, count: int | None, first: bool = False) -> Rows:
    """A random part, the same every time, in the order of the file; or the `first` rows."""
    if count is None or len(rows) <= count:
        return rows
    if first:
        return rows.take(np.arange(count))
    return rows.take(np.sort(splits.generator(0).permutation(len(rows))[:count]))


def _renamed(rows: Rows) -> Rows:
    return replace(rows, source=replace(rows.source, file="acceptability"))
