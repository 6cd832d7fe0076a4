"""Degenerate runs: those that did not beat the task's majority or chance level (V3, M19).

    share = #{ i : x_i <= level + margin, or run i diverged } / n

The few-sample paper calls a run degenerate when it is not above the majority baseline (and quotes 48% of RTE runs
below 55%, the baseline 52.5 plus a margin); mixout counts chance-level runs per cell (CoLA 7, 6 and 1 of 20). The
interval is Clopper & Pearson's (1934) exact one: 0 of 20 still allows 17%.
Caveat: `level` must be in the metric and on the split of the scores: MRPC is scored by F1, whose majority level is
81, not 68.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steadytune.errors import SteadytuneError
from steadytune.stats.hypothesis_tests import Tail, TestResult
from steadytune.stats.scores import FEWEST_RUNS, Scores

_ROUNDING = 1e-9  # the same accuracy computed as a mean and as a ratio may differ in the last bit


@dataclass(frozen=True)
class DegenerateShare:
    """How many runs failed (diverged ones included), which (`runs`, by position), and the exact interval."""

    n: int
    count: int
    diverged: int
    share: float
    low: float
    high: float
    confidence: float
    level: float
    margin: float
    runs: tuple[int, ...]

    def sentence(self) -> str:
        margin = f" plus {self.margin:g}" if self.margin else ""
        diverged = f", {self.diverged} of them diverged" if self.diverged else ""
        return (
            f"{self.count} of n = {self.n} runs not above the level {self.level:g}{margin}{diverged}: {self.share:.0%} "
            f"({self.confidence:.0%} Clopper-Pearson interval {self.low:.0%} to {self.high:.0%})."
        )


def is_degenerate(scores: Scores, level: float, *, margin: float = 0.0) -> NDArray[np.bool_]:
    """One flag per run: at or below `level + margin`, or diverged. No floor is needed: a diverged run has failed."""
    if not np.isfinite(level) or not np.isfinite(margin):
        raise SteadytuneError(f"The level and its margin must be finite scores, not {level} and {margin}.")
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise SteadytuneError(f"The scores must be one number per run, not an array of shape {values.shape}.")
    threshold = level + margin + _ROUNDING * max(abs(level), abs(level + margin))
    # Written as "not above", so that NaN and -inf, which are above nothing, count as failed; +inf is no score either.
    failed: NDArray[np.bool_] = ~(values > threshold) | ~np.isfinite(values)
    return failed


def degenerate_share(scores: Scores, level: float, *, margin: float = 0.0, confidence: float = 0.95) -> DegenerateShare:
    """Count and share of degenerate runs, with the exact binomial interval."""
    from scipy import stats

    failed = is_degenerate(scores, level, margin=margin)
    count = int(failed.sum())
    limits = stats.binomtest(count, failed.size).proportion_ci(confidence, method="exact")
    return DegenerateShare(
        n=failed.size,
        count=count,
        diverged=int((~np.isfinite(np.asarray(scores, dtype=np.float64))).sum()),
        share=count / failed.size,
        low=float(limits.low),
        high=float(limits.high),
        confidence=confidence,
        level=level,
        margin=margin,
        runs=tuple(int(i) for i in np.flatnonzero(failed)),
    )


def compare_degenerate(a: Scores, b: Scores, level: float, *, tail: Tail, margin: float = 0.0) -> TestResult:
    """Fisher's exact test on the counts; tail "less": the FIRST fails less often. Statistic: share_a - share_b."""
    from scipy import stats

    failed_a, failed_b = (is_degenerate(scores, level, margin=margin) for scores in (a, b))
    counts = (int(failed_a.sum()), int(failed_b.sum()))
    n = (failed_a.size, failed_b.size)
    difference = counts[0] / n[0] - counts[1] / n[1]
    name = "Fisher's exact test on degenerate runs"
    if min(n) < FEWEST_RUNS:
        return TestResult(name, tail, False, n, difference, None, f"n = {min(n)} is fewer than {FEWEST_RUNS} runs")
    if sum(counts) in (0, sum(n)):
        which = "no run" if sum(counts) == 0 else "every run"
        return TestResult(
            name, tail, False, n, difference, None, f"{which} is degenerate, so there is nothing to compare"
        )
    table = [[counts[0], n[0] - counts[0]], [counts[1], n[1] - counts[1]]]
    p = float(stats.fisher_exact(table, alternative=tail)[1])
    return TestResult(name, tail, False, n, difference, min(1.0, p), f"{counts[0]} and {counts[1]} degenerate runs")
