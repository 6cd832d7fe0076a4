"""activation.py's backward pass as a Triton kernel, bound by the bytes that it moves.

    _gelu_gradients   reads da and h, writes dh: 6 bytes per element of a low type; and a_k, whose h the programs of the
                      same rows read too, which are neighbours in the grid, so that the cache has it

A program holds a tile of rows and columns for dh, and beside it a tile of the same rows and some slots of the list for
a_k: kept columns are in ascending order, so its loads are of nearly neighbouring addresses and its stores of contiguous
ones.

With erf from the library arithmetic took longer than the bytes, and so it did with a formula that divides. Here

    1 - Φ(|h|) = exp(-h² / 2) P(min(|h|, 5))        and Φ(h) is that, or 1 less it

with P of degree 10, fitted so that the largest error of the product is least: within 1.2e-7 of Φ, two units in the last
place of a float32 near 1, rounding included. φ has the same exponential.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 4  # of a program
COLUMNS = 256  # of h, for dh
SLOTS = 128  # of the list, at most
WARPS = 2


@triton.jit
def _normal(h, bell):  # type: ignore[no-untyped-def]
    """Φ(h), with `bell` = exp(-h² / 2)"""
    x = tl.minimum(tl.abs(h), 5.0)
    upper = 3.3974502e-4 + x * (-3.5208632e-5 + x * 1.6317349e-6)
    upper = -2.4314031e-2 + x * (7.9394588e-3 + x * (-1.9746549e-3 + x * upper))
    upper = 0.24991681 + x * (-0.13251384 + x * (6.1154976e-2 + x * upper))
    upper = 0.49999994 + x * (-0.39893651 + x * upper)
    upper *= bell
    return tl.where(h >= 0, 1.0 - upper, upper)


@triton.jit
def _bell(h):  # type: ignore[no-untyped-def]
    return tl.exp2(h * h * -0.7213475204444817)  # log2(e) / 2


@triton.jit
def _gelu_gradients(  # type: ignore[no-untyped-def]
    grad, h, slots, made, kept, rows, columns, capacity, side_by_side,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // side_by_side) * ROWS + tl.arange(0, ROWS)
    across = tl.program_id(0) % side_by_side
    there, long_row = (row < rows)[:, None], row.to(tl.int64)[:, None]
    column = (across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    at, inside = long_row * columns + column, there & (column < columns)
    value = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    bell = _bell(value)
    g *= _normal(value, bell) + value * bell * 0.3989422804014327
    tl.store(made + at, g.to(made.dtype.element_ty), mask=inside)
    if across * SLOTS < capacity:
        slot = across * SLOTS + tl.arange(0, SLOTS)
        taken = tl.load(slots + slot, mask=slot < capacity, other=-1)[None, :]
        found = tl.load(h + long_row * columns + taken, mask=there & (taken >= 0), other=0.0).to(tl.float32)
        found *= _normal(found, _bell(found))
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
    slots_each = triton.next_power_of_2(triton.cdiv(capacity, side_by_side))
    with torch.cuda.device_of(h):
        _gelu_gradients[(triton.cdiv(count, ROWS) * side_by_side,)](
            grad,
            h,
            slots,
            made,
            kept,
            count,
            columns,
            capacity,
            side_by_side,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            SLOTS=slots_each,
            num_warps=WARPS,
        )
    return made, kept
