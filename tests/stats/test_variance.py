import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from hypothesis import given, settings
from hypothesis import strategies as st
from score_strategies import scale, shift
from statsmodels.stats.anova import anova_lm

from steadytune.errors import SteadytuneError
from steadytune.stats import split_variance


def grid(inits, orders, repeats, init=1.0, order=1.0, interaction=0.0, rest=1.0, noise=0):
    draw = np.random.default_rng(noise)
    a, b = draw.normal(0, init, (inits, 1, 1)), draw.normal(0, order, (1, orders, 1))
    ab = draw.normal(0, interaction, (inits, orders, 1))
    return 70 + a + b + ab + draw.normal(0, rest, (inits, orders, repeats))


def anova(scores, formula):
    i, j, _ = np.indices(scores.shape)
    data = pd.DataFrame({"y": scores.ravel(), "i": i.ravel(), "j": j.ravel()})
    return anova_lm(smf.ols(formula, data=data).fit())


def test_one_run_per_cell_against_statsmodels_anova():
    scores = grid(10, 8, 1, init=2.0, order=1.5)
    table = anova(scores, "y ~ C(i) + C(j)")
    ms_init, ms_order, ms_rest = table["mean_sq"].to_numpy()
    got = split_variance(scores[:, :, 0])
    assert got.rest == pytest.approx(ms_rest, abs=1e-10)
    assert got.init == pytest.approx((ms_init - ms_rest) / 8, abs=1e-10)
    assert got.order == pytest.approx((ms_order - ms_rest) / 10, abs=1e-10)
    assert got.interaction is None
    assert (got.init_test.statistic, got.order_test.statistic) == pytest.approx(table["F"].to_numpy()[:2], rel=1e-10)
    assert (got.init_test.p, got.order_test.p) == pytest.approx(table["PR(>F)"].to_numpy()[:2], abs=1e-10)


def test_repeats_separate_the_interaction():
    scores = grid(6, 5, 3, interaction=1.0)
    ms_init, ms_order, ms_cross, ms_rest = anova(scores, "y ~ C(i) * C(j)")["mean_sq"].to_numpy()
    got = split_variance(scores)
    assert got.rest == pytest.approx(ms_rest, abs=1e-10)
    assert got.interaction == pytest.approx((ms_cross - ms_rest) / 3, abs=1e-10)
    assert got.init == pytest.approx((ms_init - ms_cross) / 15, abs=1e-10)
    assert got.order == pytest.approx((ms_order - ms_cross) / 18, abs=1e-10)
    assert got.init_test.statistic == pytest.approx(ms_init / ms_cross, rel=1e-10)


def test_the_estimates_are_right_on_average():
    splits = [split_variance(grid(10, 10, 1, init=2.0, order=1.0, rest=0.5, noise=i)) for i in range(400)]
    assert np.mean([s.init for s in splits]) == pytest.approx(4.0, rel=0.1)
    assert np.mean([s.order for s in splits]) == pytest.approx(1.0, rel=0.1)
    assert np.mean([s.rest for s in splits]) == pytest.approx(0.25, rel=0.05)


def test_the_f_test_has_its_level():
    p = [split_variance(grid(5, 5, 1, init=0.0, noise=i)).init_test.p for i in range(1000)]
    assert 0.03 < np.mean(np.array(p) < 0.05) < 0.07


def test_exact_components_of_a_grid_without_noise():
    got = split_variance([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0], [20.0, 21.0, 22.0]])
    assert (got.init, got.order, got.rest) == pytest.approx((100.0, 1.0, 0.0))
    assert got.shares() == pytest.approx({"init": 100 / 101, "order": 1 / 101, "rest": 0.0})
    assert got.init_test.p is None
    assert "nothing varies beyond" in got.init_test.sentence()


def test_margins_are_those_of_figures_9_and_10():
    scores = np.array([[0.70, 0.74], [0.60, 0.66], [0.71, 0.73]])
    got = split_variance(scores)
    first = got.init_margins[0]
    assert (first.min, first.mean, first.max) == pytest.approx((0.70, 0.72, 0.74))
    assert first.std == pytest.approx(np.std([0.70, 0.74], ddof=1))
    assert got.std_with_init_fixed() == pytest.approx(scores.std(axis=1, ddof=1).mean())
    assert got.std_with_order_fixed() == pytest.approx(scores.std(axis=0, ddof=1).mean())
    assert len(got.order_margins) == 2


cells = st.lists(st.lists(st.integers(0, 50).map(float), min_size=4, max_size=4), min_size=3, max_size=5)


@settings(max_examples=50)
@given(cells, shift, scale)
def test_shift_scale_transpose_and_seed_order(scores, move, stretch):
    scores = np.array(scores)
    plain = split_variance(scores)
    moved = split_variance(stretch * scores[::-1, ::-1] + move)
    turned = split_variance(scores.T)
    for name in ("init", "order", "rest"):
        assert getattr(moved, name) == pytest.approx(stretch**2 * getattr(plain, name), rel=1e-6, abs=1e-6)
    assert (turned.init, turned.order, turned.rest) == pytest.approx((plain.order, plain.init, plain.rest), abs=1e-8)


def test_a_negative_estimate_is_zero_and_is_said():
    got = split_variance([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [2.0, 2.0, 2.0]])
    assert (got.init, got.order) == (0.0, 0.0)
    assert "init and order estimated below zero, shown as 0" in got.sentence()


def test_two_seeds_estimate_but_test_nothing():
    got = split_variance([[0.1, 0.5], [0.3, 0.4]])
    assert got.init_test.p is None
    assert "fewer than 3 seeds" in got.init_test.sentence()


def test_equal_scores_have_no_variance_to_share():
    got = split_variance(np.full((3, 3), 0.7))
    assert got.total == pytest.approx(0.0, abs=1e-20)
    assert got.order_test.p is None


def test_diverged_cells_are_floored_or_refused_and_holes_are_refused():
    scores = [[0.7, float("nan"), 0.6], [0.7, 0.65, 0.6], [0.71, 0.66, 0.62]]
    with pytest.raises(SteadytuneError, match="position 1"):
        split_variance(scores)
    assert split_variance(scores, floor=0.5).init_margins[0].min == 0.5
    with pytest.raises(SteadytuneError, match="different length"):
        split_variance([[0.7, 0.6], [0.7]])
    with pytest.raises(SteadytuneError, match="2 seeds or more"):
        split_variance([[0.7, 0.6]])
    with pytest.raises(SteadytuneError, match="init x order"):
        split_variance([0.7, 0.6])
