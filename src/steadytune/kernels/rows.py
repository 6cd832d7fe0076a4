"""Rows of a matrix in another order, with gaps: how tokens move between a padded batch and a packed one.

    Y[m] = X[index[m]],   0 where index[m] < 0              X [N, D], index [M] int64, Y [M, D]
    dX[n] = dY[back[n]],  0 where back[n] < 0               back [N] int64

`back` undoes `index`: index[back[n]] = n. A row of X that `index` names nowhere has no gradient, and it names none
twice. So forward and backward are the same pass, which needs no sum and gives the same bits every time.

In plain torch here, which is also the reference; rows_triton.py has one kernel for it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

KERNELS = {"cuda"}  # where the kernel runs; tests add "cpu" for Triton's interpreter
_HAS_TRITON = find_spec("triton") is not None
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return move_rows(x, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return move_rows(grad, back), None, None


def take_rows(x: Tensor, index: Tensor, back: Tensor) -> Tensor:
    """The rows `index` of x, with a gradient; a second derivative is refused."""
    return _TakeRows.apply(x, index, back)


def move_rows(x: Tensor, index: Tensor) -> Tensor:
    """The rows `index` of x, [M, D]; 0 for a row whose number is negative."""
    if x.device.type in KERNELS and _HAS_TRITON and x.dtype in _TYPES and len(index) and x.numel():
        from steadytune.kernels.rows_triton import move_rows_triton

        return move_rows_triton(x if x.stride(1) == 1 else x.contiguous(), index)
    if not len(x):
        return x.new_zeros(len(index), x.shape[1])
    return x.index_select(0, index.clamp(min=0)).masked_fill_((index < 0)[:, None], 0.0)
