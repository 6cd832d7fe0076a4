"""Ensembling: the mean of what several models predict.

    P(y|x) = 1/k Σ_i P_i(y|x)            space = "probability"
    P(y|x) ∝ exp(1/k Σ_i z_i(y|x))       space = "logit": the geometric mean of the probabilities

Models of different seeds make different errors. R-Drop, table 5: 36.06 to 36.92 BLEU for 2 to 6 models against 34.78
for one, at that many times the cost of inference.

Relations: checkpoint averaging averages weights, costs nothing at inference, and needs checkpoints of one run. An
ensemble of one is the model, bit for bit. Regression has no probabilities: the mean of the outputs. With several labels
per example each label is averaged by itself.
Caveat: all models read the same batch, so they must share tokenizer and labels. Beam search over it is not here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from steadytune.errors import SteadytuneError
from steadytune.methods.base import RDROP, Method, check_choice, check_count, method
from steadytune.methods.loss import KINDS, call, full_precision, kind_of, logits_of, nll, unwrap

SPACES = ("probability", "logit")


def ensemble_logits(logits: Sequence[Tensor], space: str = "probability", *, kind: str = "classification") -> Tensor:
    """Log-probabilities whose softmax is the mean of the softmaxes (or, in logit space, their geometric mean).

    For several labels per example (kind "multilabel") log-odds, whose sigmoid is the mean; for regression the mean. One
    set of logits comes back as it is: its softmax is the same.
    """
    check_choice("space", space, SPACES, "ensemble_logits")
    check_choice("kind", kind, KINDS, "ensemble_logits")
    if not logits:
        raise SteadytuneError("ensemble_logits: there is nothing to average; give at least one model's logits.")
    shapes = sorted({tuple(each.shape) for each in logits})
    if len(shapes) > 1:
        raise SteadytuneError(f"ensemble_logits: logits of shapes {list(shapes[0])} and {list(shapes[1])} differ.")
    if len(logits) == 1:
        return logits[0]
    z = torch.stack([full_precision(each) for each in logits])
    if kind == "regression":
        return z.mean(0)
    if kind == "multilabel":
        if space == "logit":
            return z.mean(0)
        return torch.logsumexp(functional.logsigmoid(z), 0) - torch.logsumexp(functional.logsigmoid(-z), 0)
    if space == "logit":
        return functional.log_softmax(z.mean(0), -1)
    return torch.logsumexp(functional.log_softmax(z, -1), 0) - math.log(len(logits))


class EnsembleModel(nn.Module):
    """Several models as one, all put in eval mode: an ensemble predicts. Called by keyword, as `model(**batch)`.

    `logits` are those of `ensemble_logits`; `loss`, where labels are given, is theirs.
    """

    def __init__(self, models: Sequence[nn.Module], space: str = "probability") -> None:
        super().__init__()
        check_choice("space", space, SPACES, "EnsembleModel")
        _check_alike(models)
        self.models = nn.ModuleList(models)
        self.space = space
        self.eval()

    def forward(self, **batch: Any) -> Any:
        outputs = [call(model, batch) for model in self.models]
        logits = [logits_of(each) for each in outputs]
        labels = batch.get("labels")
        kind = self._kind(logits[0], labels)
        mean = ensemble_logits(logits, self.space, kind=kind)
        if isinstance(outputs[0], Tensor):
            return mean
        if not isinstance(outputs[0], Mapping):
            return (mean,)
        made: dict[str, Any] = {"logits": mean} if labels is None else {"loss": nll(mean, labels, kind), "logits": mean}
        return type(outputs[0])(**made)

    def _kind(self, logits: Tensor, labels: Tensor | None) -> str:
        if labels is not None:
            return kind_of(self.models[0], logits, labels)
        config = getattr(unwrap(self.models[0]), "config", None)
        problem = getattr(config, "problem_type", None)
        if problem == "regression" or logits.ndim == 1 or logits.shape[-1] == 1:
            return "regression"
        return "multilabel" if problem == "multi_label_classification" else "classification"


def _check_alike(models: Sequence[nn.Module]) -> None:
    """All models must mean the same thing by an output, and read the same inputs."""
    if not models:
        raise SteadytuneError("An ensemble needs at least one model.")
    for number, model in enumerate(models[1:], start=2):
        for what, first, other in zip(_FACTS, _facts(models[0]), _facts(model)):
            if first != other:
                raise SteadytuneError(
                    f"Models 1 and {number} cannot be one ensemble: their {what} differ, {first} and {other}."
                )


_FACTS = ("architectures", "numbers of labels", "label names", "problem types", "vocabulary sizes")


def _facts(model: nn.Module) -> tuple[Any, ...]:
    base = unwrap(model)
    config = getattr(base, "config", None)
    asked = ("num_labels", "id2label", "problem_type", "vocab_size")
    return (type(base).__name__, *(getattr(config, name, None) for name in asked))


@method("ensemble", place="finish", paper=RDROP, items="R18", null={"size": 1})
class Ensemble(Method):
    """Several models of a study, different seeds of one recipe, that predict together."""

    size: int = 5  # how many models; 1 is one model alone
    space: str = "probability"  # what is averaged: "probability" or "logit"

    def __post_init__(self) -> None:
        check_count("size", self.size, "Ensemble")
        check_choice("space", self.space, SPACES, "Ensemble")

    def finish(self, models: Sequence[Any]) -> nn.Module:
        """`models`: the trained models; the first `size` of them are taken."""
        if len(models) < self.size:
            raise SteadytuneError(f"Ensemble(size={self.size}): only {len(models)} models were given.")
        return models[0] if self.size == 1 else EnsembleModel(list(models)[: self.size], self.space)
