"""Everything that docs/results.md shows, run again in one go: the studies one after another, then every record.

    python benchmarks/evidence.py --data ../shared/data --per-gpu auto                 # as long as it takes
    python benchmarks/evidence.py --data ../shared/data --per-gpu auto --minutes 9     # then it stops, to go on later

What decides most comes first. The same command goes on where it was stopped. With --known DIR, runs that are kept there
are not run again, and at the end all are kept there, so that the next machine goes on; a folder for each kind of
machine keeps their numbers apart. Then every table and figure whose runs are all there is reported into --record, and a
table says what was run and how long it took.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

from steadytune.papers.experiment import Part, Shown
from steadytune.papers.experiments import EXPERIMENTS
from steadytune.papers.report import make_report
from steadytune.papers.report_files import write_files
from steadytune.papers.run import Workshop, keep_runs
from steadytune.papers.study_parts import in_order

# The papers' main claims, then sensitivity, then controls; after these come all others. Items that show the runs of
# another cost nothing more.
ORDER = (
    "few-sample/figure-2",
    "mixout/table-1",
    "few-sample/table-2",
    "few-sample/table-1",
    "rdrop/table-2",
    "rdrop/table-1",
    "mixout/figure-4",
    "few-sample/figure-9",
    "few-sample/table-4",
    "few-sample/figure-5",
    "rdrop/figure-2",
    "rdrop/table-5",
    "mixout/table-2",
    "few-sample/figure-7",
)
_PATIENCE = 60.0  # seconds for workers to write their checkpoints when the time is up


def run(id: str, options: argparse.Namespace, until: float) -> tuple[int, float]:
    """Exit code and seconds; asked to stop when the time is up."""
    command = [sys.executable, "-m", "steadytune", "paper", "run", id, "--scale", options.scale, "--out", options.out]
    command += ["--data", options.data] if options.data else []
    command += ["--per-gpu", options.per_gpu] if options.per_gpu else []
    command += ["--workers", str(options.workers)] if options.workers else []
    command += ["--known", options.known] if options.known and Path(options.known).is_dir() else []
    began = time.perf_counter()
    process = subprocess.Popen(command)
    try:
        code = process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    return code, time.perf_counter() - began


def recorded(workshop: Workshop, done: list[str], folder: Path) -> list[str]:
    """Write a record of every table and figure that shows runs of these items, which have all been run."""
    there = {part.name for id in done for part in _parts(id, workshop)}
    made = []
    for id, experiment in EXPERIMENTS.items():
        if id in done or (isinstance(experiment, Shown) and there.issuperset(experiment.parts_at(workshop.scale))):
            write_files(make_report(id, workshop), folder, ("svg",))
            made.append(id)
    return made


def _parts(id: str, workshop: Workshop) -> list[Part]:
    experiment = EXPERIMENTS[id]
    return in_order(experiment, workshop.scale) if isinstance(experiment, Shown) else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "ids", nargs="*", default=[*ORDER, *(id for id in EXPERIMENTS if id not in ORDER)], help="only these"
    )
    parser.add_argument("--scale", default="small", choices=("full", "small", "smoke"))
    parser.add_argument("--data", help="the folder with glue/, multi30k/, ...")
    parser.add_argument("--out", default="paper-runs")
    parser.add_argument("--record", default="docs/results")
    parser.add_argument("--known", help="a folder of kept runs: taken over from there, and added to it")
    parser.add_argument("--per-gpu", help="trials at a time on each GPU: a number, or auto")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long; 'inf' is never")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes if options.minutes != float("inf") else float("inf")
    ran: list[tuple[str, str, float]] = []
    for id in options.ids:
        if time.monotonic() >= until:
            ran.append((id, "not begun", 0.0))
            continue
        code, seconds = run(id, options, until)
        words = {0: "done", 1: "done, some trials failed"}.get(code, f"stopped ({code})")
        ran.append((id, words, seconds))
    done = [id for id, words, _ in ran if words.startswith("done")]
    workshop = Workshop(Path(options.out), options.scale)
    if options.known:
        keep_runs(workshop, Path(options.known))
    made = recorded(workshop, done, Path(options.record))
    print(f"\n{len(made)} records in {options.record}: {', '.join(made)}\n")
    for id, words, seconds in ran:
        print(f"{id:<24} {seconds:8.1f} s  {words}")
    return 0 if len(done) == len(ran) else 1


if __name__ == "__main__":
    sys.exit(main())
