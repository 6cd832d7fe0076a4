"""What section 4 and figure 2 of the mixout paper say of the digits, each as a test over the restarts.

Restarts are paired: restart i sees the same order of rows at every p and with both methods. "Falls with p" is the
least-squares slope over all p of the plan, one slope per restart, against zero. "About as good" and "regardless of p"
are tests of equivalence within a margin that is ours, not the paper's: the text of the claim says it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steadytune.papers.digits.results import DigitsResult
from steadytune.papers.verdicts import Verdict, by_tests
from steadytune.stats import Tail, TestResult, student_t_test

CHANCE = 0.1  # accuracy of a run that diverged
CLOSE = 0.01  # of accuracy: "both result in high validation accuracy"
FLAT = 0.02  # of accuracy: "regardless of p"
ALIKE = 0.05  # of a distance
_SECTION = "mixout paper, section 4, figure 2"

Form = tuple[str, str]


def claims(result: DigitsResult) -> list[Verdict]:
    made = [
        _trend(result, "mixout", "distance", "less", "(a): with mixout(w_pre, p), ||w_ft - w_pre||² falls with p"),
        _trend(
            result,
            "mixout",
            "distance_mixed",
            "less",
            "(a), corollary 1.1 and supplement B: the same of the layers that mixout mixes",
        ),
        _trend(result, "dropout", "distance", "greater", "(a): with dropout(p), ||w_ft - w_pre||² rises with p"),
        _at_every_p(
            result, "distance", "less", "(a): mixout(w_pre, p) ends nearer to w_pre than dropout(p), for every p > 0"
        ),
        _close(result, "mixout"),
        _close(result, "dropout"),
        _robust(result),
        _at_every_p(
            result,
            "source_validation",
            "greater",
            "(c): mixout(w_pre, p) keeps more of the source's validation accuracy than dropout(p), for every p > 0",
        ),
        _flat(result),
    ]
    for form in result.plan.mixouts()[1:]:
        made += _of_form(result, form)
    return made


def _of_form(result: DigitsResult, form: Form) -> list[Verdict]:
    """What is asked of the other forms of mixout, beside the one that the text describes."""
    layers, gradient = form
    if gradient == result.plan.gradients[0]:
        text = f"(a) with layers={layers!r}: ||w_ft - w_pre||² falls with p"
        return [_trend(result, "mixout", "distance", "less", text, form)]
    main = result.plan.mixouts()[0]
    text = (
        f"D1 (ours): which gradient mixout has does not matter under Adam: {gradient!r} moves w_ft as far as "
        f"{main[1]!r}, within {ALIKE:.0%} of ||w_ft - w_pre||², for every p > 0"
    )
    tests, apart = [], 0.0
    for p in _positive(result):
        ours, other = (_column(result, "mixout", p, "distance", each) for each in (main, form))
        if not np.isfinite([ours, other]).all():
            return [Verdict(text, None, None, len(ours), "ACCEPTANCE D1", "a run diverged, so it has no distance")]
        tests += _equivalent(other, ours, ALIKE * float(ours.mean()))
        accuracies = (_column(result, "mixout", p, "validation", each) for each in (main, form))
        apart = max(apart, abs(float(np.subtract(*accuracies).mean())))
    measured = f"largest difference of mean validation accuracy at one p: {apart:.4f}"
    return [by_tests(text, tests, source="ACCEPTANCE D1", measured=measured)]


def _trend(result: DigitsResult, method: str, what: str, tail: Tail, text: str, form: Form | None = None) -> Verdict:
    ps = sorted(result.plan.ps)
    table = np.array([_column(result, method, p, what, form) for p in ps])
    means = ", ".join(f"{p:g}: {row.mean():.4g}" for p, row in zip(ps, table))
    if len(ps) < 2:
        return Verdict(text, None, None, table.shape[1], _SECTION, "one p only", means)
    if not np.isfinite(table).all():
        return Verdict(text, None, None, table.shape[1], _SECTION, "a run diverged, so it has no distance", means)
    slopes = np.polyfit(ps, table, 1)[0]
    test = student_t_test(slopes, np.zeros_like(slopes), tail=tail, paired=True)
    claim = by_tests(text, [test], source=_SECTION, measured=f"mean by p: {means}; mean slope {slopes.mean():.4g}")
    return replace(claim, how=f"slope over p of each restart against 0: {claim.how}")


def _at_every_p(result: DigitsResult, what: str, tail: Tail, text: str) -> Verdict:
    pairs = {p: [_column(result, method, p, what) for method in ("mixout", "dropout")] for p in _positive(result)}
    means = ", ".join(f"{p:g}: {a.mean():.4g} against {b.mean():.4g}" for p, (a, b) in pairs.items())
    if not all(np.isfinite(each).all() for pair in pairs.values() for each in pair):
        return Verdict(text, None, None, result.plan.restarts, _SECTION, "a run diverged, so it has no distance", means)
    tests = [student_t_test(a, b, tail=tail, paired=True) for a, b in pairs.values()]
    return by_tests(text, tests, source=_SECTION, measured=f"mean by p: {means}")


def _close(result: DigitsResult, method: str) -> Verdict:
    """No worse than unregularised fine-tuning (p = 0) by more than the margin."""
    ps = [p for p in (0.1, 0.2, 0.3) if p in result.plan.ps]
    text = (
        f"(b): {method}(p) has a high validation accuracy on the target for p in 0.1, 0.2, 0.3: less than {CLOSE} "
        "below fine-tuning with p = 0"
    )
    if not ps or 0.0 not in result.plan.ps:
        return Verdict(text, None, None, result.plan.restarts, _SECTION, "the plan lacks p = 0 or all of these p")
    base = _column(result, method, 0.0, "validation")
    tests = [
        student_t_test(_column(result, method, p, "validation") + CLOSE, base, tail="greater", paired=True) for p in ps
    ]
    means = ", ".join(f"{p:g}: {_column(result, method, p, 'validation').mean():.4f}" for p in (0.0, *ps))
    return by_tests(text, tests, source=_SECTION, measured=f"mean by p: {means}")


def _robust(result: DigitsResult) -> Verdict:
    """Best minus worst accuracy over p, per restart."""
    table = {
        method: np.array([_column(result, method, p, "validation") for p in _positive(result)])
        for method in ("mixout", "dropout")
    }
    text = "(b): validation accuracy on the target depends less on p with mixout(w_pre, p) than with dropout(p)"
    if len(table["mixout"]) < 2:
        return Verdict(text, None, None, result.plan.restarts, _SECTION, "one p only")
    mixout, dropout = (np.ptp(each, axis=0) for each in table.values())
    test = student_t_test(mixout, dropout, tail="less", paired=True)
    measured = f"best minus worst over p: {mixout.mean():.4f} against {dropout.mean():.4f}"
    return by_tests(text, [test], source=_SECTION, measured=measured)


def _flat(result: DigitsResult) -> Verdict:
    text = (
        "(c): with mixout(w_pre, p) the source's validation accuracy after fine-tuning is about the same for every "
        f"p > 0: within {FLAT} of its mean over p"
    )
    columns = [_column(result, "mixout", p, "source_validation") for p in _positive(result)]
    if len(columns) < 2:
        return Verdict(text, None, None, result.plan.restarts, _SECTION, "one p only")
    centre = np.mean(columns, axis=0)
    tests = [test for column in columns for test in _equivalent(column, centre, FLAT)]
    means = ", ".join(f"{p:g}: {column.mean():.4f}" for p, column in zip(_positive(result), columns))
    return by_tests(text, tests, source=_SECTION, measured=f"mean by p: {means}")


def _equivalent(a: np.ndarray, b: np.ndarray, margin: float) -> list[TestResult]:
    """Two one-sided tests: a is above b - margin, and below b + margin."""
    return [
        student_t_test(a + margin, b, tail="greater", paired=True),
        student_t_test(a - margin, b, tail="less", paired=True),
    ]


def _positive(result: DigitsResult) -> list[float]:
    return [p for p in sorted(result.plan.ps) if p > 0.0]


def _column(result: DigitsResult, method: str, p: float, what: str, form: Form | None = None) -> np.ndarray:
    """One number per restart; a diverged run has the accuracy of chance, and no distance."""
    found = np.array(result.values(method, p, what, form))
    return found if what.startswith("distance") else np.where(np.isfinite(found), found, CHANCE)
