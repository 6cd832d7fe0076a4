"""Least squares with mixout: the stronger the mixing, the nearer the line to the target's (M12, mixout figure 5).

    y = w1* x + w2* + noise,     L(w) = 1/(2n) Σ_i (y_i - w1 x_i - w2)²,     H = 1/n Xᵀ X,  X = (x, 1)

Supplement D draws w* and a target u at random and fits a line with mixout(u, p) for p = 0.0, 0.3, 0.6, 0.9. It says
neither how many points, nor how much noise, nor which optimiser: here what `Setup` says, and stochastic gradient
descent (equation 2) with the mean of the last half of its iterates. Both weights leave a neuron of their own (x and the
constant 1), so both are mixed, each by its own mask.

The minimiser is also known exactly. E L(Φ) = L(w) + λ/2 Σ_i H_ii (w_i - u_i)², λ = p/(1-p)  (D3), hence

    (H + λ diag H) w = H w_ls + λ diag H u

which is w_ls at p = 0 and goes to u as p goes to 1. What descent finds is held against it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steadytune.methods.base import check_choice
from steadytune.methods.mixout import mixout
from steadytune.papers.verdicts import CODE, Verdict, by_tests
from steadytune.stats import student_t_test

_SOURCE = "mixout paper, supplement D, figure 5"
TOLERANCE = 0.03  # of ||w_ls - u||, root mean square over problems: how near descent must come to the exact minimiser


@dataclass(frozen=True)
class Setup:
    """The first problem is drawn; the others say how general it is."""

    problems: int = 50
    points: int = 100
    noise: float = 0.3  # standard deviation
    ps: tuple[float, ...] = (0.0, 0.3, 0.6, 0.9)
    steps: int = 3000
    seed: int = 0


SCALES: Mapping[str, Setup] = {
    "full": Setup(),
    "small": Setup(),
    "smoke": Setup(problems=8, points=40, steps=600),
}


@dataclass(frozen=True)
class LeastSquares:
    """Weights are (slope, intercept). Those of each p: one pair per problem."""

    setup: Setup
    x: list[float]  # of the first problem
    y: list[float]
    true: list[list[float]]  # w*, by problem
    target: list[list[float]]  # u
    fitted: list[list[list[float]]]  # by p and problem: what descent with mixout(u, p) found
    exact: list[list[list[float]]]  # by p and problem: the minimiser of E L(Φ)

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> LeastSquares:
        return cls(**{**data, "setup": Setup(**{**data["setup"], "ps": tuple(data["setup"]["ps"])})})

    def distances(self, what: str = "target") -> np.ndarray:
        """||w_p - u||, or from "true" ||w_p - w*||: [p, problem]."""
        difference = np.array(self.fitted) - np.array(getattr(self, what))
        return np.asarray(np.linalg.norm(difference, axis=-1))


def run(scale: str = "full", *, setup: Setup | None = None) -> LeastSquares:
    check_choice("scale", scale, SCALES, "least squares")
    setup = setup or SCALES[scale]
    generator = torch.Generator().manual_seed(setup.seed)
    shape = (setup.problems, setup.points)
    x = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    true, target = (torch.randn(setup.problems, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    y = line(true, x) + setup.noise * torch.randn(shape, generator=generator, dtype=torch.float64)
    fitted = [descend(x, y, target, p, setup.steps, generator) for p in setup.ps]
    exact = [minimiser(x, y, target, p) for p in setup.ps]
    return LeastSquares(
        setup,
        x[0].tolist(),
        y[0].tolist(),
        true.tolist(),
        target.tolist(),
        [each.tolist() for each in fitted],
        [each.tolist() for each in exact],
    )


def line(w: Tensor, x: Tensor) -> Tensor:
    """w1 x + w2 for weights [problem, 2] and inputs [problem, point]."""
    return w[:, :1] * x + w[:, 1:]


def descend(x: Tensor, y: Tensor, u: Tensor, p: float, steps: int, generator: torch.Generator) -> Tensor:
    """SGD on E L(Φ(w; u, M)) for all problems at once, a fresh mask for each problem in every step."""
    w = torch.zeros_like(u).requires_grad_()
    total = torch.zeros_like(u)
    lr = 0.3 * (1.0 - p) ** 2  # a kept weight's deviation is multiplied by 1/(1-p), its curvature by the square
    for step in range(steps):
        mask = torch.rand(u.shape, generator=generator, dtype=torch.float64) >= p
        loss = 0.5 * (line(mixout(w, u, p, mask), x) - y).square().mean(1).sum()
        (gradient,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w -= lr * gradient
            if step >= steps // 2:
                total += w
    return total / (steps - steps // 2)


def minimiser(x: Tensor, y: Tensor, u: Tensor, p: float) -> Tensor:
    """argmin of E L(Φ(w; u, M)), from the linear equations above."""
    inputs = torch.stack([x, torch.ones_like(x)], dim=-1)
    hessian = inputs.transpose(1, 2) @ inputs / x.shape[1]
    pull = p / (1.0 - p) * torch.diag_embed(torch.diagonal(hessian, dim1=1, dim2=2))
    right = inputs.transpose(1, 2) @ y.unsqueeze(-1) / x.shape[1] + pull @ u.unsqueeze(-1)
    return torch.linalg.solve(hessian + pull, right).squeeze(-1)


def claims(result: LeastSquares) -> list[Verdict]:
    ps, to_target, to_true = result.setup.ps, result.distances(), result.distances("true")
    nearer = [
        student_t_test(after, before, tail="less", paired=True) for before, after in itertools.pairwise(to_target)
    ]
    means = ", ".join(f"{p:g}: {row.mean():.4f}" for p, row in zip(ps, to_target))
    own = student_t_test(to_target[-1], to_true[-1], tail="less", paired=True)
    fitted, exact = np.array(result.fitted), np.array(result.exact)
    scale = np.linalg.norm(exact[0] - np.array(result.target), axis=-1).mean() if ps[0] == 0.0 else 1.0
    error = float(np.sqrt(np.square(fitted - exact).sum(-1).mean(-1)).max() / scale)
    return [
        by_tests(
            "w converges to the target u as the mix probability p increases: ||w_p - u|| falls from each p to the next",
            nearer,
            source=_SOURCE,
            measured=f"mean ||w_p - u|| by p: {means}",
        ),
        by_tests(
            f"at p = {ps[-1]:g} the line is that of u rather than the true one",
            [own],
            source=_SOURCE,
            measured=f"mean distance to u {to_target[-1].mean():.4f}, to w* {to_true[-1].mean():.4f}",
        ),
        Verdict(
            "descent with mixout(u, p) finds the minimiser that the exact formula of E L(Φ) has",
            error < TOLERANCE,
            None,
            result.setup.problems,
            "ACCEPTANCE D3",
            f"root mean square distance over problems, worst p, below {TOLERANCE} of ||w_ls - u||",
            f"{error:.4f}",
            uncounted=CODE,
        ),
    ]
