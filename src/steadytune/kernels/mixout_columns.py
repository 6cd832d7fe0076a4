"""A linear layer with mixed columns on a device whose host must not wait: fixed shapes, no `nonzero`.

    W'      = U + (M/μ)(W - U), in the type of the product          mix     one pass that is also autocast's cast
    X_k     = the kept columns of X, [rows, capacity]               take    one pass that is also autocast's cast
              0 in slots without a column, and 1 in the last
    Y       = X W'ᵀ + b
    dX      = dY W', written in X's type
    G       = dYᵀ X_k, in float32
    dW      = c G at the kept columns, 0 elsewhere                  expand  one pass that is also the cast to W's type
    db      = the last column of G, in which X_k is 1               expand  no pass over dY of its own

with the masks of mixout_masks.py, and c as in mixout.py. What stays in memory until the backward pass: X_k instead of
X; and W' or nothing in its place (`remakes`). A plain layer under autocast keeps X and the cast of W, so what mixout
adds is U alone. Bytes of a block of BERT-large until its backward pass, per position and unit of width, by counting:
44 for dropout, 31 at p = 0.7, 27 at p = 0.9; and 25 MB of W' or of cast weights.

Layers that read the same X, as query, key and value do, are one layer here: their W' lie one below the other, so Y and
dX are one product each, and X is cast once. Their masks differ, so each has its own X_k and G.

Where a layer has a place for it (`kept`: kept_gradients.py), G stays there, and neither dW nor db is made.

Without `kept_only` dW is computed whole and masked, which is right for every mask. With it, the mask must be known to
fit the capacity (`mixout_masks.overflows`); one that does not gives NaN, never a truncated gradient.

The three passes are here in plain torch, as reference and fallback; mixout_triton.py has a kernel for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from steadytune.kernels.handed_on import Handed
from steadytune.kernels.kept_gradients import KeptGradient
from steadytune.kernels.kept_inputs import Source, Wanted, columns_of
from steadytune.kernels.mixout_masks import Columns, has_kernels, spread
from steadytune.kernels.products import joined, product, weight_product, weight_product_, weight_products_

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


class Layer(NamedTuple):
    """One of the layers that read X, in this call."""

    weight: Tensor
    bias: Tensor | None
    target: Tensor
    columns: Columns
    kept: KeptGradient | None = None  # where the gradient of kept columns is to stay


class _ColumnLinears(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # x, weights and biases for their gradients alone; the product reads `low` and the mixed weights
        low: Tensor,
        inputs: list[Tensor | None],
        layers: list[Layer],
        made: tuple[Tensor, Tensor | None] | None,
        form: Form,
        source: Source | None,  # makes `inputs` again, which are None then
        *parameters: Tensor | None,  # weights, then biases
    ) -> Tensor | tuple[Tensor, ...]:
        mixed, low_bias = _mix_all(layers, form) if made is None else made
        remade = made is None and remakes(len(low), layers[0].weight)
        ctx.save_for_backward(
            None if remade else mixed,
            *inputs,
            *(each for layer in layers for each in layer.columns),
            *(each for layer in layers for each in ((layer.weight, layer.target) if remade else (None, None))),
        )
        ctx.source = source
        ctx.form, ctx.x_shape, ctx.x_dtype, ctx.w_dtype = form, x.shape, x.dtype, layers[0].weight.dtype
        ctx.b_dtype = layers[0].bias.dtype if layers[0].bias is not None else None
        ctx.widths = [len(layer.weight) for layer in layers]
        ctx.kept = [layer.kept if form.kept_only else None for layer in layers]
        y = functional.linear(low, mixed, low_bias)
        # Not as views: autograd would refuse nn.ReLU(inplace=True) behind the layer. Nobody else reads y.
        outputs = [torch.ops.aten._unsafe_view(part, [*x.shape[:-1], part.shape[1]]) for part in y.split(ctx.widths, 1)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        form, widths, count = ctx.form, ctx.widths, len(ctx.widths)
        mixed, *saved = ctx.saved_tensors  # once: gradient checkpointing gives them out once
        inputs, masks, sources = (saved[a:b] for a, b in pairwise((0, count, 3 * count, 5 * count)))
        columns = [Columns(*masks[2 * n : 2 * n + 2]) for n in range(count)]
        parts = [grad.reshape(-1, grad.shape[-1]) for grad in grads]
        rows = parts[0] if count == 1 else torch.cat(parts, 1)
        grad_x = None
        if ctx.needs_input_grad[0]:
            if mixed is None:
                layers = [Layer(sources[2 * n], None, sources[2 * n + 1], columns[n]) for n in range(count)]
                mixed, _ = _mix_all(layers, form)
            grad_x = product(rows, mixed, ctx.x_dtype).view(ctx.x_shape)
        asked = ctx.needs_input_grad[7:]
        grad_weights: list[Tensor | None] = [None] * count
        grad_biases: list[Tensor | None] = [None] * count
        wanted = []
        if ctx.source is None and all(kept is not None and asks for kept, asks in zip(ctx.kept, asked[:count])):
            weight_products_(ctx.kept, rows, inputs)
            return grad_x, None, None, None, None, None, None, *grad_weights, *grad_biases
        for n, own in enumerate(rows.split(widths, 1)):
            kept = ctx.kept[n]
            if asked[n] and kept is not None:
                if ctx.source is None:
                    weight_product_(kept, own, inputs[n])
                else:
                    wanted.append(Wanted(kept, own))
                continue
            if asked[n]:
                b_dtype = ctx.b_dtype if asked[count + n] and form.kept_only else None
                part = weight_product(own, inputs[n])
                made = expand(part, columns[n], form.grad_scale, form.kept_only, ctx.w_dtype, b_dtype)
                grad_weights[n], grad_biases[n] = made
            if asked[count + n] and grad_biases[n] is None:
                grad_biases[n] = own.sum(0, dtype=ctx.b_dtype)
        if wanted:
            ctx.source.want_(wanted)
        return grad_x, None, None, None, None, None, None, *grad_weights, *grad_biases


def column_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    columns: Columns,
    p: float,
    grad_scale: float,
    kept_only: bool = False,
    given: Handed | None = None,
    made: tuple[Tensor, Tensor | None] | None = None,
) -> Tensor:
    """x @ W'.T + bias for the mask `columns`, in autocast's type where autocast is on.

    `given` is x as the layer before has left it, in that type, and `made` W' and the bias, where they are there.
    """
    return column_linears(x, [Layer(weight, bias, target, columns)], p, grad_scale, kept_only, given, made)[0]


def column_linears(
    x: Tensor,
    layers: Sequence[Layer],
    p: float,
    grad_scale: float,
    kept_only: bool = False,
    given: Handed | None = None,
    made: tuple[Tensor, Tensor | None] | None = None,
) -> tuple[Tensor, ...]:
    """`column_linear` of several layers that read the same x. Either all of them have a bias or none has."""
    dtype = product_type(x)
    form = Form(p, grad_scale, kept_only, dtype)
    low = x.detach().reshape(-1, x.shape[-1]) if given is None else given.rows
    x = x if given is None or given.door is None else given.door
    trains: list[bool] = []
    grad_enabled = torch.is_grad_enabled()
    # x needs a gradient, or its source will have no backward pass.
    again = given is not None and given.source is not None and grad_enabled and x.requires_grad and kept_only
    again = again and all(layer.kept is not None and layer.weight.requires_grad for layer in layers)
    source = given.source if given is not None and again else None
    with torch.no_grad():
        for layer in layers:
            trains.append(grad_enabled and layer.weight.requires_grad and not again)
        low, taken = take(low, [layer.columns.kept for layer, own in zip(layers, trains) if own and kept_only], dtype)
        found = iter(taken)
        inputs = [(next(found) if kept_only else low) if own else None for own in trains]
    parameters = [*(layer.weight for layer in layers), *(layer.bias for layer in layers)]
    outputs = _ColumnLinears.apply(x, low, inputs, list(layers), made, form, source, *parameters)
    return outputs if len(layers) > 1 else (outputs,)


def product_type(x: Tensor) -> torch.dtype:
    """What a linear layer multiplies in."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _mix_all(layers: Sequence[Layer], form: Form) -> tuple[Tensor, Tensor | None]:
    """The mixed weights of all layers, one below the other, and their biases, in the type of the product."""
    heights = [len(layer.weight) for layer in layers]
    first = layers[0]
    mixed = torch.empty(sum(heights), first.weight.shape[1], dtype=form.dtype, device=first.weight.device)
    low_bias = None if first.bias is None else torch.empty(len(mixed), dtype=form.dtype, device=mixed.device)
    biases = [None] * len(layers) if low_bias is None else low_bias.split(heights)
    for layer, own, own_bias in zip(layers, mixed.split(heights), biases, strict=True):
        mix_(own, own_bias, layer.weight, layer.target, layer.columns.place, layer.bias, form.p)
    return mixed, low_bias


def mix_(
    mixed: Tensor,
    low_bias: Tensor | None,
    weight: Tensor,
    target: Tensor,
    place: Tensor,
    bias: Tensor | None,
    p: float,
) -> None:
    """Write W' into `mixed`, and the bias, where there is one, into `low_bias`."""
    if has_kernels(weight.device.type, weight.dtype, mixed.dtype):
        from steadytune.kernels.mixout_triton import mix_triton_

        mix_triton_(mixed, low_bias, weight, target, place, bias, p)
    else:
        mix_torch_(mixed, low_bias, weight, target, place, bias, p)


def take(rows: Tensor, lists: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """X in `dtype`; and its columns in each list: 0 where that has -1, but 1 in the last slot."""
    if not lists or not has_kernels(rows.device.type, rows.dtype, dtype):
        return take_torch(rows, lists, dtype)
    from steadytune.kernels.mixout_triton import take_triton

    together = joined(lists)
    taken: list[Tensor] = []
    for each in [together] if together is not None else [one[None] for one in lists]:
        rows, some = take_triton(rows, each, dtype)
        taken += some.unbind()
    return rows, taken


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


def mix_torch_(
    mixed: Tensor,
    low_bias: Tensor | None,
    weight: Tensor,
    target: Tensor,
    place: Tensor,
    bias: Tensor | None,
    p: float,
) -> None:
    """`mix_` in plain torch, in float32 at least."""
    precise = torch.promote_types(weight.dtype, torch.float32)
    scale = (place >= 0).to(precise).div_(1.0 - p)
    mixed.copy_(torch.lerp(target.to(precise), weight.to(precise), scale))
    if low_bias is not None and bias is not None:
        low_bias.copy_(bias)


def take_torch(rows: Tensor, lists: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """`take` in plain torch."""
    low = rows.to(dtype)
    return low, [columns_of(low, each) for each in lists]


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
        full = spread(full, place)
    return torch.where(place >= 0, full * factor, 0.0).to(dtype), bias
