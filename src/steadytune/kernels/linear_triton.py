"""linear.py's casts and sums as Triton kernels. Each is bound by the bytes that it moves.

    _cast    reads every weight and bias of a model once, 4 bytes, and writes its cast, 2 bytes: one launch for all
    _sum     a program adds up one part of the rows for a few columns: dY to `partial`, then `partial` to db

The rows are cut so that PROGRAMS programs, or half of them, share the work of a layer, however wide it is; but none has
fewer rows than it holds at a time. How they are cut follows from the shape alone, and nothing is added atomically: the
same input gives the same bits. A layer with few rows needs one launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from steadytune.kernels.linear import BLOCK, CastTable

CAST_WARPS = 8  # with BLOCK = 4096, 16 elements per thread: four loads and two stores of 16 bytes
PROGRAMS = 1024  # eight for each multiprocessor of an H200
ROWS, COLUMNS, WARPS = 32, 128, 4  # of dY that a program holds: four loads of 16 bytes per thread
LAST_ROWS, LAST_COLUMNS = 64, 32  # of `partial`, which has few rows

_ELEMENT = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _cast(table, owners, LOW: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    block = tl.program_id(0)
    entry = table + tl.load(owners + block) * 4
    start = (block - tl.load(entry + 3)) * BLOCK  # int64, as the table is
    left = tl.load(entry + 2) - start
    source = tl.load(entry).to(tl.pointer_type(tl.float32))
    to = tl.multiple_of(tl.load(entry + 1).to(tl.pointer_type(LOW)), 16)
    if ALIGNED:
        source = tl.multiple_of(source, 16)  # bytes: what lets a thread load 16 at once
    lane = tl.arange(0, BLOCK)
    if left >= BLOCK:  # a mask, even one that is all true, would make loads 4 bytes wide
        tl.store(to + start + lane, tl.load(source + start + lane).to(LOW))
    else:
        value = tl.load(source + start + lane, mask=lane < left, other=0.0)
        tl.store(to + start + lane, value.to(LOW), mask=lane < left)


@triton.jit
def _sum(  # type: ignore[no-untyped-def]
    matrix, sums, rows, columns,
    EACH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    lane = part * EACH + tl.arange(0, ROWS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, EACH, ROWS):
        row = start + lane
        at = row.to(tl.int64)[:, None] * columns + column[None, :]
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        total += tl.load(matrix + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + part.to(tl.int64) * columns + column, tl.sum(total, 0), mask=column < columns)


def cast_triton_(casts: CastTable) -> None:
    """`CastTable.cast_` in one launch."""
    with torch.cuda.device_of(casts.memory):
        _cast[(len(casts.owners),)](
            casts.table,
            casts.owners,
            LOW=_ELEMENT[casts.memory.dtype],
            BLOCK=BLOCK,
            ALIGNED=casts.aligned,
            num_warps=CAST_WARPS,
        )


def column_sum_triton(rows: Tensor) -> Tensor:
    """`linear.column_sum` of a matrix in a low type that has elements."""
    count, columns = rows.shape
    parts, each = cut(count, columns)
    partial = _summed(rows, parts, each, ROWS, COLUMNS)
    if parts > 1:
        partial = _summed(partial, 1, max(LAST_ROWS, triton.next_power_of_2(parts)), LAST_ROWS, LAST_COLUMNS)
    return partial[0]


def cut(rows: int, columns: int) -> tuple[int, int]:
    """Into how many parts the rows are cut, and how many rows each has but the last.

    That is a power of two: Triton compiles a kernel for each, and those are few.
    """
    most = max(1, PROGRAMS // triton.cdiv(columns, COLUMNS))
    each = ROWS * triton.next_power_of_2(triton.cdiv(rows, ROWS * most))
    return triton.cdiv(rows, each), each


def _summed(matrix: Tensor, parts: int, each: int, high: int, wide: int) -> Tensor:
    """[parts, columns]: the sums of `each` rows at a time."""
    count, columns = matrix.shape
    sums = torch.empty(parts, columns, dtype=torch.float32, device=matrix.device)
    with torch.cuda.device_of(matrix):
        _sum[(triton.cdiv(columns, wide), parts)](
            matrix, sums, count, columns, EACH=each, ROWS=high, COLUMNS=wide, num_warps=WARPS
        )
    return sums
