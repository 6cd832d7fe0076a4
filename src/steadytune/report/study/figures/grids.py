"""Scores over init x order seeds as heat maps, with the least, mean and greatest of each row and column (V23)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.figures.style import FONT, LIGHT, WIDTH, sheet, title
from steadytune.report.study.luck import Grid
from steadytune.report.study.telling import Telling
from steadytune.report.words import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

MOST_GRIDS = 6  # per figure and task: the baseline and the best
MOST_SEEDS = 30  # of a side
_GAP = 0.35  # between the grid and its margins, in cells
_COLOURS = "cividis"  # even in lightness, and told apart without colour vision


def grids(tell: Telling) -> list[Figure]:
    """A figure per task that has grids."""
    made = []
    for place, task in enumerate(tell.compared.tasks, start=1):
        order = [tell.baseline, *tell.ranked]
        found = {
            line: tell.compared.luck.grids[task, line] for line in order if (task, line) in tell.compared.luck.grids
        }
        drawn = dict(list(found.items())[:MOST_GRIDS])
        if not drawn or not any(np.isfinite(grid.scores).any() for grid in drawn.values()):
            continue
        rule = f" The baseline and the best are drawn, {len(drawn)} of {len(found)}." if len(drawn) < len(found) else ""
        caption = (
            f"{tell.metric(task)} of each run on {tell.task[task]}: init seeds down, order and noise seeds across. Margins: least, "
            f"mean and greatest of a row or column. A cross: the run diverged; blank: it has no score yet. In margins a "
            f"diverged run counts at the score without learning.{rule}"
        )
        heading = f"Init and order on {tell.task[task]}"
        made.append(Figure(f"grid-{place}", heading, caption, _Drawer(tell, task, drawn)))
    return made


class _Drawer:
    """Draws one task's grids when called."""

    def __init__(self, tell: Telling, task: str, drawn: dict[str, Grid]) -> None:
        self.tell, self.task, self.drawn = tell, task, drawn

    def __call__(self) -> Drawn:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        columns = min(3, len(self.drawn))
        height = (WIDTH / columns - 0.9) * 1.02
        figure, axes = sheet(len(self.drawn), min(height, 4.2), columns=columns, left=0.5)
        runs = [self.tell.runs(self.task, line) for line in self.drawn]
        floor = runs[0].floor
        there = np.concatenate([grid.scores[np.isfinite(grid.scores)] for grid in self.drawn.values()])
        scale = Normalize(float(there.min()), float(max(there.max(), there.min() + 1e-9)))
        for panel, (line, grid) in zip(axes, self.drawn.items()):
            _draw_grid(panel, grid, floor, ScalarMappable(scale, _COLOURS))
            title(panel, self.tell.line[line])
        return figure


def _draw_grid(panel: Axes, grid: Grid, floor: float | None, colours: Any) -> None:
    scores = grid.scores[:MOST_SEEDS, :MOST_SEEDS]
    diverged = grid.diverged[:MOST_SEEDS, :MOST_SEEDS]
    down, across = scores.shape
    counted = np.where(diverged, np.nan if floor is None else floor, scores)
    small = max(down, across) <= 12
    for row in range(down):
        for column in range(across):
            _cell(panel, column, row, scores[row, column], colours, bool(diverged[row, column]), "")
    for place, reduce in enumerate((np.nanmin, np.nanmean, np.nanmax)):
        for row in range(down):
            value = _reduced(counted[row], reduce)
            _cell(panel, across + _GAP + place * 1.0, row, value, colours, False, number(value) if small else "")
        for column in range(across):
            value = _reduced(counted[:, column], reduce)
            _cell(panel, column, down + _GAP + place * 1.0, value, colours, False, "")
    panel.set_xlim(-0.02, across + _GAP + 3.02)
    panel.set_ylim(down + _GAP + 3.02, -0.02)
    margins = ("min", "mean", "max")
    at = [across + _GAP + place + 0.5 for place in range(3)]
    step = -(-max(down, across) // 12)
    orders = list(range(0, across, step))
    inits = list(range(0, down, step))
    panel.set_xticks([*(place + 0.5 for place in orders), *at], [*(str(grid.orders[p]) for p in orders), *margins])
    at = [down + _GAP + place + 0.5 for place in range(3)]
    panel.set_yticks([*(place + 0.5 for place in inits), *at], [*(str(grid.inits[p]) for p in inits), *margins])
    panel.tick_params(length=0, labelsize=FONT - 2.5)
    panel.set_xlabel("order seed")
    panel.set_ylabel("init seed", labelpad=1)
    panel.grid(False)
    for spine in panel.spines.values():
        spine.set_visible(False)


def _reduced(values: np.ndarray, reduce: Any) -> float:
    return float(reduce(values)) if np.isfinite(values).any() else float("nan")


def _cell(panel: Axes, x: float, y: float, value: float, colours: Any, diverged: bool, text: str) -> None:
    from matplotlib.patches import Rectangle

    if np.isfinite(value):
        colour = colours.to_rgba(value)
        panel.add_patch(Rectangle((x, y), 0.96, 0.96, facecolor=colour, linewidth=0))
        if text:
            light = 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2] > 0.5
            shade = "black" if light else "white"
            panel.text(x + 0.48, y + 0.5, text.lstrip("0") or "0", ha="center", va="center", fontsize=5, color=shade)
    elif diverged:
        panel.plot([x + 0.48], [y + 0.48], marker="x", color=LIGHT["level"], markersize=4, markeredgewidth=1)
