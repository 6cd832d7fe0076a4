"""What is in the model directories that a study names: a trial is known by that, and not by where they lie.

Names of the hub, and built-in models, are what they are called.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from steadytune.errors import SteadytuneError
from steadytune.models import source
from steadytune.recipe import Recipe
from steadytune.study.data import located
from steadytune.study.file import Study
from steadytune.study.plan import name_in

_CONFIGURATION = (".json", ".txt", ".model")  # configuration and tokenizer
_WEIGHTS = ".safetensors"


def model_contents(study: Study, base: Path) -> dict[str, str]:
    """A fingerprint of every model directory, by the name that recipes give it. `base` is where the study file is."""
    recipes = {
        (recipe.model, recipe.start_from, recipe.from_config): recipe
        for candidates in study.groups.values()
        for candidate in candidates
        for recipe in candidate.recipes.values()
    }
    found = {name_in(recipe): _fingerprint(located(recipe, base)) for recipe in recipes.values()}
    return {name: made for name, made in found.items() if made is not None}


def _fingerprint(recipe: Recipe) -> str | None:
    try:
        place = Path(source(recipe))
    except SteadytuneError:  # it is not there, or no model; the trial will say so
        return None
    if not place.is_dir() or (recipe.start_from or recipe.model).startswith("builtin:"):
        return None
    wanted = (*_CONFIGURATION, *(() if recipe.from_config else (_WEIGHTS,)))
    files = sorted(file for file in place.iterdir() if file.suffix in wanted and file.is_file())
    parts = [f"{file.name} {_hash(file, file.stat().st_size, file.stat().st_mtime_ns)}" for file in files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def _hash(file: Path, size: int, changed: int) -> str:
    """`size` and `changed` are there for the cache: a file that was written anew is read anew."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
