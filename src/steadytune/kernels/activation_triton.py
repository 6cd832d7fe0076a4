"""activation.py's backward pass as a Triton kernel, bound by the bytes that it moves.

    _gelu_gradients   reads da and h, writes dh: 6 bytes per element of a low type; and a_k, whose h the programs of the
                      same rows read too, which are neighbours in the grid, so that the cache has it

A program holds a tile of rows and columns for dh, and beside it a tile of the same rows and some slots of the list for
a_k: kept columns are in ascending order, so its loads are of nearly neighbouring addresses and its stores of contiguous
ones.

With erf from the library arithmetic took longer than the bytes. Here, for h >= 0, with t = 1 / (1 + 0.3275911 h / √2),

    1 - Φ(h) = exp(-h² / 2) (a₁ t + a₂ t² + a₃ t³ + a₄ t⁴ + a₅ t⁵) / 2        and Φ(-h) = 1 - Φ(h)

(Abramowitz & Stegun, Handbook of Mathematical Functions, 7.1.26): within 7.5e-8 of Φ, about float32's own rounding of a
number near 1, and φ has the same exponential.
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
def _normal(h, bell):  # type: ignore[no-untyped-def]
    """Φ(h), with `bell` = exp(-h² / 2)"""
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(h))
    upper = 0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
    upper = upper * t * bell
    return tl.where(h >= 0, 1.0 - upper, upper)


@triton.jit
def _gelu_gradients(  # type: ignore[no-untyped-def]
    grad, h, slots, made, kept, rows, columns, capacity, side_by_side,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // side_by_side) * ROWS + tl.arange(0, ROWS)
    across = tl.program_id(0) % side_by_side
    there, long_row = (row < rows)[:, None], row.to(tl.int64)[:, None]
    slot = across * SLOTS + tl.arange(0, SLOTS)
    taken = tl.load(slots + slot, mask=slot < capacity, other=-1)[None, :]
    found = tl.load(h + long_row * columns + taken, mask=there & (taken >= 0), other=0.0).to(tl.float32)
    column = (across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    at, inside = long_row * columns + column, there & (column < columns)
    value = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    bell = tl.exp(-0.5 * value * value)
    g *= _normal(value, bell) + value * bell * 0.3989422804014327
    tl.store(made + at, g.to(made.dtype.element_ty), mask=inside)
    found *= _normal(found, tl.exp(-0.5 * found * found))
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
            SLOTS=SLOTS,
            num_warps=WARPS,
        )
    return made, kept
