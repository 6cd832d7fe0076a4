"""Score against a swept setting: p, L, alpha, learning rate, steps (M25, V12, V16, R8)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.figures.series import Series, draw_series, over_runs
from steadytune.report.study.figures.style import (
    LIGHT,
    MARKERS,
    NAME_WIDTH,
    SERIES,
    Look,
    add_legend,
    handle,
    legend_rows,
    metric_label,
    plain_number,
    sheet,
    tasks_drawn,
    title,
)
from steadytune.report.study.naming import clean, short, short_names
from steadytune.report.study.runs import floors
from steadytune.report.study.tables_beside import validation_score
from steadytune.report.study.telling import Telling
from steadytune.study.results import TrialResult, Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

INNER = 2  # series in a panel, up to which the middle half of the runs is drawn too
Trials = Mapping[tuple[str, str], Sequence[TrialResult]]


@dataclass(frozen=True)
class Sweep:
    """One setting: its values in order, and per series (a family at fixed other settings) the variant of each value."""

    setting: str
    values: tuple[Any, ...]
    series: Mapping[str, Mapping[Any, str]]
    tuning: bool  # the runs are those of the choice, scored on validation


def sweeps(tell: Telling) -> list[Figure]:
    """A figure per swept setting."""
    results = tell.results
    found = [*_find(results.variants, results.reported, False), *_find(results.variants, results.tuning, True)]
    made = []
    for number, sweep in enumerate(found, start=1):
        tasks, fewer = tasks_drawn(tell)
        panels = {task: series for task in tasks if (series := _series(tell, sweep, task))}
        if not panels:
            continue
        where = "validation score of the tuning runs" if sweep.tuning else "score of the reported runs"
        inner = ", darker the middle half of the runs" if len(sweep.series) <= INNER else ""
        dotted = "" if sweep.tuning or _swept(tell, sweep) else f" Dotted: the mean of {tell.base}."
        caption = (
            f"Mean {where} at each value that was tried. Bands: from the lowest run to the highest{inner}.{dotted} "
            f"Dashed: the score without learning, at which diverged runs count.{_cut(sweep)}{fewer}"
        )
        name = f"sweep-{number}"
        heading = f"{'Choosing' if sweep.tuning else 'Score against'} {short(sweep.setting, 40)}"
        made.append(Figure(name, heading, caption, partial(_draw, tell, sweep, panels)))
    return made


def _find(variants: Mapping[str, Variant], trials: Trials, tuning: bool) -> list[Sweep]:
    """Every setting of which some series has two values or more."""
    ran = {variant for _, variant in trials}
    used = [variant for variant in variants.values() if variant.name in ran and variant.point]
    found = []
    for setting in dict.fromkeys(key for variant in used for key in variant.point):
        series: dict[str, dict[Any, str]] = {}
        for variant in used:
            if setting in variant.point:
                rest = [f"{key}={value}" for key, value in variant.point.items() if key != setting]
                value = variant.point[setting]
                series.setdefault(", ".join([variant.family, *rest]), {})[_hashable(value)] = variant.name
        kept = {name: points for name, points in series.items() if len(points) > 1}
        if kept:
            values = {value for points in kept.values() for value in points}
            numbers = all(_is_number(value) for value in values)
            order = sorted(values) if numbers else list(dict.fromkeys(v for points in kept.values() for v in points))
            found.append(Sweep(setting, tuple(order), kept, tuning))
    return found


def _series(tell: Telling, sweep: Sweep, task: str) -> dict[str, Series]:
    """Per series: mean and range over runs at each value, at its place on the axis."""
    trials = tell.results.tuning if sweep.tuning else tell.results.reported
    floor = floors(tell.results)[task]
    numbers = all(_is_number(value) for value in sweep.values)
    found = {}
    for name, points in list(sweep.series.items())[: len(SERIES)]:
        places, runs = [], []
        for place, value in enumerate(sweep.values):
            tried = trials.get((task, points[value]), ()) if value in points else ()
            scores = [score for trial in tried if (score := _score(tell, sweep, trial, floor)) is not None]
            if scores:
                places.append(float(value) if numbers else float(place))
                runs.append(scores)
        if runs:
            table = np.full((max(map(len, runs)), len(runs)), np.nan)
            for place, scores in enumerate(runs):
                table[: len(scores), place] = scores
            each = over_runs(places, table, share=0.0)
            if each is not None:
                found[name] = each
    return found


def _score(tell: Telling, sweep: Sweep, trial: TrialResult, floor: float | None) -> float | None:
    if sweep.tuning:
        return validation_score(tell, trial)
    if trial.status not in ("finished", "diverged"):
        return None
    score = tell.results.score(trial)
    return floor if score is None else score


def _draw(tell: Telling, sweep: Sweep, panels: Mapping[str, Mapping[str, Series]]) -> Drawn:
    drawn = [name for name in sweep.series if any(name in series for series in panels.values())]
    labels = short_names(drawn, NAME_WIDTH)
    band = len(drawn) <= 4
    look = {
        name: Look(LIGHT[SERIES[place]], MARKERS[place], 1.6, 5, labels[name], band or place == 0)
        for place, name in enumerate(drawn)
    }
    handles = {labels[name]: handle(look[name]) for name in drawn} if len(drawn) > 1 else {}
    figure, axes = sheet(len(panels), 2.1, legend=legend_rows(list(handles)))
    for panel, (task, series) in zip(axes, panels.items()):
        for name, found in series.items():
            draw_series(panel, found, look[name], inner=len(drawn) <= INNER)
        level = tell.results.tasks[task].baseline.validation if sweep.tuning else tell.results.level(task)
        if level is not None and math.isfinite(level):
            panel.axhline(level, color=LIGHT["level"], linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        base = tell.compared.runs.get((task, tell.baseline))
        if base is not None and base.summary is not None and not sweep.tuning and not _swept(tell, sweep):
            panel.axhline(base.summary.mean, color=LIGHT["base"], linewidth=1.2, linestyle=(0, (1, 1.5)), zorder=2)
        title(panel, tell.task[task])
        panel.set_ylabel(("validation " if sweep.tuning else "") + metric_label(tell, task))
        panel.locator_params(axis="y", nbins=6)
        panel.set_xlabel(short(sweep.setting, 40))
        _axis(panel, sweep.values)
    add_legend(figure, handles)
    return figure


def _axis(panel: Axes, values: Sequence[Any]) -> None:
    """Ticks at the values that were tried; powers of something get a logarithmic axis."""
    from matplotlib.ticker import NullFormatter, NullLocator

    if not all(_is_number(value) for value in values):
        panel.set_xticks(range(len(values)), [short(value, 12) for value in values])
        return
    if values[0] > 0 and values[-1] / values[0] >= 15:
        panel.set_xscale("log")
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_minor_formatter(NullFormatter())
    shown = values if len(values) <= 7 else [values[round(place)] for place in np.linspace(0, len(values) - 1, 6)]
    panel.set_xticks([float(value) for value in shown], [plain_number(value) for value in shown])


def _swept(tell: Telling, sweep: Sweep) -> bool:
    return any(tell.baseline in points.values() for points in sweep.series.values())


def _cut(sweep: Sweep) -> str:
    return (
        f" The first {len(SERIES)} of {len(sweep.series)} series are drawn." if len(sweep.series) > len(SERIES) else ""
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) or value is None else clean(value)
