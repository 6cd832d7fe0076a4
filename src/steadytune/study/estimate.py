"""How long a study will take, before it is run: floating-point operations over this machine's measured rate.

    operations of a step  = 6 x parameters x tokens     (forward 2, backward 4; looking up embeddings costs nothing)
    of an evaluation      = 2 x parameters x tokens

Good to a factor of two or so. As soon as trials have finished, their measured times take over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import torch

from steadytune.errors import SteadytuneError
from steadytune.models import load_config, quiet
from steadytune.recipe import Recipe
from steadytune.study.data import located
from steadytune.study.plan import Trial
from steadytune.study.results import TaskInfo
from steadytune.tasks.base import Task

_TOKENS_PER_WORD = 1.35  # of English prose in BERT's word pieces
_TOKENS_PER_IMAGE = 197  # of a ViT: 14 x 14 patches and one more
_EFFICIENCY = 0.5  # of a training step, against plain matrix products


@dataclass(frozen=True)
class Estimate:
    """Seconds of one worker after another; None where the model is not at hand."""

    seconds: float | None
    measured: int  # finished trials that it goes by
    trials: int  # still to run

    def wall(self, workers: int) -> float | None:
        return None if self.seconds is None else self.seconds / max(1, min(workers, self.trials))


def estimate(
    trials: Sequence[Trial], tasks: Mapping[str, TaskInfo], measured: Mapping[str, float], base: Path
) -> Estimate:
    """For the trials that have not ended; `measured` are the seconds of those that have, by key. `base` is the folder
    that models may lie in."""
    left = list({trial.key: trial for trial in trials if trial.key not in measured}.values())
    if not left:
        return Estimate(0.0, len(measured), 0)
    sizes: dict[str, float | None] = {}
    work: dict[str, float] = {}
    for trial in {t.key: t for t in trials}.values():
        model = f"{trial.recipe.model} {trial.recipe.start_from} {trial.recipe.trust_remote_code}"
        if model not in sizes:
            sizes[model] = parameters(located(trial.recipe, base))
        size = sizes[model]
        if size is None:
            return Estimate(None, len(measured), len(left))
        work[trial.key] = size * tokens(trial.recipe, tasks[trial.task])
    known = [key for key in measured if key in work]
    if known:
        rate = sum(work[key] for key in known) / max(1e-9, sum(measured[key] for key in known))
    else:
        rate = _EFFICIENCY * matrix_rate()
    return Estimate(sum(work[trial.key] for trial in left) / rate, len(known), len(left))


def tokens(recipe: Recipe, task: TaskInfo) -> float:
    """Tokens of a run, weighted: 6 for training and 2 for evaluation."""
    per_row = min(recipe.max_length, task.words * _TOKENS_PER_WORD + 3) if task.words else _TOKENS_PER_IMAGE
    rows = dict(task.rows)
    if task.metric == "perplexity":  # lines are joined, and cut into blocks of max_length
        blocks = task.words * _TOKENS_PER_WORD / recipe.max_length
        rows, per_row = {split: ceil(count * blocks) for split, count in rows.items()}, recipe.max_length
    steps = recipe.planned_steps(ceil(rows["train"] / recipe.batch_size))
    scored = sum(count for split, count in rows.items() if split != "train")
    return per_row * (6 * steps * recipe.batch_size + 2 * scored * (recipe.evaluations + 1))


def parameters(recipe: Recipe) -> float | None:
    """Weights that are multiplied with; None where the model's configuration cannot be had."""
    from transformers import AutoModel

    stand_in = Task("estimate", "classification", "accuracy", ("0", "1"), ("text",), "label")
    try:
        with quiet():
            config = load_config(recipe, stand_in)
            with torch.device("meta"):
                model = AutoModel.from_config(config)
    except (SteadytuneError, ValueError, OSError):
        return None
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    return float(sum(p.numel() for p in model.parameters() if id(p) not in tables))


def matrix_rate() -> float:
    """Operations per second of a matrix product of the size that encoders have, on the GPU where there is one."""
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    a, b = torch.ones(1024, 768, device=where), torch.ones(768, 768, device=where)
    done, start = 0, 0.0
    for number in range(10_000):
        if number == 3:  # warm
            start = time.perf_counter()
        (a @ b)[0, 0].item()
        if number >= 3:
            done += 1
            if time.perf_counter() - start > 0.2:
                break
    return done * 2.0 * a.shape[0] * b.numel() / (time.perf_counter() - start)
