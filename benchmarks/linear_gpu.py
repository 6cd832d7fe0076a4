"""What do quick layers save of a plain forward and backward under autocast on a GPU?

    python benchmarks/linear_gpu.py --json

Whole forward and backward passes of a 6x384 encoder and of BERT-large at 32x128 tokens, bf16 autocast, each replayed
from one CUDA graph that makes the casts of the weights too: plain autocast, with quick linear layers, with quick norms
as well (the engine), and with `--compile` as torch.compile makes it. Before them each pass of a linear layer alone,
beside what autocast does in its place and its floor: bytes over the measured copy bandwidth, or operations over the
measured matrix rate. Calls go through several copies of their tensors, so that nothing is read from the device's cache
that a step would not have there. The other form of a bias gradient is a product with rows of ones.

`--profile` counts the kernels of one eager forward and backward. `--device cpu --tiny` runs the same script in plain
torch, to see that it works; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity
from transformers import BertConfig, BertForSequenceClassification

from common import finish, interleaved, machine
from device import Bench, Step
from mixout_passes import COPIES, Kind, kinds
from steadytune.engine.quick import quicken_
from steadytune.engine.quick_linear import quicken_linears_
from steadytune.kernels import linear, norm
from steadytune.kernels.linear import CastTable, column_sum
from steadytune.kernels.products import product

SIZES = {
    "6x384": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "BERT-large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
TINY = {"tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}}
LOW, FULL = torch.bfloat16, torch.float32
OURS, PLAIN, OTHER = "ours", "autocast", "other form"
LINEAR, QUICK, COMPILED = "quick linear layers", "quick layers", "torch.compile"
Run = Callable[["Sample"], Any]


@dataclass(frozen=True)
class Sample:
    """The tensors of one call of a layer."""

    low_x: Tensor
    weight: Tensor
    low_weight: Tensor
    grad: Tensor  # dY
    ones: Tensor


@dataclass(frozen=True)
class Pass:
    name: str
    forms: dict[str, Run]
    floor: float  # seconds


def samples(bench: Bench, kind: Kind, tokens: int) -> list[Sample]:
    made = []
    for _ in range(COPIES):
        x = torch.randn(tokens, kind.columns, device=bench.device)
        weight = torch.randn(kind.rows, kind.columns, device=bench.device)
        grad = torch.randn(tokens, kind.rows, device=bench.device).to(LOW)
        ones = torch.ones(8, tokens, device=bench.device, dtype=LOW)
        made.append(Sample(x.to(LOW), weight, weight.to(LOW), grad, ones))
    return made


def layer_passes(bench: Bench, kind: Kind, tokens: int) -> Iterator[Pass]:
    inputs, outputs, weights = tokens * kind.columns, tokens * kind.rows, kind.rows * kind.columns

    def floor(operations: int, moved: int) -> float:
        return max(operations / bench.operations, moved / bench.bytes)

    work = 2 * tokens * weights
    yield Pass(
        "input gradient",
        {
            OURS: lambda s: product(s.grad, s.low_weight, kind.fed),
            PLAIN: lambda s: (s.grad @ s.low_weight).to(kind.fed),
        },
        floor(work, 2 * (outputs + weights) + kind.fed.itemsize * inputs),
    )
    yield Pass(
        "weight gradient",
        {OURS: lambda s: product(s.grad.t(), s.low_x, FULL), PLAIN: lambda s: (s.grad.t() @ s.low_x).to(FULL)},
        floor(work, 2 * (outputs + inputs) + 4 * weights),
    )
    yield Pass(
        "bias gradient",
        {
            OURS: lambda s: column_sum(s.grad),
            PLAIN: lambda s: s.grad.sum(0).to(FULL),
            OTHER: lambda s: product(s.ones, s.grad, FULL)[0],
        },
        floor(0, 2 * outputs),
    )


def line(name: str, found: dict[str, float], floor: float) -> None:
    other = f"{1e6 * found[OTHER]:9.1f}" if OTHER in found else ""
    over = f"{1e6 * floor:9.1f} {found[OURS] / floor:6.2f}"
    print(f"{name:24} {1e6 * found[OURS]:9.1f} {over} {1e6 * found[PLAIN]:9.1f} {other:>10}")


def passes(bench: Bench, sizes: dict[str, int], tokens: int) -> dict[str, float]:
    """Prints a table for each kind of layer; returns the milliseconds of each pass over all layers of a step."""
    total: dict[str, float] = {}
    for kind in kinds(sizes["hidden_size"], sizes["intermediate_size"], LOW):
        print(f"\n{kind.title}: {tokens} tokens, microseconds of one call")
        print(f"{'pass':24} {OURS:>9} {'floor':>9} {'over':>6} {PLAIN:>9} {OTHER:>10}")
        made = samples(bench, kind, tokens)
        for each in layer_passes(bench, kind, tokens):
            found = bench.seconds(each.forms, made)
            line(each.name, found, each.floor)
            for form, value in found.items():
                name = f"{each.name}, {form}"
                total[name] = total.get(name, 0.0) + 1000 * sizes["num_hidden_layers"] * kind.count * value
    print(f"\nover all {sizes['num_hidden_layers']} blocks of a step, ms")
    for name, value in total.items():
        print(f"{name:36} {value:9.3f}")
    return total


def casts(bench: Bench, model: nn.Module) -> dict[str, float]:
    """All weights of a model to the low type."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    sources = [parameter.detach() for layer in layers for parameter in (layer.weight, layer.bias)]
    table = CastTable.of(sources, LOW)

    def one_by_one() -> None:
        for source in sources:
            source.to(LOW)

    forms: dict[str, Step] = {
        OURS: table.cast_,
        PLAIN: one_by_one,
        OTHER: lambda: torch._foreach_copy_(list(table.lows), sources),
    }
    steps = {name: bench.graphed(form) for name, form in forms.items()}
    found = {name: statistics.median(times) for name, times in interleaved(steps, bench.rounds).items()}
    print(f"\n{len(sources)} weights and biases, cast, microseconds of a step; the other form is torch._foreach_copy_")
    line("casts", found, 6 * sum(source.numel() for source in sources) / bench.bytes)
    return {f"casts, {name}": 1000 * value for name, value in found.items()}


class Model:
    """Forward and backward of a classifier."""

    def __init__(self, bench: Bench, sizes: dict[str, int], shape: tuple[int, int], form: str) -> None:
        torch.manual_seed(0)
        with torch.device(bench.device):
            self.model = BertForSequenceClassification(BertConfig(vocab_size=30522, **sizes)).train()
        ids = torch.randint(5, 30000, shape, device=bench.device)
        labels = torch.arange(shape[0], device=bench.device) % 2
        self.batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
        self.device, self.parameters = bench.device, list(self.model.parameters())
        self.form, self.casts = form, None
        self.forward = torch.compile(self.model) if form == COMPILED else self.model
        if form in (LINEAR, QUICK):
            self.casts = (quicken_linears_ if form == LINEAR else quicken_)(self.model, LOW)
            assert self.casts is not None, "nothing became quick: is Triton installed?"

    def step(self) -> None:
        if self.casts is not None:
            self.casts.refresh_()
        with torch.autocast(self.device, dtype=LOW):
            loss = self.forward(**self.batch).loss
        torch.autograd.grad(loss, self.parameters)


def kernels(bench: Bench, model: Model) -> None:
    """Prints how many kernels one eager forward and backward has, and the longest of them."""
    model.step()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA if bench.cuda else ProfilerActivity.CPU]) as found:
        bench.waiting(model.step)()
    share = "self_device_time_total" if bench.cuda else "self_cpu_time_total"
    rows = sorted(found.key_averages(), key=lambda row: -getattr(row, share))
    spent = sum(getattr(row, share) for row in rows) / 1000
    print(f"\n{model.form}: {sum(row.count for row in rows)} kernels, {spent:.2f} ms in them")
    for row in rows[:25]:
        print(f"{getattr(row, share) / 1000:9.3f} ms {row.count:6} {row.key[:120]}")


def compare(bench: Bench, name: str, sizes: dict[str, int], shape: tuple[int, int], options: Any) -> dict[str, Any]:
    forms = [PLAIN, LINEAR, QUICK, *([COMPILED] if options.compile else [])]
    models = {form: Model(bench, sizes, shape, form) for form in forms}
    if options.compile:
        began = time.perf_counter()
        bench.waiting(models[COMPILED].step)()
        print(f"\n{name}: torch.compile took {time.perf_counter() - began:.1f} s for one shape")
    if options.profile:
        for model in models.values():
            kernels(bench, model)
        return {}
    tokens = shape[0] * shape[1]
    weights = sum(m.weight.numel() for m in models[PLAIN].model.modules() if isinstance(m, nn.Linear))
    floor = 6 * tokens * weights / bench.operations  # of the products with weights alone
    alone = {**casts(bench, models[PLAIN].model), **passes(bench, sizes, tokens)}
    memory = {form: bench.peak(model.step) / 2**20 for form, model in models.items()}
    steps = {form: bench.graphed(model.step) for form, model in models.items()}
    title = f"{name}, {shape[0]}x{shape[1]}, forward and backward; floor: the layers' products alone"
    result = bench.compare(title, steps, PLAIN, dict.fromkeys(steps, floor))
    print("MiB at most, of an eager pass: " + ", ".join(f"{form} {peak:.0f}" for form, peak in memory.items()))
    return {**result, "passes_ms": alone, "memory_mib": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--rounds", type=int, default=None, help="rounds of each part (21 on a GPU, 3 on the CPU)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs: launching is timed too")
    parser.add_argument("--tiny", action="store_true", help="a small model and batch, to try the script")
    parser.add_argument("--models", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--profile", action="store_true", help="count kernels instead of timing")
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which takes its time")
    options = parser.parse_args()
    print(machine())
    started = time.perf_counter()
    bench = Bench(options.device, options.rounds or (21 if options.device == "cuda" else 3), options.eager)
    print(f"{bench.operations / 1e12:.3g} Tflop/s in a large product, {bench.bytes / 1e9:.4g} GB/s in a large copy")
    chosen = TINY if options.tiny else {name: SIZES[name] for name in options.models}
    shape, results = (2, 16) if options.tiny else (32, 128), {}
    switched = {"DEVICES": {options.device}, "_HAS_TRITON": bench.cuda and linear._HAS_TRITON}
    with mock.patch.multiple(linear, **switched), mock.patch.multiple(norm, **switched):
        for name, sizes in chosen.items():
            results[name] = compare(bench, name, sizes, shape, options)
    finish({"seconds": time.perf_counter() - started, "machine": machine(), "parts": results}, options.json)


if __name__ == "__main__":
    main()
