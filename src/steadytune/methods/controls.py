"""Controls for R-Drop: the same cost without its idea.

    DoubledBatch    k B different rows a step, one pass                    (appendix C.1: 34.93 BLEU)
    NLLOnly         the same B rows k times, L = NLL_1 + ... + NLL_k       (appendix C.2: 34.93 BLEU)

Beside them stand the baseline, 34.64, and R-Drop, 37.25 (IWSLT14 De-En). If a task gains as much from a control, the
gain is not the divergence.

Relations: `NLLOnly(passes=2)` is R-Drop with its divergence taken out, and so has its other options. Its loss is k
times the baseline's in expectation, and its gradient less noisy for its size: it adds up k draws of dropout.
Caveat: doubling the batch keeps the number of epochs, so it halves the steps unless the run is given steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from steadytune.methods.base import RDROP, Method, Moment, Site, check_choice, check_count, check_probability, method
from steadytune.methods.loss import kind_of, labels_of
from steadytune.methods.passes import FORWARDS, forwards, refuse_if_noiseless
from steadytune.methods.rdrop import REGRESSION, fit
from steadytune.methods.rdrop_quick import may_be_late, quick_nll


def nll_only_loss(
    logits: list[Tensor],
    labels: Tensor,
    *,
    kind: str | None = None,
    label_smoothing: float = 0.0,
    regression: str = "unsquared",
) -> Tensor:
    """L = NLL_1 + ... + NLL_k for the logits of k passes; for regression, the distances that R-Drop has instead."""
    kind = kind or kind_of(None, logits[0], labels)
    squared = regression == "squared"
    return torch.stack([fit(each, labels, kind, label_smoothing, squared) for each in logits]).sum()


@method("doubled_batch", place="loss", paper=RDROP, items="R14", null={"times": 1})
class DoubledBatch(Method):
    """A larger batch of different rows: what R-Drop's doubled work would buy without R-Drop."""

    times: int = 2  # how many times the batch size; 1 is plain training

    def __post_init__(self) -> None:
        check_count("times", self.times, "DoubledBatch")

    def replaces(self) -> frozenset[str]:
        return frozenset() if self.is_null() else frozenset({"batch size"})

    def batch_size(self, size: int) -> int:
        return size * self.times


@method("nll_only", place="loss", paper=RDROP, items="R15", null={"passes": 1})
class NLLOnly(Method):
    """Several dropout passes of each batch, and nothing that holds them together."""

    passes: int = 2  # how many; 1 is plain training
    forward: str = (
        "auto"  # "concat": all in one forward; "two": one forward each; "auto": concat where rows are independent
    )
    label_smoothing: float = 0.0  # of the cross-entropy, as in RDrop
    regression: str = "unsquared"  # or "squared", as in RDrop

    def __post_init__(self) -> None:
        check_count("passes", self.passes, "NLLOnly")
        check_choice("forward", self.forward, FORWARDS, "NLLOnly")
        check_probability("label_smoothing", self.label_smoothing, "NLLOnly")
        check_choice("regression", self.regression, REGRESSION, "NLLOnly")

    def replaces(self) -> frozenset[str]:
        return frozenset() if self.is_null() else frozenset({"loss"})

    def check(self, site: Site) -> None:
        refuse_if_noiseless(self, site)

    def loss(self, model: nn.Module, batch: dict[str, Any], moment: Moment) -> tuple[Tensor, Any] | None:
        if self.is_null() or not model.training:
            return None
        labels = labels_of(batch)
        passes, late = self.passes, self.passes % 2 == 0 and may_be_late(model)
        logits, outputs = forwards(model, batch, "NLLOnly", times=passes, forward=self.forward, late_logits=late)
        kind = kind_of(model, logits[0], labels)
        loss = quick_nll(logits, labels, kind, self.label_smoothing)
        if loss is None:
            loss = nll_only_loss(
                logits, labels, kind=kind, label_smoothing=self.label_smoothing, regression=self.regression
            )
        return loss, outputs
