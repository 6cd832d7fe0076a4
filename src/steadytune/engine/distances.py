"""How far training has moved a model, part by part (V14, M13).

    d(part) = ‖w - w_0‖₂,    all parameters of a part as one vector

`start`: from the weights that training began with, after re-init and with the new head. `pretrained`: from the weights
that were loaded; the head has none, and a re-initialised block starts far from its own.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from steadytune.errors import SteadytuneError
from steadytune.layers import HEAD, find_layers

Distances = dict[str, dict[str, float]]  # "start" and "pretrained" -> part -> distance


class Ruler:
    """Made of the loaded model before methods are applied; `begin` marks the start, `measure` tells the distances."""

    def __init__(self, model: nn.Module) -> None:
        self.notes: list[str] = []
        self._parts: dict[str, list[str]] = {}
        try:
            layers = find_layers(model)
            parts = {str(part): list(layers.parameters(part)) for part in layers.parts()}
            self._parts = {part: names for part, names in parts.items() if names}  # a tied head has none of its own
        except SteadytuneError as error:
            self.notes.append(f"Distances were not measured: {error}")
            return
        self._pretrained = _copies(model, {name for names in self._parts.values() for name in names})
        self._start = self._pretrained

    def begin(self, model: nn.Module, reinitialised: Collection[str]) -> None:
        """Only what a method drew anew differs from what was loaded: the rest is kept once."""
        if not self.notes:
            self._start = {**self._pretrained, **_copies(model, set(reinitialised))}

    @torch.no_grad()
    def measure(self, model: nn.Module) -> Distances:
        if self.notes:
            return {}
        now = dict(model.named_parameters(remove_duplicate=False))
        found: Distances = {}
        for name, before in (("start", self._start), ("pretrained", self._pretrained)):
            parts = {part: names for part, names in self._parts.items() if name == "start" or part != HEAD}
            norms = [
                _distance([now[each] for each in names], [before[each] for each in names]) for names in parts.values()
            ]
            found[name] = dict(zip(parts, torch.stack(norms).tolist()))  # one wait for the device
        return found


def _distance(now: list[Tensor], before: list[Tensor]) -> Tensor:
    norms = torch._foreach_norm(torch._foreach_sub(now, before))
    return torch.linalg.vector_norm(torch.stack([each.float() for each in norms]).double())


def _copies(model: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter.detach().clone() for name, parameter in named if name in names}
