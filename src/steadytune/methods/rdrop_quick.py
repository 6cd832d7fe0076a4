"""R-Drop's loss, and its control's, by kernels that work out the gradient by hand (kernels/rdrop.py). No method here.

    few classes         value and gradient in one pass over the logits                        fused_rdrop_loss
    large vocabulary    from hidden states and the output matrix, in chunks                   chunked_rdrop_loss
    anything else       not here: regression, several labels, logits that exist already       rdrop_loss

The second row needs logits that were not computed yet (late_logits.py). First derivatives only. On devices that are
not in DEVICES every loss is the third row's.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from steadytune.kernels.rdrop import chunked_rdrop_loss, fused_rdrop_loss
from steadytune.methods.late_logits import LARGE_VOCABULARY, LateLogits
from steadytune.methods.loss import aligned

DEVICES = {"cpu", "cuda"}  # where these kernels have been run (tests/gpu/test_rdrop_gpu.py)


class Form(Protocol):
    """Which public form of the loss: a row of rdrop.VARIANTS."""

    @property
    def nll(self) -> str: ...
    @property
    def kl(self) -> str: ...
    @property
    def factor(self) -> float: ...


def quick_loss(
    form: Form,
    logits_1: Tensor,
    logits_2: Tensor,
    labels: Tensor,
    alpha: float | Tensor,
    *,
    kind: str,
    label_smoothing: float = 0.0,
    mask: Tensor | None = None,
) -> Tensor | None:
    """`rdrop_loss` by a kernel; None where there is none for it."""
    if kind in ("regression", "multilabel") or logits_1.device.type not in DEVICES:
        return None
    labels = aligned(labels, kind).reshape(logits_1.shape[:-1])
    mask = None if mask is None else aligned(mask.bool(), kind)
    if isinstance(logits_1, LateLogits) and isinstance(logits_2, LateLogits):
        return chunked_rdrop_loss(
            logits_1.hidden,
            logits_2.hidden,
            logits_1.weight,
            logits_1.bias,
            labels,
            alpha=alpha,
            label_smoothing=label_smoothing,
            nll=form.nll,
            kl=form.kl,
            factor=form.factor,
            mask=mask,
            offset=logits_1.offset,
            dtype=logits_1.product_type,
        )
    if logits_1.shape[-1] >= LARGE_VOCABULARY:
        return None
    return fused_rdrop_loss(
        logits_1,
        logits_2,
        labels,
        alpha=alpha,
        label_smoothing=label_smoothing,
        nll=form.nll,
        kl=form.kl,
        factor=form.factor,
        mask=mask,
    )


def may_be_late(model: nn.Module) -> bool:
    """Whether the model's logits may be left to these kernels."""
    return all(parameter.device.type in DEVICES for parameter in model.parameters())


def quick_nll(logits: list[Tensor], labels: Tensor, kind: str, label_smoothing: float = 0.0) -> Tensor | None:
    """NLL_1 + ... + NLL_k from late logits, in chunks: R-Drop's kernel without the divergence, on two halves of the
    passes. None where the logits exist already, or k is odd."""
    late = [each for each in logits if isinstance(each, LateLogits)]
    if len(late) != len(logits) or len(late) % 2:
        return None
    half, first = len(late) // 2, late[0]
    mean = chunked_rdrop_loss(
        torch.cat([each.hidden for each in late[:half]]),
        torch.cat([each.hidden for each in late[half:]]),
        first.weight,
        first.bias,
        torch.cat([aligned(labels, kind)] * half),
        alpha=0.0,
        label_smoothing=label_smoothing,
        offset=first.offset,
        dtype=first.product_type,
    )
    return mean * half
