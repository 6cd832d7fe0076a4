"""The noise of a stack: what `Mixout` and `StreamDropout` would draw in each replica alone, drawn for all at once.

A mask is hash(key, call, index) (rng.py), so R keys in a column and the indices in a row give R masks in one call. All
replicas of a stack make their calls together: the call's number is the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steadytune.papers.digits.network import DROPPED, MIXED, WIDTHS, Restart
from steadytune.rng import random_bits, stream_seed

Weights = dict[str, Tensor]


class StackedNoise:
    """For restarts of one kind; the first A of them draw, as many as the given weights have."""

    def __init__(self, restarts: Sequence[Restart], like: Tensor) -> None:
        first = restarts[0]
        self._mixes, self._element = first.method == "mixout", first.mask == "element"
        self._names = MIXED[first.layers] if self._mixes else DROPPED
        self._dtype, self._device = like.dtype, like.device
        rates = [restart.p for restart in restarts]
        self._quiet = not any(rates)
        self._threshold = torch.tensor([[round((1.0 - p) * 2.0**32)] for p in rates], device=self._device)
        # A kept entry is divided by 1 - p; at p = 1 there is none.
        self._kept_share = torch.tensor([[1.0 - p if p < 1.0 else 1.0] for p in rates]).to(like)
        self._grad_scale = torch.tensor([1.0 - p for p in rates]).to(like) if first.gradient == "paper" else None
        self._keys = {name: self._halves(restarts, name) for name in self._names}

    def _halves(self, restarts: Sequence[Restart], name: str) -> tuple[Tensor, Tensor]:
        method = "mixout" if self._mixes else "dropout"
        keys = [stream_seed("noise", restart.streams.noise, method, name) for restart in restarts]
        low, high = [[key & 0xFFFFFFFF] for key in keys], [[key >> 32] for key in keys]
        return torch.tensor(low, device=self._device), torch.tensor(high, device=self._device)

    def draw(self, weights: Weights, targets: Weights, call: int, rows: int) -> tuple[Weights, Weights | None]:
        """The weights to compute with, and what to multiply the hidden activations with (None: nothing)."""
        if self._quiet:
            return weights, None
        active = len(weights["output.weight"])
        if not self._mixes:
            widths = dict(zip(DROPPED, WIDTHS[1:-1]))
            scales = {name: self._scale(name, call, active, rows * width) for name, width in widths.items()}
            return weights, {name: scale.view(active, rows, -1) for name, scale in scales.items()}
        mixed = dict(weights)
        for name in self._names:
            weight = weights[f"{name}.weight"]
            outputs, inputs = weight.shape[1:]
            scale = self._scale(name, call, active, outputs * inputs if self._element else inputs)
            target = targets[f"{name}.weight"][:active]
            mixed[f"{name}.weight"] = torch.lerp(target, weight, scale.view(active, -1, inputs))
        return mixed, None

    def _scale(self, name: str, call: int, active: int, count: int) -> Tensor:
        """M/μ, [active, count]."""
        low, high = self._keys[name]
        index = torch.arange(count, device=self._device).unsqueeze(0)
        kept = random_bits((low[:active], high[:active], call), index) < self._threshold[:active]
        return kept.to(self._dtype).div_(self._kept_share[:active])

    def scaled(self, grads: Weights) -> Weights:
        """The gradients; where the paper's is asked for, g⊙M instead of g⊙M/(1-p) (D1)."""
        if self._grad_scale is None or not self._mixes:
            return grads
        scaled = {
            f"{name}.weight": grads[f"{name}.weight"] * self._grad_scale[: len(grads["output.weight"]), None, None]
            for name in self._names
        }
        return {**grads, **scaled}
