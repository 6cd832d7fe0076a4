"""All tests of tests/gpu in one command, in a few processes at a time, with a short table last.

    python benchmarks/device_tests.py --out device-tests              # every group for at most its own time
    python benchmarks/device_tests.py --minutes 9 --groups kernels    # some of them

One process after another, a device waits for Python most of the time. What a group says (`pytest -rfEs`) goes to a
file of its own, and so does the outcome of each test as soon as it is there: of a group that crashes or runs out of
time it is known how far it came. A file that no group names is in the last one. Tests that were all skipped, as
without a GPU, are no success.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from common import chosen, ended, machine

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests" / "gpu"
LEAST = 20.0  # seconds: a group that has less is not begun


class Group(NamedTuple):
    files: tuple[str, ...]  # test_*_gpu.py
    limit: float  # seconds
    only: str = ""  # pytest's -k


GROUPS = {
    "methods": Group(("graphs",), 480, "every"),
    "studies": Group(("graphs", "mps", "stacked"), 480, "not every"),
    "kept": Group(("kept_gradients", "kept_inputs", "packing"), 480),
    "runs": Group(("train", "mixout", "optimizer"), 480),
    "kernels": Group(("adamw_kernel", "mixout_kernel", "quick_linear", "quick_norm", "rdrop"), 480),
}
_NAMED = {file for group in GROUPS.values() for file in group.files}


class Recorder:
    """A pytest plugin: a line of JSON for everything that happens, written at once."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("w", buffering=1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._say(nodeid, "unfinished")

    def pytest_runtest_logreport(self, report: Any) -> None:
        outcome = report.outcome if report.when == "call" or not report.passed else ""
        why = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""  # file, line, reason
        self._say(report.nodeid, outcome, report.duration, why)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._say(report.nodeid, "failed")

    def _say(self, test: str, outcome: str, seconds: float = 0.0, why: str = "") -> None:
        print(json.dumps({"test": test, "outcome": outcome, "seconds": seconds, "why": why}), file=self._stream)


class Test(NamedTuple):
    outcome: str
    seconds: float
    why: str  # it was skipped


def run_here(name: str, folder: Path) -> int:
    """The tests of a group, in this process."""
    import pytest

    group = GROUPS[name]
    files = [TESTS / f"test_{file}_gpu.py" for file in group.files]
    if name == list(GROUPS)[-1]:
        files += sorted(file for file in TESTS.glob("test_*.py") if _short(file.name) not in _NAMED)
    only = ["-k", group.only] if group.only else []
    return pytest.main(["-rfEs", "-m", "gpu", *only, *map(str, files)], [Recorder(folder / f"{name}.jsonl")])


def run(name: str, folder: Path, until: float) -> str:
    """The tests of a group in a process of its own; why it did not end by itself, empty where it did."""
    seconds = min(GROUPS[name].limit, until - time.monotonic())
    began, output = time.perf_counter(), folder / f"{name}.txt"
    if seconds < LEAST:
        why = "left out: no time"
    else:
        code = ended([sys.executable, __file__, "--group", name, "--out", str(folder)], output, seconds)
        why = "" if code in (0, 1, 5) else f"{code}; see {output}"  # pytest's for all passed, some failed, none there
    print(f"{name:10} {time.perf_counter() - began:6.0f} s   {why and f'({why})'}", flush=True)
    return why


def read(path: Path) -> dict[str, Test]:
    """What became of each test, as far as it was written."""
    found: dict[str, Test] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            said = json.loads(line)
        except ValueError:
            continue  # cut off in the middle
        before = found.get(said["test"], Test("unfinished", 0.0, ""))
        outcome = before.outcome if before.outcome == "failed" else said["outcome"] or before.outcome
        found[said["test"]] = Test(outcome, before.seconds + said["seconds"], said["why"] or before.why)
    return found


def table(found: dict[str, Test]) -> list[str]:
    """A line for each file, then reasons for what was skipped and the names of what did not pass."""
    lines = [f"{'':24} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}"]
    for file in sorted({test.partition("::")[0] for test in found}):
        tests = [each for test, each in found.items() if test.partition("::")[0] == file]
        counts = Counter(each.outcome for each in tests)
        failed = counts["failed"] + counts["unfinished"]
        seconds = sum(each.seconds for each in tests)
        lines.append(f"{_short(file):24} {counts['passed']:7} {failed:7} {counts['skipped']:8} {seconds:8.1f}")
    skipped = Counter(each.why for each in found.values() if each.outcome == "skipped")
    lines += [f"skipped, {count}: {why.removeprefix('Skipped: ')}" for why, count in skipped.most_common()]
    lines += [f"{each.outcome}: {test}" for test, each in found.items() if each.outcome in ("failed", "unfinished")]
    return lines


def verdict(found: dict[str, Test], troubles: list[str]) -> str:
    """Why this is no success; empty where it is one."""
    bad = [test for test, each in found.items() if each.outcome in ("failed", "unfinished")]
    if bad or troubles:
        return f"NOT PASSED: {len(bad)} tests, {len(troubles)} groups that did not end."
    if not any(each.outcome == "passed" for each in found.values()):
        return "NOTHING WAS TESTED: no test ran."
    return ""


def _short(file: str) -> str:
    return Path(file).name.removeprefix("test_").removesuffix(".py").removesuffix("_gpu")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", default=[], help=f"only these: {', '.join(GROUPS)}")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for all of them together")
    parser.add_argument("--at-a-time", type=int, default=max(1, (os.cpu_count() or 1) // 3), help="groups")
    parser.add_argument("--out", type=Path, default=Path("device-tests"), help="where the groups' outputs go")
    parser.add_argument("--group", choices=GROUPS, help=argparse.SUPPRESS)  # in this process
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.group:
        return run_here(options.group, options.out)
    until = time.monotonic() + 60 * options.minutes
    print(machine(), flush=True)
    names = list(chosen(GROUPS, options.groups))
    for name in names:
        (options.out / f"{name}.jsonl").unlink(missing_ok=True)  # of an earlier run
    with ThreadPoolExecutor(options.at_a_time) as pool:
        troubles = [why for why in pool.map(lambda name: run(name, options.out, until), names) if why]
    found = {test: each for name in names for test, each in read(options.out / f"{name}.jsonl").items()}
    wrong = verdict(found, troubles)
    passed = sum(each.outcome == "passed" for each in found.values())
    print("\n".join(["", *table(found), "", wrong or f"{passed} tests passed."]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
