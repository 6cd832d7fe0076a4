"""Where the time of a mixed layer goes: every pass of each kind of layer of BERT-large, alone, beside its floor.

Columns: this library's form; the same work in plain torch; what a plain layer under autocast has in its place. The
floor is bytes over the measured copy bandwidth, or operations over the measured matrix rate. Each number is that of one
call; calls go through several copies of their tensors, so that nothing is read from the device's cache that a step
would not have there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from device import Bench
from steadytune.kernels.mixout_columns import expand, expand_torch, mix_, mix_torch_, take
from steadytune.kernels.mixout_masks import Columns, draw, new_rule
from steadytune.kernels.products import product, weight_product
from steadytune.rng import new_counter

COPIES = 8  # of every tensor
OURS, TORCH, PLAIN = "ours", "torch", "plain layer"
Run = Callable[["Sample"], Any]


@dataclass(frozen=True)
class Kind:
    """Layers of one shape, and how many a block has."""

    columns: int
    rows: int
    fed: torch.dtype
    count: int

    @property
    def title(self) -> str:
        fed = str(self.fed).removeprefix("torch.")
        return f"{self.columns} -> {self.rows}, fed with {fed}, {self.count} in a block"


@dataclass(frozen=True)
class Sample:
    """The tensors of one call."""

    x: Tensor
    low: Tensor
    taken: Tensor
    weight: Tensor
    target: Tensor
    mixed: Tensor
    bias: Tensor
    low_bias: Tensor
    grad: Tensor  # dY
    part: Tensor  # dYᵀ X_k
    dense: Tensor  # dYᵀ X
    columns: Columns
    index: Tensor  # the kept columns as index_select likes them best


@dataclass(frozen=True)
class Pass:
    name: str
    forms: dict[str, Run]
    floor: float  # seconds


def kinds(width: int, high: int, low: torch.dtype) -> list[Kind]:
    """Query, key, value; attention's output; the two of the feed-forward part."""
    full = torch.float32  # behind a LayerNorm, which autocast keeps
    return [
        Kind(width, width, full, 3),
        Kind(width, width, low, 1),
        Kind(width, high, full, 1),
        Kind(high, width, low, 1),
    ]


def samples(bench: Bench, kind: Kind, tokens: int, p: float) -> list[Sample]:
    low, made = bench.dtype, []
    for number in range(COPIES):
        columns = draw(new_counter(number).to(bench.device), new_rule(kind.columns, p))

        def random(*size: int, dtype: torch.dtype = low) -> Tensor:
            return torch.randn(*size, device=bench.device).to(dtype)

        x, weight = random(tokens, kind.columns, dtype=kind.fed), random(kind.rows, kind.columns, dtype=torch.float32)
        cast, (taken,) = take(x, [columns.kept], low)
        grad = random(tokens, kind.rows)
        assert taken is not None
        made.append(
            Sample(
                x=x,
                low=cast,
                taken=taken,
                weight=weight,
                target=weight + 0.01,
                mixed=weight.to(low),
                bias=random(kind.rows, dtype=torch.float32),
                low_bias=random(kind.rows),
                grad=grad,
                part=weight_product(grad, taken),
                dense=random(kind.rows, kind.columns),
                columns=columns,
                index=columns.kept.clamp(min=0).long(),
            )
        )
    return made


def layer_passes(bench: Bench, kind: Kind, tokens: int, p: float) -> Iterator[Pass]:
    low, full = bench.dtype, torch.float32
    size, fed, capacity = low.itemsize, kind.fed.itemsize, new_rule(kind.columns, p).capacity
    whole, kept, weights = tokens * kind.columns, tokens * capacity, kind.rows * kind.columns
    scale = 1 / (1 - p)

    def moved(count: float) -> float:
        return count / bench.bytes

    def work(columns: int, out: float) -> float:
        read = size * (tokens * kind.rows + min(columns * tokens, weights))
        return max(2 * tokens * kind.rows * columns / bench.operations, moved(read + out))

    casts = kind.fed != low
    yield Pass(
        "take, cast",
        {
            OURS: lambda s: take(s.x, [s.columns.kept], low),
            TORCH: lambda s: s.x.to(low).index_select(1, s.index),
            **({PLAIN: lambda s: s.x.to(low)} if casts else {}),
        },
        moved(fed * whole + (size * whole if casts else 0) + size * kept),
    )
    if casts:
        yield Pass(
            "take, cast shared",
            {OURS: lambda s: take(s.low, [s.columns.kept], low), TORCH: lambda s: s.low.index_select(1, s.index)},
            moved(size * (whole + kept)),
        )
    yield Pass(
        "mix",
        {
            OURS: lambda s: mix_(s.mixed, s.low_bias, s.weight, s.target, s.columns.place, s.bias, p),
            TORCH: lambda s: mix_torch_(s.mixed, s.low_bias, s.weight, s.target, s.columns.place, s.bias, p),
            PLAIN: lambda s: (s.weight.to(low), s.bias.to(low)),
        },
        moved((4 + 4 + size) * weights),
    )
    yield Pass(
        "input gradient",
        {OURS: lambda s: product(s.grad, s.mixed, kind.fed), PLAIN: lambda s: (s.grad @ s.mixed).to(kind.fed)},
        work(kind.columns, fed * whole),
    )
    yield Pass(
        "weight gradient",
        {
            OURS: lambda s: weight_product(s.grad, s.taken),
            TORCH: lambda s: s.grad.t() @ s.taken,
            PLAIN: lambda s: s.grad.t() @ s.low,
        },
        work(capacity, 4 * kind.rows * capacity),
    )
    yield Pass(
        "expand, bias gradient",
        {
            OURS: lambda s: expand(s.part, s.columns, scale, True, full, full),
            TORCH: lambda s: expand_torch(s.part, s.columns, scale, True, full, full),
            PLAIN: lambda s: (s.dense.to(full), s.grad.sum(0).to(full)),
        },
        moved(4 * kind.rows * capacity + 4 * weights),
    )


def passes(bench: Bench, width: int, high: int, blocks: int, tokens: int, p: float = 0.7) -> dict[str, float]:
    """Prints a table for each kind of layer; returns the milliseconds of each pass over all layers of a step."""
    total: dict[str, float] = {}
    for kind in kinds(width, high, bench.dtype):
        made = samples(bench, kind, tokens, p)
        print(f"\n{kind.title}: {tokens} tokens, p = {p}, microseconds of one call")
        print(f"{'pass':24} {OURS:>9} {'floor':>9} {'over':>6} {TORCH:>9} {PLAIN:>12}")
        for each in layer_passes(bench, kind, tokens, p):
            found = bench.seconds(each.forms, made)
            other, plain = (f"{1e6 * found[form]:.1f}" if form in found else "" for form in (TORCH, PLAIN))
            over = found[OURS] / each.floor
            print(f"{each.name:24} {1e6 * found[OURS]:9.1f} {1e6 * each.floor:9.1f} {over:6.2f} {other:>9} {plain:>12}")
            # Of the layers that read the same input the first one casts it, and the others take that.
            count = {"take, cast": 1, "take, cast shared": kind.count - 1}.get(each.name, kind.count)
            for form, value in found.items():
                name = f"{each.name}, {form}"
                total[name] = total.get(name, 0.0) + 1000 * blocks * count * value
    print(f"\nover all {blocks} blocks of a step, ms (casts shared)")
    for name, value in total.items():
        print(f"{name:36} {value:9.3f}")
    return total
