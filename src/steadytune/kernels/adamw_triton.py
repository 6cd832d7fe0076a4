"""AdamW for many tensors in two launches: one works out numbers, one reads and writes every weight once.

For each parameter w with gradient g, moments m and v, an anchor u or none, and c the factor of the gradient:

    d = α λ₀ w,   d += α λ (w - d - u),   d += α λ₁ (w - d)      decay: toward 0, toward u, toward 0 (methods/adamw.py)
    m += (1 - β1) (c g - m),   v = β2 v + (1 - β2) (c g)²
    w -= d + s m / (√v / r + ε)                                    s = α / (1 - β1^t), r = √(1 - β2^t); or s = α, r = 1

Decay and step are added up before they are taken from w, which is so rounded once instead of four times. The first
kernel counts t and computes the numbers of each tensor in float64, the second does the rest in float32 whatever the
tensors' type. α, t and c are read from the device: a CUDA graph that holds the launches replays with what is there
then, and nothing waits for the host. Nothing is contracted to multiply-adds by the compiler, so that no variant of the
kernel (with an anchor, with a factor, a block that is not full) differs from another in a bit.

A mixed layer may hand over only the gradient G of its kept columns (kept_gradients.py): g is then κ G[row, place[j]]
where column j has a place, and 0 elsewhere, with κ the layer's own factor. Such tensors have launches of their own, so
that plain ones cost what they did; the bits are those of the dense gradient.

    table      [T, 12] int64    addresses of w, g, m, v, u (0: none) and t; the number of elements; the first block;
                                address of the places, columns of w, columns of G (all three 0: g is dense); nothing
    rates      [T] int64        address of α
    settings   [T, 9] float64   β1, β2, ln β1, ln β2 (both -inf without bias correction, so that β^t is 0), ε, λ₀, λ,
                                λ₁, κ
    owners     [B] int32        which tensor each block of BLOCK elements belongs to
    numbers    [T, 16] float32  1 - β1, β2, 1 - β2, ε, α λ₀, α λ, α λ₁, s, r, κ: written by the first, read by the
                                second
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from steadytune.kernels.adamw_tables import BLOCK, Tables

WARPS = 8  # with BLOCK = 2048, 8 elements of each tensor per thread: two loads of 16 bytes in float32

_ELEMENT = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _count(table, rates, settings, numbers, tensors, DOUBLE_RATE: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    tensor = tl.program_id(0) * LANES + tl.arange(0, LANES)
    real = tensor < tensors
    count = tl.load(table + tensor * 12 + 5, mask=real, other=0).to(tl.pointer_type(tl.float32))
    t = tl.load(count, mask=real, other=0.0) + 1.0
    tl.store(count, t, mask=real)
    address = tl.load(rates + tensor, mask=real, other=0)
    if DOUBLE_RATE:
        alpha = tl.load(address.to(tl.pointer_type(tl.float64)), mask=real, other=0.0)
    else:
        alpha = tl.load(address.to(tl.pointer_type(tl.float32)), mask=real, other=0.0).to(tl.float64)
    given, made = settings + tensor * 9, numbers + tensor * 16
    beta_1, beta_2 = tl.load(given, mask=real, other=0.0), tl.load(given + 1, mask=real, other=0.0)
    never = float("-inf")  # for lanes without a tensor: not 0, with which they would divide by 0
    log_1, log_2 = tl.load(given + 2, mask=real, other=never), tl.load(given + 3, mask=real, other=never)
    s = alpha / (1.0 - tl.exp(t.to(tl.float64) * log_1))
    r = tl.sqrt(1.0 - tl.exp(t.to(tl.float64) * log_2))
    tl.store(made + 0, (1.0 - beta_1).to(tl.float32), mask=real)
    tl.store(made + 1, beta_2.to(tl.float32), mask=real)
    tl.store(made + 2, (1.0 - beta_2).to(tl.float32), mask=real)
    tl.store(made + 3, tl.load(given + 4, mask=real, other=0.0).to(tl.float32), mask=real)
    tl.store(made + 4, (alpha * tl.load(given + 5, mask=real, other=0.0)).to(tl.float32), mask=real)
    tl.store(made + 5, (alpha * tl.load(given + 6, mask=real, other=0.0)).to(tl.float32), mask=real)
    tl.store(made + 6, (alpha * tl.load(given + 7, mask=real, other=0.0)).to(tl.float32), mask=real)
    tl.store(made + 7, s.to(tl.float32), mask=real)
    tl.store(made + 8, r.to(tl.float32), mask=real)
    tl.store(made + 9, tl.load(given + 8, mask=real, other=0.0).to(tl.float32), mask=real)


@triton.jit
def _address(entry, start, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    address = tl.load(entry).to(tl.pointer_type(ELEMENT))
    if ALIGNED:
        address = tl.multiple_of(address, 16)  # bytes: what lets a thread load 16 at once
    return address + start


@triton.jit
def _of_kept(  # type: ignore[no-untyped-def]
    g, entry, start, left, factor,
    BLOCK: tl.constexpr, ALIGNED: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of a weight, from that of its kept columns."""
    place = tl.load(entry + 8).to(tl.pointer_type(tl.int32))
    columns, width = tl.load(entry + 9).to(tl.int32), tl.load(entry + 10).to(tl.int32)
    begins = start.to(tl.int32)  # a weight has fewer than 2³¹ elements
    first, lane = begins // columns, tl.arange(0, BLOCK)
    index = begins - first * columns + lane
    # index // columns in a few operations: half an element from any whole number, which is exact below 2²⁰ columns
    down = ((index.to(tl.float32) + 0.5) * (1.0 / columns.to(tl.float32))).to(tl.int32)
    column = index - down * columns
    if ALIGNED:
        place = tl.multiple_of(place, 16)
        column = tl.max_contiguous(tl.multiple_of(column, 4), 4)  # rows have a multiple of 16 columns
    position = tl.load(place + column)
    there = (position >= 0) & (position < width)
    if not FULL:
        there = there & (lane < left)
    value = tl.load(g + (first + down).to(tl.int64) * width + position, mask=there, other=0.0) * factor
    return tl.where(position < width, value, float("nan"))  # a mask that does not fit


@triton.jit
def _block(  # type: ignore[no-untyped-def]
    w, g, m, v, u, anchor, entry, start, left, c, row,
    ELEMENT: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
    FULL: tl.constexpr, ZERO: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, BLOCK)
    inside = None if FULL else lane < left  # a mask, even one that is all true, would make loads 4 bytes wide
    # Spread out before it is compared: Triton's interpreter (3.9) takes a single truth value for a whole number.
    pulled = tl.broadcast_to(anchor, [BLOCK]) != 0
    if not FULL:
        pulled = pulled & inside
    w_t = tl.load(w + lane, mask=inside).to(tl.float32)
    if KEPT:
        g_t = _of_kept(g, entry, start, left, tl.load(row + 9), BLOCK, ALIGNED, FULL) * c
    else:
        g_t = tl.load(g + lane, mask=inside).to(tl.float32) * c
    m_t = tl.load(m + lane, mask=inside).to(tl.float32)
    v_t = tl.load(v + lane, mask=inside).to(tl.float32)
    u_t = tl.load(u + lane, mask=pulled, other=0.0).to(tl.float32)
    m_t = m_t + tl.load(row) * (g_t - m_t)
    v_t = tl.load(row + 1) * v_t + tl.load(row + 2) * g_t * g_t
    d = tl.load(row + 4) * w_t
    d = d + tl.load(row + 5) * (w_t - d - u_t)
    d = d + tl.load(row + 6) * (w_t - d)
    # The compiler's exact root and quotient go a long way round for 0, which v and m are until a first gradient: all
    # of a warp goes with one of its 32 elements.
    root = tl.div_rn(tl.sqrt_rn(tl.where(v_t == 0, 1.0, v_t)), tl.load(row + 8))
    denominator = tl.where(v_t == 0, 0.0, root) + tl.load(row + 3)
    rests = (m_t == 0) & (denominator > 0)
    along = tl.where(rests, m_t, tl.div_rn(tl.where(rests, 1.0, m_t), denominator))
    w_t = w_t - (d + tl.load(row + 7) * along)
    tl.store(w + lane, w_t.to(ELEMENT), mask=inside)
    tl.store(m + lane, m_t.to(ELEMENT), mask=inside)
    tl.store(v + lane, v_t.to(ELEMENT), mask=inside)
    if ZERO:
        tl.store(g + lane, tl.zeros([BLOCK], ELEMENT), mask=inside)


@triton.jit
def _update(  # type: ignore[no-untyped-def]
    table, owners, numbers, factor,
    ELEMENT: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
    HAS_FACTOR: tl.constexpr, ZERO: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    tensor = tl.load(owners + block)
    entry, row = table + tensor * 12, numbers + tensor * 16
    start = (block - tl.load(entry + 7)) * BLOCK
    left = tl.load(entry + 6) - start
    anchor = tl.load(entry + 4)
    w = _address(entry, start, ELEMENT, ALIGNED)
    g = _address(entry + 1, 0 if KEPT else start, ELEMENT, ALIGNED)
    m = _address(entry + 2, start, ELEMENT, ALIGNED)
    v = _address(entry + 3, start, ELEMENT, ALIGNED)
    u = _address(entry + 4, start, ELEMENT, ALIGNED)
    c = tl.load(factor).to(tl.float32) if HAS_FACTOR else 1.0
    if left >= BLOCK:
        _block(w, g, m, v, u, anchor, entry, start, left, c, row, ELEMENT, BLOCK, ALIGNED, True, ZERO, KEPT)
    else:
        _block(w, g, m, v, u, anchor, entry, start, left, c, row, ELEMENT, BLOCK, ALIGNED, False, ZERO, KEPT)


def adamw_triton_(tables: Tables, grad_factor: Tensor | None = None, zero_grads: bool = False) -> None:
    """One step for all tensors of the tables, in place; `grad_factor` is c, a number on their device.

    With `zero_grads`, dense gradients are zero afterwards; else they are as they were.
    """
    tensors, blocks = len(tables.table), len(tables.owners)
    _count[(triton.cdiv(tensors, 128),)](
        tables.table,
        tables.rates,
        tables.settings,
        tables.numbers,
        tensors,
        DOUBLE_RATE=tables.kind.double_rate,
        LANES=128,
        num_warps=4,
        enable_fp_fusion=False,
    )
    if not blocks:  # only tensors without elements
        return
    _update[(blocks,)](
        tables.table,
        tables.owners,
        tables.numbers,
        tables.numbers if grad_factor is None else grad_factor,  # an address is needed, and never read
        ELEMENT=_ELEMENT[tables.kind.dtype],
        BLOCK=BLOCK,
        ALIGNED=tables.kind.aligned,
        HAS_FACTOR=grad_factor is not None,
        ZERO=zero_grads and not tables.kind.kept,  # the next backward pass overwrites those of kept columns
        KEPT=tables.kind.kept,
        num_warps=WARPS,
        enable_fp_fusion=False,
    )
