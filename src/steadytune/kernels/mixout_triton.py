"""The passes of mixout_columns.py and mixout_table.py as Triton kernels. Each is bound by the bytes that it moves.

    mix      reads W and U, writes W' and the bias in the type of the product: what autocast's cast does, and U's read;
             of one layer, or of all layers of a model in one launch
    take     reads X once, writes it in the type of the product (where that is another) and its kept columns, by one
             list or by several that lie one behind the other
    expand   reads the gradient of the kept columns, writes dW whole, in W's type, and db: no zeroing, no atomics

Kept columns are in ascending order. So the scattered side of `take` and `expand` is a load of nearly neighbouring
addresses, which the cache serves, and every store is contiguous.

How fast they are is a matter of many small programs, each of which has all its loads under way before it stores: a
layer of BERT-large moves 10 to 45 MB, so latency counts as much as bandwidth. In `take` a program therefore reads its
part of the list once for its rows, and then both its tile of X, to cast it, and the kept columns of those rows.
Programs of the same rows are neighbours in the grid, so X comes from memory once, however many read it. The numbers
below are those that `benchmarks/mixout_gpu.py --tune` compares.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from steadytune.kernels.mixout_masks import Columns
from steadytune.kernels.mixout_table import TILE_COLUMNS, TILE_ROWS, MixTable

TILE = 4096  # elements of a program in `mix` and `expand`
WIDEST = 512  # columns of such a tile
TAKE_ROWS = 8  # of a program in `take`
TAKE_COLUMNS = 256  # of X, that it casts
TAKE_SLOTS = 128  # of the list, that it gathers
WARPS = 4  # of every program
_ELEMENT = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


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
def _mix_all(  # type: ignore[no-untyped-def]
    table, owners, push, LOW: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    tile = tl.program_id(0)
    entry = table + tl.load(owners + tile) * 8
    rows, columns = tl.load(entry + 2), tl.load(entry + 3)
    number, across = tile - tl.load(entry + 4), tl.load(entry + 5)
    source, mixed = tl.load(entry).to(tl.pointer_type(tl.float32)), tl.load(entry + 1).to(tl.pointer_type(LOW))
    target, place = tl.load(entry + 6), tl.load(entry + 7).to(tl.pointer_type(tl.int32))
    wanted = target.to(tl.pointer_type(tl.float32))
    if ALIGNED:  # what lets a thread load 16 bytes at once
        columns = tl.multiple_of(columns, 16)
        source, mixed, wanted = tl.multiple_of(source, 16), tl.multiple_of(mixed, 16), tl.multiple_of(wanted, 16)
    row = (number // across) * ROWS + tl.arange(0, ROWS)
    column = (number % across) * COLUMNS + tl.arange(0, COLUMNS)
    at = row[:, None] * columns + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    value = tl.load(source + at, mask=inside, other=0.0)
    if target != 0:
        keep = tl.load(place + column, mask=column < columns, other=-1) >= 0
        u = tl.load(wanted + at, mask=inside, other=0.0)
        value = tl.where(keep[None, :], value + push * (value - u), u)
    tl.store(mixed + at, value.to(LOW), mask=inside)


@triton.jit
def _take(  # type: ignore[no-untyped-def]
    x, kept, low, taken, rows, side_by_side,
    WIDTH: tl.constexpr, CAPACITY: tl.constexpr, LISTS: tl.constexpr, CAST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // side_by_side) * ROWS + tl.arange(0, ROWS)
    across = tl.program_id(0) % side_by_side
    here, long_row = (row < rows)[:, None], row.to(tl.int64)[:, None]
    slot = across * SLOTS + tl.arange(0, SLOTS)
    column = tl.load(kept + slot, mask=slot < LISTS * CAPACITY, other=-1)[None, :]
    found = tl.load(x + long_row * WIDTH + column, mask=here & (column >= 0), other=0.0)
    ones = (column < 0) & (slot % CAPACITY == CAPACITY - 1)[None, :]  # what gives the bias its gradient
    found = tl.where(ones, 1.0, found.to(tl.float32))
    if CAST:
        own = (across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        value = tl.load(x + long_row * WIDTH + own, mask=here & (own < WIDTH), other=0.0)
        tl.store(low + long_row * WIDTH + own, value.to(low.dtype.element_ty), mask=here & (own < WIDTH))
    before = (slot // CAPACITY).to(tl.int64) * rows  # of other lists
    to = taken + (before[None, :] + long_row) * CAPACITY + (slot % CAPACITY)[None, :]
    tl.store(to, found.to(taken.dtype.element_ty), mask=here & (slot < LISTS * CAPACITY)[None, :])


@triton.jit
def _expand(  # type: ignore[no-untyped-def]
    part, place, kept, grad, bias_grad, rows, columns, width, factor,
    SPLITS: tl.constexpr, KEPT_ONLY: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    position = tl.load(place + column, mask=column < columns, other=-1)
    inside, long_row = row < rows, row.to(tl.int64)
    source, there = column, column < columns  # all of them, so that whole vectors are loaded
    if KEPT_ONLY:
        source, there = position, (position >= 0) & (position < width)
    found = inside[:, None] & there[None, :]
    value = tl.zeros([ROWS, COLUMNS], tl.float32)
    for split in tl.static_range(SPLITS):
        at = (split * rows + long_row)[:, None] * width + source[None, :]
        value += tl.load(part + at, mask=found, other=0.0).to(tl.float32)
    value = value * factor
    if KEPT_ONLY:
        value = tl.where((position < width)[None, :], value, float("nan"))  # a mask that does not fit
    else:
        value = tl.where((position >= 0)[None, :], value, 0.0)
    to = grad + long_row[:, None] * columns + column[None, :]
    tl.store(to, value.to(grad.dtype.element_ty), mask=inside[:, None] & (column < columns)[None, :])
    if HAS_BIAS:  # noqa: SIM102 (known when the kernel is compiled)
        if tl.program_id(1) == 0:
            total = tl.zeros([ROWS], tl.float32)
            for split in tl.static_range(SPLITS):
                last = (split * rows + long_row) * width + (width - 1)
                total += tl.load(part + last, mask=inside, other=0.0).to(tl.float32)
            has_ones = tl.load(kept + (width - 1)) < 0
            total = tl.where(has_ones, total, float("nan"))
            tl.store(bias_grad + row, total.to(bias_grad.dtype.element_ty), mask=inside)


def mix_triton_(
    mixed: Tensor,
    low_bias: Tensor | None,
    weight: Tensor,
    target: Tensor,
    place: Tensor,
    bias: Tensor | None,
    p: float,
) -> None:
    """`mixout_columns.mix_` for float32, bfloat16 and float16."""
    rows, columns = weight.shape
    if not mixed.numel():
        if low_bias is not None and bias is not None:
            low_bias.copy_(bias)
        return
    grid, tile = _tiles(rows, columns)
    with torch.cuda.device_of(weight):
        _mix[grid](
            weight.contiguous(),
            target.contiguous(),
            place,
            mixed,
            bias if bias is not None else mixed,  # addresses are needed, and then not used
            low_bias if low_bias is not None else mixed,
            rows,
            columns,
            p / (1.0 - p),
            HAS_BIAS=low_bias is not None,
            num_warps=WARPS,
            **tile,
        )


def mix_all_triton_(table: MixTable) -> None:
    """`MixTable.mix_` in one launch."""
    with torch.cuda.device_of(table.memory):
        _mix_all[(table.tiles,)](
            table.table,
            table.owners,
            table.p / (1.0 - table.p),
            LOW=_ELEMENT[table.memory.dtype],
            ALIGNED=table.aligned,
            ROWS=TILE_ROWS,
            COLUMNS=TILE_COLUMNS,
            num_warps=WARPS,
        )


def take_triton(rows: Tensor, kept: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`mixout_columns.take` for float32, bfloat16 and float16: by the lists `kept` [lists, capacity], X_k of all of
    them as [lists, N, capacity]."""
    rows = rows.contiguous()
    (count, width), (lists, capacity) = rows.shape, kept.shape
    casts = rows.dtype != dtype
    low = torch.empty(count, width, dtype=dtype, device=rows.device) if casts else rows
    taken = torch.empty(lists, count, capacity, dtype=dtype, device=rows.device)
    if count:
        side_by_side = max(triton.cdiv(lists * capacity, TAKE_SLOTS), triton.cdiv(width, TAKE_COLUMNS) if casts else 1)
        with torch.cuda.device_of(rows):
            _take[(triton.cdiv(count, TAKE_ROWS) * side_by_side,)](
                rows,
                kept.contiguous(),
                low,
                taken,
                count,
                side_by_side,
                WIDTH=width,
                CAPACITY=capacity,
                LISTS=lists,
                CAST=casts,
                ROWS=TAKE_ROWS,
                COLUMNS=TAKE_COLUMNS,
                SLOTS=TAKE_SLOTS,
                num_warps=WARPS,
            )
    return low, taken


def expand_triton(
    part: Tensor,
    columns: Columns,
    factor: float,
    kept_only: bool,
    dtype: torch.dtype,
    bias_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`mixout_columns.expand` for float32, bfloat16 and float16."""
    rows, width = part.shape[-2:]
    count = len(columns.place)
    grad = torch.empty(rows, count, dtype=dtype, device=part.device)
    bias = torch.empty(rows, dtype=bias_dtype, device=part.device) if bias_dtype is not None else None
    if grad.numel():
        grid, tile = _tiles(rows, count)
        with torch.cuda.device_of(part):
            _expand[grid](
                part.contiguous(),
                *columns,
                grad,
                bias if bias is not None else grad,  # an address is needed, and then not written
                rows,
                count,
                width,
                factor,
                SPLITS=len(part) if part.dim() == 3 else 1,
                KEPT_ONLY=kept_only,
                HAS_BIAS=bias is not None,
                num_warps=WARPS,
                **tile,
            )
    return grad, bias


def _tiles(rows: int, columns: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid of programs, and how many rows and columns each has."""
    wide = min(WIDEST, triton.next_power_of_2(columns))
    high = min(TILE // wide, triton.next_power_of_2(rows))
    return (triton.cdiv(rows, high), triton.cdiv(columns, wide)), {"ROWS": high, "COLUMNS": wide}
