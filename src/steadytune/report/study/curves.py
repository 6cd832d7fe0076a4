"""A run's curve in a few bytes: a path of whole numbers, for a picture the size of a word."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steadytune.report import words
from steadytune.study.results import TrialResult

WIDTH, HEIGHT = 96, 24
MOST_POINTS = 48  # more than that cannot be seen at this size


@dataclass(frozen=True)
class Scale:
    """What the curves of one task show, and from where to where; the same for all, so that they compare."""

    shown: str  # "validation", or "train_loss" where nothing is scored during the run
    low: float
    high: float
    steps: int
    level: str = ""  # the path of a line at the score without learning, where that is in sight


@dataclass(frozen=True)
class Curve:
    path: str
    told: str  # the same in words


def make_scale(trials: Sequence[TrialResult], level: float | None = None) -> Scale | None:
    """None where no run has a curve. The limits leave out the outermost hundredths, which would flatten the others."""
    for shown in ("validation", "train_loss"):
        values = sorted(value for trial in trials for _, value in _points(trial.history, shown))
        if values:
            steps = max(max(trial.steps, *(step for step, _ in _points(trial.history, shown)), 1) for trial in trials)
            cut = len(values) // 100
            scale = Scale(shown, values[cut], values[-1 - cut], steps)
            if shown == "validation" and level is not None and scale.low <= level <= scale.high:
                return replace(scale, level=f"M0 {_pixel(0, level, scale)[1]}h{WIDTH}")
            return scale
    return None


def make_curve(trial: TrialResult, scale: Scale) -> Curve | None:
    points = _points(trial.history, scale.shown)
    if not points:
        return None
    last_step, last = points[-1]
    told = f"{words.number(points[0][1])} to {words.number(last)} in {last_step:,} steps"
    pixels = [_pixel(step, value, scale) for step, value in _thinned(points)]
    if len(pixels) == 1:
        pixels = [pixels[0], (pixels[0][0] + 1, pixels[0][1])]  # a point is a short line
    return Curve(_path(pixels), told)


def _points(history: Sequence[Mapping[str, Any]], shown: str) -> list[tuple[int, float]]:
    found = ((each.get("step"), each.get(shown)) for each in history)
    return [
        (int(step), float(value))
        for step, value in found
        if isinstance(step, (int, float)) and isinstance(value, (int, float)) and math.isfinite(value)
    ]


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Of each stretch its first, lowest and highest point: peaks and collapses stay."""
    if len(points) <= MOST_POINTS:
        return points
    stretch = -(-len(points) * 3 // MOST_POINTS)
    kept: set[tuple[int, float]] = {points[-1]}
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        kept |= {part[0], min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
    return sorted(kept)


def _pixel(step: int, value: float, scale: Scale) -> tuple[int, int]:
    span = scale.high - scale.low
    height = (min(max(value, scale.low), scale.high) - scale.low) / span if span > 0 else 0.5
    return round(1 + step / scale.steps * (WIDTH - 3)), round(HEIGHT - 2 - height * (HEIGHT - 4))


def _path(pixels: list[tuple[int, int]]) -> str:
    """`M1 20l9-4 9-2`: each point relative to the one before, a minus sign doing for a space."""
    (x, y), parts = pixels[0], []
    for next_x, next_y in pixels[1:]:
        parts.append(f"{next_x - x} {next_y - y}".replace(" -", "-"))
        x, y = next_x, next_y
    return f"M{pixels[0][0]} {pixels[0][1]}l" + " ".join(parts)
