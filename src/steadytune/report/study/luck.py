"""Where do runs of one recipe differ? Init against order and noise (V23), and prediction by prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steadytune import stats
from steadytune.errors import SteadytuneError
from steadytune.report.study.runs import Line, trials_of
from steadytune.study.results import StudyResults, TrialResult


@dataclass(frozen=True, eq=False)
class Grid:
    """Scores over init x order seeds, in the metric's direction. NaN where there is no score: see `diverged`."""

    inits: tuple[int, ...]
    orders: tuple[int, ...]
    scores: np.ndarray
    diverged: np.ndarray  # flags: the run ended without a score
    split: stats.VarianceSplit | None  # None: the grid is not full yet
    note: str


@dataclass(frozen=True)
class Luck:
    """By (task, line)."""

    grids: Mapping[tuple[str, str], Grid]
    predictions: Mapping[tuple[str, str], stats.PredictionInstability]
    splits: Mapping[str, str]  # task -> the split that predictions are of


def find_luck(results: StudyResults, rows: Sequence[Line], floor: Mapping[str, float | None]) -> Luck:
    grids, predictions, splits = {}, {}, {}
    for task in results.tasks:
        for line in rows:
            trials = trials_of(results, line, task)
            grid = _grid(results, trials, floor[task])
            if grid is not None:
                grids[task, line.name] = grid
            for split in ("test", "validation"):
                found = _instability(trials, split)
                if found is not None:
                    predictions[task, line.name], splits[task] = found, split
                    break
    return Luck(grids, predictions, splits)


def _grid(results: StudyResults, trials: Sequence[TrialResult], floor: float | None) -> Grid | None:
    """None unless init and order were crossed: two seeds or more of each, and more runs than one line of them."""
    inits = tuple(sorted({trial.streams["init"] for trial in trials}))
    orders = tuple(sorted({trial.streams["order"] for trial in trials}))
    if min(len(inits), len(orders)) < 2 or len(trials) <= max(len(inits), len(orders)):
        return None
    scores = np.full((len(inits), len(orders)), np.nan)
    diverged = np.zeros(scores.shape, dtype=bool)
    for trial in trials:
        cell = inits.index(trial.streams["init"]), orders.index(trial.streams["order"])
        score = results.score(trial)
        diverged[cell] = trial.status in ("finished", "diverged") and score is None
        scores[cell] = np.nan if score is None else score
    missing = int((np.isnan(scores) & ~diverged).sum())
    if missing:
        return Grid(inits, orders, scores, diverged, None, f"{missing} of {scores.size} runs are missing")
    try:
        return Grid(inits, orders, scores, diverged, stats.split_variance(scores, floor=floor), "")
    except SteadytuneError as problem:
        return Grid(inits, orders, scores, diverged, None, str(problem))


def _instability(trials: Sequence[TrialResult], split: str) -> stats.PredictionInstability | None:
    """Of the finished runs that kept classes for this split; None for numbers and texts, or fewer than two runs."""
    kept = [trial.predictions[split] for trial in trials if trial.status == "finished" and split in trial.predictions]
    labels = [np.asarray(each) for each in kept]
    if len(labels) < 2 or any(each.ndim != 1 or not np.issubdtype(each.dtype, np.integer) for each in labels):
        return None
    if len({each.size for each in labels}) != 1 or labels[0].size == 0:
        return None
    return stats.prediction_instability(np.stack(labels))
