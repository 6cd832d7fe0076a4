"""What the digits experiment runs, at each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steadytune.errors import SteadytuneError


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
    # Of mixout: the first is meant wherever nothing else is said; each further one is compared with it.
    layers: tuple[str, ...] = ("hidden",)  # "hidden": the text's; "linear": the public code's (network.py)
    gradients: tuple[str, ...] = ("exact",)  # "exact", "paper" (D1)
    mask: str = "neuron"
    train_rows: int | None = None  # None: all
    evaluated_rows: int | None = None

    def __post_init__(self) -> None:
        if not self.pretrain_epochs or not self.ps or self.pretrain_runs < 1 or self.restarts < 1:
            raise SteadytuneError("Plan: there must be at least one pretraining run, one p and one restart.")
        if not self.gradients or not self.layers:
            raise SteadytuneError("Plan: layers and gradients must each name at least one form of mixout.")

    def mixouts(self) -> list[tuple[str, str]]:
        """(layers, gradient) of every form of mixout that is run."""
        others = [(layers, self.gradients[0]) for layers in self.layers[1:]]
        return [(self.layers[0], self.gradients[0]), *others, *((self.layers[0], each) for each in self.gradients[1:])]


SCALES: Mapping[str, Plan] = {
    "full": Plan(layers=("hidden", "linear"), gradients=("exact", "paper")),
    # All rows and epochs of the paper, so that the weights move as far; fewer p, restarts and runs of pretraining.
    # 105 restarts: half an hour on one core, a minute or two on a GPU.
    "small": Plan(
        pretrain_epochs=(5, 10, 15, 20),
        pretrain_runs=2,
        ps=(0.0, 0.1, 0.3, 0.5, 0.7, 0.9),
        restarts=5,
        layers=("hidden", "linear"),
        gradients=("exact", "paper"),
    ),
    "smoke": Plan(
        pretrain_epochs=(2, 3),
        pretrain_runs=2,
        pretrain_lr=2e-3,
        epochs=2,
        lr=1e-3,
        ps=(0.0, 0.3, 0.9),
        restarts=3,
        layers=("hidden", "linear"),
        gradients=("exact", "paper"),
        train_rows=320,
        evaluated_rows=200,
    ),
}
