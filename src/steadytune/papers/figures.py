"""Figures of the papers that no study's report has: every block's distance, and the score of each seed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from steadytune.report.study.figures import Figure, figures
from steadytune.report.study.figures.curves import BAND, by_step, steps_axis
from steadytune.report.study.figures.series import Series, draw_series, draw_tasks
from steadytune.report.study.figures.style import (
    add_legend,
    band_words,
    handle,
    legend_rows,
    looks,
    metric_label,
    sheet,
    title,
)
from steadytune.report.study.runs import trials_of
from steadytune.report.study.telling import Telling

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

    from steadytune.report.study.comparisons import Comparisons

_WHAT = "L2 distance of all parameters of a block from where training started, during training; mean over runs"


def named(compared: Comparisons, name: str) -> list[Figure]:
    """The figures of a view by name: `distribution`, `loss`, `sweep-1`; `grid` is all that begin so."""
    own = {"all-blocks": all_blocks, "by-seed": by_seed}
    if name in own:
        return [own[name](Telling(compared))]
    return [figure for figure in figures(compared) if figure.name == name or figure.name.startswith(f"{name}-")]


def all_blocks(tell: Telling) -> Figure:
    """A panel per block (few-sample paper, figures 15 to 18)."""
    panels: dict[str, dict[str, Series]] = {}
    for task in tell.compared.tasks:
        for line in tell.compared.lines:
            trials = [trial for trial in trials_of(tell.results, line, task) if trial.status == "finished"]
            for block in _blocks(trials):
                series = by_step(trials, partial(_distance, block))
                if series is not None:
                    panels.setdefault(f"{tell.task[task]}, block {block}", {})[line.name] = series
    caption = f"{_WHAT}. {band_words(tell, BAND)}"

    def finish(panel: Axes, _: str) -> None:
        panel.set_ylim(bottom=0)
        panel.set_ylabel("distance")
        steps_axis(panel, 3)

    def draw() -> Drawn:
        return draw_tasks(tell, panels, finish, height=1.2, columns=4, markers=False, name=str)

    return Figure("all-blocks", "How far every block moves", caption, draw)


def _blocks(trials: list[Any]) -> list[str]:
    found = trials[0].history[-1].get("distances", {}).get("start", {}) if trials and trials[0].history else {}
    return sorted((part for part in found if part.isdigit()), key=int)


def _distance(block: str, entry: Mapping[str, Any]) -> float | None:
    return ((entry.get("distances") or {}).get("start") or {}).get(block)


def by_seed(tell: Telling) -> Figure:
    """Score against seed, a line per variant (R-Drop's appendix, figure 1)."""
    caption = "Score of the run with each seed. A diverged run stands at the score without learning."
    return Figure("by-seed", "Score by random seed", caption, lambda: _draw_by_seed(tell))


def _draw_by_seed(tell: Telling) -> Drawn:
    look = looks(tell)
    handles = {look[name].label: handle(look[name]) for name in tell.compared.names if look[name].label}
    tasks = [task for task in tell.compared.tasks if any(tell.runs(task, name).n for name in tell.compared.names)]
    figure, axes = sheet(len(tasks), 1.7, columns=min(4, max(1, len(tasks))), legend=legend_rows(list(handles)))
    for panel, task in zip(axes, tasks):
        for name in tell.compared.names:
            runs = tell.runs(task, name)
            scores = runs.settled
            if len(scores):
                seeds = np.array([_number(seed) for seed in runs.seeds], dtype=np.float64)
                draw_series(panel, Series(seeds, scores, scores, scores), look[name])
        title(panel, tell.task[task])
        panel.set_xlabel("seed")
        panel.set_ylabel(metric_label(tell, task))
        panel.locator_params(axis="both", nbins=5)
    add_legend(figure, handles)
    return figure


def _number(seed: Any) -> int:
    """Of the streams (init, order, noise) the first; without crashed runs a seed keeps its place."""
    return int(seed[0] if isinstance(seed, tuple) else seed)
