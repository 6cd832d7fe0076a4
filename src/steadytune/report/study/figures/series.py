"""Lines with bands: one per line of the study, in a panel per task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from steadytune.report.study.figures.style import Look, add_legend, handle, legend_rows, looks, sheet, title
from steadytune.report.study.telling import Telling

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn


@dataclass(frozen=True, eq=False)
class Series:
    """A line and its bands, point by point: an outer one, and an inner one where `quartiles` are there."""

    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    quartiles: tuple[np.ndarray, np.ndarray] | None = None


def over_runs(x: Sequence[float], runs: np.ndarray, share: float = 0.5) -> Series | None:
    """Mean, range and quartiles over runs [run, point]. A point stays where this share of the runs has one."""
    if runs.size == 0:
        return None
    there = np.isfinite(runs)
    kept = there.sum(axis=0) >= max(1.0, share * len(runs))
    if not kept.any():
        return None
    values = np.where(there, runs, np.nan)[:, kept]
    middle, low, high = np.nanmean(values, axis=0), np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    first, third = np.nanquantile(values, [0.25, 0.75], axis=0)
    return Series(np.asarray(x, dtype=np.float64)[kept], middle, low, high, (first, third))


def draw_series(panel: Axes, found: Series, look: Look, markers: bool = True, inner: bool = False) -> None:
    if look.band and len(found.x) > 1:
        behind: dict[str, Any] = {"color": look.colour, "zorder": look.front - 3}
        panel.fill_between(found.x, found.low, found.high, alpha=0.1, linewidth=0, **behind)
        for edge in (found.low, found.high):
            panel.plot(found.x, edge, linewidth=0.5, alpha=0.5, **behind)
        if inner and found.quartiles is not None:
            panel.fill_between(found.x, *found.quartiles, alpha=0.16, linewidth=0, **behind)
    one = len(found.x) == 1
    marker = look.marker or "o"
    size = 3.5 if (markers and look.label) or one else 0.0
    style: dict[str, Any] = {"color": look.colour, "linewidth": look.width, "zorder": look.front}
    panel.plot(found.x, found.middle, marker=marker if size else "", markersize=size, markeredgewidth=0, **style)


def draw_tasks(
    tell: Telling,
    panels: Mapping[str, Mapping[str, Series]],
    finish: Callable[[Axes, str], None],
    *,
    height: float = 2.1,
    markers: bool = True,
    name: Callable[[str], str] | None = None,
    columns: int | None = None,
) -> Drawn:
    """One panel per key of `panels`, each with a line per line of the study, and a legend above them all."""
    look = looks(tell)
    drawn = [line for line in tell.compared.names if any(line in series for series in panels.values())]
    handles = {look[line].label: handle(look[line]) for line in drawn if look[line].label}
    figure, axes = sheet(len(panels), height, columns=columns, left=0.7, legend=legend_rows(list(handles)))
    for panel, (key, series) in zip(axes, panels.items()):
        for line, found in series.items():
            draw_series(panel, found, look[line], markers)
        title(panel, name(key) if name else tell.task[key])
        panel.locator_params(axis="y", nbins=6)
        finish(panel, key)
    add_legend(figure, handles)
    return figure
