"""What an experiment costs, before it is run: trials, and a rough guess of hours on one H200.

    hours = trials x steps x seconds of a step,  one trial after another

Seconds of a step are those that docs/performance.md has measured of this engine, by model, and guessed for models that
it has not; two passes count twice, and a fifth is added for evaluations. Good to a factor of two or three; `steadytune
study plan` goes by the machine at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from steadytune.config import Document
from steadytune.papers.experiment import Computed, Experiment, Part
from steadytune.papers.settings import BERT_BASE, BERT_LARGE, GPT2, VIT_BASE, Scale, Setting
from steadytune.papers.study_parts import in_order
from steadytune.tasks.glue import TASKS

if TYPE_CHECKING:
    from steadytune.recipe import Recipe
    from steadytune.study.file import Study

_STEP = {BERT_LARGE: 0.033, BERT_BASE: 0.0075, "builtin:minilm": 0.0025, GPT2: 0.4, VIT_BASE: 0.5}  # seconds
_LARGE_STEP, _OWN_STEP = 0.05, {"full": 0.05, "small": 0.005, "smoke": 0.02}  # other hub models; made from scratch
_TRIAL: Mapping[Scale, float] = {"full": 5.0, "small": 0.8, "smoke": 0.3}  # seconds that a trial takes besides
_EVALUATIONS = 1.2
_ROWS = {"CIFAR-100": 50_000, "ImageNet": 1_281_167, "CIFAR-10 subset": 5000}
_TWICE = ("rdrop", "nll_only", "fraternal_dropout", "doubled_batch")


@dataclass(frozen=True)
class Cost:
    trials: int
    seconds: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.trials + other.trials, self.seconds + other.seconds)

    def words(self) -> str:
        """`640 runs, 1.2 h`."""
        seconds = self.seconds
        spent = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else ""
        spent = spent or (f"{seconds / 3600:.0f} h" if seconds < 4 * 86400 else f"{seconds / 86400:.0f} days")
        return f"{self.trials:,} runs, {spent}" if self.trials else spent


def cost(experiment: Experiment, scale: Scale) -> Cost:
    """Of all that an item needs; studies that it shares with others included."""
    if isinstance(experiment, Computed):
        return Cost(0, experiment.seconds.get(scale, 0.0))
    return sum((part_cost(part, scale) for part in in_order(experiment, scale)), Cost(0, 0.0))


def planned_study(part: Part, scale: Scale) -> Study:
    """The study of a part before anything has been run or chosen."""
    from steadytune.study.file import read_study

    setting = Setting(scale, Path("data"), Path("out") / scale / part.name)
    return read_study(Document(part.name, part.make(setting), {}))


@cache
def part_cost(part: Part, scale: Scale) -> Cost:
    study = planned_study(part, scale)
    total = Cost(0, 0.0)
    for candidates in study.groups.values():
        for task, source in study.tasks.items():
            seconds = [_seconds(each.recipes[task], task, scale, source.limit.get("train")) for each in candidates]
            if study.choose is not None and len(candidates) > 1:
                tuned = len(study.choose.seeds)
                total += Cost(tuned * len(candidates), tuned * sum(seconds))
                more = len(set(study.seeds) - set(study.choose.seeds))  # the chosen one has been run with these
            else:
                more = len(study.seeds)
            total += Cost(more, more * sum(seconds) / len(seconds))
    return total


def _seconds(recipe: Recipe, task: str, scale: Scale, limit: int | None) -> float:
    name, _, thousand = task.partition(" (")
    rows = 1000 if thousand else _ROWS.get(name, 0)
    rows = rows or next((each.train_rows for glue, each in TASKS.items() if glue == name), 1000)
    steps = recipe.planned_steps(ceil(min(rows, limit or rows) / recipe.batch_size))
    for method in recipe.methods:
        data = method.describe()
        if data["method"] == "longer":
            steps = data["steps"] or ceil((data["times"] or 1.0) * steps)
    if scale == "smoke":
        return _TRIAL[scale] + steps * _OWN_STEP["smoke"]
    own = recipe.from_config and recipe.model != GPT2
    step = _OWN_STEP[scale] if own else _STEP.get(recipe.model, _LARGE_STEP)
    twice = 2 if any(method.name in _TWICE for method in recipe.methods) else 1
    return _TRIAL[scale] + _EVALUATIONS * steps * step * twice
