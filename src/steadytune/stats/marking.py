"""Which numbers of a table are marked, and on what grounds.

    equivalent to the best (V11):   H1 mean_best > mean_k, one-tailed;  k is marked unless p < alpha
    better than the baseline (V22): H1 mean_k > mean_baseline, one-tailed;  k is marked if p < alpha

The few-sample paper marks, in each group of 4 numbers of Table 1, the best mean and those "statistically equivalent
to it" by one-tailed Student t-tests at p < 0.05, uncorrected: the defaults of `equivalent_to_best`.
Caveat: "equivalent" here means "not shown to be worse". With few runs everything is; the caption therefore carries n.
A method that could not be tested (n < 3, no spread) is "undecided", never marked. The best was picked by looking, so
the p-values against it are a little too small; Holm's correction (`correct=True`) makes rejecting harder and marks
more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from steadytune.errors import SteadytuneError
from steadytune.stats.hypothesis_tests import Tail, TestResult, holm_corrected, student_t_test, welch_t_test
from steadytune.stats.scores import Scores, settle_diverged

Verdict: TypeAlias = Literal["best", "equivalent", "worse", "baseline", "better", "not shown better", "undecided"]
TTest: TypeAlias = Literal["student", "welch"]
_MARKED = ("best", "equivalent", "better")


@dataclass(frozen=True)
class Mark:
    """One method's place in its group. `result` is None only for the reference itself (the best, or the baseline)."""

    name: str
    mean: float
    verdict: Verdict
    result: TestResult | None

    @property
    def marked(self) -> bool:
        return self.verdict in _MARKED


@dataclass(frozen=True)
class Marking:
    """A group of numbers that are compared with one reference, in the caller's order."""

    reference: str
    marks: tuple[Mark, ...]
    alpha: float
    corrected: bool

    def marked(self) -> tuple[str, ...]:
        """The names a table highlights."""
        return tuple(mark.name for mark in self.marks if mark.marked)

    def caption(self) -> str:
        """What the table must say: which test, which tail, which n, which correction."""
        # One setting per distinct (test, tail, n): equal n across methods gives one line, unequal n all of them.
        settings = dict.fromkeys(mark.result.setting() for mark in self.marks if mark.result is not None)
        tested = "; ".join(settings) if settings else "nothing to compare with"
        correction = "Holm-corrected" if self.corrected else "uncorrected for multiple tests"
        undecided = [mark.name for mark in self.marks if mark.verdict == "undecided"]
        ending = f" Undecided: {', '.join(undecided)}." if undecided else ""
        return f"Against {self.reference}: {tested}; p < {self.alpha:g}, {correction}.{ending}"


def equivalent_to_best(
    groups: Mapping[str, Scores],
    *,
    alpha: float = 0.05,
    test: TTest = "student",
    paired: bool = False,
    correct: bool = False,
    floor: float | None = None,
) -> Marking:
    """Mark the highest mean and every method not significantly below it."""
    means = _means(groups, floor)
    best = max(means, key=lambda name: means[name])  # the first of equals
    results = _compare(groups, best, True, test, paired, correct, floor)
    words: tuple[Verdict, Verdict, Verdict] = ("best", "worse", "equivalent")
    return _marking(means, best, results, alpha, correct, words)


def better_than_baseline(
    groups: Mapping[str, Scores],
    baseline: str,
    *,
    alpha: float = 0.05,
    test: TTest = "student",
    paired: bool = False,
    correct: bool = True,
    floor: float | None = None,
) -> Marking:
    """Mark every method significantly above `baseline`. Holm-corrected by default; the paper's Table 2 is not."""
    if baseline not in groups:
        raise SteadytuneError(f"The baseline '{baseline}' is not among the methods {', '.join(groups)}.")
    means = _means(groups, floor)
    results = _compare(groups, baseline, False, test, paired, correct, floor)
    words: tuple[Verdict, Verdict, Verdict] = ("baseline", "better", "not shown better")
    return _marking(means, baseline, results, alpha, correct, words)


def _means(groups: Mapping[str, Scores], floor: float | None) -> dict[str, float]:
    if not groups:
        raise SteadytuneError("There are no methods to compare.")
    return {
        name: float(settle_diverged(scores, floor, f"scores of {name}")[0].mean()) for name, scores in groups.items()
    }


def _compare(
    groups: Mapping[str, Scores],
    reference: str,
    reference_first: bool,
    test: TTest,
    paired: bool,
    correct: bool,
    floor: float | None,
) -> dict[str, TestResult]:
    """Each other method against the reference; H1 is always that the FIRST of the two is greater."""
    if test not in ("student", "welch"):
        raise SteadytuneError(f"The test must be 'student' or 'welch', not '{test}'.")
    if test == "welch" and paired:
        raise SteadytuneError("Welch's t-test is unpaired; use test='student' for paired runs.")
    tail: Tail = "greater"
    results = {}
    for name, scores in groups.items():
        if name == reference:
            continue
        pair = (groups[reference], scores) if reference_first else (scores, groups[reference])
        if test == "student":
            results[name] = student_t_test(*pair, tail=tail, paired=paired, floor=floor)
        else:
            results[name] = welch_t_test(*pair, tail=tail, floor=floor)
    if correct:
        return dict(zip(results, holm_corrected(list(results.values()))))
    return results


def _marking(
    means: dict[str, float],
    reference: str,
    results: dict[str, TestResult],
    alpha: float,
    corrected: bool,
    words: tuple[Verdict, Verdict, Verdict],
) -> Marking:
    own, rejected, kept = words
    marks = []
    for name, mean in means.items():
        if name == reference:
            marks.append(Mark(name, mean, own, None))
            continue
        significant = results[name].significant(alpha)
        verdict: Verdict = "undecided" if significant is None else rejected if significant else kept
        marks.append(Mark(name, mean, verdict, results[name]))
    return Marking(reference, tuple(marks), alpha, corrected)
