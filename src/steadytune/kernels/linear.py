"""A plain linear layer under autocast, with fewer and shorter kernels than torch's own.

    Y  = X' W'ᵀ + b'     ' is the cast to autocast's type: W' and b' of all layers in one launch per step (`CastTable`)
    dX = dY W'           written in X's type by the product
    dW = dYᵀ X'          written in float32 by the product
    db = Σ_rows dY       `column_sum`, in float32

Layers that read the same X, as query, key and value do, are one layer here: their W' lie one behind the other, so each
of the three products is one instead of three, and dX needs no sum.

The function is that of `functional.linear` under autocast. Autocast rounds dW, db and dX to the low type and then casts
them to float32; here they are float32 from the start, so they are nearer to the exact ones, and the pass that casts is
saved. What stays in memory until the backward pass is what autocast keeps: X' and W'. But W' is not made anew in each
step: it lies in one block for all layers, and is written over at the beginning of the next step. A backward pass that
comes after that is refused by autograd.

    table    [T, 4] int64    of T parameters: address, address of the cast, number of elements, first block
    owners   [B] int32       which parameter each block of BLOCK elements belongs to
    partial  [S, out]        sums of S parts of the rows of dY, in float32, which a second launch adds up

In plain torch here, which is also the reference; linear_triton.py has a kernel for the casts and one for the sums.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from steadytune.kernels.handed_on import Handed
from steadytune.kernels.products import product

DEVICES = {"cuda"}  # where layers may run so
BLOCK = 4096  # elements that a program of the cast kernel holds
LOW_TYPES = (torch.bfloat16, torch.float16)
_ALIGNMENT = 128  # elements: a cast begins at a multiple of 256 bytes, as in memory of its own
_STEP = 8  # elements: and at a multiple of 16 bytes behind another, which is what kernels count on
_HAS_TRITON = find_spec("triton") is not None


def is_served(device: str) -> bool:
    """Whether layers there may run this way. A CPU is for tests, in plain torch or through Triton's interpreter."""
    return device in DEVICES and (_HAS_TRITON or device != "cuda")


@dataclass(frozen=True, eq=False)
class CastTable:
    """Float32 tensors of one device, and room for all of them in a low type. Nothing here moves afterwards."""

    sources: tuple[Tensor, ...]
    lows: tuple[Tensor, ...]  # views of `memory`
    memory: Tensor
    table: Tensor
    owners: Tensor
    aligned: bool  # every source begins at a multiple of 16 bytes

    @classmethod
    def of(cls, sources: Sequence[Tensor], dtype: torch.dtype, following: Collection[int] = ()) -> CastTable:
        """A table for contiguous tensors that have elements. Waits for the device, so it is not for a capture.

        The cast of a source whose number is in `following` lies right behind the one before (`joined`), whose number of
        elements must be a multiple of 8.
        """
        device, sizes = sources[0].device, torch.tensor([source.numel() for source in sources])
        room = -(-sizes // _ALIGNMENT) * _ALIGNMENT
        before = [number - 1 for number in following]
        assert not (sizes[before] % _STEP).any()
        room[before] = sizes[before]
        starts = (room.cumsum(0) - room).tolist()
        memory = torch.zeros(int(room.sum()), dtype=dtype, device=device)
        lows = tuple(memory[start : start + each.numel()].view(each.shape) for start, each in zip(starts, sources))
        addresses = [each.data_ptr() for each in sources]
        blocks = -(-sizes // BLOCK)
        columns = [addresses, [low.data_ptr() for low in lows], sizes.tolist(), (blocks.cumsum(0) - blocks).tolist()]
        return cls(
            sources=tuple(source.detach() for source in sources),
            lows=lows,
            memory=memory,
            table=torch.tensor(columns, dtype=torch.int64).t().contiguous().to(device),
            owners=torch.arange(len(sources), dtype=torch.int32).repeat_interleave(blocks).to(device),
            aligned=not any(address % 16 for address in addresses),
        )

    def joined(self, first: int, count: int) -> Tensor:
        """The casts of `count` sources that lie one behind the other, as if they were one."""
        parts = self.lows[first : first + count]
        start, length = parts[0].storage_offset(), sum(part.numel() for part in parts)
        assert parts[-1].storage_offset() + parts[-1].numel() == start + length, "casts with gaps between them"
        return self.memory[start : start + length].view(-1, *parts[0].shape[1:])

    @torch.no_grad()
    def cast_(self) -> None:
        """Write every source's cast over its last one."""
        if _has_kernels(self.memory.device.type):
            from steadytune.kernels.linear_triton import cast_triton_

            cast_triton_(self)
        else:
            torch._foreach_copy_(list(self.lows), list(self.sources))
        # A kernel's writes do not count as changes: tell a backward pass that would still need the casts of before.
        torch.autograd.graph.increment_version(self.memory)


class _QuickLinears(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # x, weights and biases for their gradients alone; the product reads their casts
        low_x: Tensor,
        low_weight: Tensor,
        low_bias: Tensor | None,
        count: int,
        *parameters: Tensor | None,  # `count` weights, then their biases
    ) -> Tensor | tuple[Tensor, ...]:
        asks_x, asks_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[5 : 5 + count])
        ctx.save_for_backward(low_x if asks_weights else None, low_weight if asks_x else None)
        weights = [weight for weight in parameters[:count] if weight is not None]
        ctx.x_shape, ctx.x_dtype, ctx.w_dtype = x.shape, x.dtype, weights[0].dtype
        ctx.widths = [len(weight) for weight in weights]
        y = functional.linear(low_x, low_weight, low_bias)
        # Not as views: autograd would refuse nn.ReLU(inplace=True) behind the layer. Nobody else reads y.
        made = [torch.ops.aten._unsafe_view(part, [*x.shape[:-1], part.shape[1]]) for part in y.split(ctx.widths, 1)]
        return made[0] if count == 1 else tuple(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        low_x, low_weight = ctx.saved_tensors
        parts = [grad.reshape(-1, grad.shape[-1]) for grad in grads]
        rows = parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, 1)
        count = len(parts)
        asks_weights, asks_biases = ctx.needs_input_grad[5 : 5 + count], ctx.needs_input_grad[5 + count :]
        grad_x = product(rows, low_weight, ctx.x_dtype).view(ctx.x_shape) if ctx.needs_input_grad[0] else None
        grad_weight = product(rows.t(), low_x, ctx.w_dtype) if any(asks_weights) else None
        grad_bias = column_sum(rows) if any(asks_biases) else None

        def own(whole: Tensor | None, asked: tuple[bool, ...]) -> list[Tensor | None]:
            if whole is None:
                return [None] * count
            return [part if asks else None for part, asks in zip(whole.split(ctx.widths), asked, strict=True)]

        return grad_x, None, None, None, None, *own(grad_weight, asks_weights), *own(grad_bias, asks_biases)


def quick_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    low_weight: Tensor,
    low_bias: Tensor | None,
    given: Handed | None = None,
) -> Tensor:
    """x @ weight.T + bias in the type of `low_weight`, which with `low_bias` is the cast of weight and bias.

    `given` is x as the layer before has left it in that type, if it has. A second derivative is refused.
    """
    return quick_linears(x, [weight], [bias], low_weight, low_bias, given)[0]


def quick_linears(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    low_weight: Tensor,
    low_bias: Tensor | None,
    given: Handed | None = None,
) -> tuple[Tensor, ...]:
    """`quick_linear` of several layers; `low_weight` and `low_bias` are the casts of all, one behind the other."""
    rows = _rows(x, low_weight.dtype, given)
    x = x if given is None or given.door is None else given.door
    made = _QuickLinears.apply(x, rows, low_weight, low_bias, len(weights), *weights, *biases)
    return made if len(weights) > 1 else (made,)


@torch.no_grad()
def _rows(x: Tensor, dtype: torch.dtype, given: Handed | None) -> Tensor:
    """x in `dtype`, as rows."""
    return (x if given is None else given.rows).detach().reshape(-1, x.shape[-1]).to(dtype)


def column_sum(rows: Tensor) -> Tensor:
    """Σ over the rows of a contiguous matrix, in float32 at least; the same bits every time."""
    if _has_kernels(rows.device.type) and rows.dtype in LOW_TYPES and rows.numel():
        from steadytune.kernels.linear_triton import column_sum_triton

        return column_sum_triton(rows)
    return rows.sum(0, dtype=torch.promote_types(rows.dtype, torch.float32))


def _has_kernels(device: str) -> bool:
    return device in DEVICES and _HAS_TRITON
