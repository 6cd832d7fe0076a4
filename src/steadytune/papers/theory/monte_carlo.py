"""One Monte Carlo check of theorem 1: a random problem, a mean over masks, and what formulas right and wrong say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from steadytune.methods.mixout import mixout

OUT, IN = 4, 6  # the weight is a matrix, so that it has input neurons; 24 numbers
FREE = 2  # columns that are left alone where mixout is applied to a part only (supplement B)
Loss = Callable[[Tensor], Tensor]  # weights [draws, OUT, IN] -> losses [draws]


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
