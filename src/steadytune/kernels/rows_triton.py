"""rows.py's pass as a Triton kernel: every row is read once and written once, and a gap is written as zeros."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, WARPS = 16, 128, 4  # that a program moves: 16 numbers per thread


@triton.jit
def _move(  # type: ignore[no-untyped-def]
    source, index, out, rows, columns, stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = row < rows
    named = tl.load(index + row, mask=inside, other=-1)
    wide = (column < columns)[None, :]
    found = (named >= 0)[:, None] & wide
    value = tl.load(source + named[:, None] * stride + column[None, :], mask=found, other=0.0)
    tl.store(out + row.to(tl.int64)[:, None] * columns + column[None, :], value, mask=inside[:, None] & wide)


def move_rows_triton(x: Tensor, index: Tensor) -> Tensor:
    """`rows.move_rows` of a matrix whose rows are contiguous."""
    out = torch.empty(len(index), x.shape[1], dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(len(index), ROWS), triton.cdiv(x.shape[1], COLUMNS))
    with torch.cuda.device_of(x):
        _move[grid](x, index, out, len(index), x.shape[1], x.stride(0), ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS)
    return out
