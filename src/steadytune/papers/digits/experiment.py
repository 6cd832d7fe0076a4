"""Pretrain, choose, fine-tune, measure: the digits experiment from top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from steadytune.errors import SteadytuneError
from steadytune.methods.base import check_choice
from steadytune.papers.digits.data import Digits, load
from steadytune.papers.digits.drawn import drawn_digits
from steadytune.papers.digits.network import MIXED, Restart, Training, start_weights
from steadytune.papers.digits.plan import SCALES, Plan
from steadytune.papers.digits.results import DigitsResult, FineTuned, Pretrained
from steadytune.papers.digits.stacked import Trained, accuracy, finite, squared_distances, train
from steadytune.rng import Streams

Say = Callable[[str], None]


def run(
    scale: str = "small",
    *,
    source: str | Path | Digits | None = None,
    target: str | Path | Digits | None = None,
    transpose_source: bool = False,
    device: str | torch.device | None = None,
    plan: Plan | None = None,
    at_once: int | None = None,
    folder: Path | None = None,
    say: Say = lambda line: None,
) -> DigitsResult:
    """The whole experiment. `plan` replaces the scale's own; a smoke run without files draws its digits.

    What is trained is kept in `folder`, where the same call goes on after it was stopped.
    """
    check_choice("scale", scale, SCALES, "digits")
    plan = plan or SCALES[scale]
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    source_digits = _digits(source, "source", scale, plan, transpose_source).to(device)
    target_digits = _digits(target, "target", scale, plan, False).to(device)
    started = time.perf_counter()
    say(f"Pretraining {len(plan.pretrain_epochs) * plan.pretrain_runs} networks on {source_digits.name}.")
    w_pre, pretrained, chosen = pretrain(source_digits, plan, at_once, _inside(folder, "pretraining"), say)
    pretraining = time.perf_counter() - started
    say(f"w_pre: {chosen.epochs} epochs, run {chosen.run}, validation accuracy {chosen.validation}.")
    restarts = fine_tuning_restarts(plan)
    say(f"Fine-tuning {len(restarts)} restarts on {target_digits.name}.")
    training = Training(batch_size=plan.batch_size)
    kept = _inside(folder, "fine-tuning")
    starts = [w_pre] * len(restarts)
    trained = train(starts, restarts, training, target_digits.train, at_once=at_once, folder=kept, say=say)
    runs = measure(w_pre, restarts, trained, source_digits, target_digits)
    return DigitsResult(
        scale,
        plan,
        source_digits.name,
        target_digits.name,
        {"source": source_digits.sizes(), "target": target_digits.sizes()},
        pretrained,
        chosen,
        runs,
        {"pretraining": pretraining, "fine-tuning": time.perf_counter() - started - pretraining},
        torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    )


def _inside(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / name


def _digits(given: str | Path | Digits | None, role: str, scale: str, plan: Plan, transpose: bool) -> Digits:
    if given is None:
        if scale != "smoke":
            usual = "EMNIST Digits (idx files) or usps.npz" if role == "source" else "the folder of MNIST's idx files"
            raise SteadytuneError(f"The {scale} digits experiment needs {role} digits; give the path of {usual}.")
        # another noise and another seed, so that source and target differ
        noise, seed = (90.0, 1) if role == "source" else (60.0, 2)
        found = drawn_digits("drawn digits", plan.train_rows or 320, noise=noise, seed=seed)
    else:
        found = given if isinstance(given, Digits) else load(given, transpose=transpose)
    return found.cut(plan.train_rows, plan.evaluated_rows)


def pretrain(
    digits: Digits,
    plan: Plan,
    at_once: int | None = None,
    folder: Path | None = None,
    say: Say = lambda line: None,
) -> tuple[dict[str, Tensor], tuple[Pretrained, ...], Pretrained]:
    """(w_pre, all runs, the chosen one): best validation accuracy; of equals, the shortest and first."""
    restarts = [
        Restart("dropout", plan.pretrain_dropout, epochs, plan.pretrain_lr, Streams(run, run, run))
        for epochs in sorted(plan.pretrain_epochs)
        for run in range(plan.pretrain_runs)
    ]
    training = Training(plan.batch_size, plan.pretrain_decay, plan.decay_form)
    starts = [start_weights(restart.streams) for restart in restarts]
    trained = train(starts, restarts, training, digits.train, at_once=at_once, folder=folder, say=say)
    scores = accuracy(trained.weights, digits.validation)
    runs = tuple(
        Pretrained(restart.epochs, restart.streams.init, _finite(score)) for restart, score in zip(restarts, scores)
    )
    good = [i for i, score in enumerate(scores) if math.isfinite(score)]
    if not good:
        raise SteadytuneError(f"All {len(runs)} pretraining runs on {digits.name} diverged; lower the learning rate.")
    best = max(good, key=lambda i: (scores[i], -i))
    return {name: each[best].clone() for name, each in trained.weights.items()}, runs, runs[best]


def fine_tuning_restarts(plan: Plan) -> list[Restart]:
    """Every p of both methods, with the same streams for the same restart number (paired)."""
    forms = plan.mixouts()
    kinds = [("dropout", forms[0], p) for p in plan.ps]  # p = 0 is among these, once
    kinds += [("mixout", form, p) for form in forms for p in plan.ps if p > 0.0]
    return [
        Restart(method, p, plan.epochs, plan.lr, Streams(0, number, number), plan.mask, gradient, layers)
        for method, (layers, gradient), p in kinds
        for number in range(plan.restarts)
    ]


def measure(
    w_pre: Mapping[str, Tensor], restarts: Sequence[Restart], trained: Trained, source: Digits, target: Digits
) -> tuple[FineTuned, ...]:
    start = {name: each.unsqueeze(0).expand(len(restarts), *each.shape) for name, each in w_pre.items()}
    squared = {name: each.tolist() for name, each in squared_distances(trained.weights, start).items()}
    validation, on_source = (accuracy(trained.weights, part) for part in (target.validation, source.validation))
    test = accuracy(trained.weights, target.test) if target.test is not None else None
    healthy = finite(trained.weights).tolist()
    return tuple(
        FineTuned(
            restart.method,
            restart.p,
            restart.layers,
            restart.gradient,
            restart.streams.order,
            _finite(sum(each[i] for each in squared.values())),
            _finite(sum(squared[f"{name}.weight"][i] for name in MIXED[restart.layers])),
            _finite(validation[i]),
            None if test is None else _finite(test[i]),
            _finite(on_source[i]),
            tuple(_finite(loss) for loss in trained.losses[i]),
            tuple((step, _finite(far)) for step, far in trained.drift[i]),
            not healthy[i],
        )
        for i, restart in enumerate(restarts)
    )


def _finite(number: float) -> float | None:
    """JSON has no NaN."""
    return number if math.isfinite(number) else None
