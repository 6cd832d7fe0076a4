"""Metrics against scikit-learn, scipy, sacrebleu and rouge_score, and where formulas are 0/0."""

import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from steadytune.errors import SteadytuneError
from steadytune.tasks import Task
from steadytune.tasks.metrics import (
    DEFAULT_METRIC,
    METRICS,
    accuracy,
    f1,
    macro_f1,
    mcc,
    pearson,
    perplexity,
    ranks,
    rmse,
    spearman,
)

pytestmark = pytest.mark.filterwarnings("ignore:A single label was found")
CLOSE = {"rel": 1e-10, "abs": 1e-10}


@st.composite
def classes(draw, most=4):
    n = draw(st.integers(1, 40))
    one = arrays(np.int64, n, elements=st.integers(0, most - 1))
    return draw(one), draw(one)


@settings(deadline=None, max_examples=60)
@given(classes())
def test_classification_metrics_match_sklearn(pair):
    y, p = pair
    assert accuracy(y, p) == pytest.approx(sklearn.metrics.accuracy_score(y, p), **CLOSE)
    assert macro_f1(y, p) == pytest.approx(sklearn.metrics.f1_score(y, p, average="macro", zero_division=0), **CLOSE)
    assert mcc(y, p) == pytest.approx(sklearn.metrics.matthews_corrcoef(y, p), **CLOSE)


@settings(deadline=None, max_examples=60)
@given(classes(most=2), st.integers(0, 1))
def test_binary_f1_matches_sklearn(pair, positive):
    y, p = pair
    expected = sklearn.metrics.f1_score(y, p, pos_label=positive, labels=[0, 1], average="binary", zero_division=0)
    assert f1(y, p, positive) == pytest.approx(expected, **CLOSE)


# Small integers make ties; halves and thirds make fractions.
numbers = st.integers(-6, 6).map(lambda i: i / 3)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=40))
def test_regression_metrics_match_scipy(rows):
    y, p = np.array(rows).T
    assert rmse(y, p) == pytest.approx(math.sqrt(sklearn.metrics.mean_squared_error(y, p)), **CLOSE)
    assert ranks(y) == pytest.approx(scipy.stats.rankdata(y))
    if np.ptp(y) and np.ptp(p):
        assert pearson(y, p) == pytest.approx(scipy.stats.pearsonr(y, p)[0], **CLOSE)
        assert spearman(y, p) == pytest.approx(scipy.stats.spearmanr(y, p)[0], **CLOSE)
    else:
        assert pearson(y, p) == spearman(y, p) == 0


@pytest.mark.parametrize("scale", [1e-200, 1, 1e200])
def test_correlation_survives_extreme_scales(scale):
    y = np.array([1.0, 2.0, 3.0, 5.0])
    assert pearson(y * scale, y) == pytest.approx(1)
    assert spearman(y * scale, -y) == pytest.approx(-1)


def test_nothing_learned_scores_zero_by_convention():
    y = np.array([0, 1, 1, 0])
    assert mcc(y, np.ones(4, int)) == 0
    assert mcc(np.ones(4, int), y) == 0
    assert f1(y, np.zeros(4, int)) == 0
    assert f1(np.zeros(4, int), np.zeros(4, int)) == 0
    assert spearman(y, np.full(4, 2.7)) == 0
    assert spearman([1.0], [2.0]) == 0


def test_mcc_of_many_rows_does_not_overflow():
    y = np.arange(100_000) % 2
    assert mcc(y, y) == 1
    assert mcc(y, 1 - y) == -1


def test_a_diverged_run_never_scores():
    y = [0.0, 1.0, 2.0]
    for metric in (spearman, pearson, rmse):
        assert math.isnan(metric(y, [0.0, math.nan, 2.0]))


def test_perplexity():
    assert perplexity([2, 2], [2 * math.log(10), 2 * math.log(10)]) == pytest.approx(10)
    assert perplexity([1], [1e6]) == math.inf
    with pytest.raises(SteadytuneError, match="no tokens"):
        perplexity([0], [0.0])


def test_wrong_shapes_are_sentences():
    with pytest.raises(SteadytuneError, match=r"shape \(2,\).*shape \(3,\)"):
        accuracy([1, 0], [1, 0, 1])
    with pytest.raises(SteadytuneError, match="no rows"):
        accuracy([], [])


WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "ran", "."]
SENTENCE = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(SENTENCE, SENTENCE), min_size=1, max_size=8))
def test_multi_bleu_matches_sacrebleu_without_tokenizer(pairs):
    sacrebleu = pytest.importorskip("sacrebleu")
    references, hypotheses = map(list, zip(*pairs))
    expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none", smooth_method="none", force=True).score
    assert METRICS["tokenized_bleu"].compute(references, hypotheses) == pytest.approx(expected, abs=1e-9)


def test_sacrebleu_is_sacrebleu():
    pytest.importorskip("sacrebleu")
    text = ["Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.", "Ein Terrier läuft über das Gras."]
    assert METRICS["bleu"].compute(text, text) == pytest.approx(100)
    # 13a splits the comma and full stop off; white space does not.
    assert METRICS["bleu"].compute(text, [t.replace(",", " ,") for t in text]) == pytest.approx(100)
    assert METRICS["tokenized_bleu"].compute(text, [t.replace(",", " ,") for t in text]) < 100


SUMMARY = st.lists(SENTENCE, min_size=1, max_size=4).map("\n".join)


@settings(deadline=None, max_examples=60)
@given(SUMMARY, SUMMARY)
def test_rouge_matches_rouge_score(reference, hypothesis):
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    names = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL", "rouge_lsum": "rougeLsum"}
    expected = scorer.RougeScorer(list(names.values()), use_stemmer=False).score(reference, hypothesis)
    for ours, theirs in names.items():
        got = METRICS[ours].compute([reference], [hypothesis])
        assert got == pytest.approx(100 * expected[theirs].fmeasure, abs=1e-9)


@pytest.mark.parametrize("name", ["bleu", "tokenized_bleu", "rouge_1", "rouge_2", "rouge_l", "rouge_lsum"])
def test_text_metrics_refuse_unequal_lengths(name):
    with pytest.raises(SteadytuneError, match="2 hypotheses cannot be scored against 1 references"):
        METRICS[name].compute(["a"], ["a", "b"])
    with pytest.raises(SteadytuneError, match="no texts"):
        METRICS[name].compute([], [])


def test_task_scores_its_own_metric():
    task = Task("t", "classification", "f1", ("no", "yes"))
    assert task.positive == "yes"
    assert task.score([1, 1, 0], [1, 0, 0]) == pytest.approx(2 / 3)
    other = Task("t", "classification", "f1", ("no", "yes"), positive="no")
    assert other.score([1, 1, 0], [1, 0, 0]) == pytest.approx(2 / 3)
    assert other.score([1, 1, 0], [1, 1, 1]) == 0
    assert task.greater_is_better
    assert not Task("t", "language-model", "perplexity").greater_is_better
    assert Task.from_dict({**task.as_dict(), "labels": ["no", "yes"]}) == task
    assert set(DEFAULT_METRIC.values()) <= set(METRICS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "tagging"}, "kind 'tagging' is not one of classification"),
        ({"metric": "bleurt"}, "'bleurt' is not one of accuracy"),
        ({"metric": "spearman"}, "does not score a classification task; choose from accuracy"),
        ({"metric": "f1", "labels": ("a", "b", "c")}, "F1 needs two classes"),
        ({"metric": "f1", "positive": "c"}, "positive class 'c' is not among a, b"),
    ],
)
def test_impossible_tasks_are_refused(fields, message):
    with pytest.raises(SteadytuneError, match=message):
        Task(**{"name": "t", "kind": "classification", "metric": "accuracy", "labels": ("a", "b"), **fields})
