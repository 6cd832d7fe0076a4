"""One case of a claim, tested on its samples. See catalogue/claim.py for what each kind says and how it is tested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from steadytune import stats
from steadytune.papers.case_bootstrap import DRAWS, bootstrapped
from steadytune.papers.catalogue import Claim
from steadytune.papers.catalogue.claim import case_direction, slope
from steadytune.papers.samples import Sample
from steadytune.papers.verdicts import ALPHA
from steadytune.report.words import number as worded
from steadytune.stats.scores import FEWEST_RUNS


@dataclass(frozen=True)
class Outcome:
    """`toward`: whether the numbers lie as claimed, test or no test. `reversed`: the opposite is shown."""

    holds: bool | None
    p: float | None
    toward: bool | None
    n: int
    how: str
    words: str
    reversed: bool = False


def judge_case(claim: Claim, samples: Sequence[Sample]) -> Outcome:
    """All samples are there; they may be small."""
    if claim.statistic in ("max", "min"):
        samples = _of_common_seeds(samples)
    numbers = [sample.number(claim.statistic) for sample in samples]
    words = _words(claim, samples, numbers)
    n = min(sample.n for sample in samples)
    if any(number is None for number in numbers):
        return Outcome(None, None, None, n, "there is no such number", words)
    toward = case_direction(claim, [float(number) for number in numbers if number is not None])
    if n < FEWEST_RUNS and not any(sample.exact for sample in samples):  # also where means are only compared
        return Outcome(None, None, toward, n, f"n = {n} is fewer than {FEWEST_RUNS} runs", words)
    if claim.kind in ("value", "ratio_at_most", "bound") or all(sample.exact for sample in samples):
        return Outcome(toward, None, toward, n, "compared, not tested", words)
    if any(sample.place.best_of is not None for sample in samples):
        p, opposite = bootstrapped(claim, samples)
        how = f"bootstrap of the runs, {DRAWS} draws, one tail"
        return Outcome(p < ALPHA, p, toward, n, how, words, opposite < ALPHA)
    return _TESTS[claim.kind](claim, samples, toward, words)


def _of_common_seeds(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The worst of 20 runs is below the worst of 5 for no other reason than their number."""
    common = [seed for seed in samples[0].seeds if all(seed in sample.seeds for sample in samples)]
    if not common or any(sample.exact for sample in samples):
        return samples
    return [replace(sample, values=sample.at(common), seeds=tuple(common)) for sample in samples]


def _words(claim: Claim, samples: Sequence[Sample], numbers: Sequence[float | None]) -> str:
    shown = [worded(number) for number in numbers]
    if claim.statistic == "degenerate":
        shown = [f"{sample.failed} of {sample.n}" for sample in samples]
    return f"{shown[0]} against {shown[1]}" if len(shown) == 2 else ", ".join(shown)


def _of_test(result: stats.TestResult, toward: bool | None, words: str) -> Outcome:
    n, how = min(result.n), result.setting()
    if result.p is None:
        return Outcome(None, None, toward, n, f"{how}: {result.note}", words)
    return Outcome(result.p < ALPHA, result.p, toward, n, how, words, result.p > 1 - ALPHA)


def _pair(a: Sample, b: Sample) -> tuple[np.ndarray, np.ndarray, bool]:
    """Both in the order of the same seeds where they have them. A single number stands for every seed of the other."""
    if a.exact or b.exact:
        n = max(a.n, b.n)
        return np.resize(a.values, n), np.resize(b.values, n), True
    if set(a.seeds) == set(b.seeds) and len(set(a.seeds)) == a.n:
        return a.values, b.at(a.seeds), True
    return a.values, b.values, False


def _compare(claim: Claim, samples: Sequence[Sample], toward: bool | None, words: str) -> Outcome:
    tail: stats.Tail = "greater" if claim.kind == "greater" else "less"
    if claim.statistic in ("max", "min"):
        return _extremes(claim, *_pair(samples[0], samples[1]), toward, words)
    made = _of_test(_t_test(samples[0], samples[1], tail), toward, words)
    if any(sample.exact for sample in samples):  # that is what pairs with a constant come to
        n = max(sample.n for sample in samples)
        how = f"Student's t-test, one sample against one number, one-tailed (first {tail}), n = {n}"
        made = replace(made, how=how)
    return made


def _t_test(a: Sample, b: Sample, tail: stats.Tail) -> stats.TestResult:
    """Paired where seeds are shared; on a grid of seeds runs of one row or column are not independent of each other."""
    first, second, paired = _pair(a, b)
    if paired and a.grid:
        return stats.crossed_t_test(first, second, rows=a.grid[0], columns=a.grid[1], tail=tail)
    return stats.student_t_test(first, second, tail=tail, paired=paired)


def _extremes(claim: Claim, a: np.ndarray, b: np.ndarray, paired: bool, toward: bool | None, words: str) -> Outcome:
    """Best or worst of the runs: how often do exchanged labels give a difference as large?"""
    reduce: Callable[..., np.ndarray] = np.max if claim.statistic == "max" else np.min
    sign = 1.0 if claim.kind == "greater" else -1.0
    random = np.random.default_rng(0)
    if paired:
        swapped = random.random((DRAWS, a.size)) < 0.5
        first, second = np.where(swapped, b, a), np.where(swapped, a, b)
    else:
        mixed = random.permuted(np.tile(np.concatenate([a, b]), (DRAWS, 1)), axis=1)
        first, second = mixed[:, : a.size], mixed[:, a.size :]
    differences = sign * (reduce(first, axis=1) - reduce(second, axis=1))
    seen = sign * float(reduce(a) - reduce(b))
    as_great, as_small = differences >= seen - 1e-12, differences <= seen + 1e-12
    p, opposite = (float((1 + hits.sum()) / (DRAWS + 1)) for hits in (as_great, as_small))
    how = f"{DRAWS} relabellings, {'within seeds, ' if paired else ''}of the {claim.statistic}, one tail"
    return Outcome(p < ALPHA, p, toward, min(a.size, b.size), how, words, opposite < ALPHA)


def _steadier(claim: Claim, samples: Sequence[Sample], toward: bool | None, words: str) -> Outcome:
    return _of_test(stats.brown_forsythe_test(samples[0].values, samples[1].values, tail="less"), toward, words)


def _fewer(claim: Claim, samples: Sequence[Sample], toward: bool | None, words: str) -> Outcome:
    first, second = samples
    sign = 1.0 if first.higher else -1.0
    assert first.level is not None  # or there was no such number
    scores = (sign * first.values, sign * second.values, sign * first.level)
    found = _of_test(stats.compare_degenerate(*scores, tail="less"), toward, words)
    # Counts jump: a p near 1 is not yet a p of the opposite near 0.
    opposite = stats.compare_degenerate(*scores, tail="greater").p
    return replace(found, reversed=opposite is not None and opposite < ALPHA)


def _table(samples: Sequence[Sample]) -> np.ndarray:
    """[seed, cell], of the seeds that all cells have."""
    if any(sample.exact for sample in samples):
        return np.stack([np.resize(sample.values, max(each.n for each in samples)) for sample in samples], axis=1)
    common = [seed for seed in samples[0].seeds if all(seed in sample.seeds for sample in samples)]
    return np.stack([sample.at(common) for sample in samples], axis=1) if common else np.zeros((0, len(samples)))


def _above_zero(values: np.ndarray, what: str, toward: bool | None, words: str) -> Outcome:
    if len(values) < FEWEST_RUNS:
        return Outcome(None, None, toward, len(values), f"n = {len(values)} is fewer than {FEWEST_RUNS} runs", words)
    found = _of_test(stats.student_t_test(values, np.zeros_like(values), tail="greater", paired=True), toward, words)
    return Outcome(found.holds, found.p, toward, found.n, f"{what} against 0: {found.how}", words, found.reversed)


def _slope(claim: Claim, samples: Sequence[Sample], toward: bool | None, words: str) -> Outcome:
    sign = 1.0 if claim.kind == "rising" else -1.0
    slopes = np.array([sign * slope(row) for row in _table(samples).tolist()])
    return _above_zero(slopes, f"{claim.kind}: slope over the cells of each seed", toward, words)


def _flatter(claim: Claim, samples: Sequence[Sample], toward: bool | None, words: str) -> Outcome:
    table, half = _table(samples), len(samples) // 2
    ranges = np.ptp(table[:, half:], axis=1) - np.ptp(table[:, :half], axis=1)
    return _above_zero(ranges, "difference of the ranges over the cells, of each seed", toward, words)


def _narrower(claim: Claim, samples: Sequence[Sample], toward: bool | None, words: str) -> Outcome:
    """|after| < |before|, which also a gap of the other sign may not be: both tests of `_nearer`, the larger p.

    The sign of the wider gap is read off the same runs, so p counts twice.
    """
    table = _table(samples)
    before, after = table[:, 2] - table[:, 3], table[:, 0] - table[:, 1]
    how = "the gap nearer to 0 than it was, from both sides, of each seed"
    if len(table) < FEWEST_RUNS:
        return _above_zero(before, how, toward, words)  # which says so
    found, opposite = _nearer(after, before), _nearer(before, after)
    p = max((min(1.0, 2 * each.p) for each in found if each.p is not None), default=None)
    if p is None or any(each.p is None for each in found):
        note = next(each.note for each in found if each.p is None)
        return Outcome(None, None, toward, len(table), f"{how}: {note}", words)
    reversed_ = all(each.p is not None and 2 * each.p < ALPHA for each in opposite)
    how += f": {found[0].setting()}, the larger p of two, twice: the sign is read off the runs"
    return Outcome(p < ALPHA, p, toward, len(table), how, words, reversed_)


def _nearer(inner: np.ndarray, outer: np.ndarray) -> tuple[stats.TestResult, stats.TestResult]:
    """|inner| < |outer|: with s the sign of the outer one, s (outer - inner) > 0 and s (outer + inner) > 0."""
    sign = 1.0 if outer.mean() >= 0 else -1.0
    nothing = np.zeros_like(outer)
    return (
        stats.student_t_test(sign * (outer - inner), nothing, tail="greater", paired=True),
        stats.student_t_test(sign * (outer + inner), nothing, tail="greater", paired=True),
    )


def _best(claim: Claim, samples: Sequence[Sample], toward: bool | None, words: str) -> Outcome:
    """The first above each of the others: the largest p of the tests, as for any claim that takes all of them.

    That it is not shown to be below the best would be no evidence: of equal ones each would be "the best".
    """
    found = [_t_test(samples[0], other, "greater") for other in samples[1:]]
    n, how = min(min(each.n) for each in found), found[0].setting()
    ps = [each.p for each in found if each.p is not None]
    if len(ps) < len(found):
        return Outcome(None, None, toward, n, f"{how}: {next(each.note for each in found if each.p is None)}", words)
    reversed_ = len(ps) * (1 - max(ps)) < ALPHA  # some other is better: the smallest p, times their number
    how += f"; above each of {len(found)}, largest p" if len(found) > 1 else ""
    return Outcome(max(ps) < ALPHA, max(ps), toward, n, how, words, reversed_)


def _peak(claim: Claim, samples: Sequence[Sample], toward: bool | None, words: str) -> Outcome:
    """The best of the cells before the last is chosen by looking: its p counts as often as there are cells."""
    best = max(samples[:-1], key=lambda sample: float(sample.values.mean()))
    found = _of_test(_t_test(best, samples[-1], "greater"), toward, words)
    p = found.p if found.p is None else min(1.0, (len(samples) - 1) * found.p)
    how = f"the best cell above the last: {found.how}" + (f"; p times {len(samples) - 1}" if len(samples) > 2 else "")
    return Outcome(found.holds if p is None else p < ALPHA, p, toward, found.n, how, words, found.reversed)


def _no_difference(claim: Claim, samples: Sequence[Sample], toward: bool | None, words: str) -> Outcome:
    """Two one-sided tests. Not shown to be alike is not yet different: that takes the two-tailed test as well."""
    a, b, paired = _pair(samples[0], samples[1])
    margin = claim.margin or 0.0
    if np.array_equal(a, b):
        return Outcome(True, None, True, min(a.size, b.size), "the same numbers", words)
    low = stats.student_t_test(a + margin, b, tail="greater", paired=paired)
    high = stats.student_t_test(a - margin, b, tail="less", paired=paired)
    both = stats.student_t_test(a, b, tail="two-sided", paired=paired)
    if low.p is None or high.p is None:
        return _of_test(low if low.p is None else high, toward, words)
    p = max(low.p, high.p)
    differs = both.p is not None and both.p < ALPHA and not toward
    own = f"; the paper's own two-tailed test: p = {both.p:.3g}" if both.p is not None else ""
    how = f"two one-sided t-tests at ±{margin:g}, {'paired' if paired else 'unpaired'}{own}"
    return Outcome(True if p < ALPHA else False if differs else None, p, toward, min(low.n), how, words, differs)


def _no_better(claim: Claim, samples: Sequence[Sample], toward: bool | None, words: str) -> Outcome:
    """Not above by more than the margin. Not shown to be so is not yet better: that takes a test of its own."""
    a, b, paired = _pair(samples[0], samples[1])
    margin = claim.margin or 0.0
    if np.array_equal(a, b):
        return Outcome(True, None, True, min(a.size, b.size), "the same numbers", words)
    below = _of_test(stats.student_t_test(a - margin, b, tail="less", paired=paired), toward, words)
    if below.p is None:
        return below
    better = stats.student_t_test(a, b, tail="greater", paired=paired).p
    reversed_ = better is not None and better < ALPHA and not below.holds
    how = f"above by less than {margin:g}: {below.how}"
    return Outcome(
        True if below.holds else False if reversed_ else None, below.p, toward, below.n, how, words, reversed_
    )


def reproduces(sample: Sample, mean: float | None, std: float | None) -> Outcome:
    """The mean lies within one published standard deviation of the published mean."""
    own, how = sample.number("mean"), "compared: within one published standard deviation"
    if own is None or mean is None or std is None:
        return Outcome(None, None, None, sample.n, "there is no such number", worded(own))
    if sample.n < FEWEST_RUNS:
        return Outcome(None, None, None, sample.n, f"n = {sample.n} is fewer than {FEWEST_RUNS} runs", worded(own))
    near = abs(own - mean) <= std
    return Outcome(near, None, near, sample.n, how, f"{worded(own)} against {worded(mean)} ± {worded(std)}")


_Test = Callable[[Claim, Sequence[Sample], bool | None, str], Outcome]
_TESTS: dict[str, _Test] = {
    "greater": _compare,
    "less": _compare,
    "steadier": _steadier,
    "fewer_degenerate": _fewer,
    "rising": _slope,
    "falling": _slope,
    "best": _best,
    "peak": _peak,
    "flatter": _flatter,
    "narrower": _narrower,
    "no_difference": _no_difference,
    "no_better": _no_better,
}
