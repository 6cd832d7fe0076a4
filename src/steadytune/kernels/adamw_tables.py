"""What adamw_triton.py reads: addresses, sizes and settings of many parameters, as tables on their device.

A table is made from rows, plain numbers on the host, one for each parameter. As long as the rows are the same nothing
is made again, so a step costs a comparison; where only gradients have moved, only their column is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from steadytune.kernels.kept_gradients import KeptGradient

BLOCK = 2048  # elements that a program of the kernel holds at a time

# Addresses of w, g, m, v, u, t, the number of elements, the address of α; address of the kept columns' places (0: g is
# dense), columns of w and of g, c; then Settings.
Row = tuple[float, ...]


class Settings(NamedTuple):
    """The numbers of a parameter that stay the same from step to step; the decays come in this order (λ₀, λ, λ₁)."""

    beta1: float
    beta2: float
    eps: float
    correct_bias: bool
    first_decay: float  # toward zero
    anchor_decay: float  # toward the anchor
    last_decay: float  # toward zero, once more


class Slot(NamedTuple):
    """One parameter of a step: everything that is read or written for it."""

    w: Tensor
    g: Tensor
    m: Tensor
    v: Tensor
    t: Tensor  # the steps taken so far, float32 of no dimension
    anchor: Tensor | None
    rate: Tensor  # the learning rate, float32 or float64 of no dimension
    settings: Settings
    kept: KeptGradient | None = None  # where g has the kept columns of a mixed layer alone

    def row(self) -> Row:
        anchor = 0 if self.anchor is None else self.anchor.data_ptr()
        sparse: Row = (0, 0, 0, 1.0)
        if self.kept is not None:
            sparse = (self.kept.columns.place.data_ptr(), self.w.shape[1], self.g.shape[1], self.kept.factor)
        addresses = (self.w.data_ptr(), self.g.data_ptr(), self.m.data_ptr(), self.v.data_ptr(), anchor)
        return (*addresses, self.t.data_ptr(), self.w.numel(), self.rate.data_ptr(), *sparse, *self.settings)


class Kind(NamedTuple):
    """Parameters that one launch can treat together."""

    device: torch.device
    dtype: torch.dtype
    double_rate: bool  # learning rates are float64
    aligned: bool  # every tensor begins at a multiple of 16 bytes, and so does every row of kept columns' places
    kept: bool  # gradients are of kept columns alone

    @classmethod
    def of(cls, slot: Slot, row: Row) -> Kind:
        aligned = not any(int(each) % 16 for each in (*row[:5], *row[8:10]))
        return cls(slot.w.device, slot.w.dtype, slot.rate.dtype == torch.float64, aligned, slot.kept is not None)


@dataclass(frozen=True, eq=False)
class Tables:
    """The tables of one launch; adamw_triton.py has their layout."""

    kind: Kind
    rows: list[Row]
    on_host: Tensor  # the table before it was uploaded
    table: Tensor
    rates: Tensor
    settings: Tensor
    owners: Tensor
    numbers: Tensor

    @classmethod
    def of(cls, kind: Kind, rows: list[Row], old: Tables | None = None) -> Tables:
        """Tables for the rows; what depends on sizes alone is taken over from `old` where they are the same."""
        sizes = [int(row[6]) for row in rows]
        blocks = torch.tensor([-(-size // BLOCK) for size in sizes])
        first = (blocks.cumsum(0) - blocks).tolist()
        table = torch.tensor([[*map(int, row[:7]), start, *map(int, row[8:11]), 0] for row, start in zip(rows, first)])
        if old is not None and sizes == [row[6] for row in old.rows]:
            owners, numbers = old.owners, old.numbers
        else:
            which = torch.arange(len(rows), dtype=torch.int32).repeat_interleave(blocks)
            owners = _uploaded(which, kind.device)
            numbers = torch.empty(len(rows), 16, dtype=torch.float32, device=kind.device)
        return cls(
            kind=kind,
            rows=rows,
            on_host=table,
            table=_uploaded(table, kind.device),
            rates=_uploaded(torch.tensor([int(row[7]) for row in rows]), kind.device),
            settings=_uploaded(_settings(rows), kind.device),
            owners=owners,
            numbers=numbers,
        )

    def with_gradients(self, addresses: list[int]) -> Tables | None:
        """The same with gradients at other addresses; None where something is not aligned."""
        if not self.kind.aligned or any(address % 16 for address in addresses):
            return None
        on_host = self.on_host.clone()
        on_host[:, 1] = torch.tensor(addresses)
        rows = [(row[0], address, *row[2:]) for row, address in zip(self.rows, addresses)]
        return replace(self, rows=rows, on_host=on_host, table=_uploaded(on_host, self.kind.device))

    def record_stream_(self) -> None:
        """Tell the allocator that the current stream reads this memory: it may have been made on another."""
        if self.kind.device.type == "cuda":
            stream = torch.cuda.current_stream(self.kind.device)
            for tensor in (self.table, self.rates, self.settings, self.owners, self.numbers):
                tensor.record_stream(stream)


def _settings(rows: list[Row]) -> Tensor:
    made = []
    for row in rows:
        of = Settings(*row[12:])  # type: ignore[arg-type]
        logs = [math.log(beta) if of.correct_bias and beta > 0 else -math.inf for beta in (of.beta1, of.beta2)]
        made.append([of.beta1, of.beta2, *logs, of.eps, of.first_decay, of.anchor_decay, of.last_decay, row[11]])
    return torch.tensor(made, dtype=torch.float64)


def _uploaded(values: Tensor, device: torch.device) -> Tensor:
    """A copy on the device, without waiting for it: memory that is pinned is read when the device comes to it."""
    return values if device.type == "cpu" else values.pin_memory().to(device, non_blocking=True)
