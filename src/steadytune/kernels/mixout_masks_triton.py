"""mixout_masks.py as Triton kernels: a program per layer draws its mask, a program per (call, layer) counts one.

The bits are those of rng.random_bits, which reckons in int64 to be the same everywhere; here it is uint32 arithmetic,
which wraps around as the other masks. Loops run to a LONGEST known when the kernel is compiled, that of the widest
layer, columns or list; a narrower one has nothing to do in its last rounds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from steadytune.kernels.mixout_masks import Columns, Rule

BLOCK = 1024  # columns that a program looks at at a time


@triton.jit
def _hash32(x):  # type: ignore[no-untyped-def]
    x = x ^ (x >> 16)
    x = x * 0x21F0AAAD
    x = x ^ (x >> 15)
    x = x * 0xD35A2D97
    return x ^ (x >> 15)


@triton.jit
def _keep(state, ahead, index, columns, threshold, offset):  # type: ignore[no-untyped-def]
    """Whether each column of `index` is kept in the call `ahead` calls after the state's."""
    low, high = tl.load(state).to(tl.uint32), tl.load(state + 1).to(tl.uint32)
    call = (tl.load(state + 2) + ahead).to(tl.uint32)
    first = _hash32(low ^ _hash32(call ^ 0x9E3779B9))
    second = _hash32(high + first)
    bits = _hash32(_hash32((index + offset).to(tl.uint32) ^ first) + second)
    return (bits.to(tl.int64) < threshold) & (index < columns)


@triton.jit
def _draw(  # type: ignore[no-untyped-def]
    state, place, kept, columns, threshold, offset, capacity, LONGEST: tl.constexpr, BLOCK: tl.constexpr
):
    lanes = tl.arange(0, BLOCK)
    count = 0
    for start in range(0, LONGEST, BLOCK):
        index = start + lanes
        keep = _keep(state, 0, index, columns, threshold, offset)
        position = count + tl.cumsum(keep.to(tl.int32), 0) - 1
        tl.store(place + index, tl.where(keep, position, -1), mask=index < columns)
        tl.store(kept + position, index, mask=keep & (position < capacity))
        count += tl.sum(keep.to(tl.int32), 0)
    for start in range(0, LONGEST, BLOCK):
        index = start + lanes
        tl.store(kept + index, tl.full([BLOCK], -1, tl.int32), mask=(index >= count) & (index < capacity))


@triton.jit
def _draw_one(  # type: ignore[no-untyped-def]
    state, used, place, kept, columns, threshold, offset, capacity,
    ADVANCE: tl.constexpr, LONGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _draw(state, place, kept, columns, threshold, offset, capacity, LONGEST, BLOCK)
    if ADVANCE:
        call = tl.load(state + 2)
        tl.store(used, tl.load(state))
        tl.store(used + 1, tl.load(state + 1))
        tl.store(used + 2, call)
        tl.debug_barrier()  # all lanes have read the counter
        tl.store(state + 2, call + 1)


@triton.jit
def _draw_all(states, table, places, kept, LONGEST: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    state, row = states + 3 * tl.program_id(0), table + 6 * tl.program_id(0)
    columns, capacity = tl.load(row).to(tl.int32), tl.load(row + 3).to(tl.int32)
    threshold, offset = tl.load(row + 1), tl.load(row + 2)
    place, kept = places + tl.load(row + 4), kept + tl.load(row + 5)
    _draw(state, place, kept, columns, threshold, offset, capacity, LONGEST, BLOCK)
    call = tl.load(state + 2)
    tl.debug_barrier()
    tl.store(state + 2, call + 1)


@triton.jit
def _count(states, table, found, start, LONGEST: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    call = tl.program_id(0)
    state, row = states + 3 * tl.program_id(1), table + 6 * tl.program_id(1)
    columns, capacity = tl.load(row).to(tl.int32), tl.load(row + 3).to(tl.int32)
    threshold, offset = tl.load(row + 1), tl.load(row + 2)
    count = 0
    for begin in range(0, LONGEST, BLOCK):
        index = begin + tl.arange(0, BLOCK)
        count += tl.sum(_keep(state, start + call, index, columns, threshold, offset).to(tl.int32), 0)
    if count >= capacity:  # the list's last entry is the bias's
        tl.store(found + call, 1)  # every layer that finds one writes the same


def draw_triton_(state: Tensor, rule: Rule, used: Tensor | None) -> Columns:
    """`mixout_masks.draw`; with `used`, the state is copied there and then advanced."""
    place = torch.empty(rule.columns, dtype=torch.int32, device=state.device)
    kept = torch.empty(rule.capacity, dtype=torch.int32, device=state.device)
    with torch.cuda.device_of(state):
        _draw_one[(1,)](
            state,
            state if used is None else used,  # an address is needed, and then not written
            place,
            kept,
            rule.columns,
            rule.threshold,
            rule.offset,
            rule.capacity,
            ADVANCE=used is not None,
            LONGEST=max(rule.columns, rule.capacity),
            BLOCK=BLOCK,
        )
    return Columns(place, kept)


def draw_all_triton_(states: Tensor, table: Tensor, places: Tensor, kept: Tensor, widest: int) -> None:
    """`mixout_masks.draw_all_`."""
    with torch.cuda.device_of(states):
        _draw_all[(len(table),)](states, table, places, kept, LONGEST=widest, BLOCK=BLOCK)


def overflows_triton(states: Tensor, table: Tensor, widest: int, calls: int, start: int = 0) -> Tensor:
    """`mixout_masks.overflows`."""
    found = torch.zeros(calls, dtype=torch.int8, device=states.device)
    if calls:
        with torch.cuda.device_of(states):
            _count[(calls, len(table))](states, table, found, start, LONGEST=widest, BLOCK=BLOCK)
    return found.to(torch.bool)
