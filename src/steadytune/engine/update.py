"""What follows the gradients of a step: unscale, norm, clip, optimiser.

    n = ‖g‖,    g <- g min(1, clip / n),    w <- optimiser(w, g, lr)

On a GPU the gradients keep their place in memory and the learning rates are read from there, so the whole update is
recorded at its second step and replayed from then on (graphs.py); the first one runs plainly, with the same kernels.
Where mixout's gradients stay as products of kept columns (kernels/kept_gradients.py), norm and optimiser read them so;
the rare step whose masks do not fit has dense gradients, and runs plainly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steadytune.engine.gradients import BatchGradient
from steadytune.engine.graphs import NotCaptured
from steadytune.engine.lane import Lane
from steadytune.kernels.kept_gradients import KeptGradients
from steadytune.methods.adamw import AdamW

_NAME = "update"


class Update:
    """Called with the schedule's factor after each batch's gradient; returns the gradient's norm before clipping."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        gradient: BatchGradient,
        scaler: torch.amp.GradScaler,
        clip: float,
        lane: Lane,
    ) -> None:
        self.optimizer, self.parameters, self.scaler, self.clip = optimizer, gradient.parameters, scaler, clip
        self.lane, self.graphs = lane, gradient.graphs
        self.stays = gradient.chunk.graphs is not None  # whether gradients keep their place, and are overwritten there
        self.norm = torch.zeros((), device=lane.device)
        self.why_plain = _why_not(optimizer, scaler) if self.graphs is not None else ""
        self.masks, self.kept = gradient.masks, _kept_gradients(optimizer, scaler, gradient)
        self._rates: Tensor | None = None
        if self.graphs is not None and not self.why_plain:
            # On the device: a graph reads what lies there when it is replayed.
            self._rates = torch.zeros(len(optimizer.param_groups), dtype=torch.float64, device=lane.device)
            for group, rate in zip(optimizer.param_groups, self._rates.unbind()):
                group["lr"] = rate
        if isinstance(optimizer, AdamW):
            optimizer.in_one_pass_()
        # How often recordings had been forgotten at the step before, where that ran plainly.
        self._ran: int | None = None

    def __call__(self, factor: float) -> Tensor:
        rates = [group["initial_lr"] * factor for group in self.optimizer.param_groups]
        if self._rates is None or self.graphs is None:
            for group, rate in zip(self.optimizer.param_groups, rates):
                group["lr"] = rate
            if self.kept is None:
                self._step()
            else:
                self._fused_step()
            return self.norm
        self._rates.copy_(torch.tensor(rates, dtype=torch.float64).pin_memory(), non_blocking=True)
        whole = self.kept is not None and self.masks.dense
        if self._ran == self.graphs.forgotten and _NAME not in self.graphs and not self.why_plain and not whole:
            self._capture()
        if _NAME in self.graphs and not whole:
            self.graphs.replay(_NAME)
            self._ran = None  # where graphs are forgotten, as after memory ran out, a plain step comes first again
        else:
            if _NAME not in self.graphs:
                self.optimizer.forget_captured_()  # type: ignore[attr-defined]
            self._fused_step()
            # A recording finds everything where the step before has left it.
            self._ran = None if whole else self.graphs.forgotten
        return self.norm

    def remarks(self) -> list[str]:
        return [f"Updates were not recorded as a CUDA graph: {self.why_plain}."] if self.why_plain else []

    def _capture(self) -> None:
        assert self.graphs is not None
        try:
            with self.lane.turn():
                self.graphs.capture_(_NAME, self._fused_step)
        except NotCaptured as error:
            self.why_plain = str(error)

    def _fused_step(self) -> None:
        """Clipping rides along in the optimiser's one pass over the weights."""
        kept = None if self.masks.dense else self.kept
        if kept is not None:
            kept.finish_()
        found = [p.grad for p in self.parameters if p.grad is not None]
        self.norm.copy_(nn.utils.get_total_norm(found) if kept is None else kept.norm(found))
        shorten = torch.clamp(self.clip / (self.norm + 1e-6), max=1.0) if self.clip else None  # as clip_grad_norm_
        self.optimizer.step(grad_factor=shorten)  # type: ignore[call-overload]
        if self.kept is not None and kept is None:
            self.kept.drop_dense_()
        if not self.stays:
            self.optimizer.zero_grad(set_to_none=True)

    def _step(self) -> None:
        self.scaler.unscale_(self.optimizer)
        if self.clip:
            norm = nn.utils.clip_grad_norm_(self.parameters, self.clip)
        else:
            norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        self.norm.copy_(norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not self.stays:
            self.optimizer.zero_grad(set_to_none=True)


def _kept_gradients(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, gradient: BatchGradient
) -> KeptGradients | None:
    """Where nothing but the norm and the optimiser looks at gradients, and both can read those of kept columns."""
    if scaler.is_enabled() or not isinstance(optimizer, AdamW):
        return None
    kept = gradient.masks.keep_gradients_(lambda weights: not optimizer.why_not_kept(weights))
    if kept is not None:
        optimizer.read_kept_(kept.of)
        if gradient.chunk.graphs is not None:
            gradient.chunk.graphs.writes_([kept.memory])
    return kept


def _why_not(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> str:
    if scaler.is_enabled():
        return "fp16 looks at the gradients before it steps"
    if not isinstance(optimizer, AdamW) or not optimizer.capturable():
        return f"{type(optimizer).__name__} cannot be recorded here"
    return ""
