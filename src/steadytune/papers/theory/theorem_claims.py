"""What theorem 1 and corollary 1.1 say, decided from the checks; and the figure of the penalty's coefficient.

A mean of draws is never exactly its expectation. Two numbers agree here if they are within `AGREE` standard errors: by
chance one check in 15,000 would disagree. A wrong formula counts as detected at `DETECTED` standard errors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steadytune.papers.claims import Claim
from steadytune.papers.theory.theorem import Check, Theorem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AGREE = 4.0
DETECTED = 6.0
_THEOREM = "mixout paper, theorem 1"
_COROLLARY = "mixout paper, corollary 1.1"


def claims(result: Theorem) -> list[Claim]:
    checks, draws = result.checks, result.setup.draws
    lowest = min(each.errors_from(each.bound) for each in checks)
    alike = [each for each in checks if each.loss == "m I"]
    general = [each for each in checks if each.loss == "quadratic"]
    return [
        Claim(
            "E L(Φ(w; u, M)) >= L(w) + m σ²/(2 μ²) ||w - u||² for strongly convex L and any masks of mean μ, variance σ²",
            lowest > -AGREE,
            None,
            draws,
            _THEOREM,
            f"{len(checks)} losses and masks, none more than {AGREE:g} standard errors below the bound",
            f"the lowest lies {lowest:+.2f} standard errors from it",
        ),
        _agreement("the equality holds if the Hessian is m I", alike, draws, "ACCEPTANCE D3"),
        _equality_for_quadratics(general, draws),
        _agreement(
            "a quadratic loss has E L(Φ) = L(w) + σ²/(2 μ²) Σ_G d_Gᵀ H_GG d_G, G the weights that share a mask entry",
            alike + general,
            draws,
            "ACCEPTANCE D3",
        ),
        _detection(alike + general, draws),
        _grows(alike, draws),
    ]


def _agreement(text: str, checks: list[Check], draws: int, source: str) -> Claim:
    worst = max(abs(each.errors_from(_exact(each))) for each in checks)
    how = f"{len(checks)} checks, each within {AGREE:g} standard errors"
    return Claim(text, worst < AGREE, _two_sided(worst, len(checks)), draws, source, how, f"worst {worst:.2f}")


def _equality_for_quadratics(checks: list[Check], draws: int) -> Claim:
    worst = max(each.errors_from(each.bound) for each in checks)
    return Claim(
        "the equality holds if L is quadratic (whatever its Hessian)",
        worst < AGREE,
        _two_sided(worst, len(checks)),
        draws,
        _THEOREM + ", the remark below it",
        f"{len(checks)} general quadratics, each within {AGREE:g} standard errors of the bound",
        f"worst {worst:.1f} standard errors above it",
    )


def _detection(checks: list[Check], draws: int) -> Claim:
    """Of wrong formulas that differ from the right one at all: at p = 1/2, for instance, some coincide."""
    seen = [
        (abs(each.errors_from(value)), name)
        for each in checks
        for name, value in each.wrong.items()
        if abs(value - _exact(each)) > 0.02 * (_exact(each) - each.plain)
    ]
    least, name = min(seen)
    return Claim(
        "(ours) the check would notice a wrong formula",
        least > DETECTED,
        None,
        draws,
        "ACCEPTANCE D3",
        f"{len(seen)} wrong formulas, each more than {DETECTED:g} standard errors off",
        f"the least visible, '{name}', is {least:.1f} off",
    )


def _grows(checks: list[Check], draws: int) -> Claim:
    mixouts = sorted((each for each in checks if each.mask == "Bernoulli per neuron"), key=lambda each: -each.mu)
    values = [each.coefficient for each in mixouts]
    return Claim(
        "as p increases to 1 the coefficient m p/(1-p) increases to infinity",
        all(after > before for before, after in zip(values, values[1:])),  # noqa: RUF007
        None,
        draws,
        _COROLLARY,
        "measured coefficient of ½ ||w - u||², Hessian m I, m = 1.5, one mask entry per neuron",
        ", ".join(f"p = {1 - each.mu:.1f}: {value:.3f}" for each, value in zip(mixouts, values)),
    )


def _exact(check: Check) -> float:
    assert check.exact is not None  # quadratics have one
    return check.exact


def _two_sided(errors: float, checks: int) -> float:
    """The chance that the worst of so many agreeing checks is that far off (normal, Bonferroni)."""
    return min(1.0, checks * math.erfc(abs(errors) / math.sqrt(2.0)))


def draw(result: Theorem) -> Figure:
    """The coefficient of ½ ||w - u||² against p: the corollary's line, and what was measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 3.6), layout="constrained")
    axes = figure.subplots()
    styles = {"m I": ("o", "#0072b2"), "quadratic": ("s", "#d55e00"), "logistic": ("^", "#009e73")}
    for loss, (marker, colour) in styles.items():
        chosen = [each for each in result.checks if each.loss == loss and each.mask == "Bernoulli per neuron"]
        axes.errorbar(
            [1 - each.mu for each in chosen],
            [each.coefficient / each.m for each in chosen],
            yerr=[2 * each.error / (0.5 * each.squared_distance * each.m) for each in chosen],
            fmt=marker,
            markersize=5,
            color=colour,
            label=f"measured, {loss}",
        )
    ps = [0.01 * i for i in range(1, 95)]
    axes.plot(ps, [p / (1 - p) for p in ps], color="black", label="p / (1 - p), the lower bound")
    axes.set_yscale("log")
    axes.set_xlabel("p")
    axes.set_ylabel("coefficient of (m/2) ||w - u||²")
    axes.legend(fontsize=8)
    return figure
