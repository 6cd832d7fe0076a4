"""What a set of runs looks like: centre, spread and extremes (X4).

    mean = 1/n sum x_i            std = sqrt(1/(n-1) sum (x_i - mean)^2)
    IQM  = mean of x_(k+1) .. x_(n-k),  k = floor(n / 4)

The IQM (interquartile mean, Agarwal et al. 2021) ignores the worst and the best quarter: one degenerate run hardly
moves it, and it uses more of the data than the median. It equals `scipy.stats.trim_mean(x, 0.25)`.
Relations: trimming nothing gives the mean; trimming all but the middle gives the median.
Caveat: std divides by n - 1, quantiles interpolate linearly (numpy's default, Hyndman & Fan type 7). The papers do
not say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.stats.scores import Array, Scores, diverged_note, joined, settle_diverged


@dataclass(frozen=True)
class Summary:
    """One cell of a table. `std` is None for a single run: one run has no spread to show."""

    n: int
    diverged: int
    mean: float
    std: float | None
    median: float
    iqm: float
    min: float
    max: float
    quantiles: tuple[tuple[float, float], ...]
    note: str

    def sentence(self) -> str:
        spread = "no std from one run" if self.std is None else f"std {self.std:.4g}"
        return joined(
            f"n = {self.n} runs: mean {self.mean:.4g}, {spread}, median {self.median:.4g}, IQM {self.iqm:.4g}, "
            f"min {self.min:.4g}, max {self.max:.4g}",
            self.note,
        )


def interquartile_mean(values: Array, axis: int = -1) -> Array:
    """Mean of the middle half along `axis`: the lowest and highest floor(n/4) values are left out."""
    n = values.shape[axis]
    cut = n // 4
    ordered = np.sort(values, axis=axis)
    middle: Array = np.asarray(np.take(ordered, range(cut, n - cut), axis=axis).mean(axis=axis))
    return middle


def describe(scores: Scores, *, quantiles: Sequence[float] = (0.25, 0.75), floor: float | None = None) -> Summary:
    """Mean, std, median, IQM, min, max and `quantiles` (each in [0, 1]) of one score per run."""
    if not all(0.0 <= q <= 1.0 for q in quantiles):
        raise SteadytuneError(f"Quantiles must lie between 0 and 1, not {tuple(quantiles)}.")
    values, diverged = settle_diverged(scores, floor)
    at = np.quantile(values, list(quantiles))
    return Summary(
        n=values.size,
        diverged=diverged,
        mean=float(values.mean()),
        std=float(values.std(ddof=1)) if values.size > 1 else None,
        median=float(np.median(values)),
        iqm=float(interquartile_mean(values)),
        min=float(values.min()),
        max=float(values.max()),
        quantiles=tuple((float(q), float(value)) for q, value in zip(quantiles, at)),
        note=diverged_note(diverged, floor),
    )
