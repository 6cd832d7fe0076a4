"""Fraternal dropout: two dropout passes of the same batch must give the same logits.

    L = ½ (NLL_1 + NLL_2) + κ/m ‖z_1 - z_2‖²

z_1 and z_2 are the outputs before the softmax, m how many there are; the penalty is a mean over examples, or over the
tokens that have a label. Gradients flow through both passes. (Zolna et al. 2018; R-Drop, appendix C.4.)

Relations: R-Drop with a squared distance between logits in place of KL. Expectation-linear dropout replaces the second
pass by the deterministic one; in expectation the penalty here is at most 4 times the penalty there.
Caveats: logits may differ by a constant without changing the prediction, and that is punished too. The paper divides by
m, and so does its code (`pow(2).mean()`): with many classes, κ has to be larger for the same pull on each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from steadytune.methods.base import (
    Citation,
    Method,
    Moment,
    Site,
    check_at_least,
    check_choice,
    check_probability,
    method,
)
from steadytune.methods.loss import full_precision, kept, kind_of, labels_of, masked_mean, nll
from steadytune.methods.passes import FORWARDS, forwards, refuse_if_noiseless

FRATERNAL = Citation(
    "zolna2018fraternal",
    "Zolna, Arpit, Suhubdy, Bengio. Fraternal Dropout. ICLR 2018.",
    "https://arxiv.org/abs/1711.00066",
)


def logit_distance(logits_1: Tensor, logits_2: Tensor, mask: Tensor | None = None) -> Tensor:
    """1/m ‖z_1 - z_2‖², mean over the examples where `mask` is true. A class forbidden in both (-inf) adds nothing."""
    z_1, z_2 = full_precision(logits_1), full_precision(logits_2)
    forbidden = torch.isneginf(z_1) & torch.isneginf(z_2)
    squares = (z_1 - z_2).masked_fill(forbidden, 0.0).square()
    return masked_mean(squares.mean(-1) if squares.ndim > 1 else squares, mask)


def fraternal_loss(
    logits_1: Tensor,
    logits_2: Tensor,
    labels: Tensor,
    kappa: float = 0.1,
    *,
    kind: str | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """L = ½ (NLL_1 + NLL_2) + κ/m ‖z_1 - z_2‖² for the logits of two passes. `kind` as in `rdrop_loss`."""
    kind = kind or kind_of(None, logits_1, labels)
    fitted = 0.5 * (nll(logits_1, labels, kind, label_smoothing) + nll(logits_2, labels, kind, label_smoothing))
    return fitted + kappa * logit_distance(logits_1, logits_2, kept(labels, kind))


@method("fraternal_dropout", place="loss", paper=FRATERNAL, items="R17", null={"kappa": 0.0})
class FraternalDropout(Method):
    """Two dropout passes of each batch, held together by the squared distance of their logits."""

    kappa: float = 0.1  # weight of the distance; 0 is plain training
    forward: str = "auto"  # "concat": both passes in one forward; "two": two; "auto": concat where rows are independent
    label_smoothing: float = 0.0  # of the cross-entropy

    def __post_init__(self) -> None:
        check_at_least("kappa", self.kappa, 0.0, "FraternalDropout")
        check_probability("label_smoothing", self.label_smoothing, "FraternalDropout")
        check_choice("forward", self.forward, FORWARDS, "FraternalDropout")

    def replaces(self) -> frozenset[str]:
        return frozenset() if self.is_null() else frozenset({"loss"})

    def check(self, site: Site) -> None:
        refuse_if_noiseless(self, site)

    def loss(self, model: nn.Module, batch: dict[str, Any], moment: Moment) -> tuple[Tensor, Any] | None:
        if self.is_null() or not model.training:
            return None
        labels = labels_of(batch)
        (logits_1, logits_2), outputs = forwards(model, batch, "FraternalDropout", forward=self.forward)
        kind = kind_of(model, logits_1, labels)
        loss = fraternal_loss(logits_1, logits_2, labels, self.kappa, kind=kind, label_smoothing=self.label_smoothing)
        return loss, outputs
