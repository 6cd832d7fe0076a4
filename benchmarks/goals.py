"""Every goal that docs/performance.md sets for a GPU, measured in one command, with a short table last.

    python benchmarks/goals.py --out goals                     # all: at most 14 minutes
    python benchmarks/goals.py --out goals --minutes 9.5       # parts that find no time any more are left out
    python benchmarks/goals.py --parts mixout optimizer

Each part is one of the other benchmarks in a process of its own, so that one that fails leaves the others alone; its
output goes to a file, and what it says in its last line of JSON is read from there. Variants that no goal is set for
are left out.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from common import chosen, ended, machine

HERE = Path(__file__).parent
LEAST = 30.0  # seconds: a part that has less is not begun


class Part(NamedTuple):
    command: str  # of a benchmark, without --json
    limit: float  # seconds


class Goal(NamedTuple):
    what: str
    key: str  # in the JSON of a part
    bound: float
    at_least: bool = False


MIXOUT = '"dropout(0.1)" "mixout(0.7)" "mixout(0.9)"'
LOOPS = "--loops trainer engine"
PARTS = {
    "mixout": Part(f"mixout_gpu.py --only {MIXOUT}", 180),
    "small": Part(f"engine_gpu.py --models 6x384 base {LOOPS}", 90),
    "replicas": Part("replicas.py --per-gpu 24 --seeds 60 --trainers 1", 150),
    "rdrop": Part("rdrop.py", 90),
    "optimizer": Part("optimizer.py", 60),
    "large": Part(f"engine_gpu.py --models large --rounds 1 --steps 30 {LOOPS}", 240),
}
GOALS = (
    Goal("mixout(0.7) / dropout, 32x128: time", "mixout_0.7_over_dropout_32x128", 0.90),
    Goal("mixout(0.7) / dropout, 32x128: memory", "memory_0.7_over_dropout_32x128", 1.00),
    Goal("mixout(0.7) / dropout, 64x256: time", "mixout_0.7_over_dropout_64x256", 0.85),
    Goal("mixout(0.9) / dropout, 64x256: time", "mixout_0.9_over_dropout_64x256", 0.80),
    Goal("mixout(0.7) / dropout, 64x256: memory", "memory_0.7_over_dropout_64x256", 0.85),
    Goal("mixout(0.9) / dropout, 64x256: memory", "memory_0.9_over_dropout_64x256", 0.85),
    Goal("engine / Trainer, 6x384: steps a second", "6x384_over_trainer", 3.0, at_least=True),
    Goal("engine / Trainer, BERT-base", "base_over_trainer", 2.0, at_least=True),
    Goal("engine / Trainer, BERT-large", "large_over_trainer", 2.0, at_least=True),
    Goal("trials a minute / a loop over Trainer", "trials_over_trainer", 12.0, at_least=True),
    Goal("R-Drop / doubled batch, classification", "rdrop_over_doubled_classification", 1.03),
    Goal("R-Drop / doubled batch, 32,000 tokens", "rdrop_over_doubled_translation", 1.05),
    Goal("R-Drop's loss / direct form: time", "loss_time_over_direct", 1.00),
    Goal("R-Drop's loss / direct form: memory", "loss_memory_over_direct", 0.25),
    Goal("AdamW, decay to pretrained / torch's fused", "decay_to_pretrained_over_fused_BERT-large", 1.3),
    Goal("the same, 6x384", "decay_to_pretrained_over_fused_6x384", 1.3),
)


def run(name: str, part: Part, folder: Path, seconds: float) -> dict[str, Any]:
    """What a part measured, from its line of JSON; nothing where it did not come so far."""
    words = shlex.split(part.command)
    output = folder / f"{name}.txt"
    began = time.perf_counter()
    code = ended([sys.executable, str(HERE / words[0]), *words[1:], "--json"], output, seconds)
    found = last_json(output.read_text(errors="replace")) if code == 0 else {}
    told = "" if found else f"({code or 'no JSON'}; see {output})"
    print(f"{name:10} {time.perf_counter() - began:6.0f} s   {told}", flush=True)
    return found


def last_json(said: str) -> dict[str, Any]:
    """The last line that is a JSON object; a library may have said something behind it when the process ended."""
    for line in reversed(said.splitlines()):
        if line.startswith("{"):
            with suppress(ValueError):
                return json.loads(line)
    return {}


def table(found: dict[str, Any]) -> list[str]:
    lines = [f"{'':42} {'goal':>8} {'measured':>9}"]
    for goal in GOALS:
        value = found.get(goal.key)
        sign = ">=" if goal.at_least else "<="
        if value is None:
            told = f"{'–':>9}"
        else:
            met = value >= goal.bound if goal.at_least else value <= goal.bound
            told = f"{value:9.3f}  {'met' if met else 'MISSED'}"
        lines.append(f"{goal.what:42} {f'{sign} {goal.bound:g}':>8} {told}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=[], help=f"only these: {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for all of them together")
    parser.add_argument("--out", type=Path, default=Path("goals"), help="where the parts' outputs go")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * options.minutes
    print(machine(), flush=True)
    found: dict[str, Any] = {}
    for name, part in chosen(PARTS, options.parts).items():
        left = min(part.limit, until - time.monotonic())
        if left < LEAST:
            print(f"{name:10} left out: no time", flush=True)
            continue
        found |= run(name, part, options.out, left)
    print("\n".join(["", *table(found)]))
    return 0 if all(goal.key in found for goal in GOALS) else 1


if __name__ == "__main__":
    sys.exit(main())
