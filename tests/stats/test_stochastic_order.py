import math

import numpy as np
import pytest
from hypothesis import given
from scipy import stats
from score_strategies import scale, scores, shift

from steadytune.errors import SteadytuneError
from steadytune.stats import almost_stochastic_order, violation_ratio


def brute_force(a, b):
    """The definition, on a grid fine enough that both step functions are constant in every cell."""
    cells = math.lcm(len(a), len(b))
    t = (np.arange(cells) + 0.5) / cells
    gap = np.quantile(a, t, method="inverted_cdf") - np.quantile(b, t, method="inverted_cdf")
    total = (gap**2).sum()
    return 0.5 if total == 0 else (gap[gap < 0] ** 2).sum() / total


@given(scores(1, 9), scores(1, 9))
def test_the_violation_ratio_is_its_definition(a, b):
    assert violation_ratio(a, b) == pytest.approx(brute_force(a, b), abs=1e-10)


@given(scores(1, 9), scores(1, 9), shift, scale)
def test_symmetry_shift_and_scale(a, b, move, stretch):
    plain = violation_ratio(a, b)
    assert plain + violation_ratio(b, a) == pytest.approx(1.0, abs=1e-10)
    if plain != 0.5:
        moved = violation_ratio([stretch * x + move for x in a], [stretch * x + move for x in b])
        assert moved == pytest.approx(plain, abs=1e-6)


def test_the_denominator_is_the_squared_wasserstein_distance():
    a, b = [0.1, 0.5, 0.9], [0.2, 0.3]
    # pieces of [0, 1]: thirds against halves; only the first third (0.1 < 0.2) and none other speak against a
    gaps, widths = np.array([-0.1, 0.3, 0.2, 0.6]), np.array([1 / 3, 1 / 6, 1 / 6, 1 / 3])
    assert violation_ratio(a, b) == pytest.approx((0.01 / 3) / (gaps**2 @ widths), abs=1e-12)


def test_the_limit_is_the_brute_force_bootstrap():
    draw = np.random.default_rng(11)
    a, b = draw.normal(0.4, 1, 12), draw.normal(0, 1, 9)
    got = almost_stochastic_order(a, b, draws=2000, noise=5)
    again = np.random.default_rng(6)
    redrawn = [brute_force(again.choice(a, 12), again.choice(b, 9)) for _ in range(2000)]
    expected = brute_force(a, b) + stats.norm.ppf(0.95) * np.std(redrawn)
    assert got.violation == pytest.approx(brute_force(a, b), abs=1e-10)
    assert got.epsilon_min == pytest.approx(min(1.0, expected), abs=0.03)
    assert got.epsilon_min > got.violation


def test_a_better_method_dominates_and_not_the_other_way_round():
    draw = np.random.default_rng(12)
    worse, better = draw.normal(0, 1, 20), draw.normal(3, 1, 20)
    assert almost_stochastic_order(better, worse).dominates is True
    assert almost_stochastic_order(worse, better).dominates is False
    assert almost_stochastic_order(worse, better).epsilon_min == 1.0


def test_a_failing_lower_tail_is_seen_where_the_mean_is_better():
    steady = np.linspace(0.60, 0.64, 20)
    risky = np.r_[np.full(4, 0.0), np.linspace(0.80, 0.84, 16)]
    assert risky.mean() > steady.mean()
    assert almost_stochastic_order(risky, steady).dominates is False


@pytest.mark.parametrize(("n", "most"), [(20, 0.05), (5, 0.1)])
def test_false_alarms_are_as_rare_as_the_docstring_says(n, most):
    draw = np.random.default_rng(13)
    hits = [almost_stochastic_order(*draw.normal(size=(2, n)), draws=200, noise=i).dominates for i in range(500)]
    assert 0.0 < np.mean(hits) < most


def test_more_confidence_is_a_higher_limit():
    draw = np.random.default_rng(14)
    a, b = draw.normal(0.5, 1, 15), draw.normal(0, 1, 15)
    limits = [almost_stochastic_order(a, b, confidence=c).epsilon_min for c in (0.6, 0.8, 0.95)]
    assert limits == sorted(limits)
    assert limits[0] < limits[2]


def test_two_runs_give_no_verdict():
    got = almost_stochastic_order([0.9, 0.8], [0.1, 0.2, 0.3])
    assert (got.violation, got.epsilon_min, got.dominates) == (0.0, None, None)
    assert "no verdict, because n = 2 is fewer than 3 runs" in got.sentence()


def test_the_sentence_states_tail_n_and_threshold():
    got = almost_stochastic_order([0.9, 0.8, 0.7, float("nan")], [0.1, 0.2, 0.3], floor=0.4).sentence()
    assert "one-tailed (first better), n = 4 and 3: eps_min 0.000 at confidence 0.95 against threshold 0.2" in got
    assert "1 diverged run counted at the floor 0.4" in got


@pytest.mark.parametrize("wrong", [{"confidence": 1.0}, {"threshold": 0.9}, {"draws": 5}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SteadytuneError):
        almost_stochastic_order([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], **wrong)
