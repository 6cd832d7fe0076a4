"""Adam for a stack: restarts that share a schedule take their step in one fused call.

The step is torch.optim.Adam's (or AdamW's, where weight decay is decoupled) on the stacked tensors. Adam is
element-wise, so a stack needs nothing more, but for the learning rate, which is one number per call.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from steadytune.methods.base import Length
from steadytune.methods.schedules import amount_to_steps, linear
from steadytune.papers.digits.network import MIXED, Restart, Training

_DECAYED = {f"{name}.weight" for name in MIXED["linear"]}  # neither biases nor norms (C.1)


@dataclass(frozen=True, eq=False)
class _Group:
    """Neighbours in the stack with one schedule, and the parameters of theirs that share a weight decay."""

    replicas: slice
    lr: float
    length: Length
    weight_decay: float
    names: Sequence[str]
    state: Sequence[list[Tensor]]  # weights, first and second moments, step counts


class StackedAdam:
    """Updates `weights` in place. Restarts of equal epochs and learning rate must stand side by side."""

    def __init__(self, restarts: Sequence[Restart], training: Training, weights: dict[str, Tensor], rows: int) -> None:
        self._training = training
        self._moments = [{name: torch.zeros_like(each) for name, each in weights.items()} for _ in range(2)]
        per_epoch = training.steps_per_epoch(rows)
        by_decay = {0.0: list(weights)}
        if training.weight_decay:
            by_decay = {
                training.weight_decay: [name for name in weights if name in _DECAYED],
                0.0: [name for name in weights if name not in _DECAYED],
            }
        self._groups = []
        at = 0
        for (epochs, lr), members in itertools.groupby(restarts, key=lambda restart: (restart.epochs, restart.lr)):
            replicas = slice(at, at := at + len(list(members)))
            for decay, names in by_decay.items():
                tensors = [[of[name][replicas] for name in names] for of in (weights, *self._moments)]
                counts = [torch.zeros((), device=weights[name].device) for name in names]
                length = Length(per_epoch * epochs, per_epoch)
                self._groups.append(_Group(replicas, lr, length, decay, names, [*tensors, counts]))

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint needs besides the weights."""
        return dict(zip(("means", "squares"), self._moments))

    def resume_(self, saved: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
        """As after so many steps, with the moments of then."""
        for name, mine in self.moments().items():
            for key, each in mine.items():
                each.copy_(saved[name][key])
        for group in self._groups:
            for count in group.state[-1]:
                count.fill_(min(step, group.length.steps))

    @torch.no_grad()
    def step_(self, grads: dict[str, Tensor], step: int) -> None:
        """Gradients of the replicas that still train: the first ones, as many as the tensors have."""
        decoupled = self._training.decay_form == "decoupled"
        function: Any = adamw if decoupled else adam
        for group in self._groups:
            if step >= group.length.steps:
                continue
            weights, means, squares, counts = group.state
            function(
                weights,
                [grads[name][group.replicas].contiguous() for name in group.names],  # the fused kernel reads no strides
                means,
                squares,
                [],
                counts,
                fused=True,
                lr=group.lr * linear(step, group.length.steps, amount_to_steps(self._training.warmup, group.length)),
                beta1=self._training.betas[0],
                beta2=self._training.betas[1],
                eps=self._training.eps,
                weight_decay=group.weight_decay,
                amsgrad=False,
                maximize=False,
            )
