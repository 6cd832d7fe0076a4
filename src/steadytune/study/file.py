"""A study file: a base recipe x named variants x tasks x seeds, read strictly.

    study: Does bias correction matter?
    about: Figure 2 of the few-sample paper, on a small encoder.
    base: {preset: standard, lr: 2e-4}             # a recipe, as in a recipe file
    tasks:
      RTE: {glue: ../data/glue/RTE}
    variants:                                      # changes to the base; the first is the one to compare with
      corrected: {}
      not corrected: {add: [{method: adamw, correct_bias: false}]}
      mixout: {add: [{method: mixout}], sweep: {mixout.p: [0.1, 0.5, 0.9]}}
    seeds: 20                                      # 0 to 19, the same for every variant; or a list
    # seeds: {init: 10, order: 10}                 # or a grid: initialisations x data orders (V23)
    sweep: {lr: [1e-5, 2e-5, 5e-5]}                # for every variant
    choose: {seeds: 8, over: [lr]}                 # best mean validation of 8 seeds; only it is reported (V16)
    report: {split: test, weights: best}
    baseline: corrected

A variant's settings are those of a recipe; `methods` replaces the list of the base, `add` adds to it, and `tasks` holds
what is different on one task only. They are taken from the base, then the task, then the variant. A swept setting is
one of the recipe (`lr`, `steps`) or of a method (`mixout.p`), and makes one variant per value, or per combination.
Unknown names, duplicates, tags and aliases are refused with file and line (config.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from steadytune.config import Document, load_yaml, recipe_of
from steadytune.recipe import Recipe
from steadytune.rng import Streams
from steadytune.strict import BadValue, build, nearest
from steadytune.strict import Path as Keys
from steadytune.study.data import StudyTask
from steadytune.study.results import Variant, Which
from steadytune.study.variants import Candidate, Family, changed, groups_of, swept

_MOST_SEEDS = 100_000


@dataclass(frozen=True)
class Reporting:
    """Which number of a run is reported."""

    split: Literal["validation", "test"] = "test"
    weights: Which = "best"


@dataclass(frozen=True)
class Choice:
    """Swept settings that are chosen by the mean validation score of some seeds, per task."""

    seeds: tuple[Streams, ...]
    over: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """What a study file says, checked. `groups` are compared; each has one candidate, or several to choose from."""

    name: str
    tasks: Mapping[str, StudyTask]
    groups: Mapping[str, Sequence[Candidate]]
    variants: Mapping[str, Variant]  # groups first, then the candidates of those that are chosen from
    seeds: Sequence[Streams]
    baseline: str
    about: str = ""
    choose: Choice | None = None
    report: Reporting = Reporting()
    keep_models: bool = False  # save each run's best weights under models/
    text: str = field(default="", repr=False)


_KEYS = ("study", "about", "base", "tasks", "variants", "seeds", "sweep", "choose", "report", "baseline", "keep_models")


def load_study(file: str | Path) -> Study:
    """The study that a file describes; an error names the file and the line."""
    document = load_yaml(file)
    return read_study(document, Path(file).read_text(encoding="utf-8-sig"))


def read_study(document: Document, text: str = "") -> Study:
    """The study in a document."""
    data = document.data
    with document.blame():
        _check_keys(data, _KEYS, "A study file")
        for needed in ("study", "tasks", "variants", "seeds"):
            if needed not in data:
                raise BadValue(f"A study file needs {needed!r}.")
        for name in ("study", "about", "baseline"):
            if not isinstance(data.get(name, ""), str):
                raise BadValue(f"{name} must be a text, not {data[name]!r}.", (name,))
        if not isinstance(data.get("keep_models", False), bool):
            raise BadValue("keep_models must be true or false.", ("keep_models",))
    base = recipe_of(document, data.get("base", {}), ("base",))
    tasks = {name: _task(document, name, data["tasks"][name]) for name in _names(document, "tasks")}
    sweep = _sweep(document, data.get("sweep", {}), ("sweep",))
    with document.blame():
        seeds = _streams(data["seeds"], ("seeds",))
    on_task: dict[str, Recipe] = {}
    for name, task in tasks.items():
        with document.blame(("tasks", name, "recipe")):
            on_task[name] = changed(base, task.recipe)
    families = {
        name: _family(document, on_task, sweep, name, data["variants"][name]) for name in _names(document, "variants")
    }
    choose = _choice(document, data, {key for _, own in families.values() for key in own})
    with document.blame():
        groups, variants = groups_of(families, choose.over if choose else ())
    baseline = data.get("baseline", next(iter(groups)))
    with document.blame():
        if baseline not in groups:
            raise BadValue(
                f"There is no variant {baseline!r} to compare with. {nearest(baseline, groups)}", ("baseline",)
            )
        report = build(Reporting, _mapping(data.get("report", {}), "report"), "report", ("report",))
    about, keep = data.get("about", ""), data.get("keep_models", False)
    return Study(data["study"], tasks, groups, variants, seeds, baseline, about, choose, report, keep, text)


def _family(document: Document, base: Mapping[str, Recipe], sweep: Mapping[str, Any], name: str, data: Any) -> Family:
    """A variant of the file: its changes, then those it has for one task only, then its sweep tried out."""
    path: Keys = ("variants", name)
    with document.blame(path):
        given = _mapping({} if data is None else data, f"variant {name!r}")
        alone = _mapping(given.get("tasks", {}), f"tasks of variant {name!r}")
        for task in alone:
            if task not in base:
                raise BadValue(f"There is no task {task!r}. {nearest(task, base)}", ("tasks", task))
        changes = {key: value for key, value in given.items() if key not in ("sweep", "tasks")}
        recipes = {task: changed(recipe, changes) for task, recipe in base.items()}
    for task, more in alone.items():
        with document.blame((*path, "tasks", task)):
            recipes[task] = changed(recipes[task], _mapping(more, task))
    own = _sweep(document, given.get("sweep", {}), (*path, "sweep"))
    both = {**sweep, **own}
    for key, values in both.items():
        with document.blame((*path, "sweep", key) if key in own else ("sweep", key)):
            for value in values:
                for recipe in recipes.values():
                    swept(recipe, key, value)
    return recipes, both


def _streams(given: Any, path: Keys) -> tuple[Streams, ...]:
    """20 -> seeds 0 to 19; [3, 5]; {init: 10, order: 10} -> a grid in which noise goes with order (V23)."""
    if type(given) is int and 1 <= given <= _MOST_SEEDS:
        return tuple(Streams(number, number, number) for number in range(given))
    if isinstance(given, list) and given and all(type(item) is int and item >= 0 for item in given):
        if len(set(given)) < len(given):
            raise BadValue("A seed is given twice.", path)
        return tuple(Streams(number, number, number) for number in given)
    grid = [given["init"], given["order"]] if isinstance(given, Mapping) and set(given) == {"init", "order"} else []
    if grid and all(type(item) is int and item >= 1 for item in grid) and grid[0] * grid[1] <= _MOST_SEEDS:
        return tuple(Streams(i, j, j) for i in range(grid[0]) for j in range(grid[1]))
    what = "a number of runs, a list of seeds, or {init: 10, order: 10}"
    raise BadValue(f"{path[-1]} must be {what}, not {given!r}.", path)


def _choice(document: Document, data: Mapping[str, Any], known: set[str]) -> Choice | None:
    if "choose" not in data:
        return None
    with document.blame(("choose",)):
        given = _mapping(data["choose"], "choose")
        _check_keys(given, ("seeds", "over"), "choose")
        if "seeds" not in given:
            raise BadValue("choose needs seeds: how many runs each candidate is judged by.")
        over = given.get("over", sorted(known))
        if not isinstance(over, list) or not over:
            raise BadValue("There is nothing to choose from: no setting is swept.", ("over",))
        for number, key in enumerate(over):
            if key not in known:
                raise BadValue(f"{key!r} is not swept. {nearest(key, known) if known else ''}", ("over", number))
        return Choice(_streams(given["seeds"], ("seeds",)), tuple(over))


def _sweep(document: Document, given: Any, path: Keys) -> dict[str, list[Any]]:
    with document.blame(path):
        for key, values in _mapping(given, "sweep").items():
            if not isinstance(values, list) or not values:
                raise BadValue(f"sweep: {key} needs a list of values, not {values!r}.", (key,))
            if len({str(value) for value in values}) < len(values):
                raise BadValue(f"sweep: {key} has a value twice.", (key,))
    return dict(given)


def _task(document: Document, name: str, data: Any) -> StudyTask:
    with document.blame(("tasks", name)):
        return StudyTask.from_data(data)


def _names(document: Document, key: str) -> list[str]:
    with document.blame():
        found = _mapping(document.data[key], key)
        if not found:
            raise BadValue(f"{key} is empty.", (key,))
        for name in found:
            if not name.strip():
                raise BadValue(f"A name under {key} is empty.", (key, name))
    return list(found)


def _mapping(data: Any, owner: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise BadValue(f"{owner} is a list of names and their values, not {data!r}.")
    return data


def _check_keys(data: Any, known: Sequence[str], owner: str) -> None:
    for key in _mapping(data, owner):
        if key not in known:
            raise BadValue(f"{owner} has no {key!r}. {nearest(key, known)}", (key,))
