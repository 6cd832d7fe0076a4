"""Which way each parameter of an AdamW step goes: through the kernel with all decays merged in, or in plain torch.

Decays that were merged into the optimiser (weight_decay.py) come first, in the order they came in, then the group's own
weight decay. The kernel has room for three decays of a parameter, λ₀ toward zero, λ toward an anchor, λ₁ toward zero;
what does not fit, and whatever else it cannot do, goes the plain way, to the same numbers but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from steadytune.errors import SteadytuneError
from steadytune.kernels.adamw import FusedStep, adamw_, is_capturing, is_fused, is_rate
from steadytune.kernels.adamw_tables import Settings, Slot, Tables
from steadytune.kernels.kept_gradients import KeptGradient
from steadytune.methods.base import ParamGroup

Pull = tuple[float, Tensor | None]  # a decoupled decay λ, and the anchor it pulls toward; None is zero


class Decay(Protocol):
    """A weight decay that the optimiser runs as a part of its step."""

    @property
    def form(self) -> str:
        """ "decoupled" or "l2"."""

    def take_over_(self, optimizer: torch.optim.Optimizer) -> None:
        """Remove weight decay of the groups that this one replaces."""

    def decay_(self, group: ParamGroup, params: list[Tensor]) -> None:
        """Decay those of the parameters that it decays, in plain torch."""

    def pull(self, p: Tensor) -> Pull | None:
        """The same for the kernel; None where it does not decay `p`."""


class Places(NamedTuple):
    """Everything that tables are made from, as cheaply as it can be read."""

    fixed: list[Any]  # groups' settings, and where each parameter and its state are
    gradients: list[int]  # where the gradients are


class Known(NamedTuple):
    """A step that can be taken again, if nothing has moved."""

    places: Places
    tables: list[Tables]


class AdamWStep:
    """The step of one optimiser, whose groups and state it is handed."""

    def __init__(self) -> None:
        self.decays: list[Decay] = []
        self.one_pass = False  # on a CPU
        self.kept: Mapping[Tensor, KeptGradient] = {}  # gradients of weights that have none of their own
        self._fused = FusedStep()
        self._known: Known | None = None  # of the step before, where all of it went through the kernel

    def merge_(self, decay: Decay) -> None:
        self.decays.append(decay)
        self._known = None

    def read_kept_(self, kept: Mapping[Tensor, KeptGradient]) -> None:
        self.kept = kept
        self._known = None

    def forget_captured_(self) -> None:
        self._fused.forget_captured_()

    def kept_of(self, p: Tensor) -> KeptGradient | None:
        """The gradient of kept columns that is this step's of `p`; a gradient of its own comes first."""
        found = self.kept.get(p) if p.grad is None else None
        return found if found is not None and found.is_written else None

    def has_gradient(self, p: Tensor) -> bool:
        return p.grad is not None or self.kept_of(p) is not None

    def repeat_(self, optimizer: torch.optim.Optimizer, grad_factor: Tensor | None, zero_grads: bool) -> bool:
        """The step, if everything is where it was in the one before, gradients aside; else False."""
        if self._known is None or is_capturing():
            return False
        for decay in self.decays:
            decay.take_over_(optimizer)
        places, tables = self._places(optimizer), self._known.tables
        if places.fixed != self._known.places.fixed:
            return False
        if places.gradients != self._known.places.gradients:
            moved = self._fused.moved(tables[0], places.gradients) if len(tables) == 1 else None
            if moved is None:
                return False
            tables = [moved]
            self._known = Known(places, tables)
        for device in {each.kind.device for each in tables}:
            self._rates(optimizer, device)
        self._fused.launch_(tables, grad_factor, zero_grads)
        return True

    def run_(self, optimizer: torch.optim.Optimizer, grad_factor: Tensor | None, zero_grads: bool) -> None:
        self._known = None
        for decay in self.decays:
            decay.take_over_(optimizer)
        ahead = self._ahead()
        merged = self.decays[len(ahead) :]
        if ahead and grad_factor is not None:  # what l2 adds to a gradient has no part in the factor, as in clipping
            _scale_(optimizer, grad_factor)
            grad_factor = None
        slots: list[Slot] = []
        all_fused = not ahead
        for number, group in enumerate(optimizer.param_groups):
            params = [p for p in group["params"] if self.has_gradient(p)]
            for decay in ahead:
                decay.decay_(group, params)
            found = {p: self._slot(optimizer, number, p, merged) for p in params}
            slots += [slot for slot in found.values() if slot is not None]
            plain = [p for p, slot in found.items() if slot is None]
            if plain and is_capturing():
                raise SteadytuneError(
                    f"AdamW: a step cannot be captured for a parameter of shape {tuple(plain[0].shape)}: its gradient, "
                    "moments or anchor have another type or gaps in memory, or more decays than the kernel has room "
                    "for act on it. Capture forward and backward only."
                )
            for decay in merged:
                decay.decay_(group, plain)
            self._plain_step_(optimizer, group, plain, grad_factor, zero_grads)
            all_fused = all_fused and not plain
        if slots:
            tables = self._fused.step_(slots, grad_factor, zero_grads)
            self._known = Known(self._places(optimizer), tables) if all_fused else None

    def _slot(self, optimizer: torch.optim.Optimizer, number: int, p: Tensor, merged: list[Decay]) -> Slot | None:
        """What the kernel needs for a parameter of group `number`; None where it cannot do it."""
        group, state, kept = optimizer.param_groups[number], optimizer.state[p], self.kept_of(p)
        g = p.grad if kept is None else kept.values
        decays = arranged([pull for decay in merged if (pull := decay.pull(p))], group["weight_decay"])
        m, v = state["exp_avg"], state["exp_avg_sq"]
        if g is None or decays is None or not is_fused(p, g, m, v, *decays.anchors):
            return None
        if state["step"].device != p.device:
            state["step"] = state["step"].to(p.device, non_blocking=True)
        rate = group["lr"] if is_rate(group["lr"], p.device) else self._rates(optimizer, p.device)[number]
        (beta1, beta2), (first, toward, last) = group["betas"], decays.strengths
        settings = Settings(beta1, beta2, group["eps"], group["correct_bias"], first, toward, last)
        return Slot(p, g, m, v, state["step"], decays.anchors[0] if decays.anchors else None, rate, settings, kept)

    def _places(self, optimizer: torch.optim.Optimizer) -> Places:
        fixed: list[Any] = []
        gradients: list[int] = []
        for group in optimizer.param_groups:
            rate = group["lr"].data_ptr() if isinstance(group["lr"], Tensor) else None
            fixed.append((rate, group["betas"], group["eps"], group["weight_decay"], group["correct_bias"]))
            for p in group["params"]:
                kept = self.kept_of(p)
                g, state = p.grad if kept is None else kept.values, optimizer.state.get(p)
                if g is None or g.layout != torch.strided or not state:
                    fixed.append("no gradient" if g is None else "new")
                    continue
                moments = state["exp_avg"].data_ptr(), state["exp_avg_sq"].data_ptr()
                where = (p.data_ptr(), *moments, state["step"].data_ptr())
                fixed.append((*where, g.dtype, g.is_contiguous(), None if kept is None else g.data_ptr()))
                if kept is None:
                    gradients.append(g.data_ptr())
        return Places(fixed, gradients)

    def _plain_step_(
        self,
        optimizer: torch.optim.Optimizer,
        group: ParamGroup,
        params: list[Tensor],
        grad_factor: Tensor | None,
        zero_grads: bool,
    ) -> None:
        if not params:
            return
        states = [optimizer.state[p] for p in params]
        for state in states:
            state["step"] = state["step"].cpu()
        made = [p.grad if (kept := self.kept_of(p)) is None else kept.dense() for p in params]
        grads = [grad for grad in made if grad is not None]
        beta1, beta2 = group["betas"]
        adamw_(
            params,
            grads if grad_factor is None else [g * grad_factor.to(g.device) for g in grads],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [state["step"] for state in states],
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            correct_bias=group["correct_bias"],
            one_pass=self.one_pass,
        )
        if zero_grads:
            torch._foreach_zero_(grads)

    def _rates(self, optimizer: torch.optim.Optimizer, device: torch.device) -> list[Tensor]:
        """Every group's learning rate on the device, where it is not there anyway."""
        rates = [group["lr"] for group in optimizer.param_groups]
        return self._fused.rates(device, [0.0 if is_rate(rate, device) else float(rate) for rate in rates])

    def _ahead(self) -> list[Decay]:
        """Decays that take a pass of their own: one of the form l2 sees the weights as those before it left them."""
        return self.decays[: max((i + 1 for i, decay in enumerate(self.decays) if decay.form == "l2"), default=0)]

    def why_not_capturable(self, params: list[Tensor]) -> str:
        """What is in the way of capturing a step for these parameters, as a sentence; empty where nothing is."""
        odd = [p for p in params if not is_fused(p)]
        if odd:
            return (
                f"AdamW: a step cannot be captured for a parameter of shape {tuple(odd[0].shape)}, {odd[0].dtype}, on "
                f"{odd[0].device}: only in float32, bfloat16 and float16, without gaps in memory, on a CUDA device "
                "with Triton. Capture forward and backward only."
            )
        if any(decay.form == "decoupled" for decay in self._ahead()):
            return (
                "AdamW: a step cannot be captured in which decoupled decay comes before decay of the form l2. Use one "
                "form, or list the one with l2 first."
            )
        return ""

    def why_not_kept(self, optimizer: torch.optim.Optimizer, params: list[Tensor]) -> str:
        """What is in the way of stepping by gradients of kept columns, as a sentence; empty where nothing is."""
        if self._ahead():
            return "AdamW: weight decay of the form l2 is added to gradients, so they must be there whole."
        held = {p: group for group in optimizer.param_groups for p in group["params"]}
        for p in params:
            pulls = [pull for decay in self.decays if (pull := decay.pull(p))]
            decays = arranged(pulls, held[p]["weight_decay"]) if p in held else None
            if decays is None or not is_fused(p, *decays.anchors):
                return f"AdamW: the kernel cannot step a parameter of shape {tuple(p.shape)} of this run."
        return ""

    def check_capture(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse, with the reason, to become a part of a CUDA graph that would repeat the wrong thing."""
        if not is_capturing():
            return
        held = [(group, p) for group in optimizer.param_groups for p in group["params"] if self.has_gradient(p)]
        if not all(is_rate(group["lr"], p.device) for group, p in held):
            raise SteadytuneError(
                "AdamW: a captured step would repeat one learning rate for ever. Call optimizer.lr_on_device_() before "
                "the first step: learning rates are then tensors, which a graph reads anew."
            )
        if why := self.why_not_capturable([p for _, p in held]):
            raise SteadytuneError(why)


class Decays(NamedTuple):
    """The decays of one parameter as the kernel does them."""

    strengths: tuple[float, float, float]  # λ₀, λ, λ₁
    anchors: list[Tensor]  # one, or none


def arranged(pulls: list[Pull], weight_decay: float) -> Decays | None:
    """Decays in their order, the group's own last, in the kernel's three places; None where they do not fit."""
    first, toward, last = 0.0, 0.0, 0.0
    anchors: list[Tensor] = []
    for strength, anchor in [*pulls, (weight_decay, None)]:
        if strength == 0.0:
            continue
        if anchor is not None:
            if anchors or last:
                return None
            toward, anchors = strength, [anchor]
        elif not first and not anchors:
            first = strength
        elif not last:
            last = strength
        else:
            return None
    return Decays((first, toward, last), anchors)


def _scale_(optimizer: torch.optim.Optimizer, factor: Tensor) -> None:
    """Every gradient times the factor, in place."""
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    for device in {g.device for g in grads}:
        torch._foreach_mul_([g for g in grads if g.device == device], factor.to(device))
