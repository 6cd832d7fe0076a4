"""The runs of a fit, one after another: the same recipe and data, other random streams. The best model is kept.

Tokenisation is done once, before. A run that is on disk already is read, not repeated; one that was interrupted goes
on. A diverged run is a failed seed and the others go on.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from steadytune.engine.encode import Encoded
from steadytune.engine.evaluate import Predictions
from steadytune.engine.result import RunResult
from steadytune.engine.train import Progress, train
from steadytune.fitting.plan import Plan
from steadytune.report.record import FitRecord, IntervalRecord, SeedRecord
from steadytune.rng import Streams
from steadytune.stats.row_bootstrap import row_interval
from steadytune.tasks.base import Rows, Task

_TEXT_DRAWS = 200  # BLEU and ROUGE of a split take a while


class Listener:
    """Hears how a fit gets on; does nothing with it. The terminal's one draws a bar."""

    def seed_begins(self, seed: int) -> None: ...
    def step(self, progress: Progress) -> None: ...
    def seed_ends(self, record: FitRecord, seed: SeedRecord) -> None: ...


@dataclass(frozen=True, eq=False)
class Kept:
    """The best run by validation: its record and its model."""

    seed: int
    result: RunResult
    model: nn.Module


def run_seeds(
    plan: Plan,
    encoded: Encoded,
    out: Path,
    record: FitRecord,
    *,
    stop: threading.Event,
    device: str | None = None,
    deterministic: bool = False,
    listener: Listener,
    save: Callable[[FitRecord], None],
) -> tuple[FitRecord, Kept | None]:
    """All runs; `save` is given the record after each. The record's status says how it ended."""
    kept: Kept | None = None
    for index, seed in enumerate(plan.seeds):
        listener.seed_begins(seed)
        streams = Streams(init=seed, order=seed, noise=seed)
        folder = out / "runs" / f"seed-{seed}"
        result, model = train(
            plan.recipe, encoded, streams, folder, device, listener.step, stop, deterministic=deterministic
        )
        seeds = list(record.seeds)
        seeds[index] = seed_record(seed, result, encoded.notes)
        record = dataclasses.replace(record, seeds=tuple(seeds))
        if model is not None and (kept is None or _better(plan.data.task, result, kept.result)):
            kept = Kept(seed, result, model)
        if result.status == "stopped":
            return dataclasses.replace(record, status="stopped"), None
        save(record)
        listener.seed_ends(record, seeds[index])
    if kept is None:
        return dataclasses.replace(record, status="failed"), None
    interval = test_interval(plan.data.task, plan.data.test, encoded, kept.result.predictions.get("test"))
    return dataclasses.replace(record, status="finished", chosen=kept.seed, interval=interval), kept


def seed_record(seed: int, result: RunResult, known: tuple[str, ...] = ()) -> SeedRecord:
    """One row of the table. `known` notes are about the data and said elsewhere."""
    best, last = result.best, result.last
    return SeedRecord(
        seed=seed,
        status=result.status,
        steps=result.steps,
        best_step=best.step if best else None,
        validation=_finite(best.validation) if best else None,
        test=_finite(best.test) if best else None,
        last_validation=_finite(last.validation) if last else None,
        last_test=_finite(last.test) if last else None,
        seconds=round(result.seconds, 3),
        notes=tuple(note for note in result.notes if note not in known),
    )


def test_interval(
    task: Task, rows: Rows | None, encoded: Encoded, predictions: Predictions | None
) -> IntervalRecord | None:
    """How sure the kept model's test score is: a bootstrap over the test rows, on which no choice was made."""
    if rows is None or predictions is None:
        return None
    truth: Any = rows.targets if rows.targets is not None else rows.labels
    if task.kind == "language-model":
        truth = encoded.splits["test"].weights

    def score(chosen: np.ndarray) -> float:
        return task.score(_take(truth, chosen), _take(predictions.values, chosen))

    draws = 2000 if isinstance(truth, np.ndarray) else _TEXT_DRAWS
    made = row_interval(score, len(truth), statistic=task.metric, share=task.metric == "accuracy", draws=draws)
    return IntervalRecord(made.low, made.high, made.confidence, made.method, len(truth), made.note)


def _take(values: Any, chosen: np.ndarray) -> Any:
    return values[chosen] if isinstance(values, np.ndarray) else [values[index] for index in chosen]


def _better(task: Task, new: RunResult, old: RunResult) -> bool:
    """Strictly better on validation: of equal ones the earlier seed stays."""
    mine = new.best.validation if new.best else None
    theirs = old.best.validation if old.best else None
    if mine is None or not math.isfinite(mine):
        return False
    if theirs is None or not math.isfinite(theirs):
        return True
    return mine > theirs if task.greater_is_better else mine < theirs


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
