"""Adam's bias: how many times too long a step is without the correction (V2, few-sample figure 1).

    r(t) = (1 - β1^t) / √(1 - β2^t)

It does not depend on the data, so it can be read off any run: here two real optimisers, with and without the
correction, are given the same gradients, and the lengths of their steps are divided.

The vertical lines are the steps of three epochs in batches of 32 (section 3), the last batch of an epoch being smaller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from steadytune.methods.adamw import AdamW, bias_ratio
from steadytune.methods.base import check_choice
from steadytune.papers.verdicts import CODE, IDENTITY, Verdict

_SOURCE = "few-sample paper, section 4, figure 1"
TRAIN_ROWS = {"RTE": 2490, "MRPC": 3668, "STS-B": 5749, "CoLA": 8551, "MNLI": 392_702}  # of the GLUE files


@dataclass(frozen=True)
class Setup:
    last: int = 1_000_000  # the figure's last step
    points: int = 400  # of the curve, evenly spread in log t
    measured_steps: int = 5000
    betas: tuple[float, float] = (0.9, 0.999)
    seed: int = 0


SCALES: Mapping[str, Setup] = {"full": Setup(), "small": Setup(), "smoke": Setup(measured_steps=300)}


@dataclass(frozen=True)
class AdamBias:
    setup: Setup
    steps: list[int]
    ratio: list[float]  # r(t) at these steps
    measured_steps: list[int]
    measured: list[float]  # length of a step without the correction over that of a step with it
    iterations: dict[str, int]  # of fine-tuning on each dataset

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> AdamBias:
        return cls(**{**data, "setup": Setup(**{**data["setup"], "betas": tuple(data["setup"]["betas"])})})


def run(scale: str = "full", *, setup: Setup | None = None) -> AdamBias:
    check_choice("scale", scale, SCALES, "Adam bias")
    setup = setup or SCALES[scale]
    steps = np.unique(np.geomspace(1, setup.last, setup.points).round().astype(int))
    measured = measure(setup.measured_steps, setup.betas, setup.seed)
    kept = [int(step) for step in steps if step <= setup.measured_steps]
    return AdamBias(
        setup,
        steps.tolist(),
        bias_ratio(steps, *setup.betas).tolist(),
        kept,
        [float(measured[step - 1]) for step in kept],
        {name: 3 * math.ceil(rows / 32) for name, rows in TRAIN_ROWS.items()},
    )


def measure(steps: int, betas: tuple[float, float], seed: int, weights: int = 16) -> np.ndarray:
    """||Δw|| without the correction / ||Δw|| with it, for steps 1, 2, ..., on the same random gradients."""
    generator = torch.Generator().manual_seed(seed)
    pair = [torch.zeros(weights, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    optimizers = [
        AdamW([w], lr=1.0, betas=betas, eps=1e-12, correct_bias=correct) for w, correct in zip(pair, (False, True))
    ]
    lengths = torch.zeros(2, steps, dtype=torch.float64)
    for step in range(steps):
        gradient = torch.randn(weights, generator=generator, dtype=torch.float64)
        for which, (w, optimizer) in enumerate(zip(pair, optimizers)):
            w.data.zero_()
            w.grad = gradient.clone()
            optimizer.step()
            lengths[which, step] = torch.linalg.vector_norm(w.detach())
    return np.asarray((lengths[0] / lengths[1]).numpy())


def claims(result: AdamBias) -> list[Verdict]:
    expected = bias_ratio(np.array(result.measured_steps), *result.setup.betas)
    error = float(np.abs(np.array(result.measured) / expected - 1.0).max())
    small = {name: bias_ratio(t, *result.setup.betas) for name, t in result.iterations.items() if t < 1000}
    worded = ", ".join(f"{name} {value:.2f}" for name, value in small.items())
    mnli = result.iterations["MNLI"]
    curve = bias_ratio(np.arange(1, result.setup.last + 1), *result.setup.betas)  # every step
    biased = np.flatnonzero(curve >= 1.01)
    settled = int(biased[-1]) + 1 if biased.size else 0
    return [
        Verdict(
            "the update without bias correction is r(t) times as long as with it",
            error < 1e-6,
            None,
            len(result.measured),
            _SOURCE,
            "relative difference of two optimisers' step lengths from r(t), below 1e-6 at every step",
            f"largest {error:.2g} over {result.setup.measured_steps} steps",
            uncounted=CODE,
        ),
        Verdict(
            "for small datasets the bias ratio is significantly higher than one for the entire fine-tuning process",
            all(value > 1.2 for value in small.values()),
            None,
            len(small),
            _SOURCE,
            "r at the last step of three epochs, above 1.2",
            worded,
        ),
        Verdict(
            "for MNLI, the majority of fine-tuning occurs in the region where the bias ratio has converged to one",
            settled < mnli / 2,
            None,
            1,
            _SOURCE,
            "last step with r >= 1.01, before half of the iterations",
            f"step {settled} of {mnli}",
        ),
        *_landmarks(curve),
    ]


def _landmarks(curve: np.ndarray) -> list[Verdict]:
    """Where r(t) is greatest, and from where on it is near 1: of all steps, not of those that are named."""
    top, last = int(curve.argmax()) + 1, len(curve)
    near = 3925
    before, after = curve[near - 2], curve[near - 1 :].max()
    how = f"every step up to {last:,}"
    return [
        Verdict(
            "the ratio is greatest at step 12",
            top == 12,
            None,
            last,
            "ACCEPTANCE V2",
            how,
            f"greatest at step {top}, {curve[top - 1]:.3f}",
            uncounted=IDENTITY,
        ),
        Verdict(
            f"the ratio is below 1.01 from step {near} on, and not before",
            bool(before >= 1.01 > after),
            None,
            last,
            "ACCEPTANCE V2",
            how,
            f"{before:.6f} the step before, at most {after:.6f} from there on",
            uncounted=IDENTITY,
        ),
    ]
