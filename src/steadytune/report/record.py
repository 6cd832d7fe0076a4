"""What a fit did, as plain frozen data: `fit.json`, and all that the table, the card and the page are made from."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

SCHEMA = "steadytune fit 1"


@dataclass(frozen=True)
class SplitRecord:
    """One split: where its rows came from and how many there are."""

    name: str
    rows: int
    file: str
    fingerprint: str
    classes: dict[str, int]  # rows per class; empty for numbers


@dataclass(frozen=True)
class SeedRecord:
    """One run: its best checkpoint by validation, and how it ended."""

    seed: int
    status: str  # "finished", "diverged" or "stopped"
    steps: int = 0
    best_step: int | None = None
    validation: float | None = None
    test: float | None = None
    last_validation: float | None = None
    last_test: float | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        return self.status == "finished"


@dataclass(frozen=True)
class IntervalRecord:
    """How sure the chosen model's test score is."""

    low: float | None
    high: float | None
    confidence: float
    method: str
    rows: int
    note: str = ""


@dataclass(frozen=True)
class BaselineRecord:
    name: str
    validation: float | None
    test: float | None


@dataclass(frozen=True)
class CitationRecord:
    key: str
    text: str
    url: str


@dataclass(frozen=True)
class FitRecord:
    """One fit: data, recipe, seeds, the choice, and how good it is."""

    name: str
    kind: str
    metric: str
    greater_is_better: bool
    labels: tuple[str, ...]
    text_columns: tuple[str, ...]
    label_column: str
    splits: tuple[SplitRecord, ...]
    fingerprint: str
    notes: tuple[str, ...]  # what is odd about the data, in sentences
    duplicates: int
    leaks: int  # rows of validation or test that stand in an earlier split too
    baselines: tuple[BaselineRecord, ...]
    model: str
    recipe_name: str
    recipe_about: str
    recipe: dict[str, Any]
    recipe_key: str
    citations: tuple[CitationRecord, ...]
    seeds: tuple[SeedRecord, ...]
    versions: dict[str, str]
    status: str = "running"  # "running", "finished", "stopped", or "failed": every seed diverged
    chosen: int | None = None  # the seed whose model was kept
    interval: IntervalRecord | None = None
    created: str = ""

    @property
    def finished(self) -> list[SeedRecord]:
        return [seed for seed in self.seeds if seed.finished]

    @property
    def failed(self) -> list[SeedRecord]:
        return [seed for seed in self.seeds if seed.status == "diverged"]

    @property
    def best(self) -> SeedRecord | None:
        return next((seed for seed in self.seeds if seed.seed == self.chosen), None)

    @property
    def baseline(self) -> BaselineRecord | None:
        """The one to beat."""
        return self.baselines[0] if self.baselines else None

    @property
    def seconds(self) -> float:
        return sum(seed.seconds for seed in self.seeds)

    def better(self, score: float | None, than: float | None) -> bool | None:
        """Whether a score beats another; None where one of them is not there."""
        if score is None or than is None or not math.isfinite(score):
            return None
        margin = 1e-9 * max(1.0, abs(than))  # the same accuracy computed in two ways may differ in the last bit
        return score > than + margin if self.greater_is_better else score < than - margin

    def above_baseline(self, seed: SeedRecord) -> bool | None:
        """Whether a run learned anything, judged on validation (few-sample paper: a degenerate run did not)."""
        return self.better(seed.validation, self.baseline.validation) if self.baseline else None

    def degenerate(self) -> list[SeedRecord]:
        return [seed for seed in self.finished if self.above_baseline(seed) is False]

    def to_data(self) -> dict[str, Any]:
        summary = {split: asdict(self.spread(split)) for split in ("validation", "test") if self.spread(split).n}
        return {
            "schema": SCHEMA,
            **asdict(self),
            "summary": summary,
            "failed": len(self.failed),
            "degenerate": len(self.degenerate()),
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> FitRecord:
        values = {field.name: data[field.name] for field in fields(cls)}
        for name, kind in _NESTED.items():
            values[name] = tuple(kind(**_tuples(each)) for each in values[name])
        for name in ("labels", "text_columns", "notes"):
            values[name] = tuple(values[name])
        if values["interval"] is not None:
            values["interval"] = IntervalRecord(**values["interval"])
        return cls(**values)

    def spread(self, split: str) -> Spread:
        """Mean, spread and extremes over the seeds that finished. The failed ones are counted beside it, not in it."""
        return Spread.of(getattr(seed, split) for seed in self.finished)


@dataclass(frozen=True)
class Spread:
    n: int
    mean: float | None
    std: float | None  # over n - 1; None for a single run, which has no spread to show
    lowest: float | None
    highest: float | None

    @classmethod
    def of(cls, scores: Iterable[float | None]) -> Spread:
        values = [score for score in scores if score is not None and math.isfinite(score)]
        if not values:
            return cls(0, None, None, None, None)
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(len(values), statistics.fmean(values), std, min(values), max(values))


_NESTED: dict[str, Any] = {
    "splits": SplitRecord,
    "baselines": BaselineRecord,
    "citations": CitationRecord,
    "seeds": SeedRecord,
}


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
