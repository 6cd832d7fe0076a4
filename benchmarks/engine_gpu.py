"""Is our loop faster than transformers.Trainer on a GPU? Steps per second of both: same model, rows, batches, dropout.

    python benchmarks/engine_gpu.py --json
    python benchmarks/engine_gpu.py --models 6x384 base large --rounds 3

BERT shapes with random weights, RTE where its files are there (else rows of its lengths), batch 32, at most 128
tokens, bf16, AdamW with clipping. Trainer pads each batch to its longest row; the engine cuts it by length where that
pays, and replays CUDA graphs. The loops run one after the other, several rounds after one that is not counted; a
round's time is that of its last steps, after the first ones have warmed up, with the device waited for at both ends.
The floor is the matrix products of the tokens that are no padding (6 operations per parameter and token) and the
optimiser's 28 bytes per parameter.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
)

from common import chosen, finish, machine, ratio, spread
from device import Bench
from engine import STREAMS, model_directory, rows_to_learn, trainer
from steadytune import AdamW
from steadytune.engine.batches import Order
from steadytune.engine.encode import Encoded, encode
from steadytune.engine.train import train
from steadytune.recipe import Recipe

SHAPES = {
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    "6x384": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}


class Clock:
    """Seconds between two steps of a run, with the device waited for."""

    def __init__(self, first: int, last: int, cuda: bool) -> None:
        self.first, self.last, self.cuda, self.seen, self.times = first, last, cuda, 0, []  # type: ignore[var-annotated]

    def step_done(self) -> None:
        self.seen += 1
        if self.seen in (self.first, self.last):
            if self.cuda:
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())

    def seconds_per_step(self) -> float:
        return (self.times[1] - self.times[0]) / (self.last - self.first)


def engine(recipe: Recipe, encoded: Encoded, device: str, clock: Clock, **options: Any) -> None:
    train(recipe, encoded, STREAMS, device=device, progress=lambda _: clock.step_done(), **options)


def measure(name: str, device: str, rounds: int, steps: int, bench: Bench, only: Sequence[str] = ()) -> dict[str, Any]:
    cuda = device == "cuda"
    with tempfile.TemporaryDirectory() as place:
        tokens_from = model_directory(Path(place) / "tokens")
        torch.manual_seed(0)
        config = BertConfig(**SHAPES[name])
        model = BertForSequenceClassification(config)
        parameters = sum(p.numel() for p in model.parameters())
        multiplied = sum(p.numel() for n, p in model.named_parameters() if "embeddings" not in n)
        folder = Path(place) / "model"
        model.save_pretrained(folder)
        for file in Path(tokens_from).glob("*token*"):
            (folder / file.name).write_bytes(file.read_bytes())
        for file in Path(tokens_from).glob("vocab*"):
            (folder / file.name).write_bytes(file.read_bytes())
        del model
        warm = max(2, steps // 3)
        recipe = Recipe(
            model=str(folder),
            methods=(AdamW(),),
            steps=warm + steps + 1,  # the last has the end of the run in it
            batch_size=32,
            evaluations=1,
            precision="bf16" if cuda else "fp32",
        )
        what, data = rows_to_learn()
        encoded = encode(data, recipe)
        loops: dict[str, Callable[[Clock], None]] = {
            "trainer": lambda clock: trainer(recipe, encoded, place, device)(clock.step_done),
            "engine": lambda clock: engine(recipe, encoded, device, clock),
            "engine, not cut": lambda clock: engine(recipe, encoded, device, clock, bucket=False),
            "engine, no graphs": lambda clock: engine(recipe, encoded, device, clock, graphs=False),
        }
        loops = chosen(loops, only)
        seconds: dict[str, list[float]] = {each: [] for each in loops}
        for number in range(rounds + 1):
            for each, loop in loops.items():
                clock = Clock(warm, warm + steps, cuda)
                loop(clock)
                if number:  # the first round loads libraries, and compiles
                    seconds[each].append(clock.seconds_per_step())
                if cuda:
                    torch.cuda.empty_cache()
        sizes = encoded.splits["train"].sizes
        batches = list(Order(len(sizes), 32, STREAMS).batches(warm, min(warm + steps, -(-len(sizes) // 32))))
        tokens = float(np.mean([sizes[batch].sum() for batch in batches]))
    floor = 6 * multiplied * tokens / bench.operations + 28 * parameters / bench.bytes
    print(f"\nBERT {name}, {what}: {steps} steps of 32 rows, {tokens:.0f} tokens a step, {rounds} rounds")
    print(f"{'loop':18} {'ms/step':>8} {'±':>6} {'over Trainer':>13} {'of the floor':>13}")
    for each, times in seconds.items():
        middle = sorted(times)[len(times) // 2]
        around = spread(times) if len(times) > 2 else float("nan")
        print(
            f"{each:18} {1000 * middle:8.2f} {100 * around:5.1f}% {ratio(seconds, 'trainer', each):13.2f} "
            f"{middle / floor:13.1f}"
        )
    return {
        f"{name}_over_trainer": ratio(seconds, "trainer", "engine"),
        f"{name}_ms": {each: 1000 * sorted(times)[len(times) // 2] for each, times in seconds.items()},
        f"{name}_floor_ms": 1000 * floor,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", default=["6x384", "base", "large"], choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loops", nargs="+", default=[], help="by their names; trainer and engine must be two of them")
    parser.add_argument("--steps", type=int, default=60, help="timed steps of each loop in a round")
    options = parser.parse_args()
    print(machine())
    bench = Bench(options.device, 3, eager=False)
    result: dict[str, Any] = {"machine": machine()}
    for name in options.models:
        result |= measure(name, options.device, options.rounds, options.steps, bench, options.loops)
    print("\nIn the way of the floor: short kernels (each costs some microseconds however little it does), elementwise")
    print("work between the matrix products, padding inside chunks, casts of the weights to bf16 for every chunk.")
    finish(result, options.json)


if __name__ == "__main__":
    main()
