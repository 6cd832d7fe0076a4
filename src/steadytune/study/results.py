"""A study as its readers see it: what was asked, and every trial with what came out. Plain frozen data.

Reports, tables, figures, exports and comparisons are functions of `StudyResults`; none of them opens the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from steadytune.tasks.base import Baseline

Status = Literal["pending", "running", "finished", "diverged", "failed"]
Phase = Literal["choose", "report"]  # tuning runs, chosen among on validation; and the runs that are reported (V16)
Which = Literal["best", "last"]  # of the run's weights: of the best evaluation on validation, or of its end
ENDED = ("finished", "diverged", "failed")


@dataclass(frozen=True)
class TaskInfo:
    """A task of the study, without its data."""

    name: str  # as the study file calls it
    metric: str
    greater_is_better: bool
    rows: Mapping[str, int]  # by split
    baseline: Baseline  # what one gets without learning: a run that is not above it is degenerate (V3)
    fingerprint: str  # of the data
    source: str  # the file or folder
    notes: Sequence[str] = ()  # duplicates, leaks, what was decided while reading
    words: float = 0.0  # of a training row, on average: what an estimate of time goes by


@dataclass(frozen=True)
class Variant:
    """One of the recipes that are compared. Those of one family differ in swept settings only."""

    name: str  # "mixout, p=0.7": unique in the study
    family: str  # "mixout": the name in the study file
    point: Mapping[str, Any] = field(default_factory=dict)  # what is swept: {"mixout.p": 0.7}; empty: not swept


@dataclass(frozen=True)
class Score:
    """The task's metric for one set of weights; None where there is no such split."""

    step: int
    validation: float | None = None
    test: float | None = None


@dataclass(frozen=True, eq=False)
class TrialResult:
    """One run of one variant on one task. What has not been run yet has its plan only."""

    key: str  # sha256 of its content; two variants with equal content share the run
    task: str
    variant: str
    phase: Phase
    streams: Mapping[str, int]  # init, order, noise
    recipe: Mapping[str, Any]
    status: Status = "pending"
    best: Score | None = None
    last: Score | None = None
    steps: int = 0  # planned
    history: Sequence[Mapping[str, Any]] = ()  # per evaluation: step, epoch, train_loss, validation, lr, distances
    losses: Sequence[float | None] = ()  # per step; None where it was not a finite number
    grad_norms: Sequence[float | None] = ()
    seconds: float = 0.0
    peak_memory: int = 0  # bytes; 0 where it is not known
    attempts: int = 0
    error: str = ""  # a traceback, for a failed one
    notes: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)  # also the device
    predictions: Mapping[str, np.ndarray] = field(default_factory=dict)  # by split; classes or numbers, not texts

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def seed(self) -> str:
        """`3`, or `init 3, order 5` where the streams differ."""
        init, order, noise = (self.streams[name] for name in ("init", "order", "noise"))
        if init == order == noise:
            return str(init)
        return f"init {init}, order {order}" + ("" if noise == order else f", noise {noise}")


@dataclass(frozen=True, eq=False)
class StudyResults:
    """Everything a report says something about."""

    name: str
    about: str
    tasks: Mapping[str, TaskInfo]
    variants: Mapping[str, Variant]  # in the order of the study file
    trials: Sequence[TrialResult]
    baseline: str  # the variant (or family) that others are compared with: the first, where the file does not say
    split: Literal["validation", "test"] = "test"  # what is reported; validation for a task that has no test rows
    weights: Which = "best"
    chosen: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (task, family) -> variant, by validation
    text: str = ""  # the study file
    command: str = ""  # that makes it again
    folder: str = ""

    def score(self, trial: TrialResult) -> float | None:
        """The reported number of a run: None unless it finished; in the metric's own direction."""
        found = trial.best if self.weights == "best" else trial.last
        if trial.status != "finished" or found is None:
            return None
        value = found.test if self.split == "test" and found.test is not None else found.validation
        return value if value is not None and math.isfinite(value) else None

    def level(self, task: str) -> float | None:
        """The score without learning, of the split that is reported."""
        baseline = self.tasks[task].baseline
        value = baseline.test if self.split == "test" and baseline.test is not None else baseline.validation
        return value if value is not None and math.isfinite(value) else None

    @cached_property
    def reported(self) -> Mapping[tuple[str, str], Sequence[TrialResult]]:
        """(task, variant) -> the runs that are reported, in the order of their seeds."""
        found: dict[tuple[str, str], list[TrialResult]] = {}
        for trial in self.trials:
            if trial.phase == "report":
                found.setdefault((trial.task, trial.variant), []).append(trial)
        return found

    @cached_property
    def tuning(self) -> Mapping[tuple[str, str], Sequence[TrialResult]]:
        """(task, variant) -> the runs that were chosen among."""
        found: dict[tuple[str, str], list[TrialResult]] = {}
        for trial in self.trials:
            if trial.phase == "choose":
                found.setdefault((trial.task, trial.variant), []).append(trial)
        return found
