"""Apply methods to a model, in any training loop.

    applied = st.apply_(model, [st.Reinit(layers=3), st.Mixout(p=0.7), st.LayerwiseLR(0.95), st.RDrop(alpha=1.0)])
    optimizer = applied.optimizer(lr=2e-5)                        # groups and optimiser
    scheduler = applied.scheduler(optimizer, steps=1000)          # schedule
    loss, outputs = applied.loss(model, batch)                    # loss
    st.remove_(model)                                             # the model is plain again

`apply_` visits the places `weights` and `model` at once; what it returns answers for the later places. The Hugging Face
trainer (integrations/trainer.py) and our own loop use this same object, so a method acts the same in all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from steadytune.errors import SteadytuneError
from steadytune.methods.adamw import AdamW
from steadytune.methods.base import Length, Method, Moment, ParamGroup, Site, StepHook, check_methods
from steadytune.methods.dropout import restore_dropout_
from steadytune.methods.loss import plain_loss
from steadytune.methods.mixed_layers import mixed_layers, unmix_
from steadytune.methods.schedules import amount_to_steps, linear
from steadytune.methods.weight_decay import decayed_names
from steadytune.rng import Streams, streams_from_torch


def apply_(model: nn.Module, methods: Method | Iterable[Method], *, streams: Streams | None = None) -> Applied:
    """Apply one method or a list, in place. Either all of them are applied or, on an error, none.

    Randomness (which weights re-init draws, which masks mixout draws) comes from `streams`; by default from the seed
    that `torch.manual_seed` was given, without drawing from torch's generator.
    """
    ordered = check_methods(methods)
    site = Site.of(model, streams or streams_from_torch(), ordered)
    for item in ordered:
        item.check(site)  # everything that can be refused is refused here, before anything is touched
    for item in ordered:
        item.weights_(site)
        item.model_(site)
    hooks = [hook for item in ordered if (hook := item.step_hook(site)) is not None]
    return Applied(site, ordered, hooks)


def remove_(model: nn.Module) -> None:
    """Take off what methods put on the model: layers are plain again, dropout has its old rates.

    The weights stay as they are now: what was trained, or drawn by re-init, is the model.
    """
    unmix_(model)
    restore_dropout_(model)


class Applied:
    """A model with methods on it: the answers for optimiser, loss and schedule."""

    def __init__(self, site: Site, methods: list[Method], hooks: list[StepHook]) -> None:
        self.site = site
        self.methods = methods
        self._hooks = hooks
        self._fingerprint = ""

    def groups(self, lr: float, weight_decay: float = 0.0) -> list[ParamGroup]:
        """Parameter groups: biases and norms without decay, then what the methods make of them."""
        decayed = decayed_names(self.site.model)
        named = [(name, p) for name, p in self.site.model.named_parameters() if p.requires_grad]
        with_decay = [(name, p) for name, p in named if name in decayed]
        without = [(name, p) for name, p in named if name not in decayed]
        return self.refine(
            [
                {"params": [p for _, p in with_decay], "lr": lr, "weight_decay": weight_decay},
                {"params": [p for _, p in without], "lr": lr, "weight_decay": 0.0},
            ]
        )

    def refine(self, groups: list[ParamGroup]) -> list[ParamGroup]:
        """The given groups, which carry `lr`, after every method of the place `groups`."""
        for item in self.methods:
            groups = item.groups(groups, self.site)
        return [group for group in groups if group["params"]]

    def optimizer(self, lr: float, weight_decay: float = 0.0) -> torch.optim.Optimizer:
        """The optimiser that the methods ask for (AdamW with bias correction if none does), with their step hooks."""
        groups = self.groups(lr, weight_decay)
        return self.attach_(self.build_optimizer(groups, lr) or AdamW(groups, lr=lr))

    def build_optimizer(self, groups: list[ParamGroup], lr: float) -> torch.optim.Optimizer | None:
        for item in self.methods:
            built = item.build_optimizer(groups, lr)
            if built is not None:
                return built
        return None

    def attach_(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Let the methods' step hooks run before each step of an optimiser that somebody else built."""
        for hook in self._hooks:
            hook.attach_(optimizer)
        return optimizer

    def loss(self, model: nn.Module, batch: dict[str, Any], moment: Moment | None = None) -> tuple[Tensor, Any]:
        """The loss to call backward on, and the model's outputs. In eval mode: one plain forward, the plain loss."""
        return self.own_loss(model, batch, moment or Moment()) or plain_loss(model, batch)

    def own_loss(self, model: nn.Module, batch: dict[str, Any], moment: Moment) -> tuple[Tensor, Any] | None:
        """The loss of the method that makes one while training; None where the plain loss is meant."""
        if model.training:
            for item in self.methods:
                made = item.loss(model, batch, moment)
                if made is not None:
                    return made
        return None

    def batch_size(self, size: int) -> int:
        for item in self.methods:
            size = item.batch_size(size)
        return size

    def length(self, steps: int, steps_per_epoch: int) -> Length:
        length = Length(steps, steps_per_epoch)
        for item in self.methods:
            length = item.length(length)
        return length

    def lr_factor(self, step: int, length: Length) -> float | None:
        """What the base learning rate is multiplied by at `step`; None where no method is a schedule."""
        factors = [item.lr_factor(step, length) for item in self.methods]
        return next((factor for factor in factors if factor is not None), None)

    def scheduler(
        self, optimizer: torch.optim.Optimizer, steps: int, steps_per_epoch: int | None = None
    ) -> torch.optim.lr_scheduler.LambdaLR:
        """A torch scheduler over `steps` (made longer by `Longer`); linear with 10% warm-up if no method says else."""
        length = self.length(steps, steps_per_epoch or steps)

        def factor(step: int) -> float:
            asked = self.lr_factor(step, length)
            return linear(step, length.steps, amount_to_steps(0.1, length)) if asked is None else asked

        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    # What has to travel through a checkpoint: where each layer's noise stands, and which anchors it was trained toward.

    def state_dict(self) -> dict[str, Any]:
        return {
            "methods": [item.describe() for item in self.methods],
            "noise": {name: layer.mix_state.tolist() for name, layer in mixed_layers(self.site.model)},
            "anchors": self.fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint stopped; refuse if methods or anchors are not those it was trained with."""
        mine = [item.describe() for item in self.methods]
        if state["methods"] != mine:
            raise SteadytuneError(f"The checkpoint was made with the methods {state['methods']}, this run has {mine}.")
        if state["anchors"] != self.fingerprint():
            raise SteadytuneError(
                "The weights that mixout or decay pulls toward are not those of the checkpoint's run. Build the model "
                "from the same pretrained weights (and the same seed, for its new head), not from the checkpoint."
            )
        for name, layer in mixed_layers(self.site.model):
            layer.mix_state.copy_(torch.tensor(state["noise"][name]))

    def fingerprint(self) -> str:
        """sha256 over every target and anchor; they are derived from the pretrained weights, never saved."""
        if self._fingerprint:  # they never change, and a large model takes a second
            return self._fingerprint
        digest = hashlib.sha256()
        anchors = [(name, layer.target) for name, layer in mixed_layers(self.site.model)]
        anchors += [(name, tensor) for hook in self._hooks for name, tensor in hook.anchors.items()]
        for name, tensor in anchors:
            digest.update(name.encode())
            digest.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().data)
        self._fingerprint = digest.hexdigest()
        return self._fingerprint
