"""How the runs of each line are spread: every run a point, a box, and the score without learning (M22, V3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.figures.style import (
    FONT,
    LIGHT,
    NAME_WIDTH,
    across,
    colours_of,
    lines_drawn,
    metric_label,
    sheet,
    tasks_drawn,
    text_inches,
    title,
)
from steadytune.report.study.naming import in_lines, short_names
from steadytune.report.study.runs import Runs
from steadytune.report.study.telling import Telling

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

MOST_POINTS = 2400  # in the whole figure
_ROW = {1: 0.3, 2: 0.36, 3: 0.48}  # inches, by the lines of its name
_FAR = 4.0  # times the spread of all runs


def distribution(tell: Telling) -> Figure | None:
    tasks, fewer_tasks = tasks_drawn(tell)
    names, fewer_lines = lines_drawn(tell)
    if not tasks or not names:
        return None
    cells = sum(bool(tell.runs(task, name).n) for task in tasks for name in names)
    most = max(12, MOST_POINTS // max(1, cells))
    cut = any(tell.runs(task, name).n > most for task in tasks for name in names)
    rule = f" Of more than {most} runs, {most} evenly spaced in rank are drawn." if cut else ""
    level = " Dashed: the score without learning; runs that are not above it failed (counted on the right)."
    levels = [_level(tell, task, names) for task in tasks]
    known = any(each is not None for each in levels)
    if known and not all(each is not None for each in levels):
        level += " Where all runs are far above it, it is not drawn."
    caption = (
        "One point per run; crosses: diverged, at the score they count as. Box: from the first to the third quartile, "
        f"with the median. Diamond: the mean.{level if known else ''}{rule}{fewer_lines}{fewer_tasks}"
    )
    return Figure("distribution", "How the runs are spread", caption, lambda: _draw(tell, tasks, names, most))


def _draw(tell: Telling, tasks: list[str], names: list[str], most: int) -> Drawn:
    few = len(names) <= 12
    labels, colours = (in_lines if few else short_names)(names, NAME_WIDTH), colours_of(tell)
    lines = [label.split("\n") for label in labels.values()]
    row = _ROW[max(map(len, lines))] if few else 0.22
    left = 0.2 + text_inches(max(len(line) for label in lines for line in label))
    figure, axes = sheet(len(tasks), max(0.7, row * len(names) + 0.1), left=left, gap=0.42, shared=True)
    columns = across(len(tasks))
    for place, (task, panel) in enumerate(zip(tasks, axes)):
        for height, name in enumerate(names):
            _line(panel, tell.runs(task, name), len(names) - 1 - height, colours[name], most)
        level = _level(tell, task, names)
        if level is not None:
            panel.axvline(level, color=LIGHT["level"], linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        title(panel, tell.task[task])
        panel.set_xlabel(metric_label(tell, task))
        panel.set_ylim(-0.6, len(names) - 0.4)
        panel.set_yticks(range(len(names)), [labels[name] for name in reversed(names)] if place % columns == 0 else [])
        panel.tick_params(axis="y", length=0, labelcolor=LIGHT["ink"], labelsize=FONT)
        panel.grid(False, axis="y")
        panel.locator_params(axis="x", nbins=5)
        panel.use_sticky_edges = False  # a box that begins at the lowest score must not put it on the frame
        panel.margins(x=0.06)
    return figure


def _level(tell: Telling, task: str, names: list[str]) -> float | None:
    """The score without learning, unless it is so far from all runs that it would squeeze them together."""
    shown = [runs for name in names if (runs := tell.runs(task, name)).n]
    if not shown or shown[0].level is None:
        return None
    scores, level = np.concatenate([runs.settled for runs in shown]), shown[0].level
    near = np.abs(scores - level).min() <= _FAR * np.ptp(scores)
    return level if near or any(runs.failed for runs in shown) else None


def _line(panel: Axes, runs: Runs, height: float, colour: str, most: int) -> None:
    if runs.summary is None:
        return
    scores = runs.settled
    order = np.argsort(scores, kind="stable")
    diverged = np.isnan(runs.scores)[order]
    ordered = scores[order]
    if len(ordered) > most:
        kept = np.unique(np.linspace(0, len(ordered) - 1, most).round().astype(int))
        ordered, diverged = ordered[kept], diverged[kept]
    # Neighbours in rank are moved apart by a fixed pattern, so that equal scores stay visible and a figure repeatable.
    shift = 0.26 * np.array([0.0, 0.7, -0.5, 0.35, -0.85, 1.0, -0.2, 0.5, -0.7, 0.15, -1.0, 0.85, -0.35])
    heights = height + np.resize(shift, len(ordered))
    low, high = (value for _, value in runs.summary.quantiles)
    if runs.n >= 3:
        panel.barh(height, high - low, left=low, height=0.62, color=colour, alpha=0.2, linewidth=0, zorder=2)
        panel.plot([runs.summary.median] * 2, [height - 0.31, height + 0.31], color=colour, linewidth=1.8, zorder=4)
    points: dict[str, Any] = {"color": colour, "linestyle": "none", "zorder": 3}
    whole: dict[str, Any] = {"marker": "o", "markersize": 3.2, "alpha": 0.75, "markeredgewidth": 0}
    cross: dict[str, Any] = {"marker": "x", "markersize": 4.5, "markeredgewidth": 1.1}
    mean: dict[str, Any] = {"marker": "D", "markersize": 4.4, "markeredgecolor": colour, "markeredgewidth": 1.3}
    panel.plot(ordered[~diverged], heights[~diverged], **points, **whole)
    panel.plot(ordered[diverged], heights[diverged], **points, **cross)
    panel.plot([runs.summary.mean], [height], markerfacecolor=LIGHT["paper"], zorder=5, **mean)
    if runs.failed:
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (3, 0), "textcoords": "offset points"}
        look: dict[str, Any] = {"fontsize": FONT - 2, "color": LIGHT["level"], "ha": "left", "va": "center"}
        panel.annotate(f"{runs.failed}/{runs.n}", (1.0, height), annotation_clip=False, **place, **look)
