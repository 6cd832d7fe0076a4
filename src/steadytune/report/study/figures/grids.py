"""Scores over init x order seeds as heat maps, with the least, mean and greatest of each row and column (V23)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.figures.style import FONT, LIGHT, sheet, title
from steadytune.report.study.luck import Grid
from steadytune.report.study.telling import Telling
from steadytune.report.words import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

MOST_GRIDS = 6  # per figure and task: the baseline and the best
MOST_SEEDS, MOST_CELLS = 30, 3000  # of a side, and of a figure
_GAP = 0.35  # between the grid and its margins, in cells
_COLOURS = "cividis"  # even in lightness, and told apart without colour vision


def grids(tell: Telling) -> list[Figure]:
    """A figure per task that has grids."""
    made, every = [], tell.compared.luck.grids
    for place, task in enumerate(tell.compared.tasks, start=1):
        found = {line: every[task, line] for line in (tell.baseline, *tell.ranked) if (task, line) in every}
        cells = max(
            (min(MOST_SEEDS, len(grid.inits)) * min(MOST_SEEDS, len(grid.orders)) for grid in found.values()), default=1
        )
        drawn = dict(list(found.items())[: max(1, min(MOST_GRIDS, MOST_CELLS // cells))])
        if not any(np.isfinite(grid.scores).any() for grid in drawn.values()):
            continue
        rule = f" The baseline and the best are drawn, {len(drawn)} of {len(found)}." if len(drawn) < len(found) else ""
        caption = (
            f"{tell.metric(task)} of each run on {tell.task[task]}: init seeds down, order and noise seeds across. "
            "Margins: least, mean, greatest and standard deviation of a row or column. A cross: the run diverged; "
            f"blank: no score yet. In margins a diverged run counts at the score without learning.{rule}{_cut(drawn)}"
        )
        heading = f"Init and order on {tell.task[task]}"
        made.append(Figure(f"grid-{place}", heading, caption, _Drawer(tell, task, drawn)))
    return made


def _cut(drawn: dict[str, Grid]) -> str:
    more = any(max(len(grid.inits), len(grid.orders)) > MOST_SEEDS for grid in drawn.values())
    return f" The first {MOST_SEEDS} seeds of a side are drawn." if more else ""


class _Drawer:
    """Draws one task's grids when called."""

    def __init__(self, tell: Telling, task: str, drawn: dict[str, Grid]) -> None:
        self.tell, self.task, self.drawn = tell, task, drawn

    def __call__(self) -> Drawn:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        figure, axes = sheet(len(self.drawn), 3.2, columns=2, left=0.5)
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
    cells = _Cells(panel, colours)
    for row in range(down):
        for column in range(across):
            cells.add(column, row, scores[row, column])
    rows, columns = np.nonzero(diverged)
    panel.plot(columns + 0.48, rows + 0.48, marker="x", color=LIGHT["level"], markersize=4, linestyle="none")
    wide = max(1.0, across / 6.5)  # a margin's column holds a number
    told = max(down, across) <= 12
    for place, (name, reduce) in enumerate(_MARGINS.items()):
        x, y = across + _GAP + place * wide, down + _GAP + place
        for row in range(down):
            cells.add(x, row, _reduced(counted[row], reduce), wide, told, name != "std")
        for column in range(across):
            cells.add(column, y, _reduced(counted[:, column], reduce), 1.0, told, name != "std")
    cells.draw()
    panel.set_xlim(-0.02, across + _GAP + len(_MARGINS) * wide)
    panel.set_ylim(down + _GAP + len(_MARGINS), -0.02)
    step = -(-max(down, across) // 12)
    orders, inits = range(0, across, step), range(0, down, step)
    rights = [across + _GAP + (place + 0.5) * wide for place in range(len(_MARGINS))]
    lows = [down + _GAP + place + 0.5 for place in range(len(_MARGINS))]
    panel.set_xticks([*(place + 0.5 for place in orders), *rights], [*(str(grid.orders[p]) for p in orders), *_MARGINS])
    panel.set_yticks([*(place + 0.5 for place in inits), *lows], [*(str(grid.inits[p]) for p in inits), *_MARGINS])
    panel.tick_params(length=0, labelsize=FONT - 2.5)
    panel.set_xlabel("order seed")
    panel.set_ylabel("init seed", labelpad=1)
    panel.grid(False)
    for spine in panel.spines.values():
        spine.set_visible(False)


def _spread(values: np.ndarray) -> float:
    there = values[np.isfinite(values)]
    return float(there.std(ddof=1)) if there.size > 1 else float("nan")


_MARGINS = {"min": np.nanmin, "mean": np.nanmean, "max": np.nanmax, "std": _spread}


def _reduced(values: np.ndarray, reduce: Any) -> float:
    return float(reduce(values)) if np.isfinite(values).any() else float("nan")


class _Cells:
    """Coloured cells, drawn all at once; numbers in them where they are told, and numbers alone without colour."""

    def __init__(self, panel: Axes, colours: Any) -> None:
        self.panel, self.colours = panel, colours
        self.corners: list[list[tuple[float, float]]] = []
        self.faces: list[Any] = []

    def add(
        self, x: float, y: float, value: float, wide: float = 1.0, told: bool = False, coloured: bool = True
    ) -> None:
        if not np.isfinite(value):
            return
        ink = LIGHT["ink"]
        if coloured:
            face = self.colours.to_rgba(value)
            right, low = x + wide - 0.04, y + 0.96
            self.corners.append([(x, y), (right, y), (right, low), (x, low)])
            self.faces.append(face)
            ink = "black" if 0.3 * face[0] + 0.59 * face[1] + 0.11 * face[2] > 0.5 else "white"
        if told:
            text = number(value).removeprefix("0") if abs(value) < 1 else f"{value:.3g}"
            self.panel.text(x + wide / 2, y + 0.5, text, ha="center", va="center", fontsize=5.4, color=ink)

    def draw(self) -> None:
        from matplotlib.collections import PolyCollection

        self.panel.add_collection(PolyCollection(self.corners, facecolors=self.faces, linewidths=0), autolim=False)
