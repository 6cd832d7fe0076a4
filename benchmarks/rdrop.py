"""What does R-Drop cost beside a batch twice as large, and what does its loss cost with a large vocabulary?

    python benchmarks/rdrop.py --json

Three parts. A 6x384 encoder for classification and an encoder-decoder with 32,000 tokens: a whole step (forward,
backward, clipping, AdamW) of R-Drop on B rows against a step on 2B different rows. The loss alone, from hidden states
and the output matrix, forward and backward: chunks against the direct form, which holds all logits. On a CUDA device
in bf16 at full size with the engine's quick layers, each step replayed from a CUDA graph; on the CPU in float32, at
sizes that a laptop bears.

Variants are interleaved in one process. Floors: operations of the matrix products over the measured rate of a large
product, bytes that must move over the measured rate of a large copy.
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
from torch.nn import functional
from transformers import BartConfig, BartForConditionalGeneration, BertConfig, BertForSequenceClassification

from common import finish, machine
from device import Bench, Step
from steadytune import DoubledBatch, RDrop, apply_, rdrop_loss
from steadytune.engine.quick import quicken_
from steadytune.kernels.rdrop import chunked_rdrop_loss
from steadytune.methods import late_logits


@dataclass(frozen=True)
class Size:
    """How large each part is."""

    encoder: tuple[int, int, int, int]  # layers, width, rows, tokens in a row
    translator: tuple[int, int, int, int]  # the same, for encoder and decoder each
    vocabulary: int
    loss: tuple[int, int]  # positions of one pass, width


FULL = Size(encoder=(6, 384, 32, 64), translator=(6, 512, 64, 64), vocabulary=32000, loss=(8192, 512))
SMALL = Size(encoder=(2, 96, 8, 32), translator=(1, 64, 4, 16), vocabulary=8192, loss=(192, 128))


def training(bench: Bench, model: nn.Module, method: Any, batch: dict[str, Tensor], late: bool = True) -> Step:
    """A whole step. Without `late`, logits are computed and held, as the direct form of the loss needs them."""
    applied = apply_(model, method)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=bench.cuda, capturable=bench.cuda)
    casts = quicken_(model, bench.dtype)  # as in the engine
    line = late_logits.LARGE_VOCABULARY if late else 10**9

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        if casts is not None:
            casts.refresh_()
        with bench.autocast(), mock.patch.object(late_logits, "LARGE_VOCABULARY", line):
            loss, _ = applied.loss(model, dict(batch))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return bench.graphed(step)


def products_of(model: nn.Module, positions: int) -> float:
    """Operations of forward and backward through every linear layer, for so many positions."""
    return 6.0 * positions * sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))


def against_doubled(
    bench: Bench, title: str, build: Callable[[], nn.Module], ids: Tensor, labels: Tensor, direct: bool
) -> dict[str, Any]:
    """R-Drop on the first half of the rows, and all rows once."""
    rows = len(ids) // 2
    whole, half = {"input_ids": ids, "labels": labels}, {"input_ids": ids[:rows], "labels": labels[:rows]}
    steps = {
        "doubled batch": training(bench, build(), DoubledBatch(), whole),
        "doubled batch, again": training(bench, build(), DoubledBatch(), whole),  # how much is noise
        "R-Drop": training(bench, build(), RDrop(), half),
    }
    if direct:
        steps["R-Drop, direct form"] = training(bench, build(), RDrop(), half, late=False)
    floor = products_of(build(), ids.numel()) / bench.operations
    return bench.compare(title, steps, "doubled batch", dict.fromkeys(steps, floor))


def classification(bench: Bench, size: Size) -> dict[str, Any]:
    layers, width, rows, length = size.encoder

    def build() -> nn.Module:
        torch.manual_seed(0)
        heads = {"num_attention_heads": width // 32, "intermediate_size": 4 * width}
        config = BertConfig(hidden_size=width, num_hidden_layers=layers, **heads)
        return BertForSequenceClassification(config).to(bench.device).train()

    ids = torch.randint(5, 30000, (2 * rows, length), device=bench.device)
    labels = torch.arange(2 * rows, device=bench.device) % 2
    return against_doubled(bench, f"classification, {layers}x{width}, {rows}x{length}", build, ids, labels, False)


def translation(bench: Bench, size: Size) -> dict[str, Any]:
    layers, width, rows, length = size.translator

    def build() -> nn.Module:
        torch.manual_seed(0)
        each = {"layers": layers, "ffn_dim": 4 * width, "attention_heads": width // 64}
        sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in each.items()}
        config = BartConfig(vocab_size=size.vocabulary, d_model=width, max_position_embeddings=length, **sizes)
        return BartForConditionalGeneration(config).to(bench.device).train()

    ids, labels = torch.randint(5, size.vocabulary, (2, 2 * rows, length), device=bench.device)
    title = f"translation, {layers}+{layers}x{width}, {size.vocabulary} tokens, {rows}x{length}"
    return against_doubled(bench, title, build, ids, labels, True)


def loss_alone(bench: Bench, size: Size) -> dict[str, Any]:
    (positions, width), classes = size.loss, size.vocabulary
    hidden = [torch.randn(positions, width, device=bench.device, requires_grad=True) for _ in range(2)]
    weight = (torch.randn(classes, width, device=bench.device) / width**0.5).requires_grad_()
    labels = torch.randint(0, classes, (positions,), device=bench.device)

    def direct() -> Tensor:
        return rdrop_loss(*(functional.linear(each, weight) for each in hidden), labels, label_smoothing=0.1)

    def chunked() -> Tensor:
        return chunked_rdrop_loss(*hidden, weight, None, labels, label_smoothing=0.1)

    def both_ways(loss: Callable[[], Tensor]) -> Step:
        def run() -> None:
            for each in (*hidden, weight):
                each.grad = None
            with bench.autocast():
                made = loss()
            made.backward()

        return bench.waiting(run)

    runs = {"direct form": both_ways(direct), "chunks": both_ways(chunked)}
    memory = {}
    for name, run in runs.items():
        run()
        for each in (*hidden, weight):
            each.grad = None
        memory[name] = bench.peak(run)
    by_operations = 6.0 * 2 * positions * classes * width / bench.operations
    must_move = 4.0 * (2 * classes * width + 4 * positions * width)  # W and h in, their gradients out
    logits = 2.0 * positions * classes * bench.dtype.itemsize
    by_bytes = must_move / bench.bytes
    floor = max(by_operations, by_bytes)
    title = f"the loss alone, {positions} positions, {classes} tokens, width {width}"
    result = bench.compare(title, runs, "direct form", dict.fromkeys(runs, floor))
    for name, peak in memory.items():
        print(f"{name:34} {peak / 2**20:9.1f} MiB at most, {peak / memory['direct form']:.3f} of the direct form's")
    print(
        f"floors: products {1000 * by_operations:.2f} ms, bytes that must move {1000 * by_bytes:.2f} ms; to write and "
        f"read the logits of both passes once {1000 * 2 * logits / bench.bytes:.2f} ms, which chunks do twice"
    )
    return {**result, "memory": memory["chunks"] / memory["direct form"], "peak_bytes": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--rounds", type=int, default=None, help="rounds of each part (31 on a GPU, 5 on the CPU)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs: launching is timed too")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args()
    print(machine())
    started = time.perf_counter()
    rounds = options.rounds or (31 if options.device == "cuda" else 5)
    bench = Bench(options.device, rounds, options.eager)
    size = FULL if bench.cuda else SMALL
    print(f"{bench.operations / 1e12:.3g} Tflop/s in a large product, {bench.bytes / 1e9:.4g} GB/s in a large copy")
    results = {name: PARTS[name](bench, size) for name in options.parts}
    summary: dict[str, Any] = {"seconds": time.perf_counter() - started, "machine": machine(), "parts": results}
    for name in ("classification", "translation"):
        if name in results:
            summary[f"rdrop_over_doubled_{name}"] = results[name]["ratio"]["R-Drop"]
    if "loss" in results:
        summary["loss_time_over_direct"] = results["loss"]["ratio"]["chunks"]
        summary["loss_memory_over_direct"] = results["loss"]["memory"]
    finish(summary, options.json)


PARTS: dict[str, Callable[[Bench, Size], dict[str, Any]]] = {
    "classification": classification,
    "translation": translation,
    "loss": loss_alone,
}

if __name__ == "__main__":
    main()
