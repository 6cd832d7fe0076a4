"""activation.py's backward pass as a Triton kernel, bound by the bytes that it moves.

    _gelu_gradients   reads da and h, writes dh: 6 bytes per element of a low type; and a_k, whose h other programs of
                      the same rows read at about the same time, so that the cache has it

A program holds a tile of rows and columns for dh, and beside it a tile of the same rows and some slots of the list for
a_k: kept columns are in ascending order, so its loads are of nearly neighbouring addresses and its stores of contiguous
ones.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 8  # of a program
COLUMNS = 256  # of h, for dh
SLOTS = 128  # of the list
WARPS = 4


@triton.jit
def _normal(h):  # type: ignore[no-untyped-def]
    """Φ(h)"""
    return 0.5 * (1.0 + tl.erf(h * 0.7071067811865476))


@triton.jit
def _gelu_gradients(  # type: ignore[no-untyped-def]
    grad, h, slots, made, kept, rows, columns, capacity,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there, long_row = (row < rows)[:, None], row.to(tl.int64)[:, None]
    slot = tl.program_id(1) * SLOTS + tl.arange(0, SLOTS)
    taken = tl.load(slots + slot, mask=slot < capacity, other=-1)[None, :]
    found = tl.load(h + long_row * columns + taken, mask=there & (taken >= 0), other=0.0).to(tl.float32)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    at, inside = long_row * columns + column, there & (column < columns)
    value = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    density = tl.exp(-0.5 * value * value) * 0.3989422804014327
    g *= _normal(value) + value * density
    tl.store(made + at, g.to(made.dtype.element_ty), mask=inside)
    found *= _normal(found)
    found = tl.where(taken >= 0, found, tl.where(slot == capacity - 1, 1.0, 0.0)[None, :])
    to = kept + long_row * capacity + slot[None, :]
    tl.store(to, found.to(kept.dtype.element_ty), mask=there & (slot < capacity)[None, :])


def gelu_gradients_triton(grad: Tensor, h: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """`activation.gelu_gradients` of contiguous tensors that have elements, for one list."""
    columns, capacity = h.shape[-1], len(slots)
    count = h.numel() // columns
    made = torch.empty_like(h)
    kept = torch.empty(count, capacity, dtype=h.dtype, device=h.device)
    side_by_side = max(triton.cdiv(columns, COLUMNS), triton.cdiv(capacity, SLOTS))
    with torch.cuda.device_of(h):
        _gelu_gradients[(triton.cdiv(count, ROWS), side_by_side)](
            grad,
            h,
            slots,
            made,
            kept,
            count,
            columns,
            capacity,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            SLOTS=SLOTS,
            num_warps=WARPS,
        )
    return made, kept
