"""Do many restarts of a small network train faster at once than one after another?

    python benchmarks/digits.py --json
    python benchmarks/digits.py --device cuda --restarts 100 --json

The 784-300-100-10 network of the digits experiment, batch 32, float32, mixout(0.5) and dropout(0.5): the same restarts
stacked (papers/digits/stacked.py) and by a plain loop over models (papers/digits/network.py), interleaved in one
process. A round trains every restart for a few hundred steps; restarts per minute are those of the paper's
fine-tuning, five epochs of 54,000 rows. The images are drawn: their content does not matter for time.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable

import torch

from common import finish, interleaved, machine, ratio, spread
from steadytune import Streams
from steadytune.papers.digits import drawn_digits
from steadytune.papers.digits.network import Restart, Training, start_weights, train_alone
from steadytune.papers.digits.stacked import train

PAPER_STEPS = 5 * math.ceil(54_000 / 32)


def measure(method: str, device: str, restarts: int, steps: int, rounds: int) -> dict[str, float]:
    images = drawn_digits("drawn", 32 * steps).train.to(device)
    start = {name: each.to(device) for name, each in start_weights(Streams()).items()}
    runs = [Restart(method, 0.5, 1, 5e-5, Streams(0, i, i)) for i in range(restarts)]

    def waited(work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            work()
            if device.startswith("cuda"):
                torch.cuda.synchronize()

        return run

    times = interleaved(
        {
            "stacked": waited(lambda: train([start] * restarts, runs, Training(), images)),
            "one by one": waited(lambda: [train_alone(start, run, Training(), images) for run in runs]),
        },
        rounds,
    )
    print(f"\n{method}(0.5), {restarts} restarts of {steps} steps, {rounds} rounds")
    print(f"{'':12} {'ms per step and restart':>24} {'±':>6} {'restarts per minute':>20}")
    result = {}
    for name, seconds in times.items():
        each = statistics.median(seconds) / (steps * restarts)
        per_minute = 60.0 / (each * PAPER_STEPS)
        print(f"{name:12} {1000 * each:24.3f} {100 * spread(seconds):5.1f}% {per_minute:20.2f}")
        result[f"{name.replace(' ', '_')}_restarts_per_minute"] = per_minute
    faster = ratio(times, "one by one", "stacked")
    print(f"stacked is {faster:.2f} times as fast (median of the rounds' ratios)")
    return {**result, "speedup": faster}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--restarts", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(machine())
    results = {
        method: measure(method, options.device, options.restarts, options.steps, options.rounds)
        for method in ("mixout", "dropout")
    }
    finish({"by_method": results, "speedup": min(each["speedup"] for each in results.values())}, options.json)


if __name__ == "__main__":
    main()
