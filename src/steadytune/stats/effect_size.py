"""How large is the difference, apart from how sure?

    unpaired   d = (mean_a - mean_b) / s_p,   s_p^2 = ((n-1) s_a^2 + (m-1) s_b^2) / (n + m - 2)      (Cohen)
    paired     d = mean(a - b) / std(a - b)                                                         (Cohen's d_z)
    g = J(df) d,   J(df) = Gamma(df/2) / (sqrt(df/2) Gamma((df-1)/2))                     (Hedges 1981, unbiased)
    PI = P(A > B) + 1/2 P(A = B)          Cliff's delta = 2 PI - 1

Relations: d = t sqrt(1/n + 1/m) of Student's t-test; PI = U / (n m) of Mann-Whitney. PI over runs is the probability
of improvement of Agarwal et al. (2021); paired, it compares run i with run i only.
Caveat: d for steady methods is huge for differences nobody would notice (std of 0.1 points). Read it beside the
difference.
"""

import math
from dataclasses import dataclass

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.stats.scores import Array, Scores, all_equal, diverged_note, joined, settle_diverged


@dataclass(frozen=True)
class EffectSize:
    """Differences are first minus second. `cohen_d` and `hedges_g` are None where there is no spread to divide by."""

    n: tuple[int, int]
    paired: bool
    mean_difference: float
    cohen_d: float | None
    hedges_g: float | None
    probability_of_improvement: float
    cliffs_delta: float
    note: str

    def sentence(self) -> str:
        pairing = f"paired, n = {self.n[0]} pairs" if self.paired else f"unpaired, n = {self.n[0]} and {self.n[1]}"
        size = "no standardised size" if self.hedges_g is None else f"Hedges' g {self.hedges_g:.3g}"
        text = f"Effect size, {pairing}: difference {self.mean_difference:.4g}, {size}"
        return joined(f"{text}, probability of improvement {self.probability_of_improvement:.3f}", self.note) + "."


def probability_of_improvement(a: Scores, b: Scores, *, paired: bool = False, floor: float | None = None) -> float:
    """P(A > B) + 1/2 P(A = B) over all pairs of runs, or over the same-seed pairs only."""
    first, second, _ = _settled(a, b, paired, floor)
    return float(_wins(first, second, paired).mean())


def effect_size(a: Scores, b: Scores, *, paired: bool, floor: float | None = None) -> EffectSize:
    """Standardised and rank-based size of the difference a - b."""
    first, second, diverged = _settled(a, b, paired, floor)
    difference = float(first.mean() - second.mean())
    spread, df = _spread(first, second, paired)
    d = None if spread is None else difference / spread
    # Hedges' J needs Gamma((df - 1) / 2), so one degree of freedom is too few to correct.
    g = None if d is None or df < 2 else small_sample_factor(df) * d
    improvement = float(_wins(first, second, paired).mean())
    return EffectSize(
        n=(first.size, second.size),
        paired=paired,
        mean_difference=difference,
        cohen_d=d,
        hedges_g=g,
        probability_of_improvement=improvement,
        cliffs_delta=2.0 * improvement - 1.0,
        note=joined("" if d is not None else "no spread to standardise by", diverged_note(diverged, floor)),
    )


def small_sample_factor(df: int) -> float:
    """Hedges' exact J(df): E[J d] is the true standardised difference for normal scores. Below 1, 1 in the limit."""
    return math.exp(math.lgamma(df / 2) - math.lgamma((df - 1) / 2)) / math.sqrt(df / 2)


def _settled(a: Scores, b: Scores, paired: bool, floor: float | None) -> tuple[Array, Array, int]:
    first, diverged_first = settle_diverged(a, floor, "scores of the first method")
    second, diverged_second = settle_diverged(b, floor, "scores of the second method")
    if paired and first.size != second.size:
        raise SteadytuneError(f"Pairing needs the same seeds on both sides, not {first.size} and {second.size} runs.")
    return first, second, diverged_first + diverged_second


def _wins(first: Array, second: Array, paired: bool) -> Array:
    gap = first - second if paired else first[:, None] - second[None, :]
    wins: Array = 0.5 * (np.sign(gap) + 1.0)
    return wins


def _spread(first: Array, second: Array, paired: bool) -> tuple[float | None, int]:
    if paired:
        scale = float(np.abs(np.concatenate([first, second])).max())
        differences = first - second
        df = differences.size - 1
        return (None if df < 1 or all_equal(differences, scale) else float(differences.std(ddof=1))), df
    df = first.size + second.size - 2
    if df < 1 or (all_equal(first) and all_equal(second)):
        return None, df
    squares = float(((first - first.mean()) ** 2).sum() + ((second - second.mean()) ** 2).sum())
    return math.sqrt(squares / df), df
