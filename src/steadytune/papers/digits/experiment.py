"""Pretrain, choose, fine-tune, measure: the digits experiment from top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steadytune.errors import SteadytuneError
from steadytune.methods.base import check_choice
from steadytune.papers.digits.data import Digits, load
from steadytune.papers.digits.drawn import drawn_digits
from steadytune.papers.digits.network import MIXED, Restart, Training, start_weights
from steadytune.papers.digits.stacked import Trained, accuracy, finite, squared_distances, train
from steadytune.rng import Streams

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """Everything that is run. The defaults are the paper's (section 4, supplement C.1)."""

    pretrain_epochs: tuple[int, ...] = tuple(range(1, 21))
    pretrain_runs: int = 5
    pretrain_lr: float = 1e-4
    pretrain_dropout: float = 0.1
    pretrain_decay: float = 0.01
    decay_form: str = "l2"
    epochs: int = 5
    lr: float = 5e-5
    batch_size: int = 32
    ps: tuple[float, ...] = tuple(round(0.1 * i, 1) for i in range(10))
    restarts: int = 10
    gradients: tuple[str, ...] = ("exact",)  # of mixout; ("exact", "paper") compares them (D1)
    mask: str = "neuron"
    layers: str = "hidden"
    train_rows: int | None = None  # None: all
    evaluated_rows: int | None = None

    def __post_init__(self) -> None:
        if not self.pretrain_epochs or not self.ps or self.pretrain_runs < 1 or self.restarts < 1:
            raise SteadytuneError("Plan: there must be at least one pretraining run, one p and one restart.")
        if not self.gradients:
            raise SteadytuneError("Plan: gradients must name 'exact', 'paper' or both.")


SCALES: Mapping[str, Plan] = {
    "full": Plan(),
    "small": Plan(),  # the same: what is smaller is the source, and stacked it takes minutes
    "smoke": Plan(
        pretrain_epochs=(2, 3),
        pretrain_runs=2,
        pretrain_lr=2e-3,
        epochs=2,
        lr=1e-3,
        ps=(0.0, 0.5, 0.9),
        restarts=3,
        train_rows=320,
        evaluated_rows=200,
    ),
}


@dataclass(frozen=True)
class Pretrained:
    """One pretraining run; the best on validation gives w_pre."""

    epochs: int
    run: int
    validation: float


@dataclass(frozen=True)
class FineTuned:
    """One restart of fine-tuning. Accuracies are fractions, NaN where the run diverged."""

    method: str  # "mixout" or "dropout"
    p: float
    gradient: str
    restart: int
    distance: float  # ||w_ft - w_pre||², all parameters
    distance_mixed: float  # the same of the layers that mixout mixes: what supplement B bounds
    validation: float
    test: float | None
    source_validation: float
    losses: tuple[float, ...]  # mean training loss of each epoch
    drift: tuple[tuple[int, float], ...]  # (step, ||w_t - w_pre||), equation 10
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
        read["runs"] = tuple(
            FineTuned(**{key: _tuples(value) for key, value in each.items()}) for each in data["runs"]
        )
        return cls(**read)

    def values(self, method: str, p: float, what: str, gradient: str = "exact") -> list[float]:
        """One number per restart, in the order of the restarts. p = 0 is one run, whatever it is called."""
        found = [
            each
            for each in self.runs
            if each.p == p and (p == 0.0 or (each.method == method and each.gradient == gradient))
        ]
        return [float(getattr(each, what)) for each in sorted(found, key=lambda each: each.restart)]


def run(
    scale: str = "small",
    *,
    source: str | Path | Digits | None = None,
    target: str | Path | Digits | None = None,
    transpose_source: bool = False,
    device: str | torch.device | None = None,
    plan: Plan | None = None,
    at_once: int | None = None,
    say: Say = lambda line: None,
) -> DigitsResult:
    """The whole experiment. `plan` replaces the scale's own; a smoke run without files draws its digits."""
    check_choice("scale", scale, SCALES, "digits")
    plan = plan or SCALES[scale]
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    source_digits = _digits(source, "source", scale, plan, transpose_source).to(device)
    target_digits = _digits(target, "target", scale, plan, False).to(device)
    started = time.perf_counter()
    say(f"Pretraining {len(plan.pretrain_epochs) * plan.pretrain_runs} networks on {source_digits.name}.")
    w_pre, pretrained, chosen = pretrain(source_digits, plan, at_once)
    pretraining = time.perf_counter() - started
    say(f"w_pre: {chosen.epochs} epochs, run {chosen.run}, validation accuracy {chosen.validation:.4f}.")
    restarts = fine_tuning_restarts(plan)
    say(f"Fine-tuning {len(restarts)} restarts on {target_digits.name}.")
    training = Training(batch_size=plan.batch_size)
    trained = train([w_pre] * len(restarts), restarts, training, target_digits.train, at_once=at_once)
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


def _digits(given: str | Path | Digits | None, role: str, scale: str, plan: Plan, transpose: bool) -> Digits:
    if given is None:
        if scale != "smoke":
            usual = "EMNIST Digits (idx files) or usps.npz" if role == "source" else "the folder of MNIST's idx files"
            raise SteadytuneError(f"The {scale} digits experiment needs {role} digits; give the path of {usual}.")
        # another noise and another seed, so that source and target differ
        noise, seed = (90.0, 1) if role == "source" else (60.0, 2)
        found = drawn_digits(f"drawn {role} digits", plan.train_rows or 320, noise=noise, seed=seed)
    else:
        found = given if isinstance(given, Digits) else load(given, transpose=transpose)
    return found.cut(plan.train_rows, plan.evaluated_rows)


def pretrain(
    digits: Digits, plan: Plan, at_once: int | None = None
) -> tuple[dict[str, Tensor], tuple[Pretrained, ...], Pretrained]:
    """(w_pre, all runs, the chosen one): best validation accuracy; of equals, the shortest and first."""
    restarts = [
        Restart("dropout", plan.pretrain_dropout, epochs, plan.pretrain_lr, Streams(run, run, run))
        for epochs in sorted(plan.pretrain_epochs)
        for run in range(plan.pretrain_runs)
    ]
    training = Training(plan.batch_size, plan.pretrain_decay, plan.decay_form)
    starts = [start_weights(restart.streams) for restart in restarts]
    trained = train(starts, restarts, training, digits.train, at_once=at_once)
    scores = accuracy(trained.weights, digits.validation)
    runs = tuple(
        Pretrained(restart.epochs, restart.streams.init, score) for restart, score in zip(restarts, scores)
    )
    good = [i for i, score in enumerate(scores) if score == score]
    if not good:
        raise SteadytuneError(f"All {len(runs)} pretraining runs on {digits.name} diverged; lower the learning rate.")
    best = max(good, key=lambda i: (scores[i], -i))
    return {name: each[best].clone() for name, each in trained.weights.items()}, runs, runs[best]


def fine_tuning_restarts(plan: Plan) -> list[Restart]:
    """Every p of both methods, with the same streams for the same restart number (paired)."""
    kinds = [("mixout", gradient, p) for gradient in plan.gradients for p in plan.ps if p > 0.0]
    kinds += [("dropout", plan.gradients[0], p) for p in plan.ps if p > 0.0]
    if 0.0 in plan.ps:
        kinds.insert(0, ("dropout", plan.gradients[0], 0.0))
    return [
        Restart(method, p, plan.epochs, plan.lr, Streams(0, number, number), plan.mask, gradient, plan.layers)
        for method, gradient, p in kinds
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
            restart.gradient,
            restart.streams.order,
            sum(each[i] for each in squared.values()),
            sum(squared[f"{name}.weight"][i] for name in MIXED[restart.layers]),
            validation[i],
            None if test is None else test[i],
            on_source[i],
            tuple(trained.losses[i]),
            tuple(trained.drift[i]),
            not healthy[i],
        )
        for i, restart in enumerate(restarts)
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
