"""R-Drop: two dropout passes of the same batch must give the same distribution.

    L = NLL_1 + NLL_2 + α · ½ [ KL(P_1 ‖ P_2) + KL(P_2 ‖ P_1) ]                          (classes, tokens)
    L = ‖y - y_1‖₂ + ‖y - y_2‖₂ + α ‖y_1 - y_2‖₂                                         (regression, equations 1 and 2)

P_1 and P_2 come from two stochastic forwards; gradients flow through both. KL is a mean over examples, or over the
tokens that have a label, so α means the same at every batch size. (The published code sums it over the batch: see
VARIANTS.) Several labels per example: KL between Bernoullis, summed over the labels.

Relations: `rdrop_loss(alpha=0)` is the NLL of two passes, which as a method is `NLLOnly`; `RDrop(alpha=0)` is the
baseline, plain training with one pass. Fraternal dropout is the same with a squared distance between logits for KL.
The symmetric KL is ½ Σ (p_1 - p_2)(log p_1 - log p_2), no term of which is ever negative.
Caveats: a mask here is true where a position COUNTS. PaddleNLP means the same; the authors' README the opposite (D16).
NLL is summed over the passes, so the loss starts at twice the baseline's: for plain SGD, twice the learning rate.
Regression by the paper's equations is not squared, so it fits medians, not means; the published code squares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from steadytune.errors import SteadytuneError
from steadytune.methods.base import RDROP, Method, Moment, Site, check_at_least, check_choice, check_probability, method
from steadytune.methods.loss import KINDS, aligned, full_precision, kept, kind_of, labels_of, masked_mean, nll
from steadytune.methods.passes import FORWARDS, forwards, refuse_if_noiseless
from steadytune.methods.rdrop_quick import may_be_late, quick_loss

REDUCTIONS = ("mean", "sum", "batchmean", "elements", "none")
REGRESSION = ("unsquared", "squared")
SCHEDULES = ("constant", "lr", "linear")


@dataclass(frozen=True)
class Variant:
    """One public form of the loss: L = nll + α · factor · (KL + reverse KL). D13, D14 and D16 say where they differ."""

    nll: str  # of the two passes: "sum", "mean", or "half-first" (half of the first pass alone)
    kl: str  # a reduction of `symmetric_kl`
    factor: float  # 1/2 is the paper's
    alpha: float  # what the source uses or suggests
    regression: str  # "unsquared" or "squared"
    source: str
    mask: str = "labels"  # what says which positions count: "labels" (not -100) or "attention" (attention_mask)


_OFFICIAL = "github.com/dropreg/R-Drop, "
VARIANTS: dict[str, Variant] = {
    "paper": Variant("sum", "mean", 0.5, 1.0, "unsquared", "NeurIPS 2021; appendix, equations 1 and 2"),
    "official-bert": Variant("sum", "sum", 0.5, 0.5, "squared", _OFFICIAL + "modeling_bert.py"),
    "official-readme": Variant("mean", "sum", 0.5, 1.0, "squared", _OFFICIAL + "README.md (its mask means DROP)"),
    "official-roberta": Variant("half-first", "sum", 0.5, 0.7, "squared", _OFFICIAL + "modeling_roberta.py, sentences"),
    "official-token": Variant("sum", "sum", 1.0, 0.05, "squared", _OFFICIAL + "modeling_roberta.py, tags", "attention"),
    "official-vit": Variant("sum", "sum", 1.0, 0.3, "squared", _OFFICIAL + "vit_src/models/modeling.py"),
    "official-nmt": Variant("sum", "mean", 0.5, 5.0, "squared", _OFFICIAL + "fairseq_src: over the tokens of one copy"),
    "bojone": Variant("mean", "mean", 0.25, 4.0, "squared", "github.com/bojone/r-drop (Keras; rows interleaved)"),
    "bert4torch": Variant("mean", "elements", 0.25, 4.0, "squared", "bert4torch RDropLoss, adjacent and updown alike"),
    "paddle": Variant("mean", "sum", 0.5, 1.0, "squared", "PaddleNLP RDropLoss(), added as in its p-tuning example"),
    "paddle-batchmean": Variant("mean", "batchmean", 0.5, 1.0, "squared", "PaddleNLP RDropLoss('batchmean')"),
    "paddle-mean": Variant("mean", "elements", 0.5, 1.0, "squared", "PaddleNLP RDropLoss('mean')"),
}  # fmt: skip


def symmetric_kl(
    logits_1: Tensor, logits_2: Tensor, mask: Tensor | None = None, reduction: str = "mean", *, bernoulli: bool = False
) -> Tensor:
    """½ [KL(P_1 ‖ P_2) + KL(P_2 ‖ P_1)] of the softmaxes over the last dimension, mean over examples.

    An example is a row of [B, C] or a position of [B, T, C]. `mask` is true where an example COUNTS. Reductions: "mean"
    over examples; "sum"; "batchmean", the sum divided by B; "elements", the mean over examples and classes; "none".
    A class forbidden in both (logit -inf) adds nothing. `bernoulli` takes each logit as a distribution of its own, for
    several labels per example, and sums their divergences.
    """
    check_choice("reduction", reduction, REDUCTIONS, "symmetric_kl")
    if logits_1.shape != logits_2.shape:
        raise SteadytuneError(
            f"symmetric_kl: logits of shapes {list(logits_1.shape)} and {list(logits_2.shape)} differ."
        )
    z_1, z_2 = full_precision(logits_1), full_precision(logits_2)
    if bernoulli:
        p_1, p_2, difference = torch.sigmoid(z_1), torch.sigmoid(z_2), z_1 - z_2  # log-odds: the normalisers cancel
    else:
        log_1, log_2 = functional.log_softmax(z_1, -1), functional.log_softmax(z_2, -1)
        p_1, p_2, difference = log_1.exp(), log_2.exp(), log_1 - log_2
    forbidden = torch.isneginf(z_1) & torch.isneginf(z_2)
    divergence = 0.5 * ((p_1 - p_2) * difference.masked_fill(forbidden, 0.0)).sum(-1)
    if mask is not None:
        mask = mask.reshape(divergence.shape).to(device=divergence.device, dtype=torch.bool)
        divergence = divergence.masked_fill(~mask, 0.0)
    if reduction == "none":
        return divergence
    if reduction == "sum":
        return divergence.sum()
    if reduction == "batchmean":
        return divergence.sum() / divergence.shape[0]
    return masked_mean(divergence, mask) / (logits_1.shape[-1] if reduction == "elements" else 1)


def distance(y_1: Tensor, y_2: Tensor, squared: bool) -> Tensor:
    """Mean over examples of ‖y_1 - y_2‖₂, or, squared, mean squared error as the published code has it."""
    difference = full_precision(y_1) - full_precision(y_2)
    if squared:
        return difference.square().mean()
    return torch.linalg.vector_norm(difference.reshape(len(difference), -1), dim=-1).mean()


def fit(logits: Tensor, labels: Tensor, kind: str, label_smoothing: float = 0.0, squared: bool = False) -> Tensor:
    """The term that fits the labels, of one pass: NLL, or the paper's distance where the task is regression."""
    if kind != "regression" or squared or label_smoothing:
        return nll(logits, labels, kind, label_smoothing)
    return distance(logits, labels.to(logits).reshape(logits.shape), squared=False)


def rdrop_loss(
    logits_1: Tensor,
    logits_2: Tensor,
    labels: Tensor,
    alpha: float | Tensor = 1.0,
    *,
    kind: str | None = None,
    label_smoothing: float = 0.0,
    variant: str = "paper",
    mask: Tensor | None = None,
    regression: str | None = None,
) -> Tensor:
    """L = NLL_1 + NLL_2 + α · ½ (KL + KL) for the logits of two passes; see the module for regression.

    `kind` is one of loss.KINDS, read off the shapes if not given, where [B, T, C] means tokens: say "causal-lm" for a
    language model. `mask`, of the labels' shape and true where a position COUNTS, says which positions the KL terms
    take, instead of those with labels other than -100. `variant` names a row of VARIANTS; `regression`, "unsquared" or
    "squared", is the variant's if not given.
    """
    check_choice("variant", variant, VARIANTS, "rdrop_loss")
    if regression is not None:
        check_choice("regression", regression, REGRESSION, "rdrop_loss")
    form, kind = VARIANTS[variant], kind or kind_of(None, logits_1, labels)
    check_choice("kind", kind, KINDS, "rdrop_loss")
    squared = (regression or form.regression) == "squared"
    loss = fit(logits_1, labels, kind, label_smoothing, squared)
    if form.nll == "half-first":
        loss = 0.5 * loss
    else:
        loss = (loss + fit(logits_2, labels, kind, label_smoothing, squared)) * (0.5 if form.nll == "mean" else 1.0)
    if kind == "regression":
        return loss + alpha * distance(logits_1, logits_2, squared)
    counts = kept(labels, kind) if mask is None else aligned(mask.bool(), kind)
    divergence = symmetric_kl(logits_1, logits_2, counts, form.kl, bernoulli=kind == "multilabel")
    return loss + alpha * 2.0 * form.factor * divergence


@method("rdrop", place="loss", paper=RDROP, items="R1-R5 R17 D13-D16 T5", null={"alpha": 0.0})
class RDrop(Method):
    """Two dropout passes of each batch, held together by a symmetric KL divergence."""

    alpha: float = 1.0  # weight of the divergence; 0 is plain training
    forward: str = (
        "auto"  # "concat": both passes in one forward; "two": two forwards; "auto": concat where rows are independent
    )
    variant: str = "paper"  # a public form of the loss: paper, official-bert, official-readme, bojone, ... (VARIANTS)
    label_smoothing: float = 0.0  # of the cross-entropy; the paper's translation runs use 0.1
    regression: str | None = None  # "unsquared" as the paper's equations, "squared" as its code; None: the variant's
    half_batch: bool = False  # halve the batch, so that the two passes cost what one did (appendix C.3)
    alpha_schedule: str = (
        "constant"  # "lr": alpha follows the learning rate (C.4); "linear": alpha grows from 0 over the run
    )

    def __post_init__(self) -> None:
        check_at_least("alpha", self.alpha, 0.0, "RDrop")
        check_choice("forward", self.forward, FORWARDS, "RDrop")
        check_choice("variant", self.variant, VARIANTS, "RDrop")
        check_probability("label_smoothing", self.label_smoothing, "RDrop")
        if self.regression is not None:
            check_choice("regression", self.regression, REGRESSION, "RDrop")
        check_choice("alpha_schedule", self.alpha_schedule, SCHEDULES, "RDrop")

    def replaces(self) -> frozenset[str]:
        if self.is_null():
            return frozenset()
        return frozenset({"loss", "batch size"}) if self.half_batch else frozenset({"loss"})

    def check(self, site: Site) -> None:
        refuse_if_noiseless(self, site)

    def batch_size(self, size: int) -> int:
        return max(1, size // 2) if self.half_batch and not self.is_null() else size

    def alpha_at(self, moment: Moment) -> float:
        if self.alpha_schedule == "constant":  # does not look at the moment: such a step can be recorded and replayed
            return self.alpha
        return self.alpha * (moment.lr_scale if self.alpha_schedule == "lr" else moment.progress)

    def loss(self, model: nn.Module, batch: dict[str, Any], moment: Moment) -> tuple[Tensor, Any] | None:
        if self.is_null() or not model.training:
            return None
        labels = labels_of(batch)
        late = may_be_late(model)
        (logits_1, logits_2), outputs = forwards(model, batch, "RDrop", forward=self.forward, late_logits=late)
        kind = kind_of(model, logits_1, labels)
        form, alpha, smoothing = VARIANTS[self.variant], self.alpha_at(moment), self.label_smoothing
        mask = batch.get("attention_mask") if form.mask == "attention" and logits_1.ndim == 3 else None
        loss = quick_loss(form, logits_1, logits_2, labels, alpha, kind=kind, label_smoothing=smoothing, mask=mask)
        if loss is None:
            loss = rdrop_loss(
                logits_1,
                logits_2,
                labels,
                alpha,
                kind=kind,
                label_smoothing=smoothing,
                variant=self.variant,
                mask=mask,
                regression=self.regression,
            )
        return loss, outputs
