import numpy as np
import pytest
from scipy import stats

from steadytune.errors import SteadytuneError
from steadytune.stats import better_than_baseline, equivalent_to_best


def with_mean_and_std(mean, std, n=20):
    """n scores with exactly this mean and std, so that a paper's printed cell can be tested."""
    x = stats.norm.ppf((np.arange(n) + 0.5) / n)
    return mean + std * (x - x.mean()) / x.std(ddof=1)


TABLE_1_RTE = {  # few-sample paper, Table 1, RTE: mean +- std of 20 seeds
    "Standard 3 epochs": with_mean_and_std(69.5, 2.5),
    "Standard longer": with_mean_and_std(72.3, 1.9),
    "Re-init 3 epochs": with_mean_and_std(72.6, 1.6),
    "Re-init longer": with_mean_and_std(73.1, 1.3),
}


def test_the_papers_table_1_on_rte():
    got = equivalent_to_best(TABLE_1_RTE)
    assert got.reference == "Re-init longer"
    assert [mark.verdict for mark in got.marks] == ["worse", "equivalent", "equivalent", "best"]
    assert got.marked() == ("Standard longer", "Re-init 3 epochs", "Re-init longer")


def test_the_test_is_one_tailed_student_from_the_best():
    got = equivalent_to_best(TABLE_1_RTE)
    p = stats.ttest_ind(TABLE_1_RTE["Re-init longer"], TABLE_1_RTE["Standard longer"], alternative="greater").pvalue
    assert got.marks[1].result.p == pytest.approx(p, abs=1e-10)
    assert 0.05 < p < 0.1  # two-tailed or one-tailed differ in nothing but this
    assert "Student's t-test, unpaired, one-tailed (first greater), n = 20 and 20" in got.caption()
    assert "p < 0.05, uncorrected" in got.caption()


def test_holm_marks_at_least_as_many():
    groups = {"best": with_mean_and_std(1.0, 1.0), **{f"m{i}": with_mean_and_std(0.45, 1.0) for i in range(4)}}
    plain, corrected = (equivalent_to_best(groups, correct=flag) for flag in (False, True))
    assert plain.marked() == ("best",)
    assert corrected.marked() == ("best", "m0", "m1", "m2", "m3")
    assert "Holm-corrected" in corrected.caption()


def test_two_runs_are_undecided_and_never_marked():
    got = equivalent_to_best({"a": [0.7, 0.71, 0.72], "b": [0.69, 0.70]})
    assert [mark.verdict for mark in got.marks] == ["best", "undecided"]
    assert got.marked() == ("a",)
    assert "Undecided: b." in got.caption()


def test_the_best_on_two_runs_makes_everything_undecided():
    got = equivalent_to_best({"a": [0.9, 0.9], "b": [0.1, 0.2, 0.3]})
    assert [mark.verdict for mark in got.marks] == ["best", "undecided"]


def test_equal_means_are_equivalent():
    x = [0.1, 0.2, 0.3, 0.4]
    assert equivalent_to_best({"a": x, "b": x[::-1]}).marked() == ("a", "b")


def test_pairing_finds_what_unpaired_cannot():
    seeds = np.random.default_rng(0).normal(0, 5, 20)
    groups = {"better": seeds + with_mean_and_std(1.0, 0.3), "plain": seeds}
    assert equivalent_to_best(groups).marked() == ("better", "plain")
    assert equivalent_to_best(groups, paired=True).marked() == ("better",)
    assert "20 pairs" in equivalent_to_best(groups, paired=True).caption()


def test_better_than_the_baseline_is_one_tailed_upwards():
    groups = {"standard": with_mean_and_std(70, 2), "up": with_mean_and_std(73, 2), "down": with_mean_and_std(60, 2)}
    got = better_than_baseline(groups, "standard")
    assert [mark.verdict for mark in got.marks] == ["baseline", "better", "not shown better"]
    assert got.marked() == ("up",)
    p = 2 * stats.ttest_ind(groups["up"], groups["standard"], alternative="greater").pvalue
    assert got.marks[1].result.p == pytest.approx(p, abs=1e-10)


def test_diverged_runs_pull_the_mean_down_or_are_refused():
    groups = {"a": [0.9, 0.9, float("nan"), 0.91], "b": [0.85, 0.86, 0.85, 0.87]}
    with pytest.raises(SteadytuneError, match="scores of a are not finite"):
        equivalent_to_best(groups)
    assert equivalent_to_best(groups, floor=0.5).reference == "b"


def test_wrong_requests_are_refused():
    with pytest.raises(SteadytuneError, match="not among the methods"):
        better_than_baseline({"a": [1.0]}, "b")
    with pytest.raises(SteadytuneError, match="unpaired"):
        equivalent_to_best({"a": [1.0], "b": [1.0]}, test="welch", paired=True)
    with pytest.raises(SteadytuneError, match="no methods"):
        equivalent_to_best({})


def test_welch_is_used_when_asked_for():
    got = equivalent_to_best({"a": with_mean_and_std(1, 3, 5), "b": with_mean_and_std(0, 0.1, 30)}, test="welch")
    expected = stats.ttest_ind(with_mean_and_std(1, 3, 5), with_mean_and_std(0, 0.1, 30), equal_var=False)
    assert got.marks[1].result.p == pytest.approx(expected.pvalue / 2, abs=1e-10)
    assert "n = 5 and 30" in got.caption()
