"""Figure 2 of the mixout paper: distance, target accuracy and source accuracy against p, mean and std band."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from steadytune.papers.digits.results import DigitsResult
from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.figures.style import LIGHT, MARKERS, SERIES, add_legend, sheet, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

_PANELS = (
    ("distance", "||w_ft - w_pre||²", "(a) distance to w_pre"),
    ("validation", "validation accuracy", "(b) target, {target}"),
    ("source_validation", "validation accuracy", "(c) source, {source}"),
)


def figure(result: DigitsResult) -> Figure:
    """A line for dropout and one for every form of mixout that was run."""
    return Figure(
        "mixout-figure-2",
        "Fine-tuning with mixout(w_pre, p) and with dropout(p)",
        f"Pretrained on {result.source}, fine-tuned on {result.target}: squared distance to the pretrained weights, "
        "validation accuracy on the target, and on the source. Mean and standard deviation (bands) of "
        f"{result.plan.restarts} restarts; p = 0 is the same run in every line.",
        partial(_draw, result),
    )


def _draw(result: DigitsResult) -> Drawn:
    forms = result.plan.mixouts()
    lines = [("mixout", form, _name(form, forms[0])) for form in forms] + [("dropout", forms[0], "dropout(p)")]
    drawn, panels = sheet(3, 2.1, legend=2)
    ps = sorted(result.plan.ps)
    for axes, (what, label, heading) in zip(panels, _PANELS):
        handles = {}
        for (method, form, name), colour, marker in zip(lines, SERIES, MARKERS):
            table = np.ma.masked_invalid([result.values(method, p, what, form) for p in ps])
            centre, spread, ink = table.mean(axis=1), np.zeros(len(ps)), LIGHT[colour]
            if table.shape[1] > 1:
                spread = table.std(axis=1, ddof=1)
            # Another gradient gives nearly the same line, which would hide the one below it.
            style = "-" if form[1] == forms[0][1] else "--"
            (handles[name],) = axes.plot(ps, centre, style, color=ink, marker=marker, markersize=3.5, linewidth=1.4)
            axes.fill_between(ps, centre - spread, centre + spread, color=ink, alpha=0.2, linewidth=0)
        title(axes, heading.format(target=result.target, source=result.source))
        axes.set_xlabel("p")
        axes.set_ylabel(label)
    add_legend(drawn, handles)
    return drawn


def _name(form: tuple[str, str], main: tuple[str, str]) -> str:
    named = zip(("layers", "gradient"), form, main)
    return "mixout(w_pre, p)" + "".join(f", {what}={own}" for what, own, usual in named if own != usual)
