import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.power import TTestIndPower, TTestPower

from steadytune.errors import SteadytuneError
from steadytune.stats import detectable_difference, power_of_t_test, seeds_needed

STATSMODELS_TAIL = {"two-sided": "two-sided", "greater": "larger", "less": "smaller"}


def by_quadrature(effect, n, df, alpha, tail):
    """The definition: a normal over an independent chi, integrated. For where statsmodels gives NaN."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    edges = np.linspace(*stats.chi(df).ppf([1e-16, 1 - 1e-15]), 1001)
    half = (edges[1] - edges[0]) / 2
    radius = (edges[:-1, None] + half + half * nodes).ravel()
    mass = stats.chi(df).pdf(radius) * np.tile(half * weights, 1000)
    critical = stats.t(df).ppf(1 - (alpha / 2 if tail == "two-sided" else alpha)) * radius / np.sqrt(df)
    above = (mass * stats.norm.sf(critical - effect * np.sqrt(n))).sum()
    below = (mass * stats.norm.cdf(-critical - effect * np.sqrt(n))).sum()
    return {"greater": above, "less": below, "two-sided": above + below}[tail]


@pytest.mark.parametrize("tail", STATSMODELS_TAIL)
@pytest.mark.parametrize("effect", [-1.2, -0.1, 0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("seeds", [3, 5, 20, 200])
def test_power_against_statsmodels_and_the_definition(tail, effect, seeds):
    unpaired = power_of_t_test(2 * effect, 2.0, seeds, tail=tail, paired=False)
    paired = power_of_t_test(2 * effect, 2.0, seeds, tail=tail, paired=True, alpha=0.01)
    assert unpaired == pytest.approx(by_quadrature(effect, seeds / 2, 2 * seeds - 2, 0.05, tail), abs=1e-10)
    assert paired == pytest.approx(by_quadrature(effect, seeds, seeds - 1, 0.01, tail), abs=1e-10)
    other = STATSMODELS_TAIL[tail]
    for got, theirs in (
        (unpaired, TTestIndPower().power(effect, seeds, 0.05, alternative=other)),
        (paired, TTestPower().power(effect, seeds, 0.01, alternative=other)),
    ):
        assert np.isnan(theirs) or got == pytest.approx(theirs, abs=1e-10)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("tail", ["two-sided", "greater"])
@pytest.mark.parametrize("effect", [0.2, 0.5, 1.0])
def test_seeds_against_statsmodels(paired, tail, effect):
    solver = TTestPower() if paired else TTestIndPower()
    found = solver.solve_power(effect, None, alpha=0.05, power=0.8, alternative=STATSMODELS_TAIL[tail])
    assert seeds_needed(effect, 1.0, tail=tail, paired=paired).seeds == int(np.ceil(found))


@settings(max_examples=30)
@given(st.integers(5, 300), st.sampled_from(["two-sided", "greater"]), st.booleans(), st.sampled_from([0.5, 0.8, 0.95]))
def test_the_plan_is_the_smallest_that_suffices(percent, tail, paired, power):
    plan = seeds_needed(percent / 100, 1.0, tail=tail, paired=paired, power=power)
    assert plan.power >= power
    if plan.seeds > 3:
        assert power_of_t_test(percent / 100, 1.0, plan.seeds - 1, tail=tail, paired=paired) < power


def test_a_negative_difference_mirrors_a_positive_one():
    up, down = (seeds_needed(d, 1.0, tail=t, paired=False) for d, t in ((0.7, "greater"), (-0.7, "less")))
    assert up.seeds == down.seeds
    assert seeds_needed(-0.7, 1.0, tail="two-sided", paired=False).seeds > up.seeds


def test_power_is_how_often_the_test_finds_it():
    draw = np.random.default_rng(6)
    a, b = draw.normal(1.0, 1.5, (4000, 12)), draw.normal(0.0, 1.5, (4000, 12))
    found = (stats.ttest_ind(a, b, axis=1).pvalue < 0.05).mean()
    assert power_of_t_test(1.0, 1.5, 12, tail="two-sided", paired=False) == pytest.approx(found, abs=0.025)


@pytest.mark.parametrize("tail", ["two-sided", "greater", "less"])
@pytest.mark.parametrize("paired", [True, False])
def test_the_detectable_difference_has_exactly_the_power_asked_for(tail, paired):
    size = detectable_difference(2.5, 20, tail=tail, paired=paired, power=0.9)
    signed = -size if tail == "less" else size
    assert power_of_t_test(signed, 2.5, 20, tail=tail, paired=paired) == pytest.approx(0.9, abs=1e-8)


def test_extremes_are_limits_and_not_nan():
    assert power_of_t_test(1e6, 1.0, 20, tail="two-sided", paired=False) == 1.0
    assert power_of_t_test(-1e6, 1.0, 20, tail="greater", paired=False) == 0.0
    # scipy's noncentral t is NaN for some of these
    for effect in range(20, 100):
        assert power_of_t_test(effect, 1.0, 3, tail="greater", paired=False) == pytest.approx(1.0, abs=1e-10)
        assert power_of_t_test(-effect, 1.0, 3, tail="greater", paired=False) == pytest.approx(0.0, abs=1e-10)
    assert seeds_needed(1000.0, 1.0, tail="greater", paired=False).seeds == 3
    assert 0.0 < power_of_t_test(1e-3, 1.0, 50_000, tail="two-sided", paired=False) < 0.1


def test_impossible_plans_are_refused():
    with pytest.raises(SteadytuneError, match="No number of seeds"):
        seeds_needed(-0.1, 1.0, tail="greater", paired=False)
    with pytest.raises(SteadytuneError, match="No number of seeds"):
        seeds_needed(0.0, 1.0, tail="two-sided", paired=False)
    with pytest.raises(SteadytuneError, match="more than 100000 seeds"):
        seeds_needed(1e-4, 1.0, tail="two-sided", paired=False)
    with pytest.raises(SteadytuneError, match="3 are the fewest"):
        power_of_t_test(1.0, 1.0, 2, tail="two-sided", paired=False)
    with pytest.raises(SteadytuneError, match="std must be"):
        power_of_t_test(1.0, 0.0, 5, tail="two-sided", paired=False)
    with pytest.raises(SteadytuneError, match="power must lie"):
        seeds_needed(1.0, 1.0, tail="two-sided", paired=False, power=80)


def test_the_sentence_states_test_tail_and_n():
    text = seeds_needed(0.031, 0.025, tail="greater", paired=False).sentence()
    assert "9 seeds per method see a difference of 0.031 (std 0.025) with power" in text
    assert "Student's t-test, unpaired, one-tailed, alpha 0.05" in text
