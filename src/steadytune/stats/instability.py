"""How differently do runs of one recipe predict, even where their scores agree?

    P_i   = 1 / (R (R-1)) sum_k n_ik (n_ik - 1)          n_ik: how many of the R runs give example i the label k
    pairwise disagreement = 1 - mean_i P_i               (churn: the share of examples two runs label differently)
    kappa = (P - P_e) / (1 - P_e),  P = mean_i P_i,  P_e = sum_k (share of all predictions that are k)^2   (Fleiss 1971)
    JSD   = mean over examples and pairs of runs of  H((p+q)/2) - (H(p) + H(q))/2,   in nats, between 0 and ln 2

The prediction measures of Du & Nguyen (2023), who report 1 - kappa. Two runs with equal accuracy may disagree on many
examples; the std of the score cannot see that.
Relations: one-hot probabilities give JSD = ln 2 x pairwise disagreement.
Caveat: when every run predicts one and the same class for everything, kappa is 0/0 and is None: that is agreement by
failing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steadytune.errors import SteadytuneError
from steadytune.stats.scores import Array, joined

_SUM_TOLERANCE = 1e-2  # half-precision softmax outputs add up to 1 only this closely


@dataclass(frozen=True)
class PredictionInstability:
    runs: int
    examples: int
    pairwise_disagreement: float
    fleiss_kappa: float | None
    jensen_shannon: float | None
    note: str

    def sentence(self) -> str:
        kappa = "Fleiss' kappa undefined" if self.fleiss_kappa is None else f"Fleiss' kappa {self.fleiss_kappa:.3f}"
        divergence = "" if self.jensen_shannon is None else f", pairwise JSD {self.jensen_shannon:.4f} nats"
        start = (
            f"n = {self.runs} runs on {self.examples} examples: pairwise disagreement {self.pairwise_disagreement:.1%}"
        )
        return joined(f"{start}, {kappa}{divergence}", self.note) + "."


def prediction_instability(
    predictions: Sequence[Sequence[int]] | NDArray[np.integer], probabilities: NDArray[np.floating] | None = None
) -> PredictionInstability:
    """All measures at once. `predictions` [run, example]; `probabilities` [run, example, class] or None."""
    labels = _labels(predictions)
    if probabilities is not None and np.shape(probabilities)[:2] != labels.shape:
        raise SteadytuneError(
            f"Predictions of shape {labels.shape} and probabilities of shape {np.shape(probabilities)} are not of the "
            "same runs and examples."
        )
    kappa = fleiss_kappa(labels)
    return PredictionInstability(
        runs=labels.shape[0],
        examples=labels.shape[1],
        pairwise_disagreement=pairwise_disagreement(labels),
        fleiss_kappa=kappa,
        jensen_shannon=None if probabilities is None else pairwise_jensen_shannon(probabilities),
        note="" if kappa is not None else "every run predicts the same single class",
    )


def pairwise_disagreement(predictions: Sequence[Sequence[int]] | NDArray[np.integer]) -> float:
    """Share of examples that two runs label differently, averaged over all pairs of runs."""
    labels = _labels(predictions)
    return 1.0 - _agreement(_counts(labels), labels.shape[0])


def fleiss_kappa(predictions: Sequence[Sequence[int]] | NDArray[np.integer]) -> float | None:
    """Agreement beyond chance: 1 is perfect, 0 is what the label frequencies give by themselves; None if undefined."""
    labels = _labels(predictions)
    counts = _counts(labels)
    if counts.shape[1] == 1:
        return None
    by_chance = float(((counts.sum(axis=0) / labels.size) ** 2).sum())
    return (_agreement(counts, labels.shape[0]) - by_chance) / (1.0 - by_chance)


def pairwise_jensen_shannon(probabilities: NDArray[np.floating]) -> float:
    """Jensen-Shannon divergence in nats (not its square root), averaged over examples and over all pairs of runs."""
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 3 or p.shape[0] < 2 or p.shape[1] < 1:
        raise SteadytuneError(f"Probabilities must be [run, example, class] with 2 runs or more, not {p.shape}.")
    sums = p.sum(axis=-1, keepdims=True)
    if not np.isfinite(p).all() or (p < 0).any() or (np.abs(sums - 1.0) > _SUM_TOLERANCE).any():
        raise SteadytuneError(
            "Each example's probabilities must be non-negative and add up to 1; pass softmax outputs."
        )
    p = p / sums
    entropy = _entropy(p)
    total = 0.0
    for i in range(p.shape[0] - 1):  # one run against all later ones, so memory stays that of the input
        middle = _entropy((p[i] + p[i + 1 :]) / 2.0)
        # A divergence is never negative; equal distributions may come out at -1e-17.
        total += float(np.maximum(middle - (entropy[i] + entropy[i + 1 :]) / 2.0, 0.0).sum())
    pairs = p.shape[0] * (p.shape[0] - 1) / 2
    return total / (pairs * p.shape[1])


def _labels(predictions: Sequence[Sequence[int]] | NDArray[np.integer]) -> NDArray[np.integer]:
    labels = np.asarray(predictions)
    if labels.ndim != 2 or labels.shape[0] < 2 or labels.shape[1] < 1:
        raise SteadytuneError(f"Predictions must be [run, example] with 2 runs or more, not {labels.shape}.")
    if not np.issubdtype(labels.dtype, np.integer):
        raise SteadytuneError(f"Predictions must be whole-number labels, not {labels.dtype}; take the argmax first.")
    return labels


def _counts(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """n_ik, for the labels that occur."""
    kinds, code = np.unique(labels, return_inverse=True)
    runs, examples = labels.shape
    cell = np.arange(examples)[None, :] * kinds.size + code.reshape(runs, examples)
    return np.bincount(cell.ravel(), minlength=examples * kinds.size).reshape(examples, kinds.size)


def _agreement(counts: NDArray[np.int64], runs: int) -> float:
    return float((counts * (counts - 1)).sum(axis=1).mean() / (runs * (runs - 1)))


def _entropy(p: Array) -> Array:
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    entropy: Array = -(p * logs).sum(axis=-1)
    return entropy
