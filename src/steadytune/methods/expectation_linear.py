"""Expectation-linear dropout: a dropout pass must give the logits of the deterministic network.

    L = NLL(z) + κ/m ‖z - z̄‖²,    z with dropout, z̄ without

What is used at test time is z̄, so the penalty measures and shrinks the gap between training and inference. Mean over
examples, or over the tokens that have a label. (Ma et al. 2016; R-Drop, appendix C.4.)

Relations: fraternal dropout compares two dropout passes instead; its penalty is bounded by 4 times this one.
Caveats: z̄ is a second forward with every module in eval mode, so batch normalisation uses its running statistics there
and mixed layers their own weights. Gradients flow through both passes, as in the public code; `detach=True` makes z̄ a
constant. The factor 1/m (m outputs) is that of the fraternal-dropout code, which has this method with κ = 0.25.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from steadytune.methods.base import Citation, Method, Moment, Site, check_at_least, check_probability, method
from steadytune.methods.fraternal_dropout import logit_distance
from steadytune.methods.loss import call, kept, kind_of, labels_of, logits_of, nll
from steadytune.methods.passes import refuse_if_noiseless, refuse_if_silent

EXPECTATION_LINEAR = Citation(
    "ma2017dropout",
    "Ma, Gao, Hu, Yu, Deng, Hovy. Dropout with Expectation-linear Regularization. ICLR 2017.",
    "https://arxiv.org/abs/1609.08017",
)


@contextmanager
def deterministic(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode inside the block; afterwards, whatever happened, each as it was."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def deterministic_logits(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """z̄: the logits of the network as it is used at test time."""
    with deterministic(model):
        return logits_of(call(model, batch, again=True))


def expectation_linear_loss(
    logits: Tensor,
    calm_logits: Tensor,
    labels: Tensor,
    kappa: float = 0.25,
    *,
    kind: str | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """L = NLL(z) + κ/m ‖z - z̄‖²; z̄ are the `calm_logits`, of the pass without noise. `kind` as in `rdrop_loss`."""
    kind = kind or kind_of(None, logits, labels)
    penalty = logit_distance(logits, calm_logits, kept(labels, kind))
    return nll(logits, labels, kind, label_smoothing) + kappa * penalty


@method("expectation_linear", place="loss", paper=EXPECTATION_LINEAR, items="R17", null={"kappa": 0.0})
class ExpectationLinearDropout(Method):
    """A dropout pass of each batch, held near the pass without dropout."""

    kappa: float = 0.25  # weight of the distance; 0 is plain training
    detach: bool = False  # take the pass without dropout as a constant: no gradient through it, and less memory
    label_smoothing: float = 0.0  # of the cross-entropy

    def __post_init__(self) -> None:
        check_at_least("kappa", self.kappa, 0.0, "ExpectationLinearDropout")
        check_probability("label_smoothing", self.label_smoothing, "ExpectationLinearDropout")

    def replaces(self) -> frozenset[str]:
        return frozenset() if self.is_null() else frozenset({"loss"})

    def check(self, site: Site) -> None:
        refuse_if_noiseless(self, site)

    def loss(self, model: nn.Module, batch: dict[str, Any], moment: Moment) -> tuple[Tensor, Any] | None:
        if self.is_null() or not model.training:
            return None
        labels = labels_of(batch)
        outputs = call(model, batch)
        logits = logits_of(outputs)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.detach):
            calm = deterministic_logits(model, batch)
        refuse_if_silent(model, "ExpectationLinearDropout", logits, calm)
        kind = kind_of(model, logits, labels)
        loss = expectation_linear_loss(
            logits, calm, labels, self.kappa, kind=kind, label_smoothing=self.label_smoothing
        )
        return loss, outputs
