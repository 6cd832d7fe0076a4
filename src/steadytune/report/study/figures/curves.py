"""How training went: validation score and training loss against steps, mean and range over runs (V4, V13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.figures.series import Series, draw_tasks, over_runs
from steadytune.report.study.figures.style import (
    LIGHT,
    band_words,
    lines_drawn,
    metric_label,
    plain_number,
    tasks_drawn,
)
from steadytune.report.study.runs import trials_of
from steadytune.report.study.telling import Telling
from steadytune.study.results import TrialResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Read = Callable[[Sequence[TrialResult]], Series | None]
BAND = "from the lowest run to the highest"
BINS = 50  # of a loss curve: single batches are noise


def curves(tell: Telling) -> list[Figure]:
    """Validation, then loss; each where it was recorded."""
    tasks, fewer = tasks_drawn(tell)
    names, fewer_lines = lines_drawn(tell)
    made = []
    validation = _panels(tell, tasks, names, _validation)
    if validation:
        caption = (
            "Mean validation score at each evaluation that half of the runs reached; a run counts until it stopped. "
            f"{band_words(tell, BAND)} Dashed: the score without learning.{fewer_lines}{fewer}"
        )

        def finish(panel: Axes, task: str) -> None:
            level = tell.results.tasks[task].baseline.validation
            if level is not None and np.isfinite(level):
                panel.axhline(level, color=LIGHT["level"], linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
            panel.set_ylabel(metric_label(tell, task))
            steps_axis(panel)

        title = "Validation score during training"
        made.append(Figure("curves", title, caption, lambda: draw_tasks(tell, validation, finish)))
    losses = _panels(tell, tasks, names, _loss)
    if losses:
        caption = (
            f"Mean training loss of the runs, in {BINS} stretches of steps. "
            f"{band_words(tell, BAND)}{fewer_lines}{fewer}"
        )

        def finish_loss(panel: Axes, task: str) -> None:
            panel.set_ylabel("training loss")
            steps_axis(panel)

        title = "Training loss"
        made.append(Figure("loss", title, caption, lambda: draw_tasks(tell, losses, finish_loss, markers=False)))
    return made


def _panels(tell: Telling, tasks: Sequence[str], names: Sequence[str], read: Read) -> dict[str, dict[str, Series]]:
    lines = [line for line in tell.compared.lines if line.name in set(names)]
    found: dict[str, dict[str, Series]] = {}
    for task in tasks:
        series = {line.name: read(trials_of(tell.results, line, task)) for line in lines}
        kept = {name: each for name, each in series.items() if each is not None}
        if kept:
            found[task] = kept
    return found


def by_step(trials: Sequence[TrialResult], pick: Callable[[Mapping[str, Any]], float | None]) -> Series | None:
    """`pick(entry)` of the evaluations of runs, by step."""
    ended = [trial for trial in trials if trial.ended]
    rows = [{entry["step"]: value for entry in trial.history if (value := pick(entry)) is not None} for trial in ended]
    rows = [row for row in rows if row]
    steps = sorted({step for row in rows for step in row})
    return over_runs(steps, np.array([[row.get(step, np.nan) for step in steps] for row in rows], dtype=np.float64))


def _validation(trials: Sequence[TrialResult]) -> Series | None:
    return by_step(trials, lambda entry: entry.get("validation"))


def _loss(trials: Sequence[TrialResult]) -> Series | None:
    """Losses of single steps averaged over stretches of the planned steps. What is left at the end goes to the last
    one: of a step or two, where a batch may be small, the mean would be noise."""
    ran = [trial for trial in trials if trial.ended and len(trial.losses)]
    if not ran:
        return None
    longest = max(len(trial.losses) for trial in ran)
    width = -(-longest // BINS)
    starts = np.arange(longest // width) * width
    rows = np.full((len(ran), longest), np.nan)
    for row, trial in zip(rows, ran):
        row[: len(trial.losses)] = np.array(trial.losses, dtype=np.float64)
    there = np.isfinite(rows)
    totals = np.add.reduceat(np.where(there, rows, 0.0), starts, axis=1)
    counts = np.add.reduceat(there.astype(int), starts, axis=1)
    means = np.divide(totals, counts, out=np.full(totals.shape, np.nan), where=counts > 0)
    ends = [*starts[1:].tolist(), longest]
    return over_runs([(start + end) / 2 for start, end in zip(starts.tolist(), ends)], means)


def steps_axis(panel: Axes, ticks: int = 5) -> None:
    panel.set_xlabel("step")
    panel.set_xlim(left=0)
    panel.locator_params(axis="x", nbins=ticks)
    panel.xaxis.set_major_formatter(lambda value, _: plain_number(value))
