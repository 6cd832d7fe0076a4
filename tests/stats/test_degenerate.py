import numpy as np
import pytest
from hypothesis import given
from scipy import stats
from score_strategies import score, scores
from statsmodels.stats.proportion import proportion_confint

from steadytune.errors import SteadytuneError
from steadytune.stats import compare_degenerate, degenerate_share, is_degenerate


def test_not_above_the_level_means_at_or_below():
    assert is_degenerate([0.52, 0.53, 0.54], 0.53).tolist() == [True, True, False]


def test_the_majority_score_computed_another_way_is_still_degenerate():
    level = 0.1 + 0.2
    assert level != 0.3
    assert is_degenerate([0.3], level).all()
    assert is_degenerate([level], 0.3).all()
    assert not is_degenerate([0.3 + 1e-6], 0.3).any()


def test_zero_is_the_level_of_mcc_and_a_tiny_gain_is_above_it():
    assert is_degenerate([0.0, -0.1, 1e-6], 0.0).tolist() == [True, True, False]


def test_a_diverged_run_is_degenerate_without_any_floor():
    got = degenerate_share([0.7, float("nan"), 0.5, float("inf")], 0.53)
    assert (got.count, got.diverged, got.runs) == (3, 2, (1, 2, 3))
    assert got.share == 0.75
    assert "3 of n = 4 runs not above the level 0.53, 2 of them diverged: 75%" in got.sentence()


def test_the_papers_rte_share_uses_a_margin():
    runs = [0.525] * 10 + [0.54] * 14 + [0.69] * 26  # 48% below 55%, as in section 4
    assert degenerate_share(runs, 0.525).count == 10
    assert degenerate_share(runs, 0.525, margin=0.025).share == 0.48


@pytest.mark.parametrize(("count", "n"), [(0, 20), (7, 20), (20, 20), (1, 3)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_interval_against_statsmodels(count, n, confidence):
    got = degenerate_share([0.0] * count + [1.0] * (n - count), 0.5, confidence=confidence)
    expected = proportion_confint(count, n, alpha=1 - confidence, method="beta")
    assert (got.low, got.high) == pytest.approx(expected, abs=1e-10)


@given(scores(), score, score)
def test_a_higher_level_never_finds_fewer(x, one, other):
    low, high = sorted((one, other))
    assert degenerate_share(x, low).count <= degenerate_share(x, high).count


def test_mixouts_cola_counts_differ_by_fisher():
    ours, devlin = [0.0] * 1 + [0.6] * 19, [0.0] * 7 + [0.6] * 13
    got = compare_degenerate(ours, devlin, 0.0, tail="less")
    # hypergeometric tail by hand: 8 failures among 40 runs, at most 1 of them ours
    assert got.p == pytest.approx(stats.hypergeom(40, 8, 20).cdf(1), abs=1e-10)
    assert got.statistic == pytest.approx(-0.3)
    assert got.p < 0.05 < compare_degenerate(ours, devlin, 0.0, tail="greater").p
    assert "one-tailed (first less), n = 20 and 20" in got.sentence()


def test_no_p_value_from_two_runs_or_from_no_failures():
    assert compare_degenerate([0.0, 0.0], [1.0, 1.0], 0.5, tail="two-sided").p is None
    assert "no run is degenerate" in compare_degenerate([1.0] * 5, [1.0] * 5, 0.5, tail="two-sided").sentence()


def test_a_level_that_is_no_number_is_refused():
    with pytest.raises(SteadytuneError, match="level"):
        degenerate_share([0.5], np.nan)
