"""What came out of the digits experiment: plain frozen records, to a JSON file and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from steadytune.papers.digits.plan import Plan


@dataclass(frozen=True)
class Pretrained:
    """One pretraining run; the best on validation gives w_pre."""

    epochs: int
    run: int
    validation: float | None  # None: diverged


@dataclass(frozen=True)
class FineTuned:
    """One restart of fine-tuning. Accuracies are fractions; what is not finite, because the run diverged, is None."""

    method: str  # "mixout" or "dropout"
    p: float
    layers: str
    gradient: str
    restart: int
    distance: float | None  # ||w_ft - w_pre||², all parameters
    distance_mixed: float | None  # the same of the layers that mixout mixes: what supplement B bounds
    validation: float | None
    test: float | None  # None also where there are no test rows
    source_validation: float | None
    losses: tuple[float | None, ...]  # mean training loss of each epoch
    drift: tuple[tuple[int, float | None], ...]  # (step, ||w_t - w_pre||), equation 10
    diverged: bool


@dataclass(frozen=True)
class DigitsResult:
    scale: str
    plan: Plan
    source: str
    target: str
    rows: Mapping[str, Mapping[str, int]]  # of source and target, by split
    pretrained: tuple[Pretrained, ...]
    chosen: Pretrained
    runs: tuple[FineTuned, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage
    device: str = ""

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> DigitsResult:
        """The inverse of to_data, also after a trip through JSON, where tuples come back as lists."""
        read = dict(data)
        read["plan"] = Plan(**{key: _tuples(value) for key, value in data["plan"].items()})
        read["pretrained"] = tuple(Pretrained(**each) for each in data["pretrained"])
        read["chosen"] = Pretrained(**data["chosen"])
        read["runs"] = tuple(FineTuned(**{key: _tuples(value) for key, value in each.items()}) for each in data["runs"])
        return cls(**read)

    def values(self, method: str, p: float, what: str, form: tuple[str, str] | None = None) -> list[float]:
        """One number per restart, in the order of the restarts, for a form (layers, gradient) of mixout.

        p = 0 is one run for all of them. NaN stands for what a diverged run has not.
        """
        form = form or self.plan.mixouts()[0]
        found = [
            each
            for each in self.runs
            if each.p == p
            and (p == 0.0 or (each.method == method and (method == "dropout" or (each.layers, each.gradient) == form)))
        ]
        numbers = [getattr(each, what) for each in sorted(found, key=lambda each: each.restart)]
        return [math.nan if number is None else float(number) for number in numbers]


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
