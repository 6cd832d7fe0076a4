"""Theorem 1 and corollary 1.1 of the mixout paper, by Monte Carlo beside the exact formula (M6, M10, M11, D3).

    E L(Φ(w; u, M)) >= L(w) + m σ² / (2 μ²) ||w - u||²        for an m-strongly convex L, E M_i = μ, Var M_i = σ²
                     = L(w) + m p / (2 (1-p)) ||w - u||²       for mixout(u, p): μ = 1-p, σ² = p (1-p)

The paper adds that "the equality holds if L is quadratic". That is so only where the Hessian is m I. With d = w - u, a
quadratic L of Hessian H has exactly

    E L(Φ) = L(w) + σ²/(2 μ²) Σ_i H_ii d_i²                   one mask entry per weight
    E L(Φ) = L(w) + σ²/(2 μ²) Σ_G d_Gᵀ H_GG d_G               one per input neuron: G, the weights that leave it

Each check compares a Monte Carlo mean with the bound and, for quadratics, with the exact value, in standard errors. So
that agreement means something, formulas that are wrong in likely ways are held against the same draws, and must fail.
Φ is the library's `mixout`.

A mean of draws is never exactly its expectation: two numbers agree here if they are within AGREE standard errors (by
chance one check in 15,000 would not), and a wrong formula counts as noticed from DETECTED standard errors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from steadytune.methods.base import check_choice
from steadytune.papers.theory.monte_carlo import LOSSES, MASKS, Check, check
from steadytune.papers.verdicts import CODE, Verdict

AGREE = 4.0
DETECTED = 5.0
MIXOUTS = ("Bernoulli per neuron", "Bernoulli per neuron, on a part")  # of MASKS
_THEOREM = "mixout paper, theorem 1"
_COROLLARY = "mixout paper, corollary 1.1"


@dataclass(frozen=True)
class Setup:
    draws: int = 1_000_000
    ps: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    seed: int = 0


SCALES: Mapping[str, Setup] = {
    "full": Setup(),
    "small": Setup(draws=200_000),
    "smoke": Setup(draws=50_000, ps=(0.3, 0.7)),
}


@dataclass(frozen=True)
class Theorem:
    setup: Setup
    checks: tuple[Check, ...]

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Theorem:
        setup = Setup(**{**data["setup"], "ps": tuple(data["setup"]["ps"])})
        return cls(setup, tuple(Check(**each) for each in data["checks"]))


def run(scale: str = "full", *, setup: Setup | None = None) -> Theorem:
    check_choice("scale", scale, SCALES, "theorem 1")
    setup = setup or SCALES[scale]
    generator = torch.Generator().manual_seed(setup.seed)
    checks = [check(loss, mask, p, setup.draws, generator) for loss in LOSSES for mask in MASKS for p in setup.ps]
    return Theorem(setup, tuple(checks))


def claims(result: Theorem) -> list[Verdict]:
    """Those of the theorem and those of the corollary, each once."""
    return theorem_claims(result) + corollary_claims(result)


def theorem_claims(result: Theorem) -> list[Verdict]:
    """The bound for masks other than mixout's, which are the corollary's; the remark on equality; what is exact."""
    checks, draws = result.checks, result.setup.draws
    others = [each for each in checks if each.mask not in MIXOUTS]
    alike = [each for each in checks if each.loss == "m I"]
    general = [each for each in checks if each.loss == "quadratic"]
    return [
        _above(
            "E L(Φ(w; u, M)) >= L(w) + m σ²/(2 μ²) ||w - u||² for strongly convex L, masks of mean μ and variance σ²",
            [(each, each.bound) for each in others],
            draws,
            _THEOREM,
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
    ]


def corollary_claims(result: Theorem) -> list[Verdict]:
    """The bound as mixout(u, p) has it, on mixout's masks; and its strength."""
    draws = result.setup.draws
    own = [each for each in result.checks if each.mask in MIXOUTS]
    bounds = [(each, each.plain + each.m * (1 - each.mu) / (2 * each.mu) * each.squared_distance) for each in own]
    return [
        _above("E L(Φ(w; u, B)) >= L(w) + m p/(2(1-p)) ||w - u||² with the masks of mixout", bounds, draws, _COROLLARY),
        _grows([each for each in own if each.loss == "m I"], draws),
    ]


def _above(text: str, bounds: Sequence[tuple[Check, float]], draws: int, source: str) -> Verdict:
    lowest = min(each.errors_from(bound) for each, bound in bounds)
    return Verdict(
        text,
        lowest > -AGREE,
        None,
        draws,
        source,
        f"{len(bounds)} losses and masks, none more than {AGREE:g} standard errors below the bound",
        f"the lowest lies {lowest:+.2f} standard errors from it",
    )


def _agreement(text: str, checks: list[Check], draws: int, source: str) -> Verdict:
    worst = max(abs(each.errors_from(_exact(each))) for each in checks)
    how = f"{len(checks)} checks, each within {AGREE:g} standard errors"
    measured = f"worst {worst:.2f}, which {_chance(worst, len(checks)):.2g} of such sets of checks exceed by chance"
    return Verdict(text, worst < AGREE, None, draws, source, how, measured)


def _equality_for_quadratics(checks: list[Check], draws: int) -> Verdict:
    worst = max(each.errors_from(each.bound) for each in checks)
    return Verdict(
        "the equality holds if L is quadratic (whatever its Hessian)",
        worst < AGREE,
        None,
        draws,
        _THEOREM + ", the remark below it",
        f"{len(checks)} general quadratics, each within {AGREE:g} standard errors of the bound",
        f"worst {worst:.1f} standard errors above it",
    )


def _detection(checks: list[Check], draws: int) -> Verdict:
    """Of wrong formulas that differ from the right one at all: at p = 1/2, for instance, some coincide."""
    seen = [
        (abs(each.errors_from(value)), name)
        for each in checks
        for name, value in each.wrong.items()
        if abs(value - _exact(each)) > 0.02 * (_exact(each) - each.plain)
    ]
    least, name = min(seen)
    return Verdict(
        "(ours) the check would notice a wrong formula",
        least > DETECTED,
        None,
        draws,
        "ACCEPTANCE D3",
        f"{len(seen)} wrong formulas, each more than {DETECTED:g} standard errors off",
        f"the least visible, '{name}', is {least:.1f} off",
        uncounted=CODE,
    )


def _grows(checks: list[Check], draws: int) -> Verdict:
    mixouts = sorted((each for each in checks if each.mask == "Bernoulli per neuron"), key=lambda each: -each.mu)
    values = [each.coefficient for each in mixouts]
    return Verdict(
        "as p increases to 1 the coefficient m p/(1-p) increases to infinity",
        all(after > before for before, after in itertools.pairwise(values)),
        None,
        draws,
        _COROLLARY,
        "measured coefficient of ½ ||w - u||², Hessian m I, m = 1.5, one mask entry per neuron",
        ", ".join(f"p = {1 - each.mu:.1f}: {value:.3f}" for each, value in zip(mixouts, values)),
    )


def _exact(check: Check) -> float:
    assert check.exact is not None  # quadratics have one
    return check.exact


def _chance(errors: float, checks: int) -> float:
    """That the worst of so many checks is that far off though all formulas are right (normal, Bonferroni)."""
    return min(1.0, checks * math.erfc(abs(errors) / math.sqrt(2.0)))
