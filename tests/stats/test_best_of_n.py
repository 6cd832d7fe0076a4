import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from score_strategies import scale, score, shift

from steadytune.errors import SteadytuneError
from steadytune.stats import expected_best, expected_selected, simulate_selected

rng = np.random.default_rng(5)
VALIDATION = np.round(rng.normal(0.7, 0.03, 50), 2)  # rounded: ties, as on a validation set of 138 rows
TEST = VALIDATION + rng.normal(0, 0.02, 50)
runs = st.lists(st.tuples(score, score), min_size=1, max_size=8)
tied_runs = st.lists(st.tuples(st.integers(0, 2).map(float), score), min_size=1, max_size=4)


def every_draw(validation, test, n, replacement):
    """All ordered draws, and for each all its validation winners with equal weight: (mean, std) by definition."""
    draws = (
        itertools.product(range(len(test)), repeat=n) if replacement else itertools.permutations(range(len(test)), n)
    )
    values, weights = [], []
    for draw in draws:
        top = max(validation[i] for i in draw)
        winners = [i for i in draw if validation[i] == top]
        values += [test[i] for i in winners]
        weights += [1 / len(winners)] * len(winners)
    mean = np.average(values, weights=weights)
    return mean, np.sqrt(np.average((np.array(values) - mean) ** 2, weights=weights))


@settings(max_examples=40)
@given(tied_runs, st.integers(1, 4), st.booleans())
def test_the_closed_form_is_the_enumeration_ties_included(data, n, replacement):
    validation, test = zip(*data)
    n = n if replacement else min(n, len(data))
    got = expected_selected(validation, test, n, replacement=replacement)
    mean, std = every_draw(validation, test, n, replacement)
    assert got.mean[0] == pytest.approx(mean, abs=1e-10)
    assert got.std[0] == pytest.approx(std, abs=1e-7)


def test_expected_maximum_is_the_published_formula():
    x = np.sort(TEST)
    i, size = np.arange(1, 51), 50
    for n in (1, 2, 5, 10, 50):
        weights = (i / size) ** n - ((i - 1) / size) ** n
        mean = (x * weights).sum()
        got = expected_best(TEST, n)
        assert got.mean[0] == pytest.approx(mean, abs=1e-10)
        assert got.std[0] == pytest.approx(np.sqrt((weights * (x - mean) ** 2).sum()), abs=1e-10)


def test_the_closed_form_is_the_limit_of_the_bootstrap():
    trials = (1, 2, 5, 10, 50)
    exact = expected_selected(VALIDATION, TEST, trials)
    drawn = simulate_selected(VALIDATION, TEST, trials, repeats=100_000, noise=1)
    standard_error = np.array(exact.std) / np.sqrt(100_000)
    assert (np.abs(np.subtract(drawn.mean, exact.mean)) < 4 * standard_error).all()
    assert drawn.std == pytest.approx(exact.std, rel=0.02)


def test_ties_make_simulated_and_exact_std_agree_too():
    validation, test = [1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 2.0, 5.0]
    exact = expected_selected(validation, test, 20)
    assert exact.mean[0] == pytest.approx(1.0, abs=1e-6)
    assert exact.std[0] == pytest.approx(np.sqrt(2 / 3), abs=1e-5)
    assert simulate_selected(validation, test, 20, repeats=40_000).std[0] == pytest.approx(np.sqrt(2 / 3), abs=0.01)


def test_the_papers_thousand_repeats():
    got = simulate_selected(VALIDATION, TEST, range(1, 51))
    assert len(got.mean) == 50
    assert "1000 repeats" in got.sentence()
    assert "n = 50 runs" in got.sentence()
    assert got == simulate_selected(VALIDATION, TEST, range(1, 51))
    assert got != simulate_selected(VALIDATION, TEST, range(1, 51), noise=1)


def test_the_order_of_requested_trials_does_not_matter():
    forward = simulate_selected(VALIDATION, TEST, (1, 7, 30))
    assert simulate_selected(VALIDATION, TEST, (30, 1, 7)).mean == (forward.mean[2], forward.mean[0], forward.mean[1])


@given(runs, shift, scale)
def test_shift_scale_order_and_monotone_validation(data, move, stretch):
    validation, test = map(list, zip(*data))
    plain = expected_selected(validation, test, (1, 3, 9))
    moved = expected_selected(np.exp(validation[::-1]), [stretch * value + move for value in reversed(test)], (1, 3, 9))
    assert moved.mean == pytest.approx([stretch * m + move for m in plain.mean], abs=1e-8)
    assert moved.std == pytest.approx([stretch * s for s in plain.std], abs=1e-6)


@given(st.lists(score, min_size=1, max_size=10), st.booleans())
def test_expected_validation_never_falls_with_more_trials(x, replacement):
    trials = range(1, len(x) + 1)
    means = expected_best(x, trials, replacement=replacement).mean
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(means))
    assert means[0] == pytest.approx(np.mean(x))


def test_expected_test_may_fall_when_selection_misleads():
    means = expected_selected([0.1, 0.2, 0.3], [0.9, 0.8, 0.1], (1, 2, 8)).mean
    assert means[0] > means[1] > means[2]


def test_one_trial_is_the_mean_and_std_and_many_are_the_best():
    one, many = (expected_selected(VALIDATION, TEST, n) for n in (1, 100_000))
    assert (one.mean[0], one.std[0]) == pytest.approx((TEST.mean(), TEST.std()), abs=1e-10)
    assert many.mean[0] == pytest.approx(TEST[VALIDATION.max() == VALIDATION].mean(), abs=1e-10)


def test_without_replacement_is_unbiased_and_with_replacement_too_low():
    draw = np.random.default_rng(2)
    truth = 0.5641895835  # E[max of 2 standard normals] = 1 / sqrt(pi)
    sets = draw.normal(size=(3000, 6))
    unbiased, biased = (np.mean([expected_best(x, 2, replacement=r).mean[0] for x in sets]) for r in (False, True))
    assert unbiased == pytest.approx(truth, abs=0.03)
    assert biased < truth - 0.05


def test_diverged_runs_are_floored_or_refused():
    validation, test = [0.7, float("nan"), 0.6], [0.71, float("nan"), 0.58]
    with pytest.raises(SteadytuneError, match="validation scores are not finite"):
        expected_selected(validation, test, 2)
    with pytest.raises(SteadytuneError, match="test scores are not finite"):
        expected_selected(validation, test, 2, validation_floor=0.5)
    got = expected_selected(validation, test, 1, validation_floor=0.5, test_floor=0.52)
    assert got.mean[0] == pytest.approx((0.71 + 0.52 + 0.58) / 3)
    assert "floor 0.5;" in got.note
    assert "floor 0.52" in got.note


def test_wrong_requests_are_refused():
    with pytest.raises(SteadytuneError, match="at least 1"):
        expected_best([1.0], 0)
    with pytest.raises(SteadytuneError, match="at most 3"):
        expected_best([1.0, 2.0, 3.0], 4, replacement=False)
    with pytest.raises(SteadytuneError, match="validation and a test score"):
        expected_selected([1.0, 2.0], [1.0], 1)
