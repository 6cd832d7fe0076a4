"""Is mixout cheaper than dropout on a GPU? Whole steps of a BERT-large-shaped classifier, bf16 autocast.

    python benchmarks/mixout_gpu.py --json

A step is forward, backward, clipping and fused AdamW, replayed from one CUDA graph, as the engine does it: plain layers
of every variant are its quick ones (engine/quick.py). Variants, interleaved in one process: dropout(0.1), and the same
with torch's own layers; this library's mixout on every linear layer with the masks of all layers drawn at once and the
weight gradient of kept columns only, which stays where it is written (kernels/kept_gradients.py), and those columns
made again in the backward pass of the layer before (kept_inputs.py); the same with columns that are taken in the
forward pass and kept; with that gradient expanded to a dense one, for optimisers that read no other; with the dense
product, which a step takes when a mask does not fit; and the public form, a lerp per layer that autograd
differentiates. "Sums apart": residual sums, and those of their gradients, as passes of their own
(engine/quick_residual.py). Peak memory is that of a whole eager step, with weights, gradients, moments and targets.

The floor is by operation count: forward, input gradient and weight gradient cost the same, and mixout needs a fraction
1 - p of the last one; in milliseconds, the matrix products of all layers at the measured rate and the optimiser's 28
bytes a weight. Beside it, what is in the way: each pass of a mixed layer, and its floor (mixout_passes.py).
`--tune` compares tile sizes of the kernels instead of whole steps, `--profile` lists the kernels of a step.
`--device cpu --tiny` runs the same script in plain torch, to see that it works; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity
from transformers import BertConfig, BertForSequenceClassification

from common import chosen, finish, machine
from device import Bench, Step
from mixout_passes import passes
from mixout_tune import tune
from steadytune import AdamW, Mixout, apply_
from steadytune.engine.quick import quicken_
from steadytune.engine.quick_embedding import unquicken_embeddings_
from steadytune.engine.quick_linear import WeightCasts
from steadytune.engine.quick_residual import unquicken_residuals_
from steadytune.kernels.handed_on import Handed, SharedCast
from steadytune.kernels.kept_gradients import KeptGradients
from steadytune.methods import mixed_layers
from steadytune.methods.mask_pool import MaskPool, column_layers, use_kept_columns_
from steadytune.methods.mixout import select_layers

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
SHAPES = [(32, 128), (64, 256)]
DROPOUT = "dropout(0.1)"


class PublicMixLinear(nn.Linear):
    """The mask per column and the mixed weight as public code makes them."""

    p: float
    target: Tensor

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.empty(self.in_features, device=x.device).bernoulli_(1 - self.p)
        return functional.linear(x, torch.lerp(self.target, self.weight, mask / (1 - self.p)), self.bias)


def build(bench: Bench, sizes: dict[str, int], dropout: float) -> nn.Module:
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    with torch.device(bench.device):
        model = BertForSequenceClassification(BertConfig(vocab_size=30522, **sizes, **rates))
    return model.train()


def public(bench: Bench, sizes: dict[str, int], p: float) -> nn.Module:
    model = build(bench, sizes, 0.0)
    for module in select_layers(model, "linear").values():
        target = module.weight.detach().clone()
        module.__class__ = PublicMixLinear
        module.p, module.target = p, target
    return model


class Taken(SharedCast):
    """What layers hand on, without who can make it again."""

    def __init__(self, handed: SharedCast) -> None:
        self.handed = handed

    def get(self, x: Tensor, dtype: torch.dtype) -> Handed | None:
        found = self.handed.get(x, dtype)
        return found and found._replace(source=None)


class Training:
    """Whole steps of one variant."""

    def __init__(self, bench: Bench, model: nn.Module, shape: tuple[int, int]) -> None:
        self.bench, self.model = bench, model
        self.ids = torch.randint(5, 30000, shape, device=bench.device)
        self.labels = torch.arange(shape[0], device=bench.device) % 2
        self.mask = torch.ones_like(self.ids)
        self.parameters = list(model.parameters())
        self.optimizer = AdamW(self.parameters, lr=1e-5)
        self.optimizer.lr_on_device_()
        self.pool: MaskPool | None = None
        self.kept: KeptGradients | None = None
        self.casts: WeightCasts | None = None

    def quick(self, sums: bool = True) -> Training:
        """After methods, as in the engine; without `sums`, those of residual connections are torch's."""
        self.casts = quicken_(self.model, self.bench.dtype)
        unquicken_embeddings_(self.model)  # on a CPU they write their gradient themselves; here it is gathered
        if not sums:
            unquicken_residuals_(self.model)
        return self

    def with_masks(self, p: float, gradient: str = "kept", again: bool = True) -> Training:
        """`gradient` is "kept", "expanded" or "dense"; `again`, as in the engine, makes kept columns again."""
        apply_(self.model, Mixout(p=p, layers="linear"))
        self.pool = MaskPool(self.model, self.bench.dtype)
        if bool(self.pool.forecast(2000).any()):  # more calls than a run makes
            raise SystemExit("A mask of this run would not fit its capacity: set another seed in `build`.")
        use_kept_columns_(self.model, gradient != "dense")
        if gradient == "kept":
            why_not = self.optimizer.why_not_kept
            # On a CPU, too, where the optimiser has no kernel and expands them.
            self.kept = self.pool.keep_gradients_(lambda weights: not self.bench.cuda or not why_not(weights))
            if self.kept is None:
                raise SystemExit("No layer's gradient can be kept: " + why_not([next(self.model.parameters())]))
            self.optimizer.read_kept_(self.kept.of)
        self.quick()
        for layer in column_layers(self.model).values():
            layer.mix_inputs = layer.mix_inputs if again or layer.mix_inputs is None else Taken(layer.mix_inputs)
        return self

    def step(self) -> None:
        """As the engine's (engine/chunk.py, update.py): gradients gathered at once, clipping inside the optimiser."""
        if self.pool is not None:
            self.pool.draw_()
            self.pool.mix_()
        if self.kept is not None:
            self.kept.begin_(first=True)
        if self.casts is not None:
            self.casts.refresh_()
        with self.bench.autocast():
            loss = self.model(input_ids=self.ids, attention_mask=self.mask, labels=self.labels).loss
        made = torch.autograd.grad(loss, self.parameters, allow_unused=self.kept is not None)
        found = [(parameter, gradient) for parameter, gradient in zip(self.parameters, made) if gradient is not None]
        for parameter, _ in found:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        torch._foreach_copy_([parameter.grad for parameter, _ in found], [gradient for _, gradient in found])
        if self.kept is not None:
            self.kept.finish_()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients) if self.kept is None else self.kept.norm(gradients)
        self.optimizer.step(grad_factor=torch.clamp(1.0 / (norm + 1e-6), max=1.0))

    def captured(self, memory: Any) -> Step:
        """The step as one CUDA graph in a memory that all variants share, since they run one after the other."""
        if not self.bench.cuda or self.bench.eager:
            return self.bench.waiting(self.step)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            self.step()
        return self.bench.replaying(graph, self.step)


def variants(bench: Bench, sizes: dict[str, int], shape: tuple[int, int]) -> dict[str, Callable[[], Training]]:
    def ours(p: float, gradient: str = "kept", again: bool = True) -> Training:
        return Training(bench, build(bench, sizes, 0.1), shape).with_masks(p, gradient, again)

    return {
        DROPOUT: lambda: Training(bench, build(bench, sizes, 0.1), shape).quick(),
        "dropout(0.1), sums apart": lambda: Training(bench, build(bench, sizes, 0.1), shape).quick(sums=False),
        "dropout(0.1), torch's layers": lambda: Training(bench, build(bench, sizes, 0.1), shape),
        "no regularisation": lambda: Training(bench, build(bench, sizes, 0.0), shape).quick(),
        "mixout(0.7)": lambda: ours(0.7),
        "mixout(0.9)": lambda: ours(0.9),
        "mixout(0.7), columns taken before": lambda: ours(0.7, again=False),
        "mixout(0.7), gradient expanded": lambda: ours(0.7, "expanded"),
        "mixout(0.7), dense gradient": lambda: ours(0.7, "dense"),
        "mixout(0.7), public form": lambda: Training(bench, public(bench, sizes, 0.7), shape).quick(),
    }


def allocated(bench: Bench) -> int:
    """Bytes of tensors that are held, without garbage that nobody has collected yet."""
    if not bench.cuda:
        return 0
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def compare(bench: Bench, sizes: dict[str, int], shape: tuple[int, int], only: Sequence[str]) -> dict[str, Any]:
    steps, memory, floors, seconds = {}, {}, {}, {}
    shared = torch.cuda.graph_pool_handle() if bench.cuda else None
    for name, make in chosen(variants(bench, sizes, shape), only).items():
        base = allocated(bench)
        training = make()
        training.step()  # makes the optimiser's moments
        held = allocated(bench) - base
        memory[name] = bench.peak(training.step) + held
        steps[name] = training.captured(shared)
        weights = sum(m.weight.numel() for m in training.model.modules() if isinstance(m, nn.Linear))
        rest = 28 * sum(p.numel() for p in training.parameters) / bench.bytes
        del training  # the step holds it; what is no longer held is not to be counted with the next
        floors[name] = 1.0 - float(name[7:10]) / 3 if name.startswith("mixout(") else 1.0
        seconds[name] = floors[name] * 6 * weights * shape[0] * shape[1] / bench.operations + rest
    title = f"{sizes['num_hidden_layers']}x{sizes['hidden_size']}, {shape[0]}x{shape[1]}, whole step"
    result = bench.compare(title, steps, DROPOUT, seconds)
    print(f"{'':34} {'MiB at most':>12} {'to dropout':>11} {'floor of time':>14}")
    for name, peak in memory.items():
        print(f"{name:34} {peak / 2**20:12.0f} {peak / memory[DROPOUT]:11.3f} {floors[name]:14.3f}")
    result |= {"memory": {name: peak / memory[DROPOUT] for name, peak in memory.items()}, "floors": floors}
    del steps
    if only:
        return result
    blocks, tokens = sizes["num_hidden_layers"], shape[0] * shape[1]
    return {**result, "passes_ms": passes(bench, sizes["hidden_size"], sizes["intermediate_size"], blocks, tokens)}


def profile(bench: Bench, sizes: dict[str, int], shape: tuple[int, int], most: int = 30) -> None:
    """Prints which kernels an eager step of dropout and of mixout spends its time in."""
    for name in (DROPOUT, "mixout(0.7)"):
        training = variants(bench, sizes, shape)[name]()
        training.step()
        kinds = [ProfilerActivity.CUDA if bench.cuda else ProfilerActivity.CPU]
        with torch.profiler.profile(activities=kinds) as found:
            bench.waiting(training.step)()
        share = "self_device_time_total" if bench.cuda else "self_cpu_time_total"
        rows = sorted(found.key_averages(), key=lambda row: -getattr(row, share))
        print(f"\n{name}: {sum(getattr(row, share) for row in rows) / 1000:.2f} ms in kernels; ms, calls, kernel")
        for row in rows[:most]:
            print(f"{getattr(row, share) / 1000:9.3f} {row.count:6} {row.key[:150]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--rounds", type=int, default=None, help="rounds of each part (31 on a GPU, 3 on the CPU)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs: launching is timed too")
    parser.add_argument("--tiny", action="store_true", help="a small model and batch, to try the script")
    parser.add_argument("--shapes", type=int, nargs="+", choices=[0, 1], default=[0, 1], help="32x128, 64x256")
    parser.add_argument("--only", nargs="+", default=[], help="variants, by their names; dropout(0.1) must be one")
    parser.add_argument("--tune", action="store_true", help="compare tile sizes and forms of products, no whole steps")
    parser.add_argument("--profile", action="store_true", help="list the kernels of a step, no timed steps")
    options = parser.parse_args()
    print(machine())
    started = time.perf_counter()
    bench = Bench(options.device, options.rounds or (31 if options.device == "cuda" else 3), options.eager)
    print(f"{bench.operations / 1e12:.3g} Tflop/s in a large product, {bench.bytes / 1e9:.4g} GB/s in a large copy")
    shapes = [(2, 16), (4, 16)] if options.tiny else SHAPES
    # On a CPU the layers take the device's way too: the same script, in plain torch.
    devices = nullcontext() if bench.cuda else mock.patch.object(mixed_layers, "COLUMN_DEVICES", {"cpu"})
    sizes, results = TINY if options.tiny else LARGE, {}
    with devices:
        for number in options.shapes:
            if options.profile:
                profile(bench, sizes, shapes[number])
            if options.tune:
                tokens = shapes[number][0] * shapes[number][1]
                tune(bench, sizes["hidden_size"], sizes["intermediate_size"], tokens)
            if options.profile or options.tune:
                continue
            results[f"{SHAPES[number][0]}x{SHAPES[number][1]}"] = compare(bench, sizes, shapes[number], options.only)
    summary: dict[str, Any] = {"seconds": time.perf_counter() - started, "machine": machine(), "parts": results}
    for name, result in results.items():
        for p in [p for p in ("0.7", "0.9") if f"mixout({p})" in result["ratio"]]:
            summary[f"mixout_{p}_over_dropout_{name}"] = result["ratio"][f"mixout({p})"]
            summary[f"memory_{p}_over_dropout_{name}"] = result["memory"][f"mixout({p})"]
    finish(summary, options.json)


if __name__ == "__main__":
    main()
