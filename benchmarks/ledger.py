"""Is the ledger quick enough for large studies? Milliseconds of what is asked of it, with 10,000 trials.

    python benchmarks/ledger.py --json

Planning reads a study file and writes its rows; a claim is taken while 10,000 wait; status and results are read after
every trial has finished, with ten evaluations each. Medians of single operations; the rest is measured once.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common import finish
from steadytune.study.folder import prepare, read_results
from steadytune.study.ledger import Ledger
from steadytune.study.outcome import Outcome
from steadytune.study.status import read_status

STUDY = """\
study: large
tasks: {one: {acceptability: 60}, two: {acceptability: 70}}
variants: {plain: {}, mixout: {add: [{method: mixout}]}, re-init: {add: [{method: reinit, layers: 2}]}}
sweep: {lr: [1e-5, 2e-5]}
seeds: SEEDS
"""
HISTORY = [{"step": n, "epoch": n / 3, "train_loss": 0.5, "validation": 0.7, "lr": 1e-5} for n in range(10)]
RESULT: dict[str, Any] = {"best": {"step": 9, "validation": 0.7, "test": 0.6}, "last": None, "history": HISTORY}
OUTCOME = Outcome("finished", {**RESULT, "losses": [0.5] * 100, "grad_norms": [1.0] * 100, "seconds": 3.0})


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = action()
    return 1000 * (time.perf_counter() - start), made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--trials", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "large.yaml"
        file.write_text(STUDY.replace("SEEDS", str(-(-options.trials // 12))), encoding="utf-8")
        found: dict[str, float] = {}
        found["plan"], prepared = timed(lambda: prepare(file))
        claims, finishes = [], []
        with Ledger.open(prepared.ledger) as ledger:
            while True:
                spent, claim = timed(lambda: ledger.claim("benchmark", 600.0))
                if claim is None:
                    break
                claims.append(spent)
                finishes.append(timed(partial(ledger.finish, claim, OUTCOME))[0])
        found["claim"], found["finish"] = statistics.median(claims), statistics.median(finishes)
        found["status"], _ = timed(lambda: read_status(prepared.folder))
        found["results"], results = timed(lambda: read_results(prepared.folder))
        print(f"{len(results.trials)} trials")
        for name, spent in found.items():
            print(f"{name:8} {spent:9.2f} ms")
        finish({"trials": len(results.trials), **{f"{name}_ms": ms for name, ms in found.items()}}, options.json)


if __name__ == "__main__":
    main()
