"""What does a step of AdamW cost beside torch's fused one, with all that this library does in the same pass?

    python benchmarks/optimizer.py --json

Parameters of the shapes of BERT-large (335M) and of a 6x384 encoder (23M), in float32, gradients in place: the step of
the optimiser alone. On a CUDA device each variant is timed as a replay of a CUDA graph and eagerly; on the CPU, where
no kernel runs, eagerly and (--tiny) on a small encoder. Variants are interleaved in one process.

Floors: bytes over the measured rate of a large copy. AdamW reads w, g, m, v and writes w, m, v: 28 bytes for a float32
weight; an anchor is 4 more to read, zeros in the gradient 4 more to write. --tune times other sizes of the kernel's
blocks (elements x warps).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from common import finish, machine
from device import Bench, Step
from steadytune import AdamW, PretrainedDecay, apply_
from steadytune.kernels import adamw_tables
from steadytune.methods.weight_decay import decay_, decayed_names

MODELS = {
    "BERT-large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    "6x384": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128},
}
BASE = "torch fused"
GOAL = 1.3  # our step with decay toward the pretrained weights over torch's fused AdamW
LR, DECAY, CLIP = 1e-5, 0.01, 0.5
BLOCKS = ((1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8), (4096, 16))


@dataclass(frozen=True)
class Variant:
    """A step to be timed, and the bytes that it must move for each weight."""

    build: Callable[[Bench, nn.Module], Step]
    bytes: int = 28


def model_of(bench: Bench, name: str) -> nn.Module:
    """A model with random weights and gradients, on the device."""
    with torch.device("meta"):
        model = BertForSequenceClassification(BertConfig(**MODELS[name], vocab_size=30522 if name != "tiny" else 1000))
    model.to_empty(device=bench.device)
    for p in model.parameters():
        p.data.normal_(std=0.02)
        p.grad = torch.randn_like(p)
    return model


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    names = decayed_names(model)
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if n in names], "weight_decay": DECAY},
        {"params": [p for n, p in named if n not in names], "weight_decay": 0.0},
    ]


def torch_adamw(form: str) -> Callable[[Bench, nn.Module], Step]:
    def build(bench: Bench, model: nn.Module) -> Step:
        optimizer = torch.optim.AdamW(groups_of(model), lr=LR, capturable=bench.cuda, **{form: True})
        return lambda: optimizer.step() and None

    return build


def torch_anchored(bench: Bench, model: nn.Module) -> Step:
    """Decay toward the pretrained weights as a pass of its own before torch's fused step."""
    step = torch_adamw("fused")(bench, model)
    names = decayed_names(model)
    params: list[Tensor] = [p for n, p in model.named_parameters() if n in names]
    anchors = [p.detach().clone() for p in params]

    def both() -> None:
        decay_(params, LR * DECAY, anchors)
        step()

    return both


def ours(
    correct_bias: bool = True,
    anchored: bool = False,
    factor: bool = False,
    zero: bool = False,
    one_pass: bool = False,
) -> Callable[[Bench, nn.Module], Step]:
    def build(bench: Bench, model: nn.Module) -> Step:
        optimizer = AdamW(groups_of(model), lr=LR, correct_bias=correct_bias)
        if one_pass:
            optimizer.in_one_pass_()
        if anchored:
            apply_(model, PretrainedDecay(DECAY)).attach_(optimizer)
        optimizer.lr_on_device_()
        given = torch.tensor(CLIP, device=bench.device) if factor else None

        def step() -> None:
            optimizer.step(grad_factor=given, zero_grads=zero)

        return step

    return build


ON_A_CPU = {  # what the engine does there; on a GPU all of it is one pass anyway
    "ours, in one pass": Variant(ours(one_pass=True)),
    "ours, in one pass, no bias correction": Variant(ours(one_pass=True, correct_bias=False)),
    "ours, in one pass, decay to pretrained": Variant(ours(one_pass=True, anchored=True), 32),
}
VARIANTS = {
    BASE: Variant(torch_adamw("fused")),
    "torch fused, again": Variant(torch_adamw("fused")),  # how much is noise
    "torch foreach": Variant(torch_adamw("foreach")),
    "torch fused + decay to pretrained": Variant(torch_anchored, 32),
    "ours": Variant(ours()),
    "ours, no bias correction": Variant(ours(correct_bias=False)),
    "ours, decay to pretrained": Variant(ours(anchored=True), 32),
    **ON_A_CPU,
    "ours, clip factor": Variant(ours(factor=True)),
    "ours, decay, clip, zeros": Variant(ours(anchored=True, factor=True, zero=True), 36),
}


def compare(bench: Bench, name: str, variants: dict[str, Variant]) -> dict[str, Any]:
    """Each variant on a model of its own; as graphs and eagerly where there is a device."""
    steps, floors, weights = {}, {}, 0
    for label, variant in variants.items():
        model = model_of(bench, name)
        weights = sum(p.numel() for p in model.parameters())
        steps[label] = variant.build(bench, model)
        floors[label] = variant.bytes * weights / bench.bytes
    title = f"{name}, {weights / 1e6:.1f}M weights"
    results: dict[str, Any] = {"weights": weights}
    if bench.cuda:
        replays = {label: bench.graphed(step) for label, step in steps.items()}
        results["graph"] = bench.compare(f"{title}, CUDA graph", replays, BASE, floors)
    eager = {label: bench.waiting(step) for label, step in steps.items()}
    results["eager"] = bench.compare(f"{title}, eager", eager, BASE, floors)
    return results


def tune(bench: Bench, name: str) -> dict[str, Any]:
    """The anchored step with other blocks; what is compiled and captured inside the patch stays so."""
    from steadytune.kernels import adamw_triton

    floor = 28 * sum(p.numel() for p in model_of(bench, name).parameters()) / bench.bytes
    steps = {BASE: torch_adamw("fused")(bench, model_of(bench, name))}  # a graph needs its optimiser to be there
    replays, floors = {BASE: bench.graphed(steps[BASE])}, {BASE: floor}
    for block, warps in BLOCKS:
        label = f"{block}x{warps}"
        steps[label] = ours(anchored=True)(bench, model_of(bench, name))
        of_kernel = mock.patch.multiple(adamw_triton, BLOCK=block, WARPS=warps)
        with of_kernel, mock.patch.object(adamw_tables, "BLOCK", block):
            replays[label] = bench.graphed(steps[label])
        floors[label] = floor * 32 / 28
    return bench.compare(f"{name}, decay to pretrained, elements x warps of a block", replays, BASE, floors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--rounds", type=int, default=None, help="rounds of each part (31 on a GPU, 5 on the CPU)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a tiny encoder only: does everything run?")
    parser.add_argument("--tune", action="store_true", help="also time other block sizes (CUDA only)")
    options = parser.parse_args()
    print(machine())
    started = time.perf_counter()
    bench = Bench(options.device, options.rounds or (31 if options.device == "cuda" else 5), eager=False)
    print(f"{bench.bytes / 1e9:.4g} GB/s in a large copy")
    if not bench.cuda:
        print(
            "No kernel on this device: ours is plain torch here, or torch's fused step (in one pass, as the engine has "
            "it); decay, factor and zeros are passes of their own."
        )
    names = ["tiny"] if options.tiny else ["BERT-large", "6x384"] if bench.cuda else ["6x384"]
    results = {name: compare(bench, name, VARIANTS) for name in names}
    summary: dict[str, Any] = {"machine": machine(), "bytes_per_second": bench.bytes, "parts": results}
    for name, found in results.items():
        part = found["graph" if bench.cuda else "eager"]
        label = "ours, decay to pretrained" if bench.cuda else "ours, in one pass, decay to pretrained"
        share = part["ratio"][label]
        above = part["ms"][label] / part["floor_ms"][label]
        print(
            f"\n{name}: decay toward the pretrained weights / {BASE} = {share:.3f} (goal <= {GOAL}), {above:.2f} times "
            f"its floor; bytes alone are 32/28 = {32 / 28:.3f} of AdamW's"
        )
        summary[f"decay_to_pretrained_over_fused_{name}"] = share
    if options.tune and bench.cuda:
        summary["tuning"] = {name: tune(bench, name) for name in names}
    finish({**summary, "seconds": time.perf_counter() - started}, options.json)


if __name__ == "__main__":
    main()
