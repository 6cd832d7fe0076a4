"""What a run is between two steps, besides its tensors; and what it tells those who watch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Progress:
    """What a progress bar needs; told after every step."""

    step: int
    steps: int
    seconds: float
    loss: float | None  # the newest that is known
    validation: float | None


@dataclass
class State:
    """The JSON of a checkpoint."""

    step: int = 0
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)  # step and validation
    stale: int = 0  # evaluations since the best one
    limit: int | None = None  # padded tokens of a chunk, since memory ran out
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def read_(self, waiting: list[Tensor], scaled: bool) -> str | None:
        """Take in (loss, gradient norm) of the steps that wait; a sentence where one is not a finite number."""
        values = torch.stack(waiting).tolist() if waiting else []
        waiting.clear()
        for loss, norm in values:
            # With fp16 an infinite gradient is the scaler's business: it skips the step and lowers its scale.
            if not math.isfinite(loss) or not (math.isfinite(norm) or scaled):
                what = "gradient" if math.isfinite(loss) else "loss"
                return f"The {what} was not a finite number at step {len(self.losses) + 1}."
            self.losses.append(loss)
            self.grad_norms.append(norm)
        return None

    def take_(self, validation: float | None, greater: bool) -> bool:
        """Whether the weights of this step are the best so far: of equals the earlier, without scores the newest."""
        old = self.best.get("validation")
        if validation is not None and old is not None and not (validation > old if greater else validation < old):
            self.stale += 1
            return False
        self.best, self.stale = {"step": self.step, "validation": validation}, 0
        return True

    def train_loss(self) -> float:
        """Mean over the steps since the last evaluation."""
        since = self.losses[self.history[-1]["step"] if self.history else 0 :]
        return sum(since) / len(since)
