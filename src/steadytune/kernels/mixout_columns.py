"""A linear layer with mixed columns on a device whose host must not wait: fixed shapes, no `nonzero`.

    W'      = U + (M/μ)(W - U), in the type of the product          mix     one pass that is also autocast's cast
    X_k     = the kept columns of X, [rows, capacity]               take    one pass that is also autocast's cast
    Y       = X W'ᵀ + b
    dX      = dY W'
    dW      = c (dYᵀ X_k) at the kept columns, 0 elsewhere          expand  one pass that is also the cast to W's type

with the masks of mixout_masks.py, and c as in mixout.py. What stays in memory until the backward pass: X_k instead of
X; and W' or nothing in its place (`remakes`). A plain layer under autocast keeps X and the cast of W, so what mixout
adds is U alone. Bytes of a block of BERT-large until its backward pass, per position and unit of width, by counting:
44 for dropout, 31 at p = 0.7, 27 at p = 0.9; and 25 MB of W' or of cast weights.

Without `kept_only` dW is computed whole and masked, which is right for every mask. With it, the count of the mask must
be known to fit the capacity (`mixout_masks.overflows`); a mask that does not fit gives NaN, never a truncated gradient.

The three passes are here in plain torch, as reference and fallback; mixout_triton.py has a kernel for each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from steadytune.kernels.mixout_masks import Columns, has_kernels

REMAKE_ROWS = 8192  # from so many rows on, W' is made again in the backward pass


def remakes(rows: int, weight: Tensor) -> bool:
    """Whether W' is made again in the backward pass instead of being kept.

    That costs 10 bytes per weight, which the operations of many rows dwarf. A tall layer saves few columns of X beside
    much of W', so it does so earlier; otherwise 4,096 rows of BERT-large would take more memory than dropout.
    """
    return rows >= REMAKE_ROWS or (rows >= REMAKE_ROWS // 2 and weight.shape[0] > 2 * weight.shape[1])


class Form(NamedTuple):
    """What a call needs besides tensors."""

    p: float
    grad_scale: float  # c: 1/(1-p) is exact, 1 the paper's
    kept_only: bool
    dtype: torch.dtype  # of the products
    trains: bool  # whether dW will be asked for


class _ColumnLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, columns: Columns, form: Form
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        mixed, low_bias = mix(weight, target, columns.place, bias, form.p, form.dtype)
        low, taken = take(rows, columns.kept if form.trains and form.kept_only else None, form.dtype)
        inputs = (taken if form.kept_only else low) if form.trains else None
        if remakes(len(rows), weight):
            ctx.save_for_backward(columns.place, inputs, None, weight, target)
        else:
            ctx.save_for_backward(columns.place, inputs, mixed, None, None)
        ctx.form, ctx.x_shape, ctx.x_dtype, ctx.w_dtype = form, x.shape, x.dtype, weight.dtype
        ctx.b_dtype = bias.dtype if bias is not None else None
        return functional.linear(low, mixed, low_bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        place, inputs, mixed, weight, target = ctx.saved_tensors
        form: Form = ctx.form
        rows = grad.reshape(-1, grad.shape[-1])
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            if mixed is None:
                mixed, _ = mix(weight, target, place, None, form.p, form.dtype)
            grad_x = (rows @ mixed).view(ctx.x_shape).to(ctx.x_dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = expand(rows.t() @ inputs, place, form.grad_scale, form.kept_only, ctx.w_dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = rows.sum(0, dtype=ctx.b_dtype)
        return grad_x, grad_weight, grad_bias, None, None, None


def column_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    columns: Columns,
    p: float,
    grad_scale: float,
    kept_only: bool = False,
) -> Tensor:
    """x @ W'.T + bias for the mask `columns`, in autocast's type where autocast is on."""
    device, dtype = x.device.type, x.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    trains = torch.is_grad_enabled() and weight.requires_grad
    return _ColumnLinear.apply(x, weight, bias, target, columns, Form(p, grad_scale, kept_only, dtype, trains))


def mix(
    weight: Tensor, target: Tensor, place: Tensor, bias: Tensor | None, p: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """W' and the bias in `dtype`."""
    if has_kernels(weight.device.type, weight.dtype, dtype):
        from steadytune.kernels.mixout_triton import mix_triton

        return mix_triton(weight, target, place, bias, p, dtype)
    return mix_torch(weight, target, place, bias, p, dtype)


def take(rows: Tensor, kept: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """X in `dtype`, and its columns `kept`, where they are asked for."""
    if kept is not None and has_kernels(rows.device.type, rows.dtype, dtype):
        from steadytune.kernels.mixout_triton import take_triton

        return take_triton(rows, kept, dtype)
    return take_torch(rows, kept, dtype)


def expand(part: Tensor, place: Tensor, factor: float, kept_only: bool, dtype: torch.dtype) -> Tensor:
    """dW in `dtype` from the gradient of the kept columns, or of all of them where not `kept_only`."""
    if has_kernels(part.device.type, part.dtype, dtype):
        from steadytune.kernels.mixout_triton import expand_triton

        return expand_triton(part, place, factor, kept_only, dtype)
    return expand_torch(part, place, factor, kept_only, dtype)


def mix_torch(
    weight: Tensor, target: Tensor, place: Tensor, bias: Tensor | None, p: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """`mix` in plain torch, in float32 at least."""
    precise = torch.promote_types(weight.dtype, torch.float32)
    scale = (place >= 0).to(precise).div_(1.0 - p)
    mixed = torch.lerp(target.to(precise), weight.to(precise), scale)
    return mixed.to(dtype), None if bias is None else bias.to(dtype)


def take_torch(rows: Tensor, kept: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """`take` in plain torch."""
    low = rows.to(dtype)
    return low, None if kept is None else low.index_select(1, kept)


def expand_torch(part: Tensor, place: Tensor, factor: float, kept_only: bool, dtype: torch.dtype) -> Tensor:
    """`expand` in plain torch, in float32 at least."""
    full = part
    if kept_only:
        full = part.index_select(1, place.clamp(0, part.shape[1] - 1))
        full = full.masked_fill(place >= part.shape[1], torch.nan)
    precise = torch.promote_types(part.dtype, torch.float32)
    return torch.where(place >= 0, full.to(precise) * factor, 0.0).to(dtype)
