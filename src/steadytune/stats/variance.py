"""Where does the luck come from? Variance split into init and order/noise (V23).

    y_ijk = mu + a_i + b_j + (ab)_ij + e_ijk      i: init seed (of I), j: order/dropout seed (of J), k: repeat (of K)
    sigma2_init     = (MS_init - MS_inner) / (J K)
    sigma2_order    = (MS_order - MS_inner) / (I K)
    K = 1:  MS_inner = MS_rest = sigma2_rest: interaction and the rest cannot be told apart
    K > 1:  MS_inner = MS_interaction,  sigma2_interaction = (MS_interaction - MS_rest) / K,  sigma2_rest = MS_rest

The method of moments for crossed random effects (Searle, Casella & McCulloch 1992, ch. 4). F = MS / MS_inner tests a
source. The paper's design is a 10 x 10 grid on RTE with K = 1; Figure 9 is `init_margins` and `order_margins` (min,
mean, max with one seed fixed), Figure 10 their std. Repeats with both seeds fixed differ only by nondeterministic
hardware.
Caveat: an estimate below zero means "too small to see"; it is reported as 0, and `note` says so. With 10 seeds a
component is known only within a factor of two or three. The std with init fixed holds order AND rest, so it is not
sqrt(sigma2_order).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steadytune.errors import SteadytuneError
from steadytune.stats.hypothesis_tests import TestResult
from steadytune.stats.scores import FEWEST_RUNS, Array, all_equal, diverged_note, floored, joined


@dataclass(frozen=True)
class Margin:
    """The runs that share one seed: their extremes, mean and std (over the other seed)."""

    min: float
    mean: float
    max: float
    std: float


@dataclass(frozen=True)
class VarianceSplit:
    """Variance components in squared score units; `interaction` is None without repeats (it is then inside `rest`)."""

    shape: tuple[int, int, int]
    mean: float
    init: float
    order: float
    interaction: float | None
    rest: float
    init_margins: tuple[Margin, ...]
    order_margins: tuple[Margin, ...]
    init_test: TestResult
    order_test: TestResult
    note: str

    @property
    def total(self) -> float:
        return self.init + self.order + (self.interaction or 0.0) + self.rest

    def shares(self) -> dict[str, float]:
        """Each component over their sum; all zero when the runs do not vary at all."""
        parts = {"init": self.init, "order": self.order, "interaction": self.interaction, "rest": self.rest}
        return {
            name: (part / self.total if self.total > 0 else 0.0) for name, part in parts.items() if part is not None
        }

    def std_with_init_fixed(self) -> float:
        """Average over init seeds of the std over the others (Figure 10)."""
        return float(np.mean([margin.std for margin in self.init_margins]))

    def std_with_order_fixed(self) -> float:
        """Average over order/noise seeds of the std over the others (Figure 10)."""
        return float(np.mean([margin.std for margin in self.order_margins]))

    def sentence(self) -> str:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.shares().items())
        grid = " x ".join(str(size) for size in self.shape)
        return joined(f"Variance over a grid of {grid} (init x order x repeats): {shares}", self.note) + "."


def split_variance(grid: Sequence[object] | NDArray[np.floating], *, floor: float | None = None) -> VarianceSplit:
    """Split a full grid of scores, [init, order] or [init, order, repeat]. Diverged cells are given `floor`."""
    try:
        scores = np.array(grid, dtype=np.float64)
    except ValueError as problem:
        raise SteadytuneError("The grid has rows of different length: run the missing pairs of seeds.") from problem
    if scores.ndim == 2:
        scores = scores[:, :, None]
    if scores.ndim != 3 or min(scores.shape[:2], default=0) < 2 or scores.shape[2] < 1:
        raise SteadytuneError(f"The grid must be init x order with 2 seeds or more each, not {scores.shape}.")
    scores, diverged = floored(scores, floor, "scores of the grid")
    inits, orders, repeats = scores.shape
    mean = float(scores.mean())
    cells = scores.mean(axis=2)
    by_init, by_order = cells.mean(axis=1), cells.mean(axis=0)
    ms_init = orders * repeats * float(((by_init - mean) ** 2).sum()) / (inits - 1)
    ms_order = inits * repeats * float(((by_order - mean) ** 2).sum()) / (orders - 1)
    crossed = cells - by_init[:, None] - by_order[None, :] + mean
    df_inner = (inits - 1) * (orders - 1)
    ms_inner = repeats * float((crossed**2).sum()) / df_inner
    ms_rest = ms_inner
    interaction = None
    if repeats > 1:
        ms_rest = float(((scores - cells[:, :, None]) ** 2).sum()) / (inits * orders * (repeats - 1))
        interaction = (ms_inner - ms_rest) / repeats
    raw = {
        "init": (ms_init - ms_inner) / (orders * repeats),
        "order": (ms_order - ms_inner) / (inits * repeats),
        "interaction": interaction,
    }
    below_zero = [name for name, value in raw.items() if value is not None and value < 0]
    truncated = f"{' and '.join(below_zero)} estimated below zero, shown as 0" if below_zero else ""
    flat = all_equal(crossed, float(np.abs(scores).max()))
    return VarianceSplit(
        shape=(inits, orders, repeats),
        mean=mean,
        init=max(0.0, raw["init"] or 0.0),
        order=max(0.0, raw["order"] or 0.0),
        interaction=None if interaction is None else max(0.0, interaction),
        rest=ms_rest,
        init_margins=tuple(_margin(scores[i]) for i in range(inits)),
        order_margins=tuple(_margin(scores[:, j]) for j in range(orders)),
        init_test=_f_test("init", ms_init, ms_inner, inits - 1, df_inner, (inits, orders), flat),
        order_test=_f_test("order/noise", ms_order, ms_inner, orders - 1, df_inner, (inits, orders), flat),
        note=joined(truncated, diverged_note(diverged, floor)),
    )


def _margin(scores: Array) -> Margin:
    return Margin(float(scores.min()), float(scores.mean()), float(scores.max()), float(scores.std(ddof=1)))


def _f_test(
    source: str, mean_square: float, inner: float, df: int, df_inner: int, n: tuple[int, int], flat: bool
) -> TestResult:
    """F = MS_source / MS_inner. One-tailed by nature: a source can only add variance."""
    from scipy import special

    name = f"F-test of the {source} variance (two-way random effects; n = init seeds, order seeds)"
    statistic = mean_square / inner if not flat else float("nan")
    if min(n) < FEWEST_RUNS:
        return TestResult(name, "greater", False, n, statistic, None, f"n = {min(n)} is fewer than {FEWEST_RUNS} seeds")
    if flat:
        return TestResult(
            name, "greater", False, n, statistic, None, "nothing varies beyond the two seeds' own effects"
        )
    return TestResult(name, "greater", False, n, statistic, float(special.fdtrc(df, df_inner, statistic)), "")
