"""What a fit will do, decided before anything is written: the data, the recipe, and the record it begins with."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.methods.base import Length, Method
from steadytune.packages import package_versions
from steadytune.recipe import PRESETS, Recipe, parse_method
from steadytune.report.record import BaselineRecord, CitationRecord, FitRecord, SeedRecord, SplitRecord
from steadytune.tasks import glue
from steadytune.tasks import text as text_task
from steadytune.tasks.base import Data, Kind, Rows, Task
from steadytune.tasks.files import AUTO, Format

Place = str | Path
SHARE = 0.15  # of the rows, for each of validation and test, where no files are given
RECIPE_FILES = (".yaml", ".yml")


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that decides a fit."""

    data: Data
    recipe: Recipe
    recipe_name: str
    recipe_about: str
    seeds: tuple[int, ...]

    def steps(self) -> int:
        """Optimiser steps of a run."""
        rows = self.recipe.batch_size
        for item in self.recipe.methods:
            rows = item.batch_size(rows)
        per_epoch = math.ceil(len(self.data.train) / rows)
        length = Length(self.recipe.planned_steps(per_epoch), per_epoch)
        for item in self.recipe.methods:
            length = item.length(length)
        return length.steps

    def record(self) -> FitRecord:
        """The record of a fit that has not begun."""
        task, data = self.data.task, self.data
        papers = {item.paper.key: item.paper for item in self.recipe.methods}
        return FitRecord(
            name=task.name,
            kind=task.kind,
            metric=task.metric,
            greater_is_better=task.greater_is_better,
            labels=task.labels,
            text_columns=task.text_columns,
            label_column=task.label_column,
            splits=tuple(_split(task, name, rows) for name, rows in data.splits().items()),
            fingerprint=data.fingerprint,
            notes=tuple(data.notes.sentences()),
            duplicates=data.notes.duplicates,
            leaks=sum(leak.rows for leak in data.notes.leaks),
            baselines=tuple(
                BaselineRecord(each.name, _finite(each.validation), _finite(each.test)) for each in data.baselines
            ),
            model=self.recipe.model,
            recipe_name=self.recipe_name,
            recipe_about=self.recipe_about,
            recipe=self.recipe.to_data(),
            recipe_key=self.recipe.key(),
            citations=tuple(CitationRecord(paper.key, paper.text, paper.url) for paper in papers.values()),
            seeds=tuple(SeedRecord(seed, "planned") for seed in self.seeds),
            versions=versions(),
            created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )


def load_data(
    file: Place | Data,
    *,
    text: str | Sequence[str] | None = None,
    label: str | None = None,
    validation: Place | float | None = SHARE,
    test: Place | float | None = SHARE,
    metric: str | None = None,
    kind: str | None = None,
    positive: str | None = None,
    missing: str = "error",
    skip_ragged: bool = False,
) -> Data:
    """The rows to learn from. A GLUE folder is known by its name and files, and needs no columns."""
    if validation is None:
        raise SteadytuneError("A fit chooses its model on validation rows, so validation cannot be none.")
    if isinstance(file, Data):
        return _with_metric(file, metric, positive)
    if text is None and label is None and Path(file).is_dir() and glue.detect(file):
        return _with_metric(glue.load(file), metric, positive)
    columns = ("text",) if not text else (text,) if isinstance(text, str) else tuple(text)
    if len(columns) > 2:
        raise SteadytuneError(f"--text was given {len(columns)} times; a row has one text, or two for pairs.")
    return text_task.load(
        file,
        text=columns,
        label="label" if label is None else label,
        validation=validation,
        test=test,
        kind=cast("Kind | None", _choice("kind", kind, ("classification", "regression"))),
        metric=metric,
        positive=positive,
        missing=cast("Literal['error', 'drop']", missing),
        format=Format(skip_ragged=True) if skip_ragged else AUTO,
    )


def make_recipe(
    recipe: str | Recipe, methods: Sequence[str | Method] = (), changes: Mapping[str, Any] | None = None
) -> tuple[Recipe, str, str]:
    """(the recipe, its name, a line about it): a preset or a file or a Recipe, then changes, then methods added."""
    about = ""
    if isinstance(recipe, Recipe):
        made, name = recipe, "custom"
    elif recipe in PRESETS:
        made, name, about = PRESETS[recipe].recipe, recipe, PRESETS[recipe].describe
    elif Path(recipe).suffix in RECIPE_FILES or Path(recipe).exists():
        from steadytune.config import load_recipe

        made, name = load_recipe(recipe), Path(recipe).name
    else:
        near = difflib.get_close_matches(recipe, PRESETS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise SteadytuneError(f"There is no recipe {recipe!r}.{hint} Presets: {', '.join(PRESETS)}; or a .yaml file.")
    if changes:
        made = made.updated(changes)
    if methods:
        made = made.with_methods(*(parse_method(item) if isinstance(item, str) else item for item in methods))
    if methods or set(changes or ()) - {"model"}:
        about = f"{about}, with changes" if about else "with changes"
    return made, name, about


def make_plan(data: Data, recipe: tuple[Recipe, str, str], seeds: int | Sequence[int]) -> Plan:
    """Checked: everything that can be refused without loading the model is refused here."""
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers or len(set(numbers)) != len(numbers):
        raise SteadytuneError(f"{seeds!r} is not a number of seeds; give at least 1, and no seed twice.")
    if data.validation is None:
        raise SteadytuneError(f"{data.train.source.file}: there are no validation rows to choose a model on.")
    return Plan(data, *recipe, numbers)


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **package_versions(("steadytune", "torch", "transformers"))}


def _finite(value: float | None) -> float | None:
    """JSON has no infinity, and a baseline of infinity (the perplexity of no words) is none."""
    return value if value is not None and math.isfinite(value) else None


def _split(task: Task, name: str, rows: Rows) -> SplitRecord:
    counts: dict[str, int] = {}
    if task.labels and rows.labels is not None:
        counts = dict(zip(task.labels, np.bincount(rows.labels, minlength=len(task.labels)).tolist()))
    return SplitRecord(name, len(rows), rows.source.file, rows.fingerprint, counts)


def _with_metric(data: Data, metric: str | None, positive: str | None) -> Data:
    if metric is None and positive is None:
        return data
    task = dataclasses.replace(data.task, metric=metric or data.task.metric, positive=positive or data.task.positive)
    return text_task.finish(task, data.splits(), data.notes.said)


def _choice(name: str, value: str | None, options: Sequence[str]) -> str | None:
    if value is not None and value not in options:
        raise SteadytuneError(f"--{name} {value!r} is not one of {', '.join(options)}.")
    return value
