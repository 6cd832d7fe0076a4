"""How many trials a GPU has room and use for at a time: what `--per-gpu auto` means.

    memory of a trial = 32 bytes x parameters      weights, gradients, two moments, what they are measured against, best
                      + 4 bytes x parameters      for each evaluation whose weights are averaged
                      + 2 x 60 bytes x hidden size x blocks x tokens of a batch      activations, plain and recorded;
                                                  twice that where a loss takes two passes
                      + 40 bytes x hidden size x tokens of an evaluation's batch
                      + 0.2 GB                     of its process

More at a time pays as long as one leaves the GPU idle between its kernels, which small models do. The numbers are
reckoned (of 18 trials of a 6 x 384 encoder on an H200, which took 70 GB, 61); what a trial measures does not depend on
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from steadytune.engine.evaluate import TOKENS_AT_ONCE
from steadytune.methods.averaging import CheckpointAverage
from steadytune.models import load_config
from steadytune.recipe import Recipe
from steadytune.study.data import located
from steadytune.study.estimate import parameters
from steadytune.tasks.base import Task

_OF_USE = ((50e6, 24), (200e6, 4), (500e6, 2))  # up to so many parameters, so many trials
_FILLED = 0.8  # of the memory


def per_gpu(wanted: str | None, recipes: Iterable[Recipe], base: Path, workers: int | None = None) -> int | None:
    """The number that `--per-gpu` means; "auto" goes by the largest model of the recipes and the smallest GPU here.

    Where so many `workers` are asked for, a GPU's trials are shared out among those that it gets.
    """
    if wanted != "auto":
        return None if wanted is None else int(wanted)
    if not torch.cuda.is_available():
        return None
    gpus = torch.cuda.device_count()
    memory = min(torch.cuda.get_device_properties(n).total_memory for n in range(gpus))
    unlike = {(r.model, r.start_from, r.batch_size, r.max_length, _passes(r), _kept(r)): r for r in recipes}
    found = min((_replicas(located(recipe, base), memory) for recipe in unlike.values()), default=1)
    return found if workers is None else max(1, found // -(-workers // gpus))


def _passes(recipe: Recipe) -> int:
    """How often a batch goes through the model in a step: twice in R-Drop and its kin."""
    return 2 if any(method.place == "loss" and not method.is_null() for method in recipe.methods) else 1


def _kept(recipe: Recipe) -> int:
    """Copies of the weights that wait to be averaged."""
    return sum(method.last for method in recipe.methods if isinstance(method, CheckpointAverage))


def _replicas(recipe: Recipe, memory: float) -> int:
    size = parameters(recipe)
    if size is None:
        return 1
    config = load_config(recipe, Task("room", "classification", "accuracy", ("0", "1"), ("text",)))
    hidden = getattr(config, "hidden_size", None) or getattr(config, "d_model", None) or 1024
    blocks = getattr(config, "num_hidden_layers", None) or 24
    tables = getattr(config, "vocab_size", None) or 0
    needed = 32.0 * (size + tables * hidden) + 4.0 * size * _kept(recipe)
    needed += 120.0 * hidden * blocks * recipe.batch_size * recipe.max_length * _passes(recipe)
    needed += 40.0 * hidden * TOKENS_AT_ONCE["cuda"] + 2e8
    useful = next((count for most, count in _OF_USE if size <= most), 1)
    return max(1, min(useful, int(_FILLED * memory / needed)))
