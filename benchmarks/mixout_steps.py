"""Steps of our loop on a CPU with mixout against dropout: whole batches, cut by length, as a run has them.

    python benchmarks/mixout_steps.py --json                                  # bfloat16, one thread, as a trial has
    python benchmarks/mixout_steps.py --precision fp32 --threads 2 --json

`mixout.py` times one forward and backward of equal rows; here a batch of RTE comes in several chunks, all of which see
the batch's one mask, clipping and AdamW are in it, and dropout's chunks share nothing. Loops hand over after each step
(engine.py), so that times are compared within the step.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from common import finish, machine, ratio, spread
from engine import Turns, engine, model_directory, rows_to_learn
from steadytune import AdamW, Dropout, Mixout
from steadytune.engine.encode import encode
from steadytune.methods.base import Method
from steadytune.recipe import Recipe

VARIANTS: dict[str, tuple[Method, ...]] = {
    "dropout(0.1)": (Dropout(p=0.1),),
    "no dropout": (Dropout(p=0.0),),
    "mixout(0.7)": (Mixout(p=0.7),),
    "mixout(0.9)": (Mixout(p=0.9),),
    "mixout(0.7), every linear layer": (Mixout(p=0.7, layers="linear"),),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--steps", type=int, default=16, help="timed steps of each loop")
    parser.add_argument("--task", default="RTE", help="whose rows: RTE, CoLA, ...")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "bf16"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        model = model_directory(Path(folder) / "model")
        plain = Recipe(
            model=model,
            methods=(AdamW(),),
            steps=options.steps + 2,  # the first warms up, the last has the end of the run in it
            batch_size=32,
            evaluations=1,
            precision=options.precision,
        )
        name, data = rows_to_learn(options.task)
        encoded = encode(data, plain)
        loops = {
            each: engine(replace(plain, methods=(AdamW(), *methods)), encoded) for each, methods in VARIANTS.items()
        }
        seconds = {each: times[1:-1] for each, times in Turns(loops).seconds.items()}
    print(f"\n{name}, {options.precision}: {options.steps} steps; medians, and of the ratio in the same step")
    print(f"{'variant':31} {'ms/step':>8} {'±':>6} {'ratio':>6}")
    ratios = {each: ratio(seconds, each, "dropout(0.1)") for each in seconds}
    for each, times in seconds.items():
        print(f"{each:31} {1000 * sorted(times)[len(times) // 2]:8.0f} {100 * spread(times):5.1f}% {ratios[each]:6.3f}")
    finish(
        {
            "ratio_to_dropout": ratios,
            "data": name,
            "precision": options.precision,
            "threads": options.threads,
            "machine": machine(),
        },
        options.json,
    )


if __name__ == "__main__":
    main()
