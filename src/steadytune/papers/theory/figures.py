"""The figures of the theory: each function makes one from a result, drawn when it is shown or saved."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from steadytune.papers.theory.adam_bias import AdamBias
from steadytune.papers.theory.least_squares import LeastSquares
from steadytune.papers.theory.rdrop_bound import RDropBound
from steadytune.papers.theory.theorem import Theorem
from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.figures.style import LIGHT, MARKERS, SERIES, add_legend, plain_number, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn


def _log(axis: Any) -> None:
    """A logarithmic axis with plain numbers: these figures have text only, no mathematics."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
    axis.set_minor_formatter(NullFormatter())


def least_squares(result: LeastSquares) -> Figure:
    """Figure 5 of the mixout paper."""
    return Figure(
        "mixout-figure-5",
        "Least squares with mixout(u, p)",
        "The first of the problems: data drawn around the true line, the line of the target u, and the line that "
        "stochastic gradient descent with mixout(u, p) fits. As p grows, the fitted line goes to the target's.",
        partial(_draw_least_squares, result),
    )


def _draw_least_squares(result: LeastSquares) -> Drawn:
    ps = result.setup.ps
    figure, panels = sheet(len(ps), 1.7, columns=len(ps), left=0.56, gap=0.08, legend=1)
    ends = np.array([-1.0, 1.0])
    top, bottom = max(result.y), min(result.y)
    for axes, p, fitted in zip(panels, ps, result.fitted):
        handles: dict[str, Any] = {"data": axes.scatter(result.x, result.y, s=6, color=LIGHT["faint"])}
        for (slope, intercept), style, colour, name in (
            (result.true[0], ":", "blue", "true line"),
            (result.target[0], ":", "orange", "target u"),
            (fitted[0], "-", "green", "fitted"),
        ):
            (handles[name],) = axes.plot(ends, slope * ends + intercept, style, color=LIGHT[colour])
        values = [slope * end + intercept for slope, intercept in (result.true[0], result.target[0]) for end in ends]
        axes.set_ylim(min(bottom, *values) - 0.2, max(top, *values) + 0.2)
        axes.set_title(f"mixout(u, {p:.1f})")
        axes.set_xlabel("x")
    panels[0].set_ylabel("y")
    add_legend(figure, handles)
    return figure


def theorem(result: Theorem) -> Figure:
    return Figure(
        "mixout-corollary-1.1",
        "The penalty toward u that mixout(u, p) adds",
        "What multiplies (m/2) ||w - u||², measured by Monte Carlo for one mask entry per neuron (bars: two standard "
        "errors), and the lower bound of corollary 1.1. Only a Hessian m I attains it.",
        partial(_draw_theorem, result),
    )


def _draw_theorem(result: Theorem) -> Drawn:
    figure, (axes,) = sheet(1, 2.6, legend=2)
    handles: dict[str, Any] = {}
    names = {"m I": "Hessian m I", "quadratic": "general quadratic", "logistic": "logistic + ridge"}
    for loss, colour, marker in zip(("m I", "quadratic", "logistic"), SERIES, MARKERS):
        chosen = [each for each in result.checks if each.loss == loss and each.mask == "Bernoulli per neuron"]
        handles[f"measured, {names[loss]}"] = axes.errorbar(
            [1 - each.mu for each in chosen],
            [each.coefficient / each.m for each in chosen],
            yerr=[2 * each.error / (0.5 * each.squared_distance * each.m) for each in chosen],
            fmt=marker,
            markersize=5,
            color=LIGHT[colour],
        )
    ps = [0.01 * i for i in range(1, 95)]
    (handles["p / (1 - p), the bound"],) = axes.plot(ps, [p / (1 - p) for p in ps], color=LIGHT["ink"])
    _log(axes.yaxis)
    axes.set_xlabel("p")
    axes.set_ylabel("coefficient of (m/2) ||w - u||²")
    add_legend(figure, handles)
    return figure


def adam_bias(result: AdamBias) -> Figure:
    """Figure 1 of the few-sample paper."""
    return Figure(
        "few-sample-figure-1",
        "Bias in the Adam update",
        "How many times too long a step is without bias correction: r(t), and the step lengths of two real optimisers "
        "divided (dots). Vertical lines: the steps of three epochs in batches of 32.",
        partial(_draw_adam_bias, result),
    )


def _draw_adam_bias(result: AdamBias) -> Drawn:
    figure, (axes,) = sheet(1, 2.6, legend=2)
    (ratio,) = axes.plot(result.steps, result.ratio, color=LIGHT["ink"])
    some = slice(None, None, max(1, len(result.measured) // 25))
    (dots,) = axes.plot(result.measured_steps[some], result.measured[some], "o", markersize=3, color=LIGHT["base"])
    handles = {"r(t)": ratio, "measured": dots}
    for (name, at), colour in zip(result.iterations.items(), SERIES):
        handles[f"{name}, {at:,} steps"] = axes.axvline(at, color=LIGHT[colour], linestyle="--", linewidth=1)
    _log(axes.xaxis)
    axes.set_xlabel("training iterations")
    axes.set_ylabel("bias in update magnitude")
    add_legend(figure, handles)
    return figure


def rdrop_bound(result: RDropBound) -> Figure:
    return Figure(
        "rdrop-proposition-b1",
        "Proposition B.1: full model and sub-models",
        "The gap |L(w) - E L(w, ξ)| of every trained linear model against √ε (dots), and its bound √2 c1 c2 √ε (bars "
        "of the same colour). All expectations are exact.",
        partial(_draw_rdrop_bound, result),
    )


def _draw_rdrop_bound(result: RDropBound) -> Drawn:
    figure, (axes,) = sheet(1, 2.6, legend=1, left=0.75)
    handles: dict[str, Any] = {}
    for alpha, colour, marker in zip(result.setup.alphas, SERIES, MARKERS):
        chosen = [each for each in result.points if each.alpha == alpha]
        root, ink = [math.sqrt(each.epsilon) for each in chosen], LIGHT[colour]
        gaps = axes.scatter(root, [each.gap for each in chosen], s=12, color=ink, marker=marker)
        bounds = axes.scatter(root, [each.corrected_bound for each in chosen], s=30, marker="_", color=ink)
        handles |= {f"gap, α = {alpha:g}": gaps, f"bound, α = {alpha:g}": bounds}
    _log(axes.yaxis)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("√ε")
    axes.set_ylabel("gap, and its bound")
    add_legend(figure, handles)
    return figure
