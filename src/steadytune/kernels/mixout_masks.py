"""Which columns mixout keeps, drawn on the device: nothing here makes the host wait.

    bits_j  = random_bits((key, call), j + offset)          keep_j = bits_j < (1 - p) 2³²            (rng.py)
    place_j = keep_0 + ... + keep_j - 1 if keep_j else -1   int32 [columns]: the position of column j among the kept
    kept_i  = the column j with place_j = i                 int32 [capacity], -1 behind the last one

A list of kept columns has a fixed length, its capacity: the mean count plus five standard deviations, rounded up to
what matrix products like. A mask fits if it leaves the last entry free, in which the bias has its gradient
(mixout_columns.py). One in three million does not, and must not be cut. A mask is a function of (key, call), so
`overflows` says beforehand which of the next calls would be; those take the dense gradient.

Here in plain torch, which is also the reference; mixout_masks_triton.py has one kernel for each function, and those run
on a CUDA device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadytune.rng import random_bits

DEVIATIONS = 5.0  # of the count, that fit into the capacity
_HAS_TRITON = find_spec("triton") is not None


class Columns(NamedTuple):
    """The mask of one call."""

    place: Tensor
    kept: Tensor


class Table(NamedTuple):
    """The rules of many layers, on the device."""

    rows: Tensor  # int64 [L, 6]: a `Rule`, and where the layer's `place` and `kept` begin in those of all layers
    widest: int  # most columns, or entries of the list, of a layer


class Rule(NamedTuple):
    """How a layer draws: all but its key and call."""

    columns: int
    threshold: int  # bits below it keep their column
    offset: int  # first draw in the stream
    capacity: int


def new_rule(columns: int, p: float, offset: int = 0) -> Rule:
    return Rule(columns, round((1.0 - p) * 2.0**32), offset, capacity(columns, p))


def new_table(rules: Sequence[Rule], device: torch.device) -> Table:
    rows, first_place, first_kept = [], 0, 0
    for rule in rules:
        rows.append([*rule, first_place, first_kept])
        first_place, first_kept = first_place + rule.columns, first_kept + rule.capacity
    widest = max(max(rule.columns, rule.capacity) for rule in rules)
    return Table(torch.tensor(rows, dtype=torch.int64).to(device), widest)


def capacity(columns: int, p: float) -> int:
    """How long a list of kept columns is: 384 of 1,024 at p = 0.7, 192 at p = 0.9."""
    most = columns * (1.0 - p) + DEVIATIONS * math.sqrt(columns * p * (1.0 - p))
    step = 64 if columns >= 512 else 16 if columns >= 64 else 8
    return step * math.ceil((min(most, columns) + 1) / step)


def spread(part: Tensor, place: Tensor) -> Tensor:
    """What the kept columns have, for every column: something of another where it is not kept, and NaN where it is kept
    but the list was too short for it."""
    width = part.shape[1]
    return part.index_select(1, place.clamp(0, width - 1)).masked_fill_(place >= width, torch.nan)


def has_kernels(device: str, *dtypes: torch.dtype) -> bool:
    """Whether the Triton kernels serve tensors of these types there; float64 is for references."""
    return device == "cuda" and _HAS_TRITON and torch.float64 not in dtypes


def draw(state: Tensor, rule: Rule) -> Columns:
    """The mask of the call that `state` (int64 [3]: key low, key high, call) names."""
    if has_kernels(state.device.type):
        from steadytune.kernels.mixout_masks_triton import draw_triton_

        return draw_triton_(state, rule, None)
    return draw_torch(state, rule)


def draw_next_(state: Tensor, rule: Rule) -> tuple[Columns, Tensor]:
    """The mask of the call that `state` names, and a copy of the state; `state` then names the next call."""
    used = torch.empty_like(state)
    if has_kernels(state.device.type):
        from steadytune.kernels.mixout_masks_triton import draw_triton_

        return draw_triton_(state, rule, used), used
    used.copy_(state)
    state[2] += 1
    return draw_torch(used, rule), used


def draw_all_(states: Tensor, table: Table, places: Tensor, kept: Tensor) -> None:
    """`draw_next_` for all layers of `table` at once: states [L, 3], places and kept with the layers' one after the
    other."""
    if has_kernels(states.device.type):
        from steadytune.kernels.mixout_masks_triton import draw_all_triton_

        draw_all_triton_(states, table.rows, places, kept, table.widest)
        return
    drawn = [draw_torch(state, rule) for state, rule in zip(states, _rules(table), strict=True)]
    torch.cat([each.place for each in drawn], out=places)
    torch.cat([each.kept for each in drawn], out=kept)
    states[:, 2] += 1


def overflows(states: Tensor, table: Table, calls: int, start: int = 0) -> Tensor:
    """bool [calls]: whether some layer keeps more columns than fit, `start` + i calls from now."""
    if has_kernels(states.device.type):
        from steadytune.kernels.mixout_masks_triton import overflows_triton

        return overflows_triton(states, table.rows, table.widest, calls, start)
    return overflows_torch(states, table, calls, start)


def _rules(table: Table) -> list[Rule]:
    return [Rule(*row[:4]) for row in table.rows.tolist()]


def draw_torch(state: Any, rule: Rule) -> Columns:
    """`draw` in plain torch."""
    device = state.device if isinstance(state, Tensor) else None
    index = torch.arange(rule.columns, device=device)
    keep = random_bits(state, index + rule.offset) < rule.threshold
    position = keep.cumsum(0) - 1
    place = torch.where(keep, position, -1).to(torch.int32)
    slot = torch.where(keep, position, rule.capacity).clamp_(max=rule.capacity)  # the last slot is thrown away
    kept = torch.full((rule.capacity + 1,), -1, dtype=torch.int32, device=device)
    kept.scatter_(0, slot, index.to(torch.int32))
    return Columns(place, kept[: rule.capacity])


def overflows_torch(states: Tensor, table: Table, calls: int, start: int = 0) -> Tensor:
    """`overflows` in plain torch, layer by layer: no more than [calls, columns] in memory at a time."""
    found = torch.zeros(calls, dtype=torch.bool, device=states.device)
    ahead = torch.arange(start, start + calls, device=states.device).unsqueeze(1)
    for state, rule in zip(states, _rules(table), strict=True):
        if rule.capacity <= rule.columns:
            index = torch.arange(rule.offset, rule.offset + rule.columns, device=states.device)
            bits = random_bits((state[0], state[1], state[2] + ahead), index)
            found |= (bits < rule.threshold).sum(1) >= rule.capacity
    return found
