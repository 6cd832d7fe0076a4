"""What is claimed of the digits, from results that are made up."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from steadytune.papers import digits
from steadytune.papers.digits import DigitsResult, FineTuned, Plan
from steadytune.papers.digits.experiment import fine_tuning_restarts
from steadytune.papers.digits.results import Pretrained

PS = (0.0, 0.1, 0.3, 0.6)


def made_up(value, restarts=5, ps=PS, noise=1e-3, **forms):
    """A result in which `value(method, p, what)` came out, with a little noise that differs from run to run."""
    plan = Plan(ps=ps, restarts=restarts, **forms)
    random = np.random.default_rng(0)
    runs = []
    for each in fine_tuning_restarts(plan):
        numbers = {
            what: value(each.method, each.p, what) + noise * random.standard_normal()
            for what in ("distance", "distance_mixed", "validation", "source_validation")
        }
        runs.append(
            FineTuned(
                each.method,
                each.p,
                each.layers,
                each.gradient,
                each.streams.order,
                **numbers,
                test=None,
                losses=(),
                drift=(),
                diverged=False,
            )
        )
    chosen = Pretrained(1, 0, 0.99)
    return DigitsResult("small", plan, "source", "target", {}, (chosen,), chosen, tuple(runs))


def as_the_paper(method, p, what):
    if what.startswith("distance"):
        return 2.0 - p if method == "mixout" else 2.0 + p
    if what == "validation":
        return 0.98 if method == "mixout" else 0.98 - max(0.0, p - 0.3)
    return 0.72 if method == "mixout" else 0.72 - p


def the_opposite(method, p, what):
    return as_the_paper({"mixout": "dropout", "dropout": "mixout"}[method], p, what)


def by_text(result):
    return {claim.text: claim for claim in digits.claims(result)}


def test_claims_hold_when_numbers_are_as_the_paper_says():
    claims = digits.claims(made_up(as_the_paper))
    assert [claim.text for claim in claims if claim.holds is not True] == []
    assert all(claim.p_value < 0.05 and claim.n == 5 for claim in claims)
    assert all(claim.source and claim.how and claim.measured for claim in claims)


def test_claims_fail_when_numbers_say_the_opposite():
    failed = [claim.text for claim in digits.claims(made_up(the_opposite)) if claim.holds is False]
    for said in ("falls with p", "rises with p", "ends nearer", "depends less on p", "keeps more", "about the same"):
        assert any(said in text for text in failed), said
    assert any(text.startswith("(b): mixout(p)") for text in failed) is False  # at p <= 0.3 both are good


def test_a_dependence_that_is_none_is_not_claimed():
    claims = by_text(made_up(lambda method, p, what: 0.9))
    trends = [claim for text, claim in claims.items() if "falls with p" in text or "rises with p" in text]
    assert len(trends) == 2
    assert all(claim.holds is False for claim in trends)


def test_nothing_is_claimed_from_two_restarts_or_from_one_p():
    assert {claim.holds for claim in digits.claims(made_up(as_the_paper, restarts=2))} == {None}
    holds = {claim.text[:3]: claim.holds for claim in digits.claims(made_up(as_the_paper, ps=(0.5,)))}
    assert holds["(b)"] is None


def test_a_diverged_run_counts_as_chance_and_has_no_distance():
    result = made_up(as_the_paper)
    broken = [
        replace(each, distance=None, distance_mixed=None, validation=None, source_validation=None, diverged=True)
        if (each.method, each.p, each.restart) == ("mixout", 0.1, 0)
        else each
        for each in result.runs
    ]
    worse = replace(result, runs=tuple(broken))
    assert math.isnan(worse.values("mixout", 0.1, "validation")[0])
    claims = by_text(worse)
    falls = next(claim for text, claim in claims.items() if "falls with p" in text)
    assert falls.holds is None
    assert "diverged" in falls.how
    high = next(claim for text, claim in claims.items() if text.startswith("(b): mixout(p)"))
    assert high.holds is False


def test_other_forms_of_mixout_have_claims_of_their_own():
    forms = {"layers": ("hidden", "linear"), "gradients": ("exact", "paper")}
    claims = digits.claims(made_up(as_the_paper, **forms))
    assert any("layers='linear'" in claim.text for claim in claims)
    gradient = next(claim for claim in claims if claim.text.startswith("D1"))
    assert gradient.holds is True
    far = made_up(as_the_paper, **forms)
    moved = [replace(each, distance=1.2 * each.distance) if each.gradient == "paper" else each for each in far.runs]
    gradient = digits.claims(replace(far, runs=tuple(moved)))[-1]
    assert gradient.holds is False


def test_the_cells_have_every_restart_and_the_claims_can_be_tested_on_them():
    result = made_up(as_the_paper, layers=("hidden", "linear"))
    found = digits.cells(result)
    mixed, dropped = (
        [found[row, "accuracy on the old task, source", f"p={p}"] for p in PS]
        for row in ("mixout(w_pre, p)", "dropout(p)")
    )
    assert all((each.n, each.seeds) == (5, tuple(range(5))) for each in (*mixed, *dropped))
    assert found["mixout(w_pre, p), layers: linear", "accuracy, target", "p=0.3"].n == 5
    slopes = np.polyfit(PS, [found["mixout(w_pre, p)", digits.DISTANCE, f"p={p}"].values for p in PS], 1)[0]
    claim = by_text(result)["(a): with mixout(w_pre, p), ||w_ft - w_pre||² falls with p"]
    assert scipy_stats.ttest_1samp(slopes, 0, alternative="less").pvalue == pytest.approx(claim.p_value)


def test_a_restart_that_diverged_is_counted_in_its_cell():
    result = made_up(as_the_paper)
    runs = list(result.runs)
    place = next(i for i, each in enumerate(runs) if each.method == "dropout" and each.p == 0.3)
    runs[place] = replace(runs[place], distance=None, validation=None, source_validation=None, diverged=True)
    found = digits.cells(replace(result, runs=tuple(runs)))
    distance, accuracy = (found["dropout(p)", column, "p=0.3"] for column in (digits.DISTANCE, "accuracy, target"))
    assert (distance.n, distance.diverged) == (4, 1)
    assert (accuracy.n, accuracy.diverged, accuracy.values.min()) == (5, 1, 0.1)  # at chance, as in the claims
