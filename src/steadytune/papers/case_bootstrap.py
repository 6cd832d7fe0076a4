"""A claim about the best of n runs, tested by resampling the runs: such an expectation has no t-test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steadytune.papers.catalogue import Claim
from steadytune.papers.catalogue.claim import slope
from steadytune.papers.samples import Sample

DRAWS = 1000  # of a bootstrap or of relabellings
_ROUNDING = 1e-12  # the same expectation, computed for two n, may differ in the last bit


def bootstrapped(claim: Claim, samples: Sequence[Sample]) -> tuple[float, float]:
    """The shares of resampled studies in which the claim's statistic is not above 0, and in which it is not below.

    Shared seeds are drawn together. Only the first counts as often as there are cells to choose from: what was chosen
    as the best, and yet lies below, needs no correction for having been chosen.
    """
    random = np.random.default_rng(0)
    shared = len({sample.n for sample in samples}) == 1
    looked_for = len(samples) - 1 if claim.kind == "peak" else 1  # as in _peak
    top = _top([_drawn(sample) for sample in samples])
    hits = opposite = 0
    for _ in range(DRAWS):
        drawn = random.integers(0, samples[0].n, samples[0].n)
        values = [_drawn(sample, drawn if shared else random.integers(0, sample.n, sample.n)) for sample in samples]
        found = _statistic(claim.kind, values, top)
        hits += found <= _ROUNDING
        opposite += found >= -_ROUNDING
    return min(1.0, looked_for * (hits + 1) / (DRAWS + 1)), (opposite + 1) / (DRAWS + 1)


def _drawn(sample: Sample, drawn: np.ndarray | None = None) -> float:
    return sample.expected(drawn) if sample.place.best_of is not None else float(sample.values.mean())


def _top(values: Sequence[float]) -> int:
    """The best cell before the last."""
    return int(np.argmax(values[:-1]))


def _statistic(kind: str, values: Sequence[float], top: int) -> float:
    if kind == "rising":
        return slope(values)
    if kind == "falling":
        return -slope(values)
    if kind == "peak":
        return values[top] - values[-1]
    return values[0] - values[1] if kind == "greater" else values[1] - values[0]
