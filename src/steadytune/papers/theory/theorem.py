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
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from steadytune.methods.base import check_choice
from steadytune.methods.mixout import mixout

OUT, IN = 4, 6  # the weight is a matrix, so that it has input neurons; 24 numbers
FREE = 2  # columns that are left alone where mixout is applied to a part only (supplement B)
Loss = Callable[[Tensor], Tensor]  # weights [draws, OUT, IN] -> losses [draws]


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
class Check:
    """One loss with one distribution of masks."""

    loss: str  # "m I", "quadratic" (a general Hessian) or "logistic"
    mask: str  # a key of MASKS
    mu: float
    sigma: float
    m: float  # strong convexity
    squared_distance: float  # ||w - u||², of the mixed weights
    plain: float  # L(w)
    mean: float  # of L(Φ) over the draws
    error: float  # its standard error
    bound: float  # theorem 1
    exact: float | None  # for quadratics
    wrong: dict[str, float]  # formulas that should not hold, and what they give

    def errors_from(self, value: float) -> float:
        """How many standard errors the mean lies above a value."""
        return (self.mean - value) / self.error

    @property
    def coefficient(self) -> float:
        """What multiplies ½ ||w - u||²; the corollary says at least m p / (1-p)."""
        return (self.mean - self.plain) / (0.5 * self.squared_distance)


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


# How a mask is drawn: (draws, p, generator) -> [draws, OUT or 1, IN], with its mean and standard deviation.


def _bernoulli(shape: tuple[int, ...], p: float, generator: torch.Generator) -> Tensor:
    return (torch.rand(shape, generator=generator, dtype=torch.float64) >= p).to(torch.float64)


def _gaussian(shape: tuple[int, ...], p: float, generator: torch.Generator) -> Tensor:
    return (1.0 - p) + 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)


def _uniform(shape: tuple[int, ...], p: float, generator: torch.Generator) -> Tensor:
    return 2.0 * (1.0 - p) * torch.rand(shape, generator=generator, dtype=torch.float64)


def _bernoulli_sigma(p: float) -> float:
    return math.sqrt(p * (1.0 - p))


@dataclass(frozen=True)
class _Mask:
    draw: Callable[[tuple[int, ...], float, torch.Generator], Tensor]
    sigma: Callable[[float], float]
    by_neuron: bool
    part: bool = False  # leave the first FREE columns alone


MASKS: Mapping[str, _Mask] = {
    "Bernoulli per weight": _Mask(_bernoulli, _bernoulli_sigma, by_neuron=False),  # mixconnect
    "Bernoulli per neuron": _Mask(_bernoulli, _bernoulli_sigma, by_neuron=True),  # mixout
    "Bernoulli per neuron, on a part": _Mask(_bernoulli, _bernoulli_sigma, by_neuron=True, part=True),
    "Gaussian per weight": _Mask(_gaussian, lambda p: 0.5, by_neuron=False),
    "uniform per neuron": _Mask(_uniform, lambda p: (1.0 - p) / math.sqrt(3.0), by_neuron=True),
}
LOSSES = ("m I", "quadratic", "logistic")


def run(scale: str = "full", *, setup: Setup | None = None) -> Theorem:
    check_choice("scale", scale, SCALES, "theorem 1")
    setup = setup or SCALES[scale]
    generator = torch.Generator().manual_seed(setup.seed)
    checks = [check(loss, mask, p, setup.draws, generator) for loss in LOSSES for mask in MASKS for p in setup.ps]
    return Theorem(setup, tuple(checks))


def check(loss: str, mask: str, p: float, draws: int, generator: torch.Generator) -> Check:
    """A random problem of one kind; `p` is 1 - μ."""
    kind, mu, sigma = MASKS[mask], 1.0 - p, MASKS[mask].sigma(p)
    w, u = (torch.randn(OUT, IN, generator=generator, dtype=torch.float64) for _ in range(2))
    value, m, hessian = _loss(loss, generator)
    mixed = torch.ones(OUT, IN, dtype=torch.bool)
    mixed[:, : FREE if kind.part else 0] = False
    d = torch.where(mixed, w - u, 0.0).flatten()
    total = squares = 0.0
    plain = float(value(w.unsqueeze(0)))
    for count in _parts(draws):
        drawn = kind.draw((count, 1 if kind.by_neuron else OUT, IN), p, generator)
        phi = mixout(w.expand(count, OUT, IN), u.expand(count, OUT, IN), p, drawn)
        losses = value(torch.where(mixed, phi, w)) - plain  # about L(w): the squares do not cancel
        total, squares = total + float(losses.sum()), squares + float(losses.square().sum())
    mean = total / draws
    strength = sigma**2 / (2.0 * mu**2)
    squared = float(d.square().sum())
    bound = plain + strength * m * squared
    exact, wrong = None, {}
    if hessian is not None:
        own, together = float((hessian.diagonal() * d**2).sum()), _by_neuron(hessian, d)
        right = together if kind.by_neuron else own
        exact = plain + strength * right
        wrong = {
            "without the 1/2": plain + 2.0 * strength * right,
            "variance not divided by the squared mean": plain + sigma**2 / 2.0 * right,
            "standard deviation for the variance": plain + sigma / (2.0 * mu**2) * right,
        }
        if loss == "quadratic":
            wrong["equality, as for m I"] = bound
            wrong["per neuron for per weight, or the reverse"] = plain + strength * (
                own if kind.by_neuron else together
            )
    error = math.sqrt(max(0.0, squares / draws - mean**2) / (draws - 1))
    return Check(loss, mask, mu, sigma, m, squared, plain, plain + mean, error, bound, exact, wrong)


def _loss(name: str, generator: torch.Generator) -> tuple[Loss, float, Tensor | None]:
    """(L, its strong convexity m, its Hessian where that is constant)."""
    size = OUT * IN
    if name == "logistic":
        rows = torch.randn(40, size, generator=generator, dtype=torch.float64)
        ridge = 0.5

        def logistic(w: Tensor) -> Tensor:
            flat = w.flatten(1)
            return torch.nn.functional.softplus(flat @ rows.T).mean(1) + 0.5 * ridge * flat.square().sum(1)

        return logistic, ridge, None
    hessian = 1.5 * torch.eye(size, dtype=torch.float64)
    if name == "quadratic":
        factor = torch.randn(size, 2 * size, generator=generator, dtype=torch.float64)
        hessian = factor @ factor.T / (2 * size) + 0.1 * torch.eye(size, dtype=torch.float64)
    centre = torch.randn(size, generator=generator, dtype=torch.float64)
    root = torch.linalg.cholesky(hessian)

    def quadratic(w: Tensor) -> Tensor:
        return 0.5 * ((w.flatten(1) - centre) @ root).square().sum(1)

    return quadratic, float(torch.linalg.eigvalsh(hessian)[0]), hessian


def _by_neuron(hessian: Tensor, d: Tensor) -> float:
    """Σ_G d_Gᵀ H_GG d_G over the columns G of the weight."""
    blocks = hessian.view(OUT, IN, OUT, IN)
    return float(torch.einsum("ai,aibi,bi->", d.view(OUT, IN), blocks, d.view(OUT, IN)))


def _parts(draws: int, most: int = 50_000) -> list[int]:
    return [most] * (draws // most) + ([draws % most] if draws % most else [])
