"""What one may expect of the best of n runs, kept by validation (V5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from steadytune import stats
from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.figures.series import Series, draw_tasks
from steadytune.report.study.figures.style import band_words, lines_drawn, metric_label, tasks_drawn
from steadytune.report.study.runs import Line, trials_of
from steadytune.report.study.telling import Telling
from steadytune.stats.scores import FEWEST_RUNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_TRIALS = 50


def best_of_n(tell: Telling) -> Figure | None:
    tasks, fewer = tasks_drawn(tell)
    names, fewer_lines = lines_drawn(tell)
    lines = [line for line in tell.compared.lines if line.name in set(names)]
    found = {task: {line.name: each for line in lines if (each := _expected(tell, line, task))} for task in tasks}
    panels = {task: series for task, series in found.items() if series}
    if not panels:
        return None
    caption = (
        "Expected reported score if n runs are trained and the one that is best on validation is kept (closed form, "
        f"drawn with replacement from the runs there are). {band_words(tell, 'one standard deviation to either side')} "
        f"Where choosing overfits a small validation set, a curve may turn back.{fewer_lines}{fewer}"
    )

    def finish(panel: Axes, task: str) -> None:
        panel.set_ylabel(metric_label(tell, task))
        panel.set_xlabel("runs trained, n")
        panel.locator_params(axis="x", nbins=6, integer=True)

    return Figure("best-of-n", "The best of n runs", caption, lambda: draw_tasks(tell, panels, finish, markers=False))


def _expected(tell: Telling, line: Line, task: str) -> Series | None:
    results, info = tell.results, tell.results.tasks[task]
    runs = [trial for trial in trials_of(results, line, task) if trial.status in ("finished", "diverged")]
    if len(runs) < FEWEST_RUNS:
        return None
    picked = [trial.best if results.weights == "best" else trial.last for trial in runs]
    validation = [each.validation if each is not None else None for each in picked]
    chosen = [value if trial.status == "finished" else None for value, trial in zip(validation, runs)]
    reported = [results.score(trial) for trial in runs]
    sign = 1.0 if info.greater_is_better else -1.0
    floor = tell.runs(task, line.name).floor
    selected_floor = _floor(info.baseline.validation, chosen, sign)
    if floor is None or selected_floor is None:
        return None
    trials = range(1, min(MOST_TRIALS, len(runs)) + 1)
    expected = stats.expected_selected(
        sign * np.array(chosen, dtype=np.float64),
        sign * np.array(reported, dtype=np.float64),
        list(trials),
        validation_floor=sign * selected_floor,
        test_floor=sign * floor,
    )
    mean, std = sign * np.array(expected.mean), np.array(expected.std)
    return Series(np.array(trials, dtype=np.float64), mean, mean - std, mean + std)


def _floor(level: float | None, scores: Sequence[float | None], sign: float) -> float | None:
    """What a diverged run has on validation: the score without learning, or the worst there is."""
    if level is not None and math.isfinite(level):
        return level
    there = [sign * score for score in scores if score is not None and math.isfinite(score)]
    return sign * min(there) if there else None
