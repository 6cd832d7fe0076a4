"""GELU under a mixed layer: its backward pass also makes the kept columns that the layer needs.

    a  = h Φ(h)                          Φ(h) = (1 + erf(h / √2)) / 2
    dh = da (Φ(h) + h φ(h))              φ(h) = exp(-h² / 2) / √(2 π)
    a_k  = the kept columns of a         for the weight gradients of the layers that read a (kept_inputs.py)

h is kept for the backward pass in any case, so of a nothing has to be: at p = 0.7 a third of the widest tensor of a
block. And no pass reads a to take its columns.

    h, a, da, dh    [..., D]      all dimensions but the last are N rows; of one type
    a_k             [N, capacity]

In plain torch here, which is also the reference; activation_triton.py has a kernel for the backward pass. The forward
pass is torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from steadytune.kernels.handed_on import Handed
from steadytune.kernels.kept_inputs import Source, columns_of, multiply_
from steadytune.kernels.mixout_masks import has_kernels


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, source: Source) -> Tensor:
        ctx.save_for_backward(h)
        ctx.source = source
        return functional.gelu(h)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        (h,) = ctx.saved_tensors
        wanted = ctx.source.claim_()
        made, kept = gelu_gradients(grad, h, [each.slots for each in wanted])
        multiply_(wanted, kept)
        return made, None


def gelu(h: Tensor) -> tuple[Tensor, Handed]:
    """GELU of h, and what those that read it next are handed. A second derivative is refused."""
    source = Source()
    a = _Gelu.apply(h.contiguous(), source)
    return a, Handed(a.detach().view(-1, a.shape[-1]), None, source)


def gelu_gradients(grad: Tensor, h: Tensor, slots: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """dh, and the columns of a in each list. h is contiguous."""
    if len(slots) == 1 and h.numel() and has_kernels(h.device.type, h.dtype, grad.dtype):
        from steadytune.kernels.activation_triton import gelu_gradients_triton

        made, kept = gelu_gradients_triton(grad.contiguous(), h, slots[0])
        return made, [kept]
    return gelu_gradients_torch(grad, h, slots)


def gelu_gradients_torch(grad: Tensor, h: Tensor, slots: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    made = torch.ops.aten.gelu_backward(grad, h)
    if not slots:
        return made, []
    rows = functional.gelu(h).view(-1, h.shape[-1])
    return made, [columns_of(rows, each) for each in slots]
