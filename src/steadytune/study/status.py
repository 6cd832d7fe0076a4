"""How a study gets on, from its ledger alone: quick to ask for, also while workers write. No torch here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from steadytune.errors import SteadytuneError
from steadytune.study.ledger import Ledger
from steadytune.study.ledger.rows import TrialRow

LEDGER = "ledger.sqlite"
_RECENT = 20  # ended trials of a variant that the time left goes by


@dataclass(frozen=True)
class Leader:
    """The variant with the best mean so far, on one task."""

    task: str
    variant: str
    metric: str
    mean: float
    runs: int


@dataclass(frozen=True)
class Running:
    task: str
    variant: str
    seed: str
    worker: str
    seconds: float  # since it was claimed
    left: float | None  # seconds, at the pace of its own steps, also those before it was claimed anew
    step: int | None
    steps: int | None
    loss: float | None
    validation: float | None


@dataclass(frozen=True)
class Status:
    """One look at a study."""

    name: str
    folder: str
    counts: Mapping[str, int]  # pending, running, finished, diverged, failed
    running: Sequence[Running]
    leaders: Sequence[Leader]
    failures: Sequence[tuple[str, str]]  # (what, last line of its traceback), the newest first
    seconds_left: float | None  # None while nothing has taken a step
    unplanned: int = 0  # trials that follow when their settings are chosen

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def over(self) -> bool:
        """Nothing runs, and nothing will."""
        return self.ended == self.total and not self.unplanned

    @property
    def ended(self) -> int:
        return sum(self.counts[name] for name in ("finished", "diverged", "failed"))

    def to_data(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "folder": self.folder,
            "trials": self.total,
            **self.counts,
            "unplanned": self.unplanned,
            "seconds_left": self.seconds_left,
            "running_now": [vars(each) for each in self.running],
            "best": [vars(each) for each in self.leaders],
            "failures": [{"trial": what, "error": why} for what, why in self.failures],
        }


def study_folder(file: str | Path) -> Path:
    """Where a study is kept unless the user says otherwise: `table1.yaml` -> `table1-study`."""
    path = Path(file)
    if path.is_dir():
        return path
    if not path.is_file():
        raise SteadytuneError(f"{path} is neither a study file nor the folder of a study.")
    return path.with_name(path.stem + "-study")


def read_status(folder: str | Path, now: float | None = None) -> Status:
    """The state of the study in a folder."""
    path = Path(folder) / LEDGER
    if not path.exists():
        raise SteadytuneError(f"{folder} holds no study: there is no {LEDGER}. Run it first: steadytune study run FILE")
    now = time.time() if now is None else now
    with Ledger.open(path, readonly=True) as ledger:
        meta, counts, rows = ledger.meta, ledger.counts(), ledger.rows()
    running = [_running(row, now) for row in rows if row.status == "running"]
    failed = sorted((row for row in rows if row.status == "failed"), key=lambda row: -(row.ended or 0.0))
    failures = [(_called(row), row.error.strip().rpartition("\n")[2]) for row in failed]
    left = _left(rows, running)
    unplanned = int(meta.get("unplanned", 0))
    name, leaders = str(meta.get("name", "")), _leaders(rows, meta)
    return Status(name, str(folder), counts, running, leaders, failures, left, unplanned)


def _called(row: TrialRow) -> str:
    return f"{row.spec.get('task', '?')}, {row.spec.get('variant', '?')}, seed {_seed(row)}"


def _seed(row: TrialRow) -> str:
    streams = row.spec.get("content", {}).get("streams", {})
    values = list(dict.fromkeys(streams.values()))
    return str(values[0]) if len(values) == 1 else ", ".join(f"{name} {value}" for name, value in streams.items())


def _running(row: TrialRow, now: float) -> Running:
    said = row.progress
    step, steps, trained = said.get("step"), said.get("steps"), said.get("seconds")
    left = trained / step * (steps - step) if step and steps and trained is not None else None
    return Running(
        task=str(row.spec.get("task", "?")),
        variant=str(row.spec.get("variant", "?")),
        seed=_seed(row),
        worker=row.worker or "",
        seconds=max(0.0, now - (row.started or now)),
        left=left,
        step=step,
        steps=steps,
        loss=said.get("loss"),
        validation=said.get("validation"),
    )


def _leaders(rows: Sequence[TrialRow], meta: Mapping[str, Any]) -> list[Leader]:
    """By the number that is reported; tuning runs count too while nothing else is there."""
    report = meta.get("report", {})
    which, split = report.get("weights", "best"), report.get("split", "test")
    scores: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.status == "finished":
            value = getattr(row, f"{which}_{split}")
            value = value if value is not None else getattr(row, f"{which}_validation")
            if value is not None:
                scores.setdefault(row.spec["task"], {}).setdefault(row.spec["variant"], []).append(value)
    found = []
    for task, variants in scores.items():
        info = meta.get("tasks", {}).get(task, {})
        sign = 1 if info.get("greater_is_better", True) else -1
        means = {name: fmean(values) for name, values in variants.items()}
        best = max(means, key=lambda name: sign * means[name])
        found.append(Leader(task, best, info.get("metric", ""), means[best], len(variants[best])))
    return found


def _left(rows: Sequence[TrialRow], running: Sequence[Running]) -> float | None:
    """Seconds until all have ended: a trial that runs goes by its own steps, one that waits by those of its variant.

    A variant of which nothing has ended or runs takes as long as the others do on the average.
    """
    pending = [row for row in rows if row.status == "pending"]
    if not pending and not running:
        return 0.0
    took: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: row.ended or 0.0):
        if row.ended and row.started:
            took.setdefault(str(row.spec.get("variant", "?")), []).append(row.ended - row.started)
    for run in running:
        if run.left is not None and run.variant not in took:
            took[run.variant] = [run.seconds + run.left]
    if not took:
        return None
    means = {variant: fmean(seconds[-_RECENT:]) for variant, seconds in took.items()}
    usual = fmean(means.values())
    left = sum(means.get(str(row.spec.get("variant", "?")), usual) for row in pending)
    for run in running:
        left += run.left if run.left is not None else max(0.0, means.get(run.variant, usual) - run.seconds)
    return left / max(1, len(running))
