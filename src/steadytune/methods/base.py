"""What a method is: a frozen dataclass that acts in exactly one place of a run.

    place       hook(s)                      what the hook is handed, and may touch
    weights     weights_                     the model, before anything else: which weights to start from
    model       model_                       the model and its layers, once, before training
    groups      groups                       the optimiser's parameter groups
    optimizer   build_optimizer, step_hook   building the optimiser; a function that runs before each of its steps
    loss        loss, batch_size             the forward call and the batch
    schedule    lr_factor, length            the learning rate's factor at a step; how long the run is
    finish      finish                       the checkpoints of a run, or the models of a study

Places are visited in this order, so methods compose without being sorted by the user. Two methods that `replace` the
same thing are refused when the list is read. A method that matched nothing raises `NoEffect`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, TypeVar, dataclass_transform

import torch
from torch import Tensor, nn

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.layers import HEAD, Layers, find_layers
from steadytune.rng import Streams

__all__ = ["METHODS", "PLACES", "Citation", "Method", "Moment", "NoEffect", "Site", "check_methods", "method"]

Place = Literal["weights", "model", "groups", "optimizer", "loss", "schedule", "finish"]

PLACES: dict[str, tuple[str, ...]] = {
    "weights": ("weights_",),
    "model": ("model_",),
    "groups": ("groups",),
    "optimizer": ("build_optimizer", "step_hook"),
    "loss": ("loss", "batch_size"),
    "schedule": ("lr_factor", "length"),
    "finish": ("finish",),
}

ParamGroup = dict[str, Any]


class StepHook(Protocol):
    """Something that runs before each optimiser step. `anchors`, by parameter name, is what it pulls toward."""

    anchors: dict[str, Tensor]

    def attach_(self, optimizer: torch.optim.Optimizer) -> None: ...


@dataclass(frozen=True)
class Citation:
    """Where a method comes from; flows into `steadytune methods` and the model card."""

    key: str
    text: str
    url: str


MIXOUT = Citation(
    "lee2020mixout",
    "Lee, Cho, Kang. Mixout: Effective Regularization to Finetune Large-scale Pretrained Language Models. ICLR 2020.",
    "https://arxiv.org/abs/1909.11299",
)
FEW_SAMPLE = Citation(
    "zhang2021revisiting",
    "Zhang, Wu, Katiyar, Weinberger, Artzi. Revisiting Few-sample BERT Fine-tuning. ICLR 2021.",
    "https://arxiv.org/abs/2006.05987",
)
RDROP = Citation(
    "wu2021rdrop",
    "Wu, Li, Wang, Meng, Qin, Chen, Zhang, Liu. R-Drop: Regularized Dropout for Neural Networks. NeurIPS 2021.",
    "https://arxiv.org/abs/2106.14448",
)


@dataclass(frozen=True)
class Moment:
    """Where in the run a step stands; what a loss may depend on besides the batch."""

    step: int = 0
    steps: int = 1
    lr_scale: float = 1.0  # learning rate now / its peak

    @property
    def progress(self) -> float:
        return min(1.0, self.step / max(1, self.steps))


@dataclass(frozen=True)
class Length:
    """How long a run is: optimiser steps, and how many of them make an epoch."""

    steps: int
    steps_per_epoch: int


@dataclass
class Site:
    """A model that methods are being applied to, and what is known about it."""

    model: nn.Module
    streams: Streams
    methods: Sequence[Method] = ()  # all that are being applied, so that one can know of the others
    reinitialised: set[str] = field(default_factory=set)  # names of parameters that a method drew anew

    @classmethod
    def of(cls, model: nn.Module, streams: Streams, methods: Sequence[Method] = ()) -> Site:
        on_meta = [name for name, p in model.named_parameters() if p.device.type == "meta"]
        if on_meta:
            raise SteadytuneError(
                f"{type(model).__name__} has parameters on the meta device, which hold no values "
                f"(first: {on_meta[0]}). Load the weights before applying methods."
            )
        return cls(model, streams, methods)

    @cached_property
    def layers(self) -> Layers:
        """Looked up on first use: a method that needs no parts works on any nn.Module."""
        return find_layers(self.model)

    @property
    def fresh(self) -> set[str]:
        """Parameters that hold no pretrained value: the head, and what was re-initialised. Their random start is their
        only anchor, and decay toward the pretrained weights leaves them out (M7, M8, D10)."""
        return set(self.layers.parameters(HEAD)) | self.reinitialised


class Method:
    """Base of all methods. Subclasses are made by `@method(...)` and override the hooks of their one place."""

    name: ClassVar[str]
    place: ClassVar[str]
    paper: ClassVar[Citation]
    items: ClassVar[str]
    null: ClassVar[dict[str, Any]]

    def replaces(self) -> frozenset[str]:
        """What this method puts something else in the place of; two methods may not replace the same thing."""
        return frozenset()

    def check(self, site: Site) -> None:
        """Raise whatever applying would raise (`NoEffect` where nothing matches), and touch nothing."""

    def weights_(self, site: Site) -> None: ...
    def model_(self, site: Site) -> None: ...
    def groups(self, groups: list[ParamGroup], site: Site) -> list[ParamGroup]:
        return groups

    def build_optimizer(self, groups: list[ParamGroup], lr: float) -> torch.optim.Optimizer | None:
        return None

    def step_hook(self, site: Site) -> StepHook | None:
        return None

    def loss(self, model: nn.Module, batch: dict[str, Any], moment: Moment) -> tuple[Tensor, Any] | None:
        return None

    def batch_size(self, size: int) -> int:
        return size

    def lr_factor(self, step: int, length: Length) -> float | None:
        return None

    def length(self, length: Length) -> Length:
        return length

    def finish(self, models: Sequence[Any]) -> Any:
        return None

    def is_null(self) -> bool:
        """True where the method, with these values, is the baseline."""
        return bool(self.null) and all(getattr(self, key) == value for key, value in self.null.items())

    def describe(self) -> dict[str, Any]:
        """Name and settings as plain data: what recipes, run records and model cards store.

        A knob that came LATER stands there only where it is set, so recipes from before are what they were.
        """
        settings = dataclasses.asdict(self)  # type: ignore[call-overload]
        for knob in dataclasses.fields(self):  # type: ignore[arg-type]
            if knob.metadata.get("later") and settings[knob.name] == knob.default:
                del settings[knob.name]
        return {"method": self.name, **json.loads(json.dumps(settings))}  # as a file would give it back: no tuples


LATER: Mapping[str, Any] = {"later": True}  # metadata of a knob that was not there in the first recipes
METHODS: dict[str, type[Method]] = {}
M = TypeVar("M", bound=Method)


@dataclass_transform(frozen_default=True)
def method(
    name: str, *, place: Place, paper: Citation, items: str, null: dict[str, Any]
) -> Callable[[type[M]], type[M]]:
    """Make a class a method: a frozen, keyword-friendly dataclass, listed under `name`, that acts only in `place`."""

    def register(cls: type[M]) -> type[M]:
        hooks = {hook for hooks in PLACES.values() for hook in hooks if hook in cls.__dict__}
        if not hooks or not hooks <= set(PLACES[place]):
            raise TypeError(
                f"{cls.__name__} is a method of the place '{place}' but overrides {sorted(hooks) or 'no hook'}"
            )
        made = dataclass(frozen=True)(cls)
        made.name, made.place, made.paper, made.items, made.null = name, place, paper, items, null
        METHODS[name] = made
        return made

    return register


def check_methods(methods: Method | Iterable[Method]) -> list[Method]:
    """The list in the order of places, or an error that says which two cannot stand together."""
    # What is not even a list, such as None, is told what is wanted, like a wrong item of one.
    found = list(methods) if isinstance(methods, Iterable) and not isinstance(methods, str) else [methods]
    replaced: dict[str, Method] = {}
    for item in found:
        if not isinstance(item, Method):
            raise SteadytuneError(
                f"{item!r} is not a method. Give instances such as Mixout(p=0.7); `steadytune methods` lists them all."
            )
        for thing in item.replaces():
            if thing in replaced:
                raise SteadytuneError(
                    f"{type(replaced[thing]).__name__} and {type(item).__name__} both replace the {thing}: "
                    "keep one of them."
                )
            replaced[thing] = item
    places = list(PLACES)
    return sorted(found, key=lambda item: (places.index(item.place), _ORDER_IN_PLACE.get(item.name, 0)))


# Inside one place order matters once: mixing takes the weights as they are then, so re-initialise before.
_ORDER_IN_PLACE = {"reinit": -1}


def check_probability(name: str, value: float, owner: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise SteadytuneError(f"{owner}: {name} is a probability and must lie in [0, 1], not {value!r}.")


def check_at_least(name: str, value: float, least: float, owner: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
        raise SteadytuneError(f"{owner}: {name} must be a number of at least {least:g}, not {value!r}.")


def check_count(name: str, value: int, owner: str) -> None:
    """A whole number of at least 1, or an error."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SteadytuneError(f"{owner}: {name} must be a whole number of at least 1, not {value!r}.")


def check_choice(name: str, value: str, choices: Iterable[str], owner: str) -> None:
    options = list(choices)
    if value not in options:
        raise SteadytuneError(f"{owner}: {name} must be one of {', '.join(options)}, not {value!r}.")
