import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from sklearn.metrics import accuracy_score
from statsmodels.stats import inter_rater

from steadytune.errors import SteadytuneError
from steadytune.stats import fleiss_kappa, pairwise_disagreement, pairwise_jensen_shannon, prediction_instability

rng = np.random.default_rng(4)
PREDICTIONS = rng.integers(0, 3, (6, 40))
PROBABILITIES = rng.dirichlet([0.5, 1.0, 2.0], (5, 30))
labels = st.integers(2, 5).flatmap(
    lambda examples: st.lists(st.lists(st.integers(0, 3), min_size=examples, max_size=examples), min_size=2, max_size=5)
)


def test_disagreement_against_scikit_learn():
    pairs = [1 - accuracy_score(a, b) for a, b in itertools.combinations(PREDICTIONS, 2)]
    assert pairwise_disagreement(PREDICTIONS) == pytest.approx(np.mean(pairs), abs=1e-10)


def test_kappa_against_statsmodels():
    table, _ = inter_rater.aggregate_raters(PREDICTIONS.T)
    assert fleiss_kappa(PREDICTIONS) == pytest.approx(inter_rater.fleiss_kappa(table, method="fleiss"), abs=1e-10)


def test_jsd_against_scipy():
    pairs = [jensenshannon(a, b, axis=-1) ** 2 for a, b in itertools.combinations(PROBABILITIES, 2)]
    assert pairwise_jensen_shannon(PROBABILITIES) == pytest.approx(np.mean(pairs), abs=1e-10)


@given(labels, st.permutations(range(4)))
def test_names_of_labels_and_order_of_runs_and_examples_do_not_matter(predictions, renamed):
    plain = np.array(predictions)
    other = np.array(renamed)[plain][::-1, ::-1] * 7 - 3
    assert pairwise_disagreement(other) == pytest.approx(pairwise_disagreement(plain), abs=1e-12)
    assert 0.0 <= pairwise_disagreement(plain) <= 1.0
    one, two = fleiss_kappa(plain), fleiss_kappa(other)
    assert (one is None) == (two is None)
    assert one is None or two == pytest.approx(one, abs=1e-12)


@given(labels)
def test_jsd_of_one_hot_probabilities_is_ln_2_times_disagreement(predictions):
    one_hot = np.eye(4)[np.array(predictions)]
    expected = math.log(2) * pairwise_disagreement(predictions)
    assert pairwise_jensen_shannon(one_hot) == pytest.approx(expected, abs=1e-12)


def test_equal_runs_agree_perfectly():
    same = np.tile([0, 1, 1, 0], (3, 1))
    got = prediction_instability(same, np.eye(2)[same] * 0.8 + 0.1)
    assert (got.pairwise_disagreement, got.fleiss_kappa, got.jensen_shannon) == pytest.approx((0.0, 1.0, 0.0))


def test_random_labels_have_kappa_near_zero():
    assert fleiss_kappa(np.random.default_rng(0).integers(0, 2, (20, 2000))) == pytest.approx(0.0, abs=0.01)


def test_equal_scores_can_hide_disagreement():
    truth = np.zeros(10, dtype=int)
    a, b = truth.copy(), truth.copy()
    a[:2], b[-2:] = 1, 1  # both 80% right, on different examples
    assert pairwise_disagreement([a, b]) == pytest.approx(0.4)


def test_one_class_everywhere_has_no_kappa():
    got = prediction_instability(np.zeros((4, 9), dtype=int))
    assert got.fleiss_kappa is None
    assert got.jensen_shannon is None
    assert "kappa undefined" in got.sentence()
    assert "n = 4 runs on 9 examples" in got.sentence()
    assert "same single class" in got.sentence()


def test_half_precision_softmax_outputs_are_accepted():
    half = PROBABILITIES.astype(np.float16)
    assert pairwise_jensen_shannon(half) == pytest.approx(pairwise_jensen_shannon(PROBABILITIES), abs=1e-3)
    not_quite_one = PROBABILITIES * np.linspace(0.995, 1.005, 5)[:, None, None]
    assert pairwise_jensen_shannon(not_quite_one) == pytest.approx(pairwise_jensen_shannon(PROBABILITIES), abs=1e-10)


@pytest.mark.parametrize(
    "wrong",
    [np.array([[0.5, 1.5]] * 2), np.array([[1, 2, 3]]), np.array([1, 2, 3]), np.zeros((3, 0), dtype=int)],
)
def test_wrong_predictions_are_refused(wrong):
    with pytest.raises(SteadytuneError):
        prediction_instability(wrong)


def test_wrong_probabilities_are_refused():
    with pytest.raises(SteadytuneError, match="softmax"):
        pairwise_jensen_shannon(np.ones((2, 3, 4)))
    with pytest.raises(SteadytuneError, match="softmax"):
        pairwise_jensen_shannon(np.full((2, 3, 2), np.nan))
    with pytest.raises(SteadytuneError, match="2 runs or more"):
        pairwise_jensen_shannon(PROBABILITIES[:1])
    with pytest.raises(SteadytuneError, match="same runs and examples"):
        prediction_instability(PREDICTIONS, PROBABILITIES)
