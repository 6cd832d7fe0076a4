"""A linear layer with mixed columns on a device whose host must not wait: fixed shapes, no `nonzero`.

    W'      = U + (M/μ)(W - U), in the type of the product          mix     one pass that is also autocast's cast
    X_k     = the kept columns of X, then ones, [rows, capacity]    take    one pass that is also autocast's cast
    Y       = X W'ᵀ + b
    dX      = dY W', written in X's type
    G       = dYᵀ X_k, in float32
    dW      = c G at the kept columns, 0 elsewhere                  expand  one pass that is also the cast to W's type
    db      = the last column of G, in which X_k is 1               expand  no pass over dY of its own

with the masks of mixout_masks.py, and c as in mixout.py. What stays in memory until the backward pass: X_k instead of
X; and W' or nothing in its place (`remakes`). A plain layer under autocast keeps X and the cast of W, so what mixout
adds is U alone. Bytes of a block of BERT-large until its backward pass, per position and unit of width, by counting:
44 for dropout, 31 at p = 0.7, 27 at p = 0.9; and 25 MB of W' or of cast weights. Layers that read the same X share its
cast (mixout_inputs.py).

Without `kept_only` dW is computed whole and masked, which is right for every mask. With it, the mask must be known to
fit the capacity (`mixout_masks.overflows`); one that does not gives NaN, never a truncated gradient.

The three passes are here in plain torch, as reference and fallback; mixout_triton.py has a kernel for each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from steadytune.kernels.mixout_inputs import Reader
from steadytune.kernels.mixout_masks import Columns, has_kernels

REMAKE_ROWS = 8192  # from so many rows on, W' is made again in the backward pass
SPLIT_TILES = 0  # weight gradients are split over tokens into up to so many tiles (132 on an H200); 0: cuBLAS decides
SPLIT_TOKENS = 512  # and no part gets fewer tokens


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
        ctx: Any,
        x: Tensor,  # for its gradient alone; the product reads `low`
        low: Tensor,
        inputs: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        columns: Columns,
        form: Form,
    ) -> Tensor:
        mixed, low_bias = mix(weight, target, columns.place, bias, form.p, form.dtype)
        if remakes(len(low), weight):
            ctx.save_for_backward(*columns, inputs, None, weight, target)
        else:
            ctx.save_for_backward(*columns, inputs, mixed, None, None)
        ctx.form, ctx.x_shape, ctx.x_dtype, ctx.w_dtype = form, x.shape, x.dtype, weight.dtype
        ctx.b_dtype = bias.dtype if bias is not None else None
        return functional.linear(low, mixed, low_bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        place, kept, inputs, mixed, weight, target = ctx.saved_tensors
        form: Form = ctx.form
        rows = grad.reshape(-1, grad.shape[-1])
        grad_x = grad_weight = grad_bias = None
        asks_x, _, _, asks_weight, asks_bias, *_ = ctx.needs_input_grad
        if asks_x:
            if mixed is None:
                mixed, _ = mix(weight, target, place, None, form.p, form.dtype)
            grad_x = product(rows, mixed, ctx.x_dtype).view(ctx.x_shape)
        if asks_weight:
            part = weight_product(rows, inputs)
            b_dtype = ctx.b_dtype if asks_bias and form.kept_only else None
            columns = Columns(place, kept)
            grad_weight, grad_bias = expand(part, columns, form.grad_scale, form.kept_only, ctx.w_dtype, b_dtype)
        if asks_bias and grad_bias is None:
            grad_bias = rows.sum(0, dtype=ctx.b_dtype)
        return grad_x, None, None, grad_weight, grad_bias, None, None, None


def column_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    columns: Columns,
    p: float,
    grad_scale: float,
    kept_only: bool = False,
    reader: Reader | None = None,
) -> Tensor:
    """x @ W'.T + bias for the mask `columns`, in autocast's type where autocast is on.

    Layers that read the same x are told so by their `reader`.
    """
    device, dtype = x.device.type, x.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    trains = torch.is_grad_enabled() and weight.requires_grad
    form = Form(p, grad_scale, kept_only, dtype, trains)
    with torch.no_grad():
        low, inputs = _inputs(x, columns, form, reader if x.dtype != dtype else None)
    return _ColumnLinear.apply(x, low, inputs, weight, bias, target, columns, form)


def _inputs(x: Tensor, columns: Columns, form: Form, reader: Reader | None) -> tuple[Tensor, Tensor | None]:
    """The rows of x for the product, and what of them the weight gradient will need."""
    found = reader.find(x, form.dtype) if reader is not None else None
    rows = x.detach().reshape(-1, x.shape[-1]) if found is None else found
    low, taken = take(rows, columns.kept if form.trains and form.kept_only else None, form.dtype)
    if reader is not None:
        reader.leave_(x, low)
    return low, (taken if form.kept_only else low) if form.trains else None


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b in `dtype`; a CUDA device writes float32 from low types at once, without a pass that casts."""
    if _writes_float32(a) and dtype == torch.float32:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


def weight_product(rows: Tensor, inputs: Tensor) -> Tensor:
    """dYᵀ X: [out, columns], or parts [splits, out, columns] that are still to be summed."""
    count = splits(len(rows), rows.shape[1], inputs.shape[1])
    if count == 1:
        return product(rows.t(), inputs, torch.float32 if _writes_float32(rows) else rows.dtype)
    left = rows.reshape(count, -1, rows.shape[1]).transpose(1, 2)
    right = inputs.view(count, -1, inputs.shape[1])
    return torch.bmm(left, right, out_dtype=torch.float32) if _writes_float32(rows) else torch.bmm(left, right)


def splits(tokens: int, out: int, columns: int) -> int:
    """Into how many parts the tokens of a weight gradient are cut, so that a small one keeps the whole device busy."""
    tiles, count = -(-out // 128) * -(-columns // 128), 1
    while 2 * count * tiles <= SPLIT_TILES and tokens % (2 * count) == 0 and tokens // (2 * count) >= SPLIT_TOKENS:
        count *= 2
    return count


def _writes_float32(rows: Tensor) -> bool:
    return rows.is_cuda and rows.dtype in (torch.bfloat16, torch.float16) and rows.numel() > 0


def mix(
    weight: Tensor, target: Tensor, place: Tensor, bias: Tensor | None, p: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """W' and the bias in `dtype`."""
    if has_kernels(weight.device.type, weight.dtype, dtype):
        from steadytune.kernels.mixout_triton import mix_triton

        return mix_triton(weight, target, place, bias, p, dtype)
    return mix_torch(weight, target, place, bias, p, dtype)


def take(rows: Tensor, kept: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """X in `dtype`; and its columns `kept`, where they are asked for, with 1 where that is -1."""
    if kept is not None and has_kernels(rows.device.type, rows.dtype, dtype):
        from steadytune.kernels.mixout_triton import take_triton

        return take_triton(rows, kept, dtype)
    return take_torch(rows, kept, dtype)


def expand(
    part: Tensor,
    columns: Columns,
    factor: float,
    kept_only: bool,
    dtype: torch.dtype,
    bias_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """dW in `dtype` from the gradient of the kept columns, or of all of them where not `kept_only`; and the bias's from
    the last of the kept, where its type is given."""
    if has_kernels(part.device.type, part.dtype, dtype):
        from steadytune.kernels.mixout_triton import expand_triton

        return expand_triton(part, columns, factor, kept_only, dtype, bias_dtype)
    return expand_torch(part, columns, factor, kept_only, dtype, bias_dtype)


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
    return low, None if kept is None else low.index_select(1, kept.clamp(min=0)).masked_fill_(kept < 0, 1.0)


def expand_torch(
    part: Tensor,
    columns: Columns,
    factor: float,
    kept_only: bool,
    dtype: torch.dtype,
    bias_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`expand` in plain torch, in float32 at least."""
    place, kept = columns
    full = part.to(torch.promote_types(part.dtype, torch.float32))
    full = full.sum(0) if full.dim() == 3 else full
    bias = None
    if bias_dtype is not None:  # a list without a free last entry has no column of ones
        bias = full[:, -1].masked_fill(kept[-1] >= 0, torch.nan).to(bias_dtype)
    if kept_only:
        width = full.shape[1]
        full = full.index_select(1, place.clamp(0, width - 1)).masked_fill_(place >= width, torch.nan)
    return torch.where(place >= 0, full * factor, 0.0).to(dtype), bias
