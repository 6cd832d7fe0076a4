"""Variants of a study: recipes changed and swept, and grouped into what is compared and what is chosen among."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steadytune.recipe import Recipe, method_from_data
from steadytune.strict import BadValue
from steadytune.study.results import Variant

_MOST_VARIANTS = 10_000


@dataclass(frozen=True)
class Candidate:
    """A variant with its recipes, by task."""

    variant: Variant
    recipes: Mapping[str, Recipe]


Family = tuple[Mapping[str, Recipe], Mapping[str, Sequence[Any]]]  # the recipe on each task, and what is swept


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """A recipe with a variant's or task's settings: those of a recipe, and `add` for more methods."""
    plain = {key: value for key, value in changes.items() if key not in ("add", "preset")}
    if "preset" in changes:
        raise BadValue("Only base may start from a preset; a variant changes the base.", ("preset",))
    made = recipe.updated(plain) if plain else recipe
    more = changes.get("add", [])
    if not isinstance(more, Sequence) or isinstance(more, str):
        raise BadValue(f"add is a list, such as [{{method: mixout, p: 0.7}}], not {more!r}.", ("add",))
    methods = [method_from_data(item, ("add", number)) for number, item in enumerate(more)]
    return made.with_methods(*methods) if methods else made


def swept(recipe: Recipe, key: str, value: Any) -> Recipe:
    """A recipe with one swept setting: `lr`, or `mixout.p`."""
    method, dot, setting = key.partition(".")
    if not dot:
        return recipe.updated({key: value})
    found = [item for item in recipe.methods if item.name == method]
    if not found:
        have = ", ".join(item.name for item in recipe.methods) or "none"
        raise BadValue(f"{key} cannot be swept: the recipe has no method {method!r} (it has {have}). Add it first.")
    return recipe.with_methods(method_from_data({**found[0].describe(), setting: value}))


def groups_of(
    families: Mapping[str, Family], over: Collection[str]
) -> tuple[dict[str, list[Candidate]], dict[str, Variant]]:
    """What is compared, and every variant by name. Settings `over` which is chosen make candidates of one group, the
    other swept ones make groups."""
    groups: dict[str, list[Candidate]] = {}
    shown: dict[str, Variant] = {}
    hidden: dict[str, Variant] = {}
    for family, (recipes, sweep) in families.items():
        kept = {key: values for key, values in sweep.items() if key not in over}
        tuned = {key: values for key, values in sweep.items() if key in over}
        for point in _product(kept):
            name = _label(family, point)
            if name in shown:
                raise BadValue(f"There are two variants {name!r}.", ("variants", family))
            if len(shown) + len(hidden) > _MOST_VARIANTS:
                raise BadValue(f"There are more than {_MOST_VARIANTS} variants.", ("variants", family))
            shown[name] = Variant(name, family, point)
            groups[name] = []
            for extra in _product(tuned):
                variant = Variant(_label(name, extra), name, extra) if tuned else shown[name]
                at = {**point, **extra}
                groups[name].append(Candidate(variant, {task: _at(recipe, at) for task, recipe in recipes.items()}))
                if tuned:
                    hidden[variant.name] = variant
    return groups, shown | hidden


def _at(recipe: Recipe, point: Mapping[str, Any]) -> Recipe:
    for key, value in point.items():
        recipe = swept(recipe, key, value)
    return recipe


def _product(sweep: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values))


def _label(name: str, point: Mapping[str, Any]) -> str:
    """`mixout, p=0.7`: the last word of the setting says enough, unless two end alike."""
    short = {key: key.rpartition(".")[2] for key in point}
    alike = len(set(short.values())) < len(short)
    return ", ".join([name, *(f"{key if alike else short[key]}={value}" for key, value in point.items())])
