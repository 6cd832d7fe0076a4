"""The runs behind a cell of a paper's table, as numbers that can be tested.

A cell (row, column, setting) is found at a `Place`: which variant and task of an experiment's view (views.py), and what
is read from each run there. Values keep the metric's own direction. A diverged run counts as elsewhere: at the score
without learning, or the worst there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steadytune import stats
from steadytune.papers.catalogue import Cell
from steadytune.study.results import StudyResults, TrialResult

MINUTES = 300.0  # how long the longest runs of R-Drop's table 3 took


@dataclass(frozen=True)
class Place:
    """Where the runs of a cell are."""

    variant: str
    task: str
    split: str = ""  # instead of the item's
    block: int | None = None  # whose distance is meant
    streams: Mapping[str, int] = field(default_factory=dict)  # runs with these seeds only
    fixed: str = ""  # "init" or "order": one number per such seed, the spread over the other
    best_of: int | None = None  # the best of so many runs, kept by validation; 0: of all there are
    minutes: float | None = None  # the score after so many of MINUTES
    per_step: bool = False  # seconds of a step, not of the run

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for places that hold the same numbers."""
        return tuple(
            tuple(sorted(value.items())) if isinstance(value, dict) else value for value in vars(self).values()
        )


@dataclass(frozen=True, eq=False)
class Sample:
    """One number per run."""

    place: Place
    values: np.ndarray  # diverged runs at the floor
    seeds: tuple[Any, ...] = ()
    level: float | None = None  # the score without learning
    diverged: int = 0
    crashed: int = 0
    missing: int = 0  # runs that have not ended yet
    validation: np.ndarray | None = None  # what the best of n are kept by
    higher: bool = True  # whether higher is better
    exact: bool = False  # one number that is no mean over runs: an ensemble, a formula

    @property
    def n(self) -> int:
        return len(self.values)

    def number(self, statistic: str) -> float | None:
        """mean, std, max, min, degenerate (runs that failed), share below x; `value` is the mean."""
        if not self.n:
            return None
        if self.place.best_of is not None:
            return self.expected() if statistic in ("mean", "value") else None
        if statistic == "degenerate":
            return None if self.level is None else float(self.failed)
        if statistic.startswith("share below "):
            return float((self.values < float(statistic.split()[-1])).mean())
        if statistic == "std" and not self.place.fixed:  # those are standard deviations already
            return float(self.values.std(ddof=1)) if self.n > 1 else None
        reduce: dict[str, Callable[[np.ndarray], Any]] = {"max": np.max, "min": np.min, "median": np.median}
        return float(reduce.get(statistic, np.mean)(self.values))

    @property
    def grid(self) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
        """Initialisation and order of each run, where several runs share the one and several the other."""
        seeds = [seed[:2] for seed in self.seeds if isinstance(seed, tuple)]  # of init, order, noise
        if not seeds:
            return None
        rows, columns = (tuple(side) for side in zip(*seeds))
        return (rows, columns) if 1 < len(set(rows)) < self.n and 1 < len(set(columns)) < self.n else None

    @property
    def failed(self) -> int:
        """Runs that did not beat the score without learning."""
        if self.level is None or not self.n:
            return 0
        sign = 1.0 if self.higher else -1.0
        return int(stats.is_degenerate(sign * self.values, sign * self.level).sum())

    def expected(self, drawn: np.ndarray | None = None) -> float:
        """The expected score of the best of n runs, kept by validation; of a resampled set where that is given."""
        assert self.validation is not None
        kept, reported = self.validation, self.values
        if drawn is not None:
            kept, reported = kept[drawn], reported[drawn]
        sign = 1.0 if self.higher else -1.0
        return sign * stats.expected_selected(sign * kept, sign * reported, self.place.best_of or self.n).mean[0]

    def at(self, seeds: Sequence[Any]) -> np.ndarray:
        """The values in the order of these seeds."""
        where = {seed: index for index, seed in enumerate(self.seeds)}
        return self.values[[where[seed] for seed in seeds]]


Read = Callable[[Cell], Sample | None]


def read(view: StudyResults, place: Place, quantity: str = "score", split: str = "") -> Sample | None:
    """The sample at a place; None where the view has no such variant and task."""
    trials = _trials(view, place)
    if not trials or place.task not in view.tasks:
        return None
    if place.minutes is not None:
        return _at_minute(view, place, trials)
    values = [_value(view, trial, quantity, place, place.split or split or view.split) for trial in trials]
    ended = [(trial, value) for trial, value in zip(trials, values) if trial.status in ("finished", "diverged")]
    info = view.tasks[place.task]
    higher = info.greater_is_better if quantity in ("score", "expected_score") else False
    level = _level(view, place.task, place.split or split or view.split) if quantity == "score" else None
    settled, diverged = _settled([value for _, value in ended], level, higher)
    kept = None
    if place.best_of is not None:
        on_validation = [_score(view, trial, "validation") for trial, _ in ended]
        kept = _settled(on_validation, _level(view, place.task, "validation"), higher)[0]
    sample = Sample(
        place=place,
        values=settled,
        seeds=tuple(_streams(trial) for trial, _ in ended),
        level=level,
        diverged=diverged,
        crashed=sum(trial.status == "failed" for trial in trials),
        missing=sum(not trial.ended for trial in trials),
        validation=kept,
        higher=higher,
    )
    return _spreads(sample) if place.fixed else sample


def _trials(view: StudyResults, place: Place) -> list[TrialResult]:
    found = view.reported.get((place.task, place.variant), ())
    return [trial for trial in found if all(trial.streams[name] == seed for name, seed in place.streams.items())]


def _value(view: StudyResults, trial: TrialResult, quantity: str, place: Place, split: str) -> float | None:
    if trial.status != "finished":
        return None
    if quantity == "train_loss":
        losses = [loss for loss in trial.losses if loss is not None]
        return float(np.mean(losses)) if losses else None
    if quantity == "distance":
        entry = trial.history[-1] if trial.history else {}
        found = ((entry.get("distances") or {}).get("start") or {}).get(str(place.block))
        return None if found is None else float(found)
    if quantity == "seconds":
        return trial.seconds / (trial.steps if place.per_step else 1)
    return _score(view, trial, split)


def _score(view: StudyResults, trial: TrialResult, split: str) -> float | None:
    found = trial.best if view.weights == "best" else trial.last
    if trial.status != "finished" or found is None:
        return None
    value = found.test if split == "test" and found.test is not None else found.validation
    return value if value is not None and math.isfinite(value) else None


def _level(view: StudyResults, task: str, split: str) -> float | None:
    baseline = view.tasks[task].baseline
    value = baseline.test if split == "test" and baseline.test is not None else baseline.validation
    return value if value is not None and math.isfinite(value) else None


def _settled(values: Sequence[float | None], level: float | None, higher: bool) -> tuple[np.ndarray, int]:
    """Diverged runs at the level, or the worst there is; without either, left out."""
    known = [value for value in values if value is not None]
    worst = (min if higher else max)(known, default=None)
    floor = level if level is not None else worst
    found = [floor if value is None else value for value in values]
    return np.array([value for value in found if value is not None], dtype=np.float64), len(values) - len(known)


def _streams(trial: TrialResult) -> tuple[int, int, int]:
    return trial.streams["init"], trial.streams["order"], trial.streams["noise"]


def _spreads(sample: Sample) -> Sample:
    """For each seed of the stream that is fixed, the standard deviation over the other."""
    at = {"init": 0, "order": 1}[sample.place.fixed]
    groups: dict[int, list[float]] = {}
    for seed, value in zip(sample.seeds, sample.values):
        groups.setdefault(seed[at], []).append(float(value))
    wide = {(sample.place.fixed, seed): np.std(values, ddof=1) for seed, values in groups.items() if len(values) > 1}
    return Sample(sample.place, np.array(list(wide.values())), tuple(wide), missing=sample.missing, higher=False)


def _at_minute(view: StudyResults, place: Place, trials: Sequence[TrialResult]) -> Sample | None:
    """Validation scores at a time. A minute is the paper's: the longest line of the view took MINUTES of them.

    A step takes what it takes in the mean of a line's runs: how busy the machine was during one of them says nothing.
    """
    lines = [[trial for trial in runs if trial.status == "finished"] for runs in _of_task(view, place.task)]
    minute = max((float(np.mean([trial.seconds for trial in runs])) for runs in lines if runs), default=0.0) / MINUTES
    finished = [trial for trial in trials if trial.status == "finished"]
    pace = float(np.mean([trial.seconds / max(1, trial.steps) for trial in finished])) if finished else 0.0
    found = {_streams(trial): _at_second(trial, (place.minutes or 0.0) * minute, pace) for trial in finished}
    kept = {seed: value for seed, value in found.items() if value is not None}
    missing = sum(not trial.ended for trial in trials)
    return Sample(place, np.array(list(kept.values())), tuple(kept), missing=missing) if kept or missing else None


def _of_task(view: StudyResults, task: str) -> list[Sequence[TrialResult]]:
    return [runs for (name, _), runs in view.reported.items() if name == task]


def _at_second(trial: TrialResult, seconds: float, pace: float) -> float | None:
    """The evaluation nearest to that time, at `pace` seconds a step; None where the run was over."""
    spacing = pace * trial.steps / max(1, len(trial.history))
    near = {abs(pace * entry["step"] - seconds): entry["validation"] for entry in trial.history}
    return near[min(near)] if near and min(near) <= spacing else None
