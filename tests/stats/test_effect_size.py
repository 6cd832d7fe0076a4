import numpy as np
import pytest
from hypothesis import given
from scipy import special, stats
from score_strategies import scale, scores, shift
from statsmodels.stats.meta_analysis import effectsize_smd

from steadytune.errors import SteadytuneError
from steadytune.stats import effect_size, mann_whitney_test, probability_of_improvement
from steadytune.stats.effect_size import small_sample_factor

rng = np.random.default_rng(8)
A, B = rng.normal(1.0, 1.0, 20), rng.normal(0.4, 1.5, 14)


def test_cohens_d_is_the_t_statistic_without_its_n():
    t = stats.ttest_ind(A, B).statistic
    assert effect_size(A, B, paired=False).cohen_d == pytest.approx(t * np.sqrt(1 / 20 + 1 / 14), abs=1e-10)


def test_paired_d_is_the_paired_t_statistic_without_its_n():
    t = stats.ttest_rel(A[:14], B).statistic
    assert effect_size(A[:14], B, paired=True).cohen_d == pytest.approx(t / np.sqrt(14), abs=1e-10)


def test_hedges_factor_is_the_gamma_ratio_and_close_to_statsmodels_approximation():
    for df in (2, 3, 10, 38, 500):
        exact = (
            special.gamma(df / 2) / np.sqrt(df / 2) / special.gamma((df - 1) / 2) if df < 300 else 1 - 3 / (4 * df - 1)
        )
        assert small_sample_factor(df) == pytest.approx(exact, abs=1e-10 if df < 300 else 1e-5)
    approximate, _ = effectsize_smd(A.mean(), A.std(ddof=1), 20, B.mean(), B.std(ddof=1), 14)
    assert effect_size(A, B, paired=False).hedges_g == pytest.approx(approximate, rel=1e-3)


def test_hedges_g_is_unbiased_and_cohens_d_is_not():
    draw = np.random.default_rng(9)
    both = [effect_size(draw.normal(1, 1, 4), draw.normal(0, 1, 4), paired=False) for _ in range(4000)]
    assert np.mean([e.hedges_g for e in both]) == pytest.approx(1.0, abs=0.05)
    assert np.mean([e.cohen_d for e in both]) > 1.1


def test_probability_of_improvement_is_u_over_nm():
    got = effect_size(A, B, paired=False)
    assert got.probability_of_improvement == pytest.approx(mann_whitney_test(A, B, tail="less").statistic / 280)
    assert got.cliffs_delta == pytest.approx(
        stats.somersd(np.repeat([1, 0], [20, 14]), np.r_[A, B]).statistic, abs=1e-10
    )


@given(scores(), scores())
def test_the_two_directions_add_up_to_one_and_ties_count_half(a, b):
    by_hand = np.mean([1.0 if x > y else 0.5 if x == y else 0.0 for x in a for y in b])
    assert probability_of_improvement(a, b) == pytest.approx(by_hand, abs=1e-12)
    assert probability_of_improvement(a, b) + probability_of_improvement(b, a) == pytest.approx(1.0)


@given(scores(), scores(), shift, scale)
def test_standardised_sizes_ignore_shift_and_scale(a, b, move, stretch):
    plain = effect_size(a, b, paired=False)
    moved = effect_size([stretch * x + move for x in a], [stretch * x + move for x in b], paired=False)
    assert (plain.cohen_d is None) == (moved.cohen_d is None)
    if plain.cohen_d is not None:
        assert moved.cohen_d == pytest.approx(plain.cohen_d, rel=1e-6, abs=1e-9)
    assert moved.mean_difference == pytest.approx(stretch * plain.mean_difference, abs=1e-9)


def test_pairing_compares_same_seeds_only():
    a, b = [1.0, 2.0, 3.0], [0.9, 1.9, 2.9]
    assert probability_of_improvement(a, b, paired=True) == 1.0
    assert probability_of_improvement(a, b) == pytest.approx(6 / 9)
    with pytest.raises(SteadytuneError, match="same seeds"):
        effect_size([1.0, 2.0], [1.0], paired=True)


def test_without_spread_there_is_no_standardised_size():
    got = effect_size([0.2] * 4, [0.1] * 4, paired=False)
    assert (got.cohen_d, got.hedges_g, got.probability_of_improvement) == (None, None, 1.0)
    assert "no standardised size" in got.sentence()
    assert "n = 4 and 4" in got.sentence()
    assert effect_size([0.2], [0.1], paired=True).cohen_d is None


def test_diverged_runs_are_floored_or_refused():
    with pytest.raises(SteadytuneError):
        effect_size([0.2, float("nan")], [0.1, 0.2], paired=False)
    assert effect_size([0.2, float("nan")], [0.1, 0.2], paired=False, floor=0.0).mean_difference == pytest.approx(-0.05)
