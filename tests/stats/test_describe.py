import numpy as np
import pytest
from hypothesis import given
from scipy import stats
from score_strategies import scale, scores, shift

from steadytune.errors import SteadytuneError
from steadytune.stats import describe, interquartile_mean


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 20, 50])
def test_against_numpy_and_scipy(n):
    x = np.random.default_rng(n).normal(70, 3, n)
    got = describe(x, quantiles=(0.0, 0.1, 0.25, 0.5, 0.9, 1.0))
    assert got.n == n
    assert got.mean == pytest.approx(np.mean(x), abs=1e-10)
    assert got.median == pytest.approx(np.median(x), abs=1e-10)
    assert got.iqm == pytest.approx(stats.trim_mean(x, 0.25), abs=1e-10)
    assert (got.min, got.max) == (x.min(), x.max())
    assert [q for q, _ in got.quantiles] == [0.0, 0.1, 0.25, 0.5, 0.9, 1.0]
    assert [v for _, v in got.quantiles] == pytest.approx(stats.mstats.mquantiles(x, [0, 0.1, 0.25, 0.5, 0.9, 1], 1, 1))
    if n == 1:
        assert got.std is None
    else:
        assert got.std == pytest.approx(stats.tstd(x), abs=1e-10)


def test_iqm_works_along_an_axis():
    x = np.random.default_rng(0).normal(size=(6, 4, 11))
    for axis in (0, 1, 2):
        assert interquartile_mean(x, axis) == pytest.approx(stats.trim_mean(x, 0.25, axis=axis), abs=1e-10)


@given(scores(), shift, scale)
def test_shift_scale_and_order(x, move, stretch):
    plain = describe(x)
    moved = describe([stretch * value + move for value in reversed(x)])
    for name in ("mean", "median", "iqm", "min", "max"):
        assert getattr(moved, name) == pytest.approx(stretch * getattr(plain, name) + move, abs=1e-9)
    assert moved.std == pytest.approx(stretch * plain.std, abs=1e-9)


@given(scores(4, 12))
def test_one_failed_run_of_four_or_more_does_not_move_the_iqm_however_bad(x):
    worst = min(x)
    assert describe([*x, worst - 1]).iqm == describe([*x, worst - 1000]).iqm


def test_a_diverged_run_lowers_the_mean_and_is_named():
    got = describe([0.7, float("nan")], floor=0.5)
    assert got.mean == pytest.approx(0.6)
    assert got.diverged == 1
    assert "1 diverged run counted at the floor 0.5" in got.sentence()
    with pytest.raises(SteadytuneError):
        describe([0.7, float("nan")])


def test_impossible_quantiles_are_refused():
    with pytest.raises(SteadytuneError, match="between 0 and 1"):
        describe([1.0], quantiles=(25,))
