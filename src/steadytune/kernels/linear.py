"""A plain linear layer under autocast, with fewer and shorter kernels than torch's own.

    Y  = X' W'ᵀ + b'     ' is the cast to autocast's type: X' once for all layers that read X (mixout_inputs.py), W' and
                         b' of all layers in one launch per step (`CastTable`)
    dX = dY W'           written in X's type by the product
    dW = dYᵀ X'          written in float32 by the product
    db = Σ_rows dY       `column_sum`, in float32

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

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from steadytune.kernels.mixout_columns import product
from steadytune.kernels.mixout_inputs import Reader

DEVICES: set[str] = set()  # where layers may run so: "cuda" joins when it has been measured there
BLOCK = 4096  # elements that a program of the cast kernel holds
LOW_TYPES = (torch.bfloat16, torch.float16)
_ALIGNMENT = 128  # elements: every cast begins at a multiple of 256 bytes, as in memory of its own
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
    def of(cls, sources: Sequence[Tensor], dtype: torch.dtype) -> CastTable:
        """A table for contiguous tensors that have elements. Waits for the device, so it is not for a capture."""
        device, sizes = sources[0].device, torch.tensor([source.numel() for source in sources])
        room = -(-sizes // _ALIGNMENT) * _ALIGNMENT
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


class _QuickLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # x, weight and bias for their gradients alone; the product reads their casts
        weight: Tensor,
        bias: Tensor | None,
        low_x: Tensor,
        low_weight: Tensor,
        low_bias: Tensor | None,
    ) -> Tensor:
        asks_x, asks_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(low_x if asks_weight else None, low_weight if asks_x else None)
        ctx.x_shape, ctx.x_dtype, ctx.w_dtype = x.shape, x.dtype, weight.dtype
        return functional.linear(low_x, low_weight, low_bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        low_x, low_weight = ctx.saved_tensors
        asks_x, asks_weight, asks_bias, *_ = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1]).contiguous()
        grad_x = product(rows, low_weight, ctx.x_dtype).view(ctx.x_shape) if asks_x else None
        grad_weight = product(rows.t(), low_x, ctx.w_dtype) if asks_weight else None
        grad_bias = column_sum(rows) if asks_bias else None
        return grad_x, grad_weight, grad_bias, None, None, None


def quick_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    low_weight: Tensor,
    low_bias: Tensor | None,
    reader: Reader | None = None,
) -> Tensor:
    """x @ weight.T + bias in the type of `low_weight`, which with `low_bias` is the cast of weight and bias.

    Layers that read the same x are told so by their `reader`. A second derivative is refused.
    """
    dtype = low_weight.dtype
    with torch.no_grad():
        low_x = _cast_input(x, dtype, reader if x.dtype != dtype else None)
    return _QuickLinear.apply(x, weight, bias, low_x, low_weight, low_bias)


def _cast_input(x: Tensor, dtype: torch.dtype, reader: Reader | None) -> Tensor:
    """x as rows in `dtype`."""
    found = reader.find(x, dtype) if reader is not None else None
    low = found if found is not None else x.detach().reshape(-1, x.shape[-1]).to(dtype)
    if reader is not None:
        reader.leave_(x, low)
    return low


def column_sum(rows: Tensor) -> Tensor:
    """Σ over the rows of a contiguous matrix, in float32 at least; the same bits every time."""
    if _has_kernels(rows.device.type) and rows.dtype in LOW_TYPES and rows.numel():
        from steadytune.kernels.linear_triton import column_sum_triton

        return column_sum_triton(rows)
    return rows.sum(0, dtype=torch.promote_types(rows.dtype, torch.float32))


def _has_kernels(device: str) -> bool:
    return device in DEVICES and _HAS_TRITON
