"""What came out of one variant on one task: its runs counted, described, and with an interval.

A diverged run counts at the score without learning (`stats.settle_diverged`); a crashed trial has no score and is left
out. Scores stay in the metric's own direction here; `Runs.oriented` turns them so that higher is better.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steadytune import stats
from steadytune.stats.scores import Array
from steadytune.study.results import StudyResults, TrialResult


@dataclass(frozen=True)
class Line:
    """A row of the tables: a variant, or a group of candidates of which one was chosen on each task (V16)."""

    name: str
    tuned: bool
    reported: Mapping[str, str | None]  # task -> the name its reported runs have; None: there are none yet
    chosen: Mapping[str, str]  # task -> the candidate that was chosen there; empty unless tuned


@dataclass(frozen=True, eq=False)
class Runs:
    """The reported runs of a line on a task. Statistics are None where there is no score to compute them from."""

    task: str
    line: str
    greater_is_better: bool
    level: float | None  # the score without learning, in the metric's direction
    floor: float | None  # what a diverged run counts as: the level, or the worst score seen where there is none
    planned: int
    ended: int
    diverged: int
    seeds: tuple[Hashable, ...]  # of each score
    scores: Array  # one per finished or diverged run; NaN: diverged
    summary: stats.Summary | None
    degenerate: stats.DegenerateShare | None  # computed with higher is better: its level may be negated
    interval: stats.Interval | None  # of the mean
    crashed: int = 0
    chosen: str | None = None  # the candidate, where one was chosen
    seconds: stats.Summary | None = None  # over the finished runs
    memory: stats.Summary | None = None  # bytes, over the finished runs that measured it

    @property
    def n(self) -> int:
        return len(self.scores)

    @property
    def failed(self) -> int:
        """Runs that did not beat the score without learning, or diverged."""
        return self.degenerate.count if self.degenerate is not None else self.diverged

    @property
    def best(self) -> float | None:
        if self.summary is None:
            return None
        return self.summary.max if self.greater_is_better else self.summary.min

    @property
    def worst(self) -> float | None:
        if self.summary is None:
            return None
        return self.summary.min if self.greater_is_better else self.summary.max

    @property
    def sign(self) -> float:
        return 1.0 if self.greater_is_better else -1.0

    @property
    def oriented(self) -> Array:
        """The scores, higher is better; NaN: diverged."""
        return self.sign * self.scores

    @property
    def oriented_floor(self) -> float | None:
        return None if self.floor is None else self.sign * self.floor

    @property
    def settled(self) -> Array:
        """The scores in the metric's direction, with diverged runs at the floor; empty where that is unknown."""
        if self.summary is None:
            return self.scores[:0]
        return stats.settle_diverged(self.scores, self.floor)[0]


def lines(results: StudyResults) -> tuple[Line, ...]:
    """Which rows a table has: every variant but the candidates of a choice, which are one row together."""
    reported = {variant for _, variant in results.reported}
    tried = {variant for _, variant in results.tuning} | set(results.chosen.values())
    candidates = {name for name in tried if name not in reported}
    groups = {results.variants[name].family for name in tried if name in results.variants}
    names = [variant.family if variant.name in candidates else variant.name for variant in results.variants.values()]
    found = []
    for name in dict.fromkeys(names):
        chosen = {task: results.chosen[task, name] for task in results.tasks if (task, name) in results.chosen}
        runs = {
            task: next((each for each in (name, chosen.get(task)) if (task, each) in results.reported), None)
            for task in results.tasks
        }
        found.append(Line(name, name in groups, runs, chosen))
    return tuple(found)


def trials_of(results: StudyResults, line: Line, task: str) -> Sequence[TrialResult]:
    """The reported runs of a line on a task."""
    name = line.reported[task]
    return () if name is None else results.reported.get((task, name), ())


def floors(results: StudyResults) -> dict[str, float | None]:
    """What a diverged run counts as: the score without learning; the worst score of the task where there is none."""
    found: dict[str, float | None] = {}
    for task, info in results.tasks.items():
        found[task] = results.level(task)
        if found[task] is None:
            trials = [trial for (name, _), some in results.reported.items() if name == task for trial in some]
            scores = [score for score in map(results.score, trials) if score is not None]
            found[task] = (min if info.greater_is_better else max)(scores, default=None)
    return found


def collect(results: StudyResults, line: Line, task: str, floor: float | None, draws: int) -> Runs:
    """Count and describe the reported runs of one line on one task."""
    info = results.tasks[task]
    trials = trials_of(results, line, task)
    scored = bool(info.rows.get("validation") or info.rows.get("test"))
    with_result = [trial for trial in trials if trial.status in ("finished", "diverged") and scored]
    described = describe_runs(
        task=task,
        line=line.name,
        scores={streams(trial): results.score(trial) for trial in with_result},
        greater_is_better=info.greater_is_better,
        level=results.level(task),
        floor=floor,
        draws=draws,
    )
    finished = [trial for trial in trials if trial.status == "finished"]
    return replace(
        described,
        chosen=line.chosen.get(task),
        planned=len(trials),
        ended=sum(trial.ended for trial in trials),
        crashed=sum(trial.status == "failed" for trial in trials),
        seconds=_described([trial.seconds for trial in finished]),
        memory=_described([trial.peak_memory for trial in finished if trial.peak_memory]),  # 0: not its own
    )


def describe_runs(
    task: str,
    line: str,
    scores: Mapping[Any, float | None],
    *,
    greater_is_better: bool,
    level: float | None,
    floor: float | None,
    draws: int,
) -> Runs:
    """From seed -> score; None or not finite: the run diverged, or finished with a score that says no more."""
    values = np.array([math.nan if score is None else score for score in scores.values()], dtype=np.float64)
    known = values.size > 0 and (floor is not None or bool(np.isfinite(values).all()))
    sign = 1.0 if greater_is_better else -1.0
    return Runs(
        task=task,
        line=line,
        greater_is_better=greater_is_better,
        level=level,
        floor=floor,
        planned=len(values),
        ended=len(values),
        diverged=int((~np.isfinite(values)).sum()),
        seeds=tuple(scores),
        scores=values,
        summary=stats.describe(values, floor=floor) if known else None,
        degenerate=stats.degenerate_share(sign * values, sign * level) if level is not None and values.size else None,
        interval=stats.bootstrap_interval(values, draws=draws, floor=floor) if known else None,
    )


def streams(trial: TrialResult) -> tuple[int, int, int]:
    return trial.streams["init"], trial.streams["order"], trial.streams["noise"]


def _described(values: Sequence[float]) -> stats.Summary | None:
    measured = [value for value in values if value > 0]
    return stats.describe(measured) if measured else None
