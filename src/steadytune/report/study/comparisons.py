"""Every number of a study's report, computed once: each line against the baseline, and against the best of its task.

| question | answered by |
|---|---|
| is it better or worse than the baseline? (V22) | Student's t-test, paired, if both ran the same seeds; else Welch's |
| without assuming normal scores? | permutation test and probability of improvement, paired in the same way |
| is it steadier? | Brown-Forsythe test on the spread |
| does it fail less often? (M19) | Fisher's exact test on the runs that failed |
| which are as good as the best? (V11) | Student's t-test against the best, unpaired, one-tailed, as in the paper |

All but the last are two-tailed. The t-tests, the tests on spread and those on failures are each Holm-corrected over all
comparisons of the study; V11's marks and the permutation tests are not. The few-sample paper does not say which tail
marks Table 2 (V22); two tails also find what is worse, and every word, mark and table here means the same test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from steadytune import stats
from steadytune.errors import SteadytuneError
from steadytune.report.study.luck import Luck, find_luck
from steadytune.report.study.runs import Line, Runs, collect, floors, lines
from steadytune.stats.scores import FEWEST_RUNS
from steadytune.study.results import StudyResults

Verdict = Literal["better", "worse", "not shown", "undecided"]
ALPHA = 0.05
POWER = 0.8
MOST_DRAWS, FEWEST_DRAWS, DRAW_BUDGET = 10_000, 2_000, 5_000_000  # bounded, so that a large study's page takes seconds


@dataclass(frozen=True, eq=False)
class Comparison:
    """A line against the baseline on one task. Differences are line minus baseline, in the metric's own direction."""

    task: str
    line: str
    baseline: str
    n: tuple[int, int]
    paired: bool
    pairing: str  # why it is paired or not
    difference: stats.Interval
    improvement: float  # how much better the mean is, higher is better whatever the metric
    t_test: stats.TestResult  # Holm-adjusted
    raw_p: float | None  # of the same test, before the adjustment
    permutation: stats.TestResult
    effect: stats.EffectSize  # positive: better than the baseline
    spread: stats.TestResult  # Holm-adjusted; positive statistic: spreads more than the baseline
    failures: stats.TestResult | None  # Holm-adjusted; statistic: share minus the baseline's share
    seeds_needed: stats.SeedPlan | None  # to show the observed difference in this study
    no_plan: str = ""  # why there is no such number

    @property
    def verdict(self) -> Verdict:
        return _verdict(self.t_test, self.improvement)

    @property
    def steadier(self) -> Verdict:
        return _verdict(self.spread, -self.spread.statistic)

    @property
    def fails_less(self) -> Verdict:
        return "undecided" if self.failures is None else _verdict(self.failures, -self.failures.statistic)


@dataclass(frozen=True, eq=False)
class Comparisons:
    """All that words, tables and figures need, by (task, name of a line)."""

    results: StudyResults
    lines: tuple[Line, ...]
    tasks: tuple[str, ...]
    baseline: str | None  # the line that others are compared with
    runs: Mapping[tuple[str, str], Runs]
    against: Mapping[tuple[str, str], Comparison]
    markings: Mapping[str, stats.Marking]  # per task: which lines are as good as the best
    tests: int  # over how many t-tests Holm's correction went
    luck: Luck
    draws: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(line.name for line in self.lines)

    def mark(self, task: str, line: str) -> str:
        """`best`, `equivalent`, `worse` or `undecided`; empty where the line is not marked at all."""
        return self._verdicts.get((task, line), "")

    @cached_property
    def _verdicts(self) -> Mapping[tuple[str, str], str]:
        return {(task, mark.name): mark.verdict for task, found in self.markings.items() for mark in found.marks}

    def split(self, task: str) -> str:
        """Where the task's reported scores are from."""
        has_test = bool(self.results.tasks[task].rows.get("test"))
        return "test" if self.results.split == "test" and has_test else "validation"


def compare_all(results: StudyResults) -> Comparisons:
    """Everything there is to say about a study, in plain numbers."""
    rows, floor = lines(results), floors(results)
    runs_in_all = max(1, len(results.trials))
    draws = min(MOST_DRAWS, max(FEWEST_DRAWS, DRAW_BUDGET // runs_in_all))
    runs = {
        (task, line.name): collect(results, line, task, floor[task], draws) for task in results.tasks for line in rows
    }
    baseline = _baseline(results, rows)
    pairs = _pairs(results, rows, baseline, runs)
    against = holm_corrected([compare_runs(line, base, draws) for line, base in pairs])
    tests = sum(each.t_test.p is not None for each in against)
    planned = [with_plan(each, line, base, tests) for each, (line, base) in zip(against, pairs)]
    return Comparisons(
        results=results,
        lines=rows,
        tasks=tuple(results.tasks),
        baseline=baseline,
        runs=runs,
        against={(each.task, each.line): each for each in planned},
        markings={task: found for task in results.tasks if (found := _marking(task, rows, runs)) is not None},
        tests=tests,
        luck=find_luck(results, rows, floor),
        draws=draws,
    )


def compare_runs(line: Runs, base: Runs, draws: int = MOST_DRAWS) -> Comparison:
    """One line against another on the same task, before any correction. Both need a score."""
    paired, pairing, order = _pairing(line, base)
    a, b = line.oriented, base.oriented[order] if paired else base.oriented
    floor = line.oriented_floor
    here, there = line.scores, base.scores[order] if paired else base.scores
    if paired:
        t_test = stats.student_t_test(a, b, tail="two-sided", paired=True, floor=floor)
    else:
        t_test = stats.welch_t_test(a, b, tail="two-sided", floor=floor)
    failures = None
    if line.level is not None:
        failures = stats.compare_degenerate(a, b, line.sign * line.level, tail="two-sided")
    effect = stats.effect_size(a, b, paired=paired, floor=floor)
    return Comparison(
        task=line.task,
        line=line.line,
        baseline=base.line,
        n=(line.n, base.n),
        paired=paired,
        pairing=pairing,
        difference=stats.bootstrap_difference(here, there, paired=paired, draws=draws, floor=line.floor),
        improvement=effect.mean_difference,
        t_test=t_test,
        raw_p=t_test.p,
        permutation=stats.permutation_test(a, b, tail="two-sided", paired=paired, draws=draws, floor=floor),
        effect=effect,
        spread=stats.brown_forsythe_test(a, b, tail="two-sided", floor=floor),
        failures=failures,
        seeds_needed=None,
    )


def with_plan(found: Comparison, line: Runs, base: Runs, tests: int) -> Comparison:
    """How many seeds would show the observed difference, at the level that Holm's first step asks for."""
    a, b = line.sign * line.settled, base.sign * base.settled
    if found.paired:
        differences = a - b[_pairing(line, base)[2]]
        std = float(differences.std(ddof=1)) if differences.size > 1 else math.nan
    else:
        freedom = a.size + b.size - 2
        squares = float(((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum())
        std = math.sqrt(squares / freedom) if freedom > 0 else math.nan
    if min(found.n) < FEWEST_RUNS:
        return replace(found, no_plan=f"fewer than {FEWEST_RUNS} runs do not show how far runs differ")
    try:
        plan = stats.seeds_needed(
            found.improvement, std, tail="two-sided", paired=found.paired, power=POWER, alpha=ALPHA / max(1, tests)
        )
    except SteadytuneError as problem:
        return replace(found, no_plan=str(problem))
    return replace(found, seeds_needed=plan)


def _verdict(result: stats.TestResult, improvement: float) -> Verdict:
    significant = result.significant(ALPHA)
    if significant is None:
        return "undecided"
    return "not shown" if not significant else "better" if improvement > 0 else "worse"


def _baseline(results: StudyResults, rows: Sequence[Line]) -> str | None:
    """The baseline's line: it may be named by its variant, or by its family."""
    names = [line.name for line in rows]
    if results.baseline in names:
        return results.baseline
    for variant in results.variants.values():
        if results.baseline in (variant.name, variant.family):
            return variant.name if variant.name in names else variant.family
    return names[0] if names else None


def _pairs(
    results: StudyResults, rows: Sequence[Line], baseline: str | None, runs: Mapping[tuple[str, str], Runs]
) -> list[tuple[Runs, Runs]]:
    """What can be compared: a line with the baseline, where both have a score."""
    if baseline is None:
        return []
    others = [line.name for line in rows if line.name != baseline]
    both = [(runs[task, name], runs[task, baseline]) for task in results.tasks for name in others]
    return [(line, base) for line, base in both if line.summary is not None and base.summary is not None]


def _pairing(line: Runs, base: Runs) -> tuple[bool, str, list[int]]:
    """Whether both ran the same seeds, in words, and the baseline's runs in the order of the line's."""
    place = {seed: index for index, seed in enumerate(base.seeds)}
    if len(place) < len(base.seeds) or len(set(line.seeds)) < len(line.seeds):
        return False, "unpaired: a seed was run more than once", []
    alone = set(line.seeds) ^ set(base.seeds)
    if alone:
        share = f"{len(alone)} of {len(set(line.seeds) | set(base.seeds))} seeds have a result on one side only"
        return False, f"unpaired: {share}", []
    return True, "paired: the same seeds", [place[seed] for seed in line.seeds]


def holm_corrected(found: Sequence[Comparison]) -> list[Comparison]:
    """Each kind of test corrected over all comparisons."""
    t_tests = stats.holm_corrected([each.t_test for each in found])
    spreads = stats.holm_corrected([each.spread for each in found])
    failures = iter(stats.holm_corrected([each.failures for each in found if each.failures is not None]))
    return [
        replace(each, t_test=t_test, spread=spread, failures=None if each.failures is None else next(failures))
        for each, t_test, spread in zip(found, t_tests, spreads)
    ]


def _marking(task: str, rows: Sequence[Line], runs: Mapping[tuple[str, str], Runs]) -> stats.Marking | None:
    """V11. A line with fewer than 3 runs is neither the best nor compared with it."""
    here = [runs[task, line.name] for line in rows]
    groups: dict[str, np.ndarray] = {
        each.line: each.oriented for each in here if each.summary is not None and each.n >= FEWEST_RUNS
    }
    if not groups:
        return None
    floor = next(each.oriented_floor for each in here if each.line in groups)
    return stats.equivalent_to_best(groups, alpha=ALPHA, floor=floor)
