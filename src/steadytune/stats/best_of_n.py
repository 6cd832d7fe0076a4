"""Expected performance of the best of n runs: train n seeds, keep the best on VALIDATION, report TEST (V5, X6).

    with replacement      F_g = (C_g / N)^n              (Dodge et al. 2019; the limit of the paper's bootstrap)
    without replacement   F_g = binom(C_g, n) / binom(N, n)   (Tang et al. 2020: unbiased, n <= N)
    w_g  = F_g - F_(g-1)                                 C_g: how many of the N runs have validation score <= v_g
    mean = sum_g w_g mean_{i in g} y_i                   g:   the distinct validation scores v_1 < v_2 < ...
    std  = sqrt( sum_g w_g mean_{i in g} (y_i - mean)^2 )

Among runs that tie on validation each is equally likely to be kept, so a group g counts with its average test score,
and the std includes the luck of the tie. Reporting validation itself (Figure 12) is y = v; without ties that is the
familiar E[max] = sum_i x_(i) ((i/N)^n - ((i-1)/N)^n).
Relations: n = 1 is the plain mean and the std over N; n -> infinity is the run that is best on validation. The
expected validation score never falls with n; the expected test score may, when selection overfits a small validation
set.
Caveat: `std` is the spread of one such experiment, not the standard error of the mean (allentune prints this std as
"var").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.stats.scores import Array, Scores, diverged_note, joined, settle_diverged


@dataclass(frozen=True)
class BestOfN:
    """A curve over `trials`: mean and std of the reported score of the selected run."""

    trials: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    runs: int
    how: str
    note: str

    def sentence(self) -> str:
        last = f"best of {self.trials[-1]}: {self.mean[-1]:.4g} +- {self.std[-1]:.4g}"
        return joined(f"Expected performance from n = {self.runs} runs ({self.how}), {last}", self.note) + "."


def expected_best(
    scores: Scores, trials: int | Sequence[int], *, replacement: bool = True, floor: float | None = None
) -> BestOfN:
    """E and std of the maximum of n runs: selected on, and reporting, the same scores."""
    return expected_selected(scores, scores, trials, replacement=replacement, validation_floor=floor, test_floor=floor)


def expected_selected(
    validation: Scores,
    test: Scores,
    trials: int | Sequence[int],
    *,
    replacement: bool = True,
    validation_floor: float | None = None,
    test_floor: float | None = None,
) -> BestOfN:
    """Closed form of "draw n of the N runs, keep the best on validation, record its test score"."""
    kept_by, reported, note = _two_scores(validation, test, validation_floor, test_floor)
    counts = _counts(trials)
    total = kept_by.size
    if not replacement and max(counts) > total:
        raise SteadytuneError(f"Without replacement, at most {total} of {total} runs can be drawn, not {max(counts)}.")
    _, group, size = np.unique(kept_by, return_inverse=True, return_counts=True)
    at_most = np.cumsum(size)
    if replacement:
        cumulative = (at_most / total) ** np.array(counts, dtype=np.float64)[:, None]
    else:
        # Exact integers: binomials of 50 runs overflow nothing, but differences of rounded ones would lose digits.
        cumulative = np.array([[math.comb(int(c), n) / math.comb(total, n) for c in at_most] for n in counts])
    per_run = (np.diff(cumulative, axis=-1, prepend=0.0) / size)[:, group]
    mean = per_run @ reported
    std = np.sqrt((per_run * (reported - mean[:, None]) ** 2).sum(axis=-1))
    how = "closed form, with replacement" if replacement else "closed form, without replacement"
    return BestOfN(counts, tuple(mean.tolist()), tuple(std.tolist()), total, how, note)


def simulate_selected(
    validation: Scores,
    test: Scores,
    trials: int | Sequence[int],
    *,
    repeats: int = 1000,
    validation_floor: float | None = None,
    test_floor: float | None = None,
    noise: int = 0,
) -> BestOfN:
    """The paper's bootstrap: `repeats` times draw n runs with replacement, select on validation, record test.

    Each repeat draws max(trials) runs once and uses its first n for each n: a curve is smooth in n, and costs one draw.
    """
    kept_by, reported, note = _two_scores(validation, test, validation_floor, test_floor)
    counts = _counts(trials)
    if repeats < 2:
        raise SteadytuneError(f"{repeats} repeats cannot show a spread; the paper uses 1000.")
    longest = max(counts)
    drawn = np.random.default_rng(noise).integers(0, kept_by.size, (repeats, longest))
    rank = np.unique(kept_by, return_inverse=True)[1]
    # The running best, ties to the first drawn (by exchangeability any of them equally): one integer orders both.
    key = rank[drawn] * longest + np.arange(longest - 1, -1, -1)
    best_at = longest - 1 - np.maximum.accumulate(key, axis=1) % longest
    kept = np.take_along_axis(drawn, best_at, axis=1)[:, np.array(counts) - 1]
    outcome = reported[kept]
    mean, std = outcome.mean(axis=0), outcome.std(axis=0, ddof=1)
    how = f"bootstrap, {repeats} repeats, noise stream {noise}"
    return BestOfN(counts, tuple(mean.tolist()), tuple(std.tolist()), kept_by.size, how, note)


def _two_scores(
    validation: Scores, test: Scores, validation_floor: float | None, test_floor: float | None
) -> tuple[Array, Array, str]:
    kept_by, diverged = settle_diverged(validation, validation_floor, "validation scores")
    reported, diverged_test = settle_diverged(test, test_floor, "test scores")
    if kept_by.size != reported.size:
        raise SteadytuneError(
            f"Every run needs a validation and a test score, but there are {kept_by.size} and {reported.size}."
        )
    notes = (diverged_note(diverged, validation_floor), diverged_note(diverged_test, test_floor))
    return kept_by, reported, joined(*dict.fromkeys(notes))


def _counts(trials: int | Sequence[int]) -> tuple[int, ...]:
    counts = (trials,) if isinstance(trials, (int, np.integer)) else tuple(trials)
    if not counts or any(int(n) != n or n < 1 for n in counts):
        raise SteadytuneError(f"The numbers of trials must be whole and at least 1, not {counts}.")
    return tuple(int(n) for n in counts)
