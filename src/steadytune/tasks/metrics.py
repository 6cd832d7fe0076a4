"""Metrics in numpy: accuracy, F1, MCC, Spearman and Pearson correlation, RMSE, perplexity (V8, R9-R12).

All take (labels, predictions) in this order: class indices for the classification metrics, numbers for the
regression ones. Where a formula is 0/0 the value is 0 by convention, as in scikit-learn: a constant prediction has
MCC 0 and correlation 0 ("no better than chance"), F1 without a true positive is 0. A NaN prediction gives NaN, so that
a diverged run is never scored as a good one. BLEU and ROUGE have their own files.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.tasks.bleu import bleu, tokenized_bleu
from steadytune.tasks.rouge import rouge_1, rouge_2, rouge_l, rouge_lsum


def _pair(labels: Any, predictions: Any) -> tuple[np.ndarray, np.ndarray]:
    y, p = np.asarray(labels), np.asarray(predictions)
    if y.shape != p.shape or y.ndim != 1:
        raise SteadytuneError(f"Labels of shape {y.shape} cannot be scored against predictions of shape {p.shape}.")
    if not len(y):
        raise SteadytuneError("There are no rows to score.")
    return y, p


def accuracy(labels: Any, predictions: Any) -> float:
    """The share of rows with y = p."""
    y, p = _pair(labels, predictions)
    return float(np.mean(y == p))


def f1(labels: Any, predictions: Any, positive: int = 1) -> float:
    """F1 = 2 TP / (2 TP + FP + FN) of one class; 0 where there is no true positive."""
    y, p = _pair(labels, predictions)
    true_positives = int(np.sum((y == positive) & (p == positive)))
    either = int(np.sum(y == positive) + np.sum(p == positive))
    return 2 * true_positives / either if either else 0.0


def macro_f1(labels: Any, predictions: Any) -> float:
    """The mean of F1 over the classes that occur in labels or predictions."""
    y, p = _pair(labels, predictions)
    return float(np.mean([f1(y, p, positive) for positive in np.union1d(y, p)]))


def mcc(labels: Any, predictions: Any) -> float:
    """Matthews correlation, any number of classes (Gorodkin 2004):

        MCC = (c s - sum_k t_k p_k) / sqrt((s^2 - sum_k t_k^2) (s^2 - sum_k p_k^2))

    s rows, c of them right, t_k rows of class k, p_k predictions of class k. 0 where either side is constant.
    """
    y, p = _pair(labels, predictions)
    classes = np.union1d(y, p)
    t = [int(np.sum(y == k)) for k in classes]  # Python integers: s^2 of a big file must not wrap round
    q = [int(np.sum(p == k)) for k in classes]
    s, c = len(y), int(np.sum(y == p))
    spread = (s * s - sum(k * k for k in t)) * (s * s - sum(k * k for k in q))
    return (c * s - sum(a * b for a, b in zip(t, q))) / math.sqrt(spread) if spread else 0.0


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[group]


def pearson(labels: Any, predictions: Any) -> float:
    """r = sum (y - mean y)(p - mean p) / (|y - mean y| |p - mean p|); 0 where either side is constant."""
    y, p = (part.astype(np.float64) for part in _pair(labels, predictions))
    if not (np.isfinite(y).all() and np.isfinite(p).all()):
        return math.nan
    if np.ptp(y) == 0 or np.ptp(p) == 0:
        return 0.0
    # Scaled by the range first: squares of very small or large numbers would leave the floating-point range.
    y, p = (y - y.mean()) / np.ptp(y), (p - p.mean()) / np.ptp(p)
    r = float(np.dot(y, p) / math.sqrt(float(np.dot(y, y)) * float(np.dot(p, p))))
    return min(1.0, max(-1.0, r))


def spearman(labels: Any, predictions: Any) -> float:
    """The Pearson correlation of the ranks; 0 where either side is constant."""
    y, p = (part.astype(np.float64) for part in _pair(labels, predictions))
    if np.isnan(y).any() or np.isnan(p).any():
        return math.nan
    return pearson(ranks(y), ranks(p))


def rmse(labels: Any, predictions: Any) -> float:
    """sqrt(mean (y - p)^2)."""
    y, p = (part.astype(np.float64) for part in _pair(labels, predictions))
    return float(np.sqrt(np.mean((y - p) ** 2)))


def perplexity(tokens: Any, nll: Any) -> float:
    """exp(sum of negative log-likelihoods / number of tokens), from per-row tokens and summed nll (natural log)."""
    n, loss = (part.astype(np.float64) for part in _pair(tokens, nll))
    if n.sum() <= 0:
        raise SteadytuneError("There are no tokens to score.")
    try:
        return math.exp(float(loss.sum() / n.sum()))
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Metric:
    compute: Callable[[Any, Any], float]
    kinds: tuple[str, ...]
    greater_is_better: bool = True


_CLASSES = ("classification", "image")
_NUMBERS = ("regression",)
_TEXTS = ("translation", "summarization")

METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy, _CLASSES),
    "f1": Metric(f1, _CLASSES),
    "macro_f1": Metric(macro_f1, _CLASSES),
    "mcc": Metric(mcc, _CLASSES),
    "spearman": Metric(spearman, _NUMBERS),
    "pearson": Metric(pearson, _NUMBERS),
    "rmse": Metric(rmse, _NUMBERS, greater_is_better=False),
    "bleu": Metric(bleu, _TEXTS),
    "tokenized_bleu": Metric(tokenized_bleu, _TEXTS),
    "rouge_1": Metric(rouge_1, _TEXTS),
    "rouge_2": Metric(rouge_2, _TEXTS),
    "rouge_l": Metric(rouge_l, _TEXTS),
    "rouge_lsum": Metric(rouge_lsum, _TEXTS),
    "perplexity": Metric(perplexity, ("language-model",), greater_is_better=False),
}

DEFAULT_METRIC = {
    "classification": "accuracy",
    "image": "accuracy",
    "regression": "spearman",
    "translation": "bleu",
    "summarization": "rouge_lsum",
    "language-model": "perplexity",
}
