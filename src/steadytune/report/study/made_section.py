"""How a study was made, for the page: versions and hardware, data, recipes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steadytune.report.study.naming import short
from steadytune.report.study.readable import shortened
from steadytune.study.results import StudyResults, TaskInfo

LONGEST_SETTING = 300
MOST_VALUES = 20  # different values of one version that are listed


@dataclass(frozen=True)
class Recipe:
    """A variant's settings, on the tasks where they are these."""

    variant: str
    tasks: str  # empty: on all
    settings: Sequence[tuple[str, str]]  # those that differ from the first recipe


@dataclass(frozen=True)
class MadeSection:
    versions: Sequence[tuple[str, str]]
    tasks: Sequence[TaskInfo]
    first: str  # the variant whose recipe is given whole
    whole: Sequence[tuple[str, str]]
    recipes: Sequence[Recipe]


def make_made(results: StudyResults) -> MadeSection:
    recipes = _recipes(results)
    first = next((each for each in recipes if each[0] == results.baseline), recipes[0] if recipes else ("", "", {}))
    return MadeSection(
        versions=list(_versions(results)),
        tasks=list(results.tasks.values()),
        first=first[0],
        whole=list(first[2].items()),
        recipes=[Recipe(variant, tasks, _difference(first[2], flat)) for variant, tasks, flat in recipes],
    )


def _versions(results: StudyResults) -> Iterator[tuple[str, str]]:
    """Every version once; where trials differ, how many ran with which."""
    found: dict[str, Counter[str]] = {}
    for trial in results.trials:
        for name, value in trial.versions.items():
            found.setdefault(name, Counter())[value] += 1
    for name, values in found.items():
        if len(values) == 1:
            yield name, next(iter(values))
            continue
        told = [f"{value} ({count:,} trials)" for value, count in values.most_common(MOST_VALUES)]
        more = len(values) - len(told)
        yield name, ", ".join(told) + (f", and {more:,} more" if more else "")


def _recipes(results: StudyResults) -> list[tuple[str, str, Mapping[str, str]]]:
    """(variant, tasks, settings) for each recipe of each variant; seeds share theirs, so the first trial tells."""
    seen: dict[tuple[str, str], Mapping[str, str]] = {}
    for trial in results.trials:
        if (trial.variant, trial.task) not in seen:
            seen[trial.variant, trial.task] = flat_settings(trial.recipe)
    found: list[tuple[str, str, Mapping[str, str]]] = []
    for variant in results.variants:
        alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for task in results.tasks:
            if (variant, task) in seen:
                alike.setdefault(tuple(seen[variant, task].items()), []).append(task)
        for settings, tasks in alike.items():
            found.append((variant, "" if len(alike) == 1 else ", ".join(tasks), dict(settings)))
    return found


def flat_settings(recipe: Mapping[str, Any]) -> dict[str, str]:
    """`{"lr": "2e-05", "mixout": "p=0.7"}`: the settings as texts, each method under its name; what is off left out."""
    found: dict[str, str] = {}
    for key, value in recipe.items():
        if key != "methods" and value not in (None, 0, False, "", []):
            found[short(key).replace("_", " ")] = _plain(value)
    methods = recipe.get("methods") or []
    for item in methods if isinstance(methods, Sequence) and not isinstance(methods, str) else [methods]:
        if isinstance(item, Mapping):
            told = [f"{key}={_plain(value)}" for key, value in item.items() if key != "method" and value is not None]
            called = f"method {short(str(item.get('method', '')))}"
            while called in found:
                called += "+"
            found[called] = shortened(", ".join(told), LONGEST_SETTING) or "as it is"
    return found


def _difference(first: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str]]:
    changed = [(name, value) for name, value in other.items() if first.get(name) != value]
    return changed + [(name, "off") for name in first if name not in other]


def _plain(value: Any) -> str:
    if isinstance(value, (str, int, float, bool)):
        return shortened(f"{value:g}" if isinstance(value, float) else str(value), LONGEST_SETTING)
    return shortened(json.dumps(value, default=str), LONGEST_SETTING)
