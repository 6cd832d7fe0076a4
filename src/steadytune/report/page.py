"""One page of HTML about a fit: self-contained, no network, no script; light and dark. Jinja2 with autoescape ON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from steadytune.report import words
from steadytune.report.record import FitRecord

WIDTH, LEFT, RIGHT, TOP, ROW = 760, 74, 150, 34, 30


@dataclass(frozen=True)
class Mark:
    """One seed's row of the figure; x is None where there is no such score."""

    seed: int
    y: float
    validation: float | None
    test: float | None
    kept: bool
    status: str
    title: str


@dataclass(frozen=True)
class Figure:
    """The seeds' scores against the baseline, in pixels."""

    height: float
    bottom: float
    ticks: tuple[tuple[float, str], ...]
    marks: tuple[Mark, ...]
    baseline: float | None
    interval: tuple[float, float] | None


def make_page(record: FitRecord) -> str:
    """The whole page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html.jinja")
    return page.render(
        record=record, figure=make_figure(record), words=words, width=WIDTH, left=LEFT, right=WIDTH - RIGHT, top=TOP
    )


def make_figure(record: FitRecord) -> Figure | None:
    """None where no seed has a score."""
    level = None
    if record.baseline is not None:
        level = record.baseline.validation if record.baseline.test is None else record.baseline.test
    limits = (record.interval.low, record.interval.high) if record.interval is not None else (None, None)
    scores = [score for seed in record.seeds for score in (seed.validation, seed.test)]
    values = [value for value in (*scores, level, *limits) if value is not None and math.isfinite(value)]
    if not any(score is not None for score in scores):
        return None
    ticks = nice_ticks(min(values), max(values))
    low, high = ticks[0], ticks[-1]

    def place(value: float | None) -> float | None:
        if value is None or not math.isfinite(value):
            return None
        return round(LEFT + (value - low) / (high - low) * (WIDTH - RIGHT - LEFT), 1)

    marks = tuple(
        Mark(
            seed=seed.seed,
            y=TOP + ROW * (index + 0.5),
            validation=place(seed.validation),
            test=place(seed.test),
            kept=seed.seed == record.chosen,
            status=words.status(record, seed),
            title=f"seed {seed.seed}: validation {words.number(seed.validation)}, test {words.number(seed.test)}",
        )
        for index, seed in enumerate(record.seeds)
    )
    bottom = TOP + ROW * len(marks)
    ends = tuple(place(limit) for limit in limits)
    digits = max(0, min(6, 1 - math.floor(math.log10(ticks[1] - ticks[0])) - 1)) if len(ticks) > 1 else 2
    return Figure(
        height=bottom + 44,
        bottom=bottom,
        ticks=tuple((place(tick) or 0.0, f"{tick:.{digits}f}") for tick in ticks),
        marks=marks,
        baseline=place(level),
        interval=(ends[0], ends[1]) if ends[0] is not None and ends[1] is not None else None,
    )


def nice_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers from just below `low` to just above `high`, at most about `most` of them."""
    if not high > low:
        pad = abs(low) * 0.05 or 0.05
        low, high = low - pad, high + pad
    raw = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]
