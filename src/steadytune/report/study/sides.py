"""One side of a comparison: a name and, per task, a score per seed. Read from a study's variant or from a fit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steadytune.errors import SteadytuneError
from steadytune.report.record import SCHEMA, FitRecord
from steadytune.report.study.naming import listed, short
from steadytune.report.study.runs import lines, trials_of
from steadytune.strict import nearest
from steadytune.study.results import StudyResults

FIT_RECORD = "fit.json"


@dataclass(frozen=True)
class Side:
    """`scores`: task -> seed -> score, None for a run that diverged. `levels`: task -> the score without learning."""

    name: str
    scores: Mapping[str, Mapping[str, float | None]]
    levels: Mapping[str, float | None]
    greater_is_better: Mapping[str, bool]
    metrics: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=dict)  # task -> validation or test
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # task -> of its data
    crashed: Mapping[str, int] = field(default_factory=dict)  # task -> trials without a result


def side_of_variant(results: StudyResults, name: str) -> Side:
    """A variant of a study, or a group of which one candidate was chosen per task; its reported runs."""
    rows = {line.name: line for line in lines(results)}
    if name not in rows:
        shown = [short(each, 40) for each in rows]
        near = nearest(short(name, 40), shown) if len(shown) <= 20 else f"Choose from {listed(shown, 20)}."
        raise SteadytuneError(f"The study {short(results.name)!r} reports no variant {short(name)!r}. {near}")
    scores: dict[str, dict[str, float | None]] = {}
    crashed: dict[str, int] = {}
    for task in results.tasks:
        trials = trials_of(results, rows[name], task)
        found = {trial.seed: results.score(trial) for trial in trials if trial.status in ("finished", "diverged")}
        if found:
            scores[task] = found
            crashed[task] = sum(trial.status == "failed" for trial in trials)
    infos = {task: results.tasks[task] for task in scores}
    has_test = {task: bool(info.rows.get("test")) and results.split == "test" for task, info in infos.items()}
    return Side(
        name=name,
        scores=scores,
        levels={task: results.level(task) for task in scores},
        greater_is_better={task: info.greater_is_better for task, info in infos.items()},
        metrics={task: info.metric for task, info in infos.items()},
        splits={task: "test" if has_test[task] else "validation" for task in scores},
        fingerprints={task: info.fingerprint for task, info in infos.items()},
        crashed=crashed,
    )


def side_of_fit(folder: str | Path, name: str | None = None) -> Side:
    """What `steadytune fit` left in a directory: its seeds on its one task."""
    path = Path(folder) / FIT_RECORD
    if not path.is_file():
        raise SteadytuneError(f"{folder} has no {FIT_RECORD}: it is not the output of `steadytune fit`.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        schema = data["schema"]
        if schema == SCHEMA:
            return _side_of_record(FitRecord.from_data(data), name or str(folder))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SteadytuneError(f"{path} is damaged: {error!r}. Run the fit again.") from error
    raise SteadytuneError(f"{path} was written by another version ({short(schema)!r}). Run the fit again.")


def _side_of_record(record: FitRecord, name: str) -> Side:
    ended = [seed for seed in record.seeds if seed.status in ("finished", "diverged")]
    split = "test" if any(seed.finished and seed.test is not None for seed in ended) else "validation"
    scores = {str(seed.seed): getattr(seed, split) if seed.finished else None for seed in ended}
    level = getattr(record.baseline, split) if record.baseline is not None else None
    return Side(
        name=name,
        scores={record.name: scores} if scores else {},
        levels={record.name: level if level is not None and math.isfinite(level) else None},
        greater_is_better={record.name: record.greater_is_better},
        metrics={record.name: record.metric},
        splits={record.name: split},
        fingerprints={record.name: record.fingerprint},
    )


def matched(a: Side, b: Side) -> tuple[Side, list[str]]:
    """`b` with its task called as `a` calls it, where both have one task of the same rows; and the tasks of both."""
    if len(a.scores) == len(b.scores) == 1 and set(a.scores) != set(b.scores):
        (ours,), (theirs,) = a.scores, b.scores
        if a.fingerprints.get(ours) and a.fingerprints.get(ours) == b.fingerprints.get(theirs):
            b = _renamed(b, theirs, ours)
    tasks = [task for task in a.scores if task in b.scores]
    if not tasks:
        raise SteadytuneError(
            f"{short(a.name)} and {short(b.name)} have no task in common: {_tasks(a)} against {_tasks(b)}."
        )
    for task in tasks:
        for what in ("metrics", "splits", "fingerprints"):
            ours, theirs = getattr(a, what).get(task), getattr(b, what).get(task)
            if ours and theirs and ours != theirs:
                told = {"metrics": "metric", "splits": "split", "fingerprints": "data (by its fingerprint)"}[what]
                raise SteadytuneError(
                    f"On {short(task)} the two sides are not of the same {told}: {short(ours, 16)} against "
                    f"{short(theirs, 16)}. Their scores cannot be compared."
                )
        if a.greater_is_better[task] != b.greater_is_better[task]:
            raise SteadytuneError(f"On {short(task)} one side says that greater is better, and the other does not.")
    return b, tasks


def _renamed(side: Side, old: str, new: str) -> Side:
    names = ("scores", "levels", "greater_is_better", "metrics", "splits", "fingerprints", "crashed")
    parts: dict[str, Any] = {
        name: {new if task == old else task: value for task, value in getattr(side, name).items()} for name in names
    }
    return replace(side, **parts)


def _tasks(side: Side) -> str:
    return listed([short(task, 30) for task in side.scores], 5) or "none with a result"
