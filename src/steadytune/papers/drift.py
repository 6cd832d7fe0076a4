"""Equation 10 of the mixout paper: ||w_t - w_0|| grows with log t. Read from the digits' restarts (M13).

Each restart notes its distance at steps spread evenly in log t. The claim, quoted from Hoffer et al. 2017, is about
plain training, so the restarts with p = 0 answer; those with mixout and dropout stand beside them in the figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from steadytune.papers.digits.results import DigitsResult, FineTuned
from steadytune.papers.verdicts import Verdict, by_tests
from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.figures.style import LIGHT, MARKERS, SERIES, add_legend, plain_number, sheet
from steadytune.stats import student_t_test

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

_SOURCE = "mixout paper, equation 10 (Hoffer et al. 2017)"
_TEXT = "||w_t - w_0|| grows with log t, without regulariser (p = 0)"


def curves(result: DigitsResult, method: str, p: float) -> np.ndarray:
    """[restart, point, 2]: (step, distance) of the restarts that did not diverge."""
    main = result.plan.mixouts()[0]
    form = None if method == "dropout" else main
    chosen = [
        each
        for each in result.runs
        if each.p == p and each.method == method and form in (None, (each.layers, each.gradient)) and _whole(each)
    ]
    return np.array([each.drift for each in chosen], dtype=np.float64)


def _whole(run: FineTuned) -> bool:
    return bool(run.drift) and all(far is not None for _, far in run.drift)


def verdicts(data: Mapping[str, Any]) -> list[Verdict]:
    found = curves(DigitsResult.from_data(data), "dropout", min(DigitsResult.from_data(data).plan.ps))
    if len(found) < 3:
        return [Verdict(_TEXT, None, None, len(found), _SOURCE, "fewer than 3 restarts have a whole curve")]
    logs = np.log(found[:, :, 0])
    slopes = np.array([np.polyfit(x, far, 1)[0] for x, far in zip(logs, found[:, :, 1])])
    fits = np.array([np.corrcoef(x, far)[0, 1] ** 2 for x, far in zip(logs, found[:, :, 1])])
    test = student_t_test(slopes, np.zeros_like(slopes), tail="greater", paired=True)
    told = (
        f"mean slope over log t {slopes.mean():.4g}; a straight line in log t explains {fits.mean():.0%} of the curve"
    )
    return [by_tests(_TEXT, [test], source=_SOURCE, measured=told)]


def figure(data: Mapping[str, Any]) -> Figure:
    caption = (
        "Distance to the weights that fine-tuning started from, by step, mean over restarts. A straight line is growth "
        "with log t."
    )
    return Figure("mixout-equation-10", "How far the weights move", caption, partial(_draw, data))


def _draw(data: Mapping[str, Any]) -> Drawn:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    result = DigitsResult.from_data(data)
    largest = max(result.plan.ps)
    lines = {"p = 0": ("dropout", min(result.plan.ps)), f"mixout(w_pre, {largest:g})": ("mixout", largest)}
    lines[f"dropout({largest:g})"] = ("dropout", largest)
    drawn, (panel,) = sheet(1, 2.6, legend=1)
    handles = {}
    for (name, which), colour, marker in zip(lines.items(), SERIES, MARKERS):
        found = curves(result, *which)
        if len(found):
            steps, far = found[0, :, 0], found[:, :, 1].mean(0)
            (handles[name],) = panel.plot(steps, far, color=LIGHT[colour], marker=marker, markersize=3)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel("step")
    panel.set_ylabel("||w_t - w_0||")
    add_legend(drawn, handles)
    return drawn
