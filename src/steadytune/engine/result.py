"""What a run leaves on record: scores, curves, distances, predictions, and what it was. Plain data in and out."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
import torch

from steadytune.engine.evaluate import Predictions
from steadytune.packages import package_versions
from steadytune.recipe import Recipe
from steadytune.rng import Streams

Status = Literal["finished", "diverged", "stopped"]


@dataclass(frozen=True)
class Scores:
    """The task's metric for the weights after one step; None where there is no such split, or it was not measured."""

    step: int
    validation: float | None = None
    test: float | None = None


@dataclass(frozen=True, eq=False)
class RunResult:
    """One run. A diverged one is a result too, with what was measured before."""

    status: Status
    recipe: Recipe
    streams: Streams
    task: str
    metric: str
    data: str  # fingerprint of the rows
    steps: int  # planned; the run took len(losses)
    best: Scores | None  # of the best evaluation on validation (the earlier, where equal); the last without validation
    last: Scores | None  # of the run's end; None where it has not ended well
    history: Sequence[Mapping[str, Any]]  # per evaluation: step, epoch, train_loss, validation, lr, distances
    losses: Sequence[float]  # per step
    grad_norms: Sequence[float]  # per step, before clipping
    seconds: float  # wall time, added up over resumptions
    peak_memory: int  # bytes: of tensors on a GPU, of the whole process on a CPU; 0 beside other runs of the process
    notes: Sequence[str] = ()
    predictions: Mapping[str, Predictions] = field(default_factory=dict)  # of the best weights, by split
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON; numbers come back bit for bit, NaN and infinities as null."""
        data = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        data |= {
            "recipe": self.recipe.to_data(),
            "streams": dataclasses.asdict(self.streams),
            "best": self.best and _scores(self.best),
            "last": self.last and _scores(self.last),
            "predictions": {split: _plain(made) for split, made in self.predictions.items()},
            "losses": [_finite(value) for value in self.losses],
            "grad_norms": [_finite(value) for value in self.grad_norms],
        }
        for name in ("history", "notes", "versions"):
            data[name] = dict(data[name]) if name == "versions" else list(data[name])
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> RunResult:
        numbers = {
            name: [math.nan if value is None else value for value in data[name]] for name in ("losses", "grad_norms")
        }
        made = {
            **data,
            **numbers,
            "recipe": Recipe.from_data(data["recipe"]),
            "streams": Streams(**data["streams"]),
            "best": data["best"] and Scores(**data["best"]),
            "last": data["last"] and Scores(**data["last"]),
            "predictions": {split: _predictions(plain) for split, plain in data["predictions"].items()},
        }
        return cls(**made)


def versions(device: torch.device) -> dict[str, str]:
    """What the numbers may depend on besides recipe, data and streams."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    found |= package_versions(("steadytune", "transformers"))
    found["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    found["processor"] = _processor()
    if device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
        found["kernels"] = "deterministic"
    return found


@cache
def _processor() -> str:
    """`AMD EPYC 9654, 8 cores`, where the system tells."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), name)
    except OSError:  # no Linux
        pass
    return f"{name}, {os.cpu_count()} cores"


def peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _scores(scores: Scores) -> dict[str, Any]:
    return {name: value if value is None else _finite(value) for name, value in dataclasses.asdict(scores).items()}


def _plain(made: Predictions) -> dict[str, Any]:
    values = made.values if isinstance(made.values, list) else made.values.tolist()
    return {"values": values, "probabilities": None if made.probabilities is None else made.probabilities.tolist()}


def _predictions(plain: Mapping[str, Any]) -> Predictions:
    texts = bool(plain["values"]) and isinstance(plain["values"][0], str)
    values = list(plain["values"]) if texts else np.asarray(plain["values"])
    probabilities = plain["probabilities"]
    return Predictions(values, None if probabilities is None else np.asarray(probabilities))
