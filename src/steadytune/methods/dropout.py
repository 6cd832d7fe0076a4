"""Dropout: every dropout rate of a model, set in one place.

    y = (x ⊙ B) / (1 - p),    B_i ~ Bernoulli(1 - p)

Relations: dropout(p) is mixout with target 0, for the same mask; `Mixout` sets the model's dropout to 0 when it
replaces it. The paper's baseline is dropout(0.1) everywhere (mixout, section 5); its figure 6 sweeps p from 0 to 0.5
(M28).
Caveat: rates live in `nn.Dropout` modules and, in many transformers, in plain float attributes (`attention_dropout`);
both are set; those of the head may have a rate of their own. LayerDrop and drop-path are other methods and are left
alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.layers import HEAD, Layers, Part, find_layers
from steadytune.methods.base import LATER, MIXOUT, Method, Site, check_probability, method

_RATE = re.compile(r"(^|_)dropout(_p|_prob|_rate)?$|^(attn|resid|embd)_pdrop$")
_SAVED = "_steadytune_dropout"  # on each touched module: its rates before the first change


def dropout_sites(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Every place of the model that holds a dropout rate: (module, attribute, full name)."""
    for name, module in model.named_modules():
        if isinstance(module, _DropoutNd):
            yield module, "p", f"{name}.p"
            continue
        for attribute, value in vars(module).items():
            # T5 and others keep ints such as 0 there; a bool is a switch, not a rate.
            if _RATE.search(attribute) and isinstance(value, (int, float)) and not isinstance(value, bool):
                yield module, attribute, f"{name}.{attribute}"


def head_dropout_sites(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """The rates that act inside the head. One that is kept by a module that spans parts is not the head's."""
    parts = find_layers(model)
    owners = [(module, attribute, name.rpartition(".")[0]) for module, attribute, name in dropout_sites(model)]
    return [(module, attribute) for module, attribute, owner in owners if _part(parts, owner) == HEAD]


def _part(parts: Layers, name: str) -> Part | None:
    try:
        return parts.part(name)
    except SteadytuneError:
        return None


def set_dropout_(model: nn.Module, p: float) -> int:
    """Set every rate to p, remember the old ones for `restore_dropout_`; returns how many places there were."""
    sites = list(dropout_sites(model))
    for module, attribute, _ in sites:
        vars(module).setdefault(_SAVED, {}).setdefault(attribute, getattr(module, attribute))
        setattr(module, attribute, float(p))
    return len(sites)


def restore_dropout_(model: nn.Module) -> None:
    """Give every module the rates it had before the first `set_dropout_`."""
    for module in model.modules():
        for attribute, rate in vars(module).pop(_SAVED, {}).items():
            setattr(module, attribute, rate)


@method("dropout", place="model", paper=MIXOUT, items="M3 M28", null={"p": None})
class Dropout(Method):
    """Set every dropout rate of the model to p."""

    p: float | None = 0.1  # probability of dropping a unit; None keeps the model's own rates
    head: float | None = field(default=None, metadata=LATER)  # of the new output layer; None: p, as everywhere

    def __post_init__(self) -> None:
        if self.p is not None:
            check_probability("p", self.p, "Dropout")
        if self.head is not None:
            check_probability("head", self.head, "Dropout")
            if self.p is None:
                raise SteadytuneError("Dropout: head is for a model whose rates are set: give p, too.")

    def replaces(self) -> frozenset[str]:
        return frozenset() if self.p is None else frozenset({"dropout"})

    def check(self, site: Site) -> None:
        if self.p is not None and next(dropout_sites(site.model), None) is None:
            raise NoEffect(f"Dropout: {type(site.model).__name__} has no dropout to set.")
        if self.head is not None and not head_dropout_sites(site.model):
            raise NoEffect(f"Dropout: {type(site.model).__name__} has no dropout in its head to set.")

    def model_(self, site: Site) -> None:
        if self.p is not None:
            set_dropout_(site.model, self.p)
        if self.head is not None:
            for module, attribute in head_dropout_sites(site.model):
                setattr(module, attribute, float(self.head))
