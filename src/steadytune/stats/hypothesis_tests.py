"""Is one method better than another? Each test is scipy's; what is added here is what may be said about it.

    tail "greater":  H1 is that the FIRST argument scores higher;  "less": lower;  "two-sided": either

Tail and pairing have no default, because a table that does not say them cannot be read (X5). Nothing is called
significant from fewer than 3 runs, or from scores without spread: `p` is then None and `note` says why.
Relations: a paired t-test is a one-sample t-test on the differences. Brown-Forsythe is Student's t-test on |x -
median|. Use pairing only for runs that share seeds (`pair_by_seed`).
Caveat: fine-tuning scores are often two clumps (good runs, degenerate runs). Then the t-tests compare means that
describe neither clump; Mann-Whitney and the permutation test stay valid, and the share of degenerate runs says more.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.stats.scores import FEWEST_RUNS, Array, Scores, all_equal, diverged_note, joined, settle_diverged

Tail: TypeAlias = Literal["two-sided", "greater", "less"]
_TAIL_WORDS = {
    "two-sided": "two-tailed",
    "greater": "one-tailed (first greater)",
    "less": "one-tailed (first less)",
}


@dataclass(frozen=True)
class TestResult:
    """A test and everything a table must say about it. It cannot be built with a p-value from fewer than 3 runs."""

    __test__: ClassVar[bool] = False  # pytest would otherwise collect the class by its name

    test: str
    tail: str
    paired: bool
    n: tuple[int, int]
    statistic: float
    p: float | None
    note: str

    def __post_init__(self) -> None:
        if self.tail not in _TAIL_WORDS:
            raise SteadytuneError(f"The tail must be one of {', '.join(_TAIL_WORDS)}, not '{self.tail}'.")
        if self.p is None:
            if not self.note:
                raise SteadytuneError(f"A {self.test} without a p-value must say why in its note.")
        elif min(self.n) < FEWEST_RUNS:
            raise SteadytuneError(f"A {self.test} on n = {self.n} runs may not carry a p-value: 3 runs are the fewest.")
        elif not 0.0 <= self.p <= 1.0:
            raise SteadytuneError(f"The {self.test} gave p = {self.p}, which is not a probability.")

    def significant(self, alpha: float = 0.05) -> bool | None:
        """p < alpha, or None where nothing may be said."""
        return None if self.p is None else self.p < alpha

    def setting(self) -> str:
        """Test, pairing, tail and n: the part every table caption repeats."""
        pairing = "paired" if self.paired else "unpaired"
        counts = f"n = {self.n[0]} pairs" if self.paired else f"n = {self.n[0]} and {self.n[1]}"
        return f"{self.test}, {pairing}, {_TAIL_WORDS[self.tail]}, {counts}"

    def sentence(self) -> str:
        if self.p is None:
            return f"{self.setting()}: no p-value, because {self.note}."
        ending = f" ({self.note})" if self.note else ""
        return f"{self.setting()}: statistic {self.statistic:.4g}, p = {self.p:.3g}{ending}."


def student_t_test(a: Scores, b: Scores, *, tail: Tail, paired: bool, floor: float | None = None) -> TestResult:
    """t = (mean_a - mean_b) / (s_p sqrt(1/n + 1/m)), df = n + m - 2; paired: t = mean_d sqrt(n) / s_d, df = n - 1."""
    from scipy import stats

    a, b, note = _two_sets(a, b, tail, paired, floor)
    name = "Student's t-test"
    reason = _too_few(a, b) or _no_spread(a, b, paired)
    if reason:
        return _refused(name, tail, paired, a, b, joined(reason, note))
    with _one_flat_set_is_fine():
        outcome = stats.ttest_rel(a, b, alternative=tail) if paired else stats.ttest_ind(a, b, alternative=tail)
    return TestResult(name, tail, paired, (a.size, b.size), float(outcome.statistic), float(outcome.pvalue), note)


def welch_t_test(a: Scores, b: Scores, *, tail: Tail, floor: float | None = None) -> TestResult:
    """t = (mean_a - mean_b) / sqrt(s_a^2/n + s_b^2/m), Welch-Satterthwaite df: no equal spread assumed. Unpaired."""
    from scipy import stats

    a, b, note = _two_sets(a, b, tail, False, floor)
    name = "Welch's t-test"
    reason = _too_few(a, b) or _no_spread(a, b, False)
    if reason:
        return _refused(name, tail, False, a, b, joined(reason, note))
    with _one_flat_set_is_fine():
        outcome = stats.ttest_ind(a, b, equal_var=False, alternative=tail)
    return TestResult(name, tail, False, (a.size, b.size), float(outcome.statistic), float(outcome.pvalue), note)


def permutation_test(
    a: Scores, b: Scores, *, tail: Tail, paired: bool, draws: int = 10_000, floor: float | None = None, noise: int = 0
) -> TestResult:
    """How often would shuffled labels give a difference of means this large? The statistic is mean_a - mean_b.

    All relabellings are tried when there are at most `draws` of them (paired: 2^n sign flips), so the p-value is exact;
    otherwise p = (hits + 1) / (draws + 1) over random ones. It needs no normality, nor spread inside a set.
    """
    from scipy import stats

    a, b, note = _two_sets(a, b, tail, paired, floor)
    name = "permutation test"
    same = "all differences are zero" if paired else "all scores are the same number"
    reason = _too_few(a, b) or (same if (np.array_equal(a, b) if paired else all_equal(np.concatenate([a, b]))) else "")
    if reason:
        return _refused(name, tail, paired, a, b, joined(reason, note))
    relabellings = 2**a.size if paired else math.comb(a.size + b.size, a.size)
    exact = relabellings <= draws
    # Accuracies lie on a grid, so many relabellings give the very same difference, but their sums round differently.
    # On a common scale and rounded they compare equal; scipy's tolerance is relative to the difference, so 0 has none.
    together = np.concatenate([a, b])
    centre, scale = together.mean(), np.ptp(together)
    outcome = stats.permutation_test(
        ((a - centre) / scale, (b - centre) / scale),
        lambda x, y, axis: np.round(x.mean(axis=axis) - y.mean(axis=axis), 12),
        permutation_type="samples" if paired else "independent",
        vectorized=True,
        n_resamples=draws,
        batch=max(1, 2_000_000 // (a.size + b.size)),
        alternative=tail,
        random_state=np.random.default_rng(noise),
    )
    how = f"exact over {relabellings} relabellings" if exact else f"{draws} random relabellings, noise stream {noise}"
    smallest = (2 if tail == "two-sided" else 1) / relabellings
    limit = f"no p below {smallest:.3g} is possible with this n" if exact and smallest > 0.01 else ""
    p = float(outcome.pvalue)
    return TestResult(name, tail, paired, (a.size, b.size), float(a.mean() - b.mean()), p, joined(how, limit, note))


def mann_whitney_test(a: Scores, b: Scores, *, tail: Tail, floor: float | None = None) -> TestResult:
    """U = #{a_i > b_j} + 1/2 #{a_i = b_j}; U / (n m) is the probability of improvement (Agarwal et al. 2021).

    Exact for sets without ties when one has at most 8 runs, else the normal approximation with tie and continuity
    correction. Accuracies of small test sets tie often: with few runs prefer the permutation test.
    """
    from scipy import stats

    a, b, note = _two_sets(a, b, tail, False, floor)
    name = "Mann-Whitney U test"
    together = np.concatenate([a, b])
    reason = _too_few(a, b) or ("all scores are the same number" if np.ptp(together) == 0 else "")
    if reason:
        return _refused(name, tail, False, a, b, joined(reason, note))
    exact = min(a.size, b.size) <= 8 and np.unique(together).size == together.size
    outcome = stats.mannwhitneyu(a, b, alternative=tail, method="exact" if exact else "asymptotic")
    improvement = float(outcome.statistic) / (a.size * b.size)
    how = f"probability of improvement {improvement:.3f}, {'exact' if exact else 'normal approximation'}"
    p = float(min(1.0, outcome.pvalue))
    return TestResult(name, tail, False, (a.size, b.size), float(outcome.statistic), p, joined(how, note))


def brown_forsythe_test(a: Scores, b: Scores, *, tail: Tail, floor: float | None = None) -> TestResult:
    """Do the spreads differ? Student's t-test on z_i = |x_i - median(x)|; tail "greater": the FIRST spreads more.

    The usual statistic is W = t^2 (`scipy.stats.levene(center="median")`, same two-tailed p); t keeps the sign, so
    "is this method steadier" can be asked one-tailed.
    """
    from scipy import stats

    a, b, note = _two_sets(a, b, tail, False, floor)
    name = "Brown-Forsythe test"
    from_median_a, from_median_b = np.abs(a - np.median(a)), np.abs(b - np.median(b))
    scale = float(np.abs(np.concatenate([a, b])).max())
    flat = all_equal(from_median_a, scale) and all_equal(from_median_b, scale)
    reason = _too_few(a, b) or ("every run is equally far from its median in both sets" if flat else "")
    if reason:
        return _refused(name, tail, False, a, b, joined(reason, note))
    with _one_flat_set_is_fine():
        outcome = stats.ttest_ind(from_median_a, from_median_b, alternative=tail)
    return TestResult(name, tail, False, (a.size, b.size), float(outcome.statistic), float(outcome.pvalue), note)


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Holm's step-down adjustment, valid for any dependence:  p~_(k) = max_{j<=k} min(1, (m - j + 1) p_(j)).

    A None made no claim: it stays None and does not count in m.
    """
    claimed = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    so_far = 0.0
    for rank, (p, i) in enumerate(claimed):
        so_far = max(so_far, min(1.0, (len(claimed) - rank) * p))
        adjusted[i] = so_far
    return tuple(adjusted)


def holm_corrected(results: Sequence[TestResult]) -> tuple[TestResult, ...]:
    """The same results with Holm-adjusted p-values, and a note that says over how many tests."""
    adjusted = holm([result.p for result in results])
    tests = sum(p is not None for p in adjusted)
    return tuple(
        result if p is None else replace(result, p=p, note=joined(f"Holm-adjusted over {tests} tests", result.note))
        for result, p in zip(results, adjusted)
    )


def _two_sets(a: Scores, b: Scores, tail: str, paired: bool, floor: float | None) -> tuple[Array, Array, str]:
    if tail not in get_args(Tail):
        raise SteadytuneError(f"The tail must be one of {', '.join(get_args(Tail))}, not '{tail}'.")
    first, diverged_first = settle_diverged(a, floor, "scores of the first method")
    second, diverged_second = settle_diverged(b, floor, "scores of the second method")
    if paired and first.size != second.size:
        raise SteadytuneError(
            f"A paired test needs the same seeds on both sides, but there are {first.size} and {second.size} runs. "
            "Run the missing seeds, or compare unpaired."
        )
    return first, second, diverged_note(diverged_first + diverged_second, floor)


@contextmanager
def _one_flat_set_is_fine() -> Iterator[None]:
    """scipy warns of a set without spread (say, all runs degenerate). Against one that has spread the test is sound."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Precision loss occurred", RuntimeWarning)
        yield


def _too_few(a: Array, b: Array) -> str:
    fewest = min(a.size, b.size)
    return "" if fewest >= FEWEST_RUNS else f"n = {fewest} is fewer than {FEWEST_RUNS} runs"


def _no_spread(a: Array, b: Array, paired: bool) -> str:
    if paired:
        scale = float(np.abs(np.concatenate([a, b])).max())
        return "all paired differences are the same number" if all_equal(a - b, scale) else ""
    return "neither set of scores has any spread" if all_equal(a) and all_equal(b) else ""


def _refused(name: str, tail: str, paired: bool, a: Array, b: Array, reason: str) -> TestResult:
    return TestResult(name, tail, paired, (a.size, b.size), math.nan, None, reason)
