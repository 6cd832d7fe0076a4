"""norm.py's passes as Triton kernels. Each is bound by the bytes that it moves.

    _normalise   reads x, or h and r and writes their sum, and writes z in float32 and its cast: 10 bytes per element
                 for float32 rows, 16 for a sum with a low h
    _gradients   reads g₁, g₂ and x, writes dx, and in a low type, too: 12 to 18 bytes per element; and two sums per
                 program and column to `partial`
    _add         reads `partial`, writes dγ and dβ

A program holds a tile of whole rows: TILE elements, or one row where a row has more. A tile is as wide as the next
power of two, and what lies beyond the row's end is neither read nor written. With 16 elements per thread, a program has
four loads of 16 bytes per thread under way before it adds anything, and its registers leave room for eight programs on
a multiprocessor, so that 4096 rows of 384 are under way all at once. A thread has four neighbouring columns, in float32
and in the low type alike: left to itself Triton stores eight of the low type, and has to exchange numbers between
threads for that.

The mean comes first and then the squares of what is left, both from registers: no cancellation, whatever the mean.

In the backward pass each program goes through a part of the rows, tile after tile, and adds up the summands of dγ and
dβ in registers. There are at most PARTS parts, four for each multiprocessor of an H200, as many as fit there at once.
How rows are cut follows from the shape alone, and nothing is added atomically: the same input gives the same bits. Rows
that are few enough for one part need no second launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from steadytune.kernels.norm import Asked, Gradients, Normalised

TILE = 2048  # elements of a program
EACH = 16  # of them per thread
PARTS = 512  # at most, of the rows in the backward pass; a power of two
ADD_COLUMNS, ADD_WARPS = 8, 8  # of `partial`: 32 bytes of each of its rows, all at once


@triton.jit
def _normalise(  # type: ignore[no-untyped-def]
    x, residual, gamma, beta, total, z, low, means, rstds, rows, columns, width, eps,
    HAS_RESIDUAL: tl.constexpr, HAS_GAMMA: tl.constexpr, HAS_BETA: tl.constexpr,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.max_contiguous(tl.arange(0, WIDE), min(WIDE, 4))
    real = column < columns
    inside = (row < rows)[:, None] & real[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        value += tl.load(residual + at, mask=inside, other=0.0)
        tl.store(total + at, value, mask=inside)
    if HAS_GAMMA:  # loaded now, to be there when the sums are
        scale = tl.load(gamma + column, mask=real, other=0.0)[None, :]
    if HAS_BETA:
        shift = tl.load(beta + column, mask=real, other=0.0)[None, :]
    mean = tl.div_rn(tl.sum(value, 1), width)
    value = tl.where(real[None, :], value - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.div_rn(tl.sum(value * value, 1), width) + eps)
    value *= rstd[:, None]
    if HAS_GAMMA:
        value *= scale
    if HAS_BETA:
        value += shift
    tl.store(z + at, value, mask=inside)
    tl.store(low + at, value.to(low.dtype.element_ty), mask=inside)
    tl.store(means + row, mean, mask=row < rows)
    tl.store(rstds + row, rstd, mask=row < rows)


@triton.jit(do_not_specialize=["parts"])
def _gradients(  # type: ignore[no-untyped-def]
    grad, other, x, gamma, means, rstds, grad_x, grad_low, partial, rows, columns, width, parts,
    HAS_OTHER: tl.constexpr, HAS_GAMMA: tl.constexpr,
    ASKS_X: tl.constexpr, ASKS_LOW: tl.constexpr, ASKS_SUMS: tl.constexpr,
    TILES: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    column = tl.max_contiguous(tl.arange(0, WIDE), min(WIDE, 4))
    real = column < columns
    factor = tl.full([WIDE], 1.0, tl.float32)
    if HAS_GAMMA:
        factor = tl.load(gamma + column, mask=real, other=0.0)
    of_gamma = tl.zeros([ROWS, WIDE], tl.float32)
    of_beta = tl.zeros([ROWS, WIDE], tl.float32)
    for tile in range(TILES):
        row = (part * TILES + tile) * ROWS + tl.arange(0, ROWS)
        there = row < rows
        inside = there[:, None] & real[None, :]
        at = row.to(tl.int64)[:, None] * columns + column[None, :]
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)  # 0 beyond the end, and so all that has it
        if HAS_OTHER:
            g += tl.load(other + at, mask=inside, other=0.0).to(tl.float32)
        x_hat = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(means + row, mask=there, other=0.0)
        rstd = tl.load(rstds + row, mask=there, other=0.0)
        x_hat = (x_hat - mean[:, None]) * rstd[:, None]
        if ASKS_SUMS:
            of_gamma += g * x_hat
            of_beta += g
        if ASKS_X or ASKS_LOW:
            g *= factor[None, :]
            along = tl.sum(g * x_hat, 1) / width
            g = (g - (tl.sum(g, 1) / width)[:, None] - x_hat * along[:, None]) * rstd[:, None]
            if ASKS_X:
                tl.store(grad_x + at, g.to(grad_x.dtype.element_ty), mask=inside)
            if ASKS_LOW:
                tl.store(grad_low + at, g.to(grad_low.dtype.element_ty), mask=inside)
    if ASKS_SUMS:
        to = partial + column
        tl.store(to + part.to(tl.int64) * columns, tl.sum(of_gamma, 0), mask=real)
        tl.store(to + (parts + part).to(tl.int64) * columns, tl.sum(of_beta, 0), mask=real)


@triton.jit(do_not_specialize=["parts"])
def _add(  # type: ignore[no-untyped-def]
    partial, grad_gamma, grad_beta, parts, columns,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.arange(0, PARTS)
    is_beta = tl.program_id(1)
    at = (is_beta * parts + part).to(tl.int64)[:, None] * columns + column[None, :]
    inside = (part < parts)[:, None] & (column < columns)[None, :]
    total = tl.sum(tl.load(partial + at, mask=inside, other=0.0), 0)
    if is_beta == 0:
        tl.store(grad_gamma + column, total, mask=column < columns)
    else:
        tl.store(grad_beta + column, total, mask=column < columns)


def normalise_triton(
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    residual: Tensor | None = None,
) -> Normalised:
    """`norm.normalise` of an x that has elements, at most norm.WIDEST in a row."""
    columns = x.shape[-1]
    count = x.numel() // columns
    z = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    total = torch.empty_like(z) if residual is not None else x
    low = torch.empty(count, columns, dtype=dtype, device=x.device)
    mean, rstd = (torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device) for _ in range(2))
    high, wide, warps = tile(columns)
    with torch.cuda.device_of(x):
        _normalise[(triton.cdiv(count, high),)](
            x,
            residual if residual is not None else z,  # an address is needed, and then not used
            gamma.contiguous() if gamma is not None else z,
            beta.contiguous() if beta is not None else z,
            total,
            z,
            low,
            mean,
            rstd,
            count,
            columns,
            float(columns),
            float(eps),
            HAS_RESIDUAL=residual is not None,
            HAS_GAMMA=gamma is not None,
            HAS_BETA=beta is not None,
            ROWS=high,
            WIDE=wide,
            num_warps=warps,
        )
    return Normalised(z, low, mean, rstd, total)


def gradients_triton(
    grad: Tensor,
    x: Tensor,
    gamma: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    asked: Asked,
    other: Tensor | None = None,
) -> Gradients:
    """`norm.gradients` of an x that has elements, at most norm.WIDEST in a row."""
    asks_low = asked.low is not None
    if not (asked.x or asks_low or asked.sums):
        return Gradients(None, None, None)
    columns = x.shape[-1]
    count = x.numel() // columns
    high, wide, warps = tile(columns)
    parts, tiles = cut(count, high)
    grad_x = torch.empty_like(x) if asked.x else None
    low = torch.empty(x.shape, dtype=asked.low, device=x.device) if asks_low else None
    partial = torch.empty(2, parts, columns, dtype=torch.float32, device=x.device) if asked.sums else None
    with torch.cuda.device_of(x):
        _gradients[(parts,)](
            grad,
            other if other is not None else mean,  # an address is needed, and then not used
            x,
            gamma.contiguous() if gamma is not None else mean,
            mean,
            rstd,
            grad_x if grad_x is not None else mean,
            low if low is not None else mean,
            partial if partial is not None else mean,
            count,
            columns,
            float(columns),
            parts,
            HAS_OTHER=other is not None,
            HAS_GAMMA=gamma is not None,
            ASKS_X=asked.x,
            ASKS_LOW=asks_low,
            ASKS_SUMS=asked.sums,
            TILES=tiles,
            ROWS=high,
            WIDE=wide,
            num_warps=warps,
        )
    grad_gamma, grad_beta = _added(partial) if partial is not None else (None, None)
    return Gradients(grad_x, grad_gamma, grad_beta, low)


def tile(columns: int) -> tuple[int, int, int]:
    """Rows and columns of a program's tile, and its warps."""
    wide = triton.next_power_of_2(columns)
    high = max(1, TILE // wide)
    return high, wide, max(1, high * wide // (32 * EACH))


def cut(rows: int, high: int) -> tuple[int, int]:
    """Into how many parts the rows are cut, and how many tiles of `high` rows each has but the last.

    That is a power of two: Triton compiles a kernel for each, and those are few.
    """
    tiles = triton.next_power_of_2(triton.cdiv(rows, high * PARTS))
    return triton.cdiv(rows, high * tiles), tiles


def _added(partial: Tensor) -> tuple[Tensor, Tensor]:
    """dγ and dβ."""
    _, parts, columns = partial.shape
    if parts == 1:
        return partial[0, 0], partial[1, 0]
    grad_gamma, grad_beta = (torch.empty(columns, dtype=torch.float32, device=partial.device) for _ in range(2))
    with torch.cuda.device_of(partial):
        _add[(triton.cdiv(columns, ADD_COLUMNS), 2)](
            partial, grad_gamma, grad_beta, parts, columns, PARTS=PARTS, COLUMNS=ADD_COLUMNS, num_warps=ADD_WARPS
        )
    return grad_gamma, grad_beta
