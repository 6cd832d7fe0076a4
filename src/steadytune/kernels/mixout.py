"""A linear layer with mixed columns that never touches the swapped columns of its weight gradient.

    W' = lerp(U, W, s),  s_j = M_j / μ        forward    Y  = X W'ᵀ + b
                                              backward   dX = dY W'
                                                         dW = (dYᵀ X) diag(c),   c_j = ds_j = s_j (exact) or M_j (paper)

A swapped column has s_j = c_j = 0, so a fraction p of dW is zero by construction: keep only the kept columns of X for
the backward pass, multiply only those, and scatter. At p = 0.7 that is 0.3 of the weight gradient's work and 0.3 of
the saved input. W' is made again in the backward pass instead of being kept: a copy of all weights would cost more
memory than dropout does. The chunks of a batch see one mask, so in bfloat16 and float16 an engine keeps W' for all of
them: two bytes a weight, which a plain layer's cast takes under autocast, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

GRAIN = 32  # kept columns are multiplied in multiples of it, in low precision


class Mixture(NamedTuple):
    """A mask, and what it makes of a weight."""

    scale: Tensor  # s
    kept: Tensor  # the columns j with s_j != 0
    weight: Tensor | None = None  # W' in the product's type; without it, it is made when it is needed


def mask_of(scale: Tensor) -> Mixture:
    return Mixture(scale, scale.nonzero().squeeze(1))


@torch.no_grad()
def mixture_of(scale: Tensor, weight: Tensor, target: Tensor, dtype: torch.dtype) -> Mixture:
    """For several forwards on the same mask and weight; `dtype` is that of their products."""
    ready = torch.lerp(target, weight, scale).to(dtype) if dtype.itemsize <= 2 else None
    return mask_of(scale)._replace(weight=ready)


class _MixedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, mixture: Mixture, grad_scale: float
    ) -> Tensor:
        scale, kept, ready = mixture
        mixed = torch.lerp(target, weight, scale).to(x.dtype) if ready is None else ready
        kept_x = _columns(x.reshape(-1, x.shape[-1]), kept) if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(weight, target, scale, kept, kept_x, ready)
        ctx.grad_scale, ctx.has_bias, ctx.x_shape = grad_scale, bias is not None, x.shape
        return functional.linear(x, mixed, bias.to(x.dtype) if bias is not None else None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, target, scale, kept, kept_x, mixed = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            mixed = torch.lerp(target, weight, scale).to(grad.dtype) if mixed is None else mixed
            grad_x = (rows @ mixed).view(ctx.x_shape)
        if ctx.needs_input_grad[1]:
            kept_grad = torch.addmm(rows.new_zeros(()), rows.t(), kept_x, beta=0, alpha=ctx.grad_scale)
            kept_grad = kept_grad[:, : len(kept)].to(weight.dtype)
            # scatter_ with an expanded index: twice as fast as index_copy_ on a CPU
            grad_weight = torch.zeros_like(weight).scatter_(1, kept.expand(weight.shape[0], -1), kept_grad)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_bias = rows.sum(0, dtype=weight.dtype)
        return grad_x, grad_weight, grad_bias, None, None, None


def _columns(rows: Tensor, kept: Tensor) -> Tensor:
    """The kept columns of X. In bfloat16 and float16 with others behind them that do not count, to one of few widths:
    for a shape that it has not met, a CPU's library makes code first, which takes longer than the product."""
    if rows.element_size() > 2:
        return rows.index_select(1, kept)
    width = rows.shape[1]
    grain = GRAIN * -(-width // (16 * GRAIN))
    count = min(-(-len(kept) // grain) * grain, width)
    padded = functional.pad(kept, (0, count - len(kept)))
    return rows.gather(1, padded.expand(len(rows), -1))  # a third of index_select's time, for these types


def mixed_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, mixture: Mixture, grad_scale: float
) -> Tensor:
    """x @ lerp(target, weight, scale).T + bias, for a mask with one number per column, most of them zero.

    `grad_scale` is the factor on a kept column's gradient: 1/(1-p) is the exact one, 1 the paper's.
    """
    device = x.device.type
    if torch.is_autocast_enabled(device):
        x = x.to(torch.get_autocast_dtype(device))  # as autocast does for nn.Linear; autograd casts the gradient back
    return _MixedLinear.apply(x, weight, bias, target, mixture, grad_scale)
