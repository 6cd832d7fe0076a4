"""From a study to its trials: a pure function of the study, its data, and what has come out so far.

A trial's key is the sha256 of its content: recipe, streams, data, how they are scored, and what is in the model's
directory where it is one. Planning twice gives the same rows; two variants that come to the same recipe share their
runs. Where settings are chosen (V16), the tuning trials are planned first, and the reported ones of a task and variant
as soon as its choice is made.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from steadytune.recipe import Recipe
from steadytune.rng import Streams
from steadytune.study.file import Study
from steadytune.study.results import ENDED, Phase, Status, TaskInfo
from steadytune.study.variants import Candidate


@dataclass(frozen=True)
class Trial:
    """One run: what it is called in the study, and what it is."""

    key: str
    task: str
    variant: str
    phase: Phase
    streams: Streams
    recipe: Recipe
    content: str  # canonical JSON: what the key is a hash of

    def spec(self, keep: bool = False) -> str:
        """What a worker is handed: the content, where in the study its data is described, and what to call it."""
        names = json.dumps({"keep_model": keep, "phase": self.phase, "task": self.task, "variant": self.variant})
        return f'{{"content":{self.content},{names[1:]}'


@dataclass(frozen=True)
class Ended:
    """What planning needs to know of a trial that has ended."""

    status: Status
    validation: float | None = None  # of the weights that are reported


@dataclass(frozen=True)
class Plan:
    """The trials so far, and what is not known yet."""

    trials: Sequence[Trial]
    chosen: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (task, group) -> variant
    waiting: Sequence[tuple[str, str]] = ()  # (task, group): not chosen yet
    hopeless: Sequence[tuple[str, str]] = ()  # (task, group): every tuning trial crashed, so there is no choice
    unplanned: int = 0  # reported trials that wait for a choice

    def rows(self, keep: bool = False) -> list[tuple[str, str, int]]:
        """(key, spec, rank) for the ledger: one per key; seeds go round the variants, so that all grow alike."""
        first: dict[str, tuple[str, str, int]] = {}
        for rank, trial in enumerate(self.trials):
            if trial.key not in first:
                first[trial.key] = (trial.key, trial.spec(keep), rank)
        return list(first.values())


def plan(
    study: Study,
    tasks: Mapping[str, TaskInfo],
    ended: Mapping[str, Ended] | None = None,
    models: Mapping[str, str] | None = None,
) -> Plan:
    """All trials that can be named now. `ended` is what the ledger knows, by key; `models` is of model_files.py."""
    ended = ended or {}
    trials: list[Trial] = []
    chosen: dict[tuple[str, str], str] = {}
    waiting: list[tuple[str, str]] = []
    hopeless: list[tuple[str, str]] = []
    maker = _Maker(study, tasks, models or {})
    reported: list[tuple[str, str, Candidate]] = []
    for group, candidates in study.groups.items():
        for task in study.tasks:
            if study.choose is None or len(candidates) == 1:
                reported.append((task, group, candidates[0]))
                continue
            runs = {each.variant.name: [] for each in candidates}  # type: dict[str, list[Trial]]
            for streams in study.choose.seeds:
                for each in candidates:
                    runs[each.variant.name].append(maker.trial(task, each.variant.name, "choose", streams, each))
            trials += [trial for made in zip(*runs.values()) for trial in made]
            best = _choose(runs, ended, tasks[task])
            if best is None:
                waiting.append((task, group))
            elif not best:
                hopeless.append((task, group))
            else:
                chosen[task, group] = best
                reported.append((task, group, next(each for each in candidates if each.variant.name == best)))
    for streams in study.seeds:
        trials += [maker.trial(task, group, "report", streams, each) for task, group, each in reported]
    return Plan(trials, chosen, waiting, hopeless, len(waiting) * len(study.seeds))


class _Maker:
    """Makes trials; the part of the content that seeds share is written out once."""

    def __init__(self, study: Study, tasks: Mapping[str, TaskInfo], models: Mapping[str, str]) -> None:
        self.parts: dict[tuple[str, int], str] = {}
        self.models = models
        self.scoring = {name: {"data": tasks[name].fingerprint, "metric": tasks[name].metric} for name in study.tasks}

    def trial(self, task: str, variant: str, phase: Phase, streams: Streams, candidate: Candidate) -> Trial:
        recipe = candidate.recipes[task]
        shared = self.parts.get((task, id(recipe)))
        if shared is None:
            data: dict[str, Any] = {**self.scoring[task], "format": 1, "recipe": recipe.to_data()}
            if (name := name_in(recipe)) in self.models:
                data["model"] = self.models[name]
            shared = canonical(data)
            self.parts[task, id(recipe)] = shared
        # "streams" sorts behind the other keys, so this is the canonical JSON of the whole.
        own = canonical(asdict(streams))
        content = f'{shared[:-1]},"streams":{own}}}'
        return Trial(hashlib.sha256(content.encode()).hexdigest(), task, variant, phase, streams, recipe, content)


def canonical(data: Mapping[str, Any]) -> str:
    """The one way to write data that is hashed."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def name_in(recipe: Recipe) -> str:
    """Where a recipe's weights and tokenizer come from, as it says it; with random weights, only the configuration."""
    return f"{recipe.start_from or recipe.model}{' (configuration)' if recipe.from_config else ''}"


def _choose(runs: Mapping[str, Sequence[Trial]], ended: Mapping[str, Ended], task: TaskInfo) -> str | None:
    """The variant of the best mean validation score; None while runs are missing; "" where none gave a score.

    A diverged run counts as one that learned nothing: it has the baseline's score, or the worst that was seen. One
    that crashed says nothing about its settings and is left out.
    """
    found = {name: [ended.get(trial.key) for trial in trials] for name, trials in runs.items()}
    if any(each is None or each.status not in ENDED for many in found.values() for each in many):
        return None
    sign = 1.0 if task.greater_is_better else -1.0
    scores = {
        name: [_score(each, sign) for each in many if each is not None and each.status != "failed"]
        for name, many in found.items()
    }
    seen = [value for many in scores.values() for value in many if value is not None]
    level = task.baseline.validation
    worst = min([*seen, sign * level] if level is not None and math.isfinite(level) else seen, default=0.0)
    means = {
        name: sum(worst if value is None else value for value in many) / len(many)
        for name, many in scores.items()
        if many
    }
    return max(means, key=lambda name: means[name], default="")  # of equal ones the first in the file


def _score(ended: Ended, sign: float) -> float | None:
    if ended.status != "finished" or ended.validation is None or not math.isfinite(ended.validation):
        return None
    return sign * ended.validation


def by_key(plan: Plan) -> Iterator[tuple[str, list[Trial]]]:
    """Every key with the trials that share its run."""
    found: dict[str, list[Trial]] = {}
    for trial in plan.trials:
        found.setdefault(trial.key, []).append(trial)
    yield from found.items()
