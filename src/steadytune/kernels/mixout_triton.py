"""The three passes of mixout_columns.py as Triton kernels. Each is bound by the bytes that it moves.

    mix      reads W and U, writes W' and the bias in the type of the product: what autocast's cast does, and U's read
    take     reads X once, writes it in the type of the product (where that is another) and its kept columns
    expand   reads the gradient of the kept columns, writes dW whole, in W's type: no zeroing, no atomics

Kept columns are in ascending order. So the scattered side of `take` and `expand` is a load of nearly neighbouring
addresses, which the cache serves, and every store is contiguous.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # elements of a program in `mix` and `expand`
WIDEST = 512  # columns of such a tile
TAKE_ROWS, TAKE_COLUMNS = 8, 256  # of the tiles that `take` moves one after the other


@triton.jit
def _mix(  # type: ignore[no-untyped-def]
    weight, target, place, mixed, bias, low_bias, rows, columns, push,
    HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    keep = tl.load(place + column, mask=column < columns, other=-1) >= 0
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(target + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(keep[None, :], w + push * (w - u), u)
    tl.store(mixed + at, value.to(mixed.dtype.element_ty), mask=inside)
    if HAS_BIAS:  # noqa: SIM102 (known when the kernel is compiled)
        if tl.program_id(1) == 0:
            b = tl.load(bias + row, mask=row < rows, other=0.0)
            tl.store(low_bias + row, b.to(low_bias.dtype.element_ty), mask=row < rows)


@triton.jit
def _take(  # type: ignore[no-untyped-def]
    x, kept, low, taken, rows,
    WIDTH: tl.constexpr, CAPACITY: tl.constexpr, CAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here, long_row = (row < rows)[:, None], row.to(tl.int64)[:, None]
    lanes = tl.arange(0, COLUMNS)
    if CAST:
        for start in range(0, WIDTH, COLUMNS):
            column = (start + lanes)[None, :]
            value = tl.load(x + long_row * WIDTH + column, mask=here & (column < WIDTH), other=0.0)
            tl.store(low + long_row * WIDTH + column, value.to(low.dtype.element_ty), mask=here & (column < WIDTH))
    for start in range(0, CAPACITY, COLUMNS):
        slot = start + lanes
        column = tl.load(kept + slot, mask=slot < CAPACITY, other=0)[None, :]
        inside = here & (slot < CAPACITY)[None, :]
        value = tl.load(x + long_row * WIDTH + column, mask=inside, other=0.0)
        tl.store(taken + long_row * CAPACITY + slot[None, :], value.to(taken.dtype.element_ty), mask=inside)


@triton.jit
def _expand(  # type: ignore[no-untyped-def]
    part, place, grad, rows, columns, width, factor,
    KEPT_ONLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    position = tl.load(place + column, mask=column < columns, other=-1)
    inside, long_row = (row < rows)[:, None], row.to(tl.int64)[:, None]
    if KEPT_ONLY:
        found = inside & ((position >= 0) & (position < width))[None, :]
        value = tl.load(part + long_row * width + position[None, :], mask=found, other=0.0).to(tl.float32) * factor
        value = tl.where((position < width)[None, :], value, float("nan"))  # a mask that does not fit
    else:
        found = inside & (position >= 0)[None, :]
        value = tl.load(part + long_row * width + column[None, :], mask=found, other=0.0).to(tl.float32) * factor
    to = grad + long_row * columns + column[None, :]
    tl.store(to, value.to(grad.dtype.element_ty), mask=inside & (column < columns)[None, :])


def mix_triton(
    weight: Tensor, target: Tensor, place: Tensor, bias: Tensor | None, p: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """`mixout_columns.mix` for float32, bfloat16 and float16."""
    rows, columns = weight.shape
    mixed = torch.empty(rows, columns, dtype=dtype, device=weight.device)
    casts = bias is not None and bias.dtype != dtype
    low_bias = torch.empty(rows, dtype=dtype, device=weight.device) if casts else bias
    if mixed.numel():
        grid, tile = _tiles(rows, columns)
        with torch.cuda.device_of(weight):
            _mix[grid](
                weight.contiguous(),
                target.contiguous(),
                place,
                mixed,
                bias if casts else mixed,  # addresses are needed, and then not used
                low_bias if casts else mixed,
                rows,
                columns,
                p / (1.0 - p),
                HAS_BIAS=casts,
                **tile,
            )
    return mixed, low_bias


def take_triton(rows: Tensor, kept: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`mixout_columns.take` for float32, bfloat16 and float16."""
    rows = rows.contiguous()
    count, width = rows.shape
    casts = rows.dtype != dtype
    low = torch.empty(count, width, dtype=dtype, device=rows.device) if casts else rows
    taken = torch.empty(count, len(kept), dtype=dtype, device=rows.device)
    if count:
        with torch.cuda.device_of(rows):
            _take[(triton.cdiv(count, TAKE_ROWS),)](
                rows,
                kept,
                low,
                taken,
                count,
                WIDTH=width,
                CAPACITY=len(kept),
                CAST=casts,
                ROWS=TAKE_ROWS,
                COLUMNS=min(TAKE_COLUMNS, triton.next_power_of_2(width)),
            )
    return low, taken


def expand_triton(part: Tensor, place: Tensor, factor: float, kept_only: bool, dtype: torch.dtype) -> Tensor:
    """`mixout_columns.expand` for float32, bfloat16 and float16."""
    rows, columns = len(part), len(place)
    grad = torch.empty(rows, columns, dtype=dtype, device=part.device)
    if grad.numel():
        grid, tile = _tiles(rows, columns)
        with torch.cuda.device_of(part):
            width = part.shape[1]
            _expand[grid](part.contiguous(), place, grad, rows, columns, width, factor, KEPT_ONLY=kept_only, **tile)
    return grad


def _tiles(rows: int, columns: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid of programs, and how many rows and columns each has."""
    wide = min(WIDEST, triton.next_power_of_2(columns))
    high = min(TILE // wide, triton.next_power_of_2(rows))
    return (triton.cdiv(rows, high), triton.cdiv(columns, wide)), {"ROWS": high, "COLUMNS": wide}
