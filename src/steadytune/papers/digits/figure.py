"""Figure 2 of the mixout paper: distance, target accuracy and source accuracy against p, mean and std band."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steadytune.papers.digits.results import DigitsResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANELS = (
    ("distance", "||w_ft - w_pre||²", "(a) distance to w_pre"),
    ("validation", "validation accuracy", "(b) target: {target}"),
    ("source_validation", "validation accuracy", "(c) source: {source}"),
)
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")  # Okabe and Ito, told apart by all eyes


def draw(result: DigitsResult) -> Figure:
    """Three panels: a line for dropout and one for every form of mixout that was run."""
    from matplotlib.figure import Figure

    forms = result.plan.mixouts()
    lines = [("mixout", form, _name(form, forms[0])) for form in forms] + [("dropout", forms[0], "dropout(p)")]
    figure = Figure(figsize=(11.0, 3.4), layout="constrained")
    ps = sorted(result.plan.ps)
    for axes, (what, label, title) in zip(figure.subplots(1, 3), _PANELS):
        for (method, form, name), colour in zip(lines, _COLOURS):
            table = np.array([result.values(method, p, what, form) for p in ps])
            centre = np.nanmean(table, axis=1)
            spread = np.nanstd(table, axis=1, ddof=1) if table.shape[1] > 1 else np.zeros_like(centre)
            axes.plot(ps, centre, color=colour, marker="o", markersize=3, label=name)
            axes.fill_between(ps, centre - spread, centre + spread, color=colour, alpha=0.2, linewidth=0)
        axes.set_title(title.format(target=result.target, source=result.source), fontsize=10)
        axes.set_xlabel("p")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    figure.suptitle(f"Mean ± std of {result.plan.restarts} restarts, {result.plan.epochs} epochs", fontsize=10)
    return figure


def _name(form: tuple[str, str], main: tuple[str, str]) -> str:
    differs = [said for said, theirs, ours in zip(("layers", "gradient"), form, main) if theirs != ours]
    values = dict(zip(("layers", "gradient"), form))
    return "mixout(w_pre, p)" + "".join(f", {said}={values[said]}" for said in differs)
