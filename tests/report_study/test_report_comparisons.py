"""The numbers of a study's report, against scipy, statsmodels and counts made by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from synthetic import FAILS, by_hand, synthetic

from steadytune import stats
from steadytune.report.study.comparisons import ALPHA, compare_all

RNG = np.random.default_rng(5)
GOOD = (0.7 + 0.02 * RNG.standard_normal(12)).round(4).tolist()
BETTER = (0.74 + 0.02 * RNG.standard_normal(12)).round(4).tolist()
SHAKY = [0.45, 0.69, 0.48, 0.71, 0.7, 0.5, 0.68, 0.72, 0.44, 0.7, 0.69, 0.71]


def settled(values, level=0.5):
    return np.array([level if value is None else value for value in values])


def test_a_line_against_the_baseline_is_a_paired_test_where_seeds_are_the_same():
    study = by_hand({"rte": {"standard": [*SHAKY[:11], None], "mixout": GOOD, "reinit": BETTER}})
    compared = compare_all(study)
    base = settled([*SHAKY[:11], None])
    raw = [scipy_stats.ttest_rel(np.array(each), base).pvalue for each in (GOOD, BETTER)]
    adjusted = multipletests(raw, method="holm")[1]
    for name, p, corrected in zip(("mixout", "reinit"), raw, adjusted):
        found = compared.against["rte", name]
        assert found.paired
        assert "same seeds" in found.pairing
        assert found.t_test.tail == "two-sided"
        assert found.raw_p == pytest.approx(p, abs=1e-12)
        assert found.t_test.p == pytest.approx(corrected, abs=1e-12)
        scores = np.array(GOOD if name == "mixout" else BETTER)
        assert found.difference.estimate == pytest.approx(scores.mean() - base.mean(), abs=1e-12)
        assert found.difference.low < found.difference.estimate < found.difference.high
        assert found.spread.p <= 1
        levene = [scipy_stats.levene(np.array(each), base, center="median").pvalue for each in (GOOD, BETTER)]
    both = multipletests(levene, method="holm")[1]
    assert [compared.against["rte", name].spread.p for name in ("mixout", "reinit")] == pytest.approx(both, abs=1e-12)
    failed = [[0, 12], [5, 7]]
    fisher = multipletests([scipy_stats.fisher_exact(failed)[1]] * 2, method="holm")[1]
    assert compared.against["rte", "mixout"].failures.p == pytest.approx(fisher[0], abs=1e-12)
    assert compared.runs["rte", "standard"].failed == 5
    assert compared.runs["rte", "standard"].diverged == 1


def test_a_missing_seed_makes_the_test_unpaired_and_says_so():
    study = by_hand({"rte": {"standard": GOOD, "mixout": [*BETTER[:11], "crashed"]}})
    compared = compare_all(study)
    found = compared.against["rte", "mixout"]
    assert not found.paired
    assert "1 of 12 seeds" in found.pairing
    assert found.t_test.test == "Welch's t-test"
    assert found.raw_p == pytest.approx(scipy_stats.ttest_ind(BETTER[:11], GOOD, equal_var=False).pvalue, abs=1e-12)
    runs = compared.runs["rte", "mixout"]
    assert (runs.planned, runs.ended, runs.n, runs.crashed) == (12, 12, 11, 1)


def test_lower_is_better_gives_the_same_verdicts_turned_round():
    weak = [value - 0.15 for value in reversed(GOOD)]
    up = {"rte": {"standard": weak, "mixout": GOOD, "reinit": [*BETTER[:11], None]}}
    down = {"rte": {name: [None if v is None else -v for v in values] for name, values in up["rte"].items()}}
    first = compare_all(by_hand(up, levels=0.5))
    second = compare_all(by_hand(down, levels=-0.5, greater_is_better=False, metric="rmse"))
    for name in ("mixout", "reinit"):
        a, b = first.against["rte", name], second.against["rte", name]
        assert (a.verdict, a.steadier, a.fails_less) == (b.verdict, b.steadier, b.fails_less)
        assert a.verdict == "better"
        assert a.raw_p == pytest.approx(b.raw_p, abs=1e-12)
        assert a.improvement == pytest.approx(b.improvement, abs=1e-12)
        assert a.difference.estimate == pytest.approx(-b.difference.estimate, abs=1e-12)
        assert a.effect.probability_of_improvement == b.effect.probability_of_improvement
    for name in up["rte"]:
        a, b = first.runs["rte", name], second.runs["rte", name]
        assert first.mark("rte", name) == second.mark("rte", name)
        assert (a.failed, a.diverged) == (b.failed, b.diverged)
        assert a.best == pytest.approx(-b.best)
        assert a.worst == pytest.approx(-b.worst)


def test_marks_are_those_of_the_paper():
    lines = {"standard": SHAKY, "mixout": GOOD, "reinit": BETTER}
    compared = compare_all(by_hand({"rte": lines}))
    direct = stats.equivalent_to_best(lines, floor=0.5)
    assert compared.markings["rte"] == direct
    for name in ("standard", "mixout"):
        p = scipy_stats.ttest_ind(BETTER, lines[name], alternative="greater").pvalue
        assert compared.mark("rte", name) == ("worse" if p < ALPHA else "equivalent")
    assert compared.mark("rte", "reinit") == "best"


def test_two_runs_are_never_the_best_and_prove_nothing():
    compared = compare_all(by_hand({"rte": {"standard": GOOD, "mixout": [0.9, 0.91]}}))
    assert compared.mark("rte", "mixout") == ""
    assert compared.mark("rte", "standard") == "best"
    found = compared.against["rte", "mixout"]
    assert found.verdict == found.steadier == found.fails_less == "undecided"
    assert found.t_test.p is None
    assert found.seeds_needed is None
    assert "fewer than 3 runs" in found.no_plan
    assert compared.tests == 0


def test_seeds_needed_are_for_the_level_that_holm_asks_for():
    near = [value + 0.004 * (-1) ** place + 0.002 for place, value in enumerate(GOOD)]
    compared = compare_all(by_hand({"rte": {"standard": GOOD, "mixout": near, "reinit": BETTER}}))
    found = compared.against["rte", "mixout"]
    assert found.verdict == "not shown"
    differences = np.array(near) - np.array(GOOD)
    effect = differences.mean() / differences.std(ddof=1)
    assert found.seeds_needed.alpha == ALPHA / 2
    power = TTestPower()
    assert power.power(effect, found.seeds_needed.seeds, ALPHA / 2) >= 0.8
    assert power.power(effect, found.seeds_needed.seeds - 1, ALPHA / 2) < 0.8
    assert found.seeds_needed.seeds > 12


def test_without_a_level_diverged_runs_count_as_the_worst_that_was_seen():
    compared = compare_all(by_hand({"rte": {"standard": [*GOOD, None], "mixout": [*BETTER, 0.2]}}, levels=None))
    runs = compared.runs["rte", "standard"]
    assert runs.degenerate is None
    assert runs.floor == 0.2
    assert runs.failed == 1
    assert runs.summary.mean == pytest.approx((sum(GOOD) + 0.2) / 13)
    assert compared.against["rte", "mixout"].failures is None


def test_nothing_is_known_where_all_diverged_and_there_is_no_level():
    compared = compare_all(by_hand({"rte": {"standard": [None] * 4, "mixout": [None] * 4}}, levels=None))
    assert compared.runs["rte", "standard"].summary is None
    assert compared.runs["rte", "standard"].failed == 4
    assert compared.against == {}
    assert compared.markings == {}


def test_equal_runs_are_undecided_not_significant():
    compared = compare_all(by_hand({"rte": {"standard": GOOD, "the same": GOOD}}))
    assert compared.against["rte", "the same"].verdict == "undecided"
    assert "differences" in compared.against["rte", "the same"].t_test.note


def test_synthetic_failures_are_counted_exactly():
    compared = compare_all(synthetic(tasks=4, variants=3, seeds=20))
    for task in compared.tasks:
        assert [compared.runs[task, name].failed for name in compared.names] == [round(20 * FAILS[0]), 2, 0]
        assert compared.runs[task, "standard"].diverged == 1
        assert compared.against[task, "reinit"].verdict == "better"


def test_a_chosen_group_is_one_line_with_its_reported_runs():
    study = synthetic(tasks=2, variants=3, tuned=True)
    compared = compare_all(study)
    assert compared.names == ("standard", "mixout", "reinit")
    assert [line.tuned for line in compared.lines] == [False, True, True]
    for task in study.tasks:
        assert compared.runs[task, "mixout"].n == 20
        assert compared.runs[task, "mixout"].chosen == study.chosen[task, "mixout"]
        assert compared.runs[task, "standard"].chosen is None


def test_the_baseline_may_be_named_by_its_family():
    study = synthetic(tasks=1, variants=3, swept=True)
    assert compare_all(replace(study, baseline="mixout")).baseline == "mixout, p=0.1"
    assert compare_all(replace(study, baseline="nobody")).baseline == "standard"


def test_luck_of_a_grid_and_of_predictions():
    study = synthetic(tasks=1, variants=2, seeds=25, grid=True)
    compared = compare_all(study)
    grid = compared.luck.grids["rte", "mixout"]
    assert grid.scores.shape == (5, 5)
    table = np.empty((5, 5))
    for trial in study.reported["rte", "mixout"]:
        table[trial.streams["init"], trial.streams["order"]] = study.score(trial) or math.nan
    assert np.array_equal(np.isnan(grid.scores), np.isnan(table))
    direct = stats.split_variance(table, floor=0.525)
    assert grid.split.shares() == pytest.approx(direct.shares())
    labels = np.stack([t.predictions["test"] for t in study.reported["rte", "mixout"] if t.status == "finished"])
    assert compared.luck.predictions["rte", "mixout"] == stats.prediction_instability(labels)
    assert compared.luck.splits == {"rte": "test"}
    assert compare_all(synthetic(tasks=1, variants=2)).luck.grids == {}


def test_an_unfinished_grid_says_what_is_missing():
    grid = compare_all(synthetic(tasks=1, variants=1, seeds=25, grid=True, unfinished=0.4)).luck.grids[
        "rte", "standard"
    ]
    assert grid.split is None
    assert "missing" in grid.note
