"""Forward and backward of one chunk of a batch: what a step spends its time on.

    gradients += share * grad L(rows),      loss += share * L(rows)

On a GPU the rows are gathered from tables that lie there (resident.py), and a shape that comes often is recorded as a
CUDA graph and replayed (graphs.py): the same kernels without the host. A shape is (rows, width of the input, width of
the target). Which shapes come often is read off the first epoch, so it is the same in a resumed run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from steadytune.apply import Applied
from steadytune.engine.batches import collate
from steadytune.engine.encode import Encoded
from steadytune.engine.evaluate import autocast
from steadytune.engine.graphs import Graphs, NotCaptured
from steadytune.engine.lane import Lane
from steadytune.engine.masks import Masks
from steadytune.engine.noise import seed_
from steadytune.engine.resident import Resident
from steadytune.methods.base import Moment
from steadytune.methods.loss import call, kind_of, labels_of, logits_of, nll
from steadytune.recipe import Recipe

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Watched(Moment):
    """A moment that remembers whether somebody looked at it."""

    looked: list[str] = field(default_factory=list)

    def __getattribute__(self, name: str) -> object:
        if name in ("step", "steps", "lr_scale", "progress"):
            object.__getattribute__(self, "looked").append(name)
        return object.__getattribute__(self, name)


@dataclass(frozen=True)
class _Inputs:
    """What a graph reads: filled before each replay."""

    rows: Tensor
    share: Tensor


class Chunk:
    """Called with rows, adds their share of gradient and loss to `parameter.grad` and `self.loss`."""

    def __init__(
        self,
        applied: Applied,
        recipe: Recipe,
        encoded: Encoded,
        scaler: torch.amp.GradScaler,
        lane: Lane,
        masks: Masks,
        parameters: list[nn.Parameter],
        why_plain: str = "",
    ) -> None:
        self.applied, self.recipe, self.encoded, self.scaler = applied, recipe, encoded, scaler
        self.model, self.lane, self.device, self.masks = applied.site.model, lane, lane.device, masks
        self.split = encoded.splits["train"]
        self.loss = torch.zeros((), device=self.device)
        self.often: set[Shape] = set()
        self.graphs: Graphs | None = None
        self.why_plain = why_plain  # instead of graphs; empty on a CPU, where nobody expects any
        self.resident: Resident | None = None
        if self.device.type == "cuda" and Resident.fits(self.split, self.device):
            self.resident = Resident(encoded.encoder, self.split, self.device)
        elif self.device.type == "cuda":
            self.why_plain = self.why_plain or "the rows would take more than a tenth of the GPU's memory"
        if self.device.type == "cuda":
            kind = (recipe.model, recipe.precision, str(recipe.methods), encoded.fingerprint)
            self.graphs = Graphs(lane, self.model, parameters, kind, [self.loss])
        self._inputs: dict[Shape, _Inputs] = {}

    def shape(self, rows: np.ndarray, rounded: bool, multiple: int) -> Shape:
        assert self.resident is not None
        return (len(rows), *self.resident.widths(rows, rounded, multiple))

    def rehearse(self) -> None:
        """One forward for nothing, to see what it does to the masks."""
        rows = np.arange(min(2, len(self.split)))
        batch = collate(self.encoded.encoder, self.split, rows, self.device)
        with self.lane.turn(), autocast(self.recipe.precision, self.device):
            self._loss(batch, Moment())

    def expect(self, shapes: Iterable[Shape]) -> None:
        """These come often enough to be recorded. What was recorded before is forgotten."""
        self.often = set(shapes)
        self._inputs.clear()
        if self.graphs is not None:
            self.graphs.clear()

    def __call__(
        self, rows: np.ndarray, share: float, seed: int, moment: Moment, *, rounded: bool, multiple: int, replay: bool
    ) -> None:
        if self.resident is None:
            with self.lane.turn():
                seed_(self.device, seed)
                encoder, split = self.encoded.encoder, self.split
                batch = collate(encoder, split, rows, self.device, rounded=rounded, multiple=multiple)
                self._add(batch, share, moment)
            return
        shape = self.shape(rows, rounded, multiple)
        wanted = torch.from_numpy(rows)
        if replay and shape in self.often and self._is_captured(shape, moment):
            inputs = self._inputs[shape]
            inputs.rows.copy_(wanted, non_blocking=True)
            inputs.share.fill_(share)
            self.lane.generator.manual_seed(seed)
            self.graphs.replay(shape)  # type: ignore[union-attr]
            return
        with self.lane.turn():
            seed_(self.device, seed)
            self._add(self.resident.batch(wanted.to(self.device), shape[1:]), share, moment)

    def _add(self, batch: dict[str, Tensor], share: float | Tensor, moment: Moment) -> None:
        self.masks.forward_()
        with autocast(self.recipe.precision, self.device):
            loss = self._loss(batch, moment)
        loss = loss * share
        self.scaler.scale(loss).backward()
        self.loss += loss.detach()

    def _loss(self, batch: dict[str, Tensor], moment: Moment) -> Tensor:
        if not self.recipe.label_smoothing:
            return self.applied.loss(self.model, batch, moment)[0]
        labels, logits = labels_of(batch), logits_of(call(self.model, batch))
        return nll(logits, labels, kind_of(self.model, logits, labels), self.recipe.label_smoothing)

    def _is_captured(self, shape: Shape, moment: Moment) -> bool:
        """Record the shape when it comes for the first time."""
        if self.graphs is None or self.why_plain or shape in self.graphs:
            return not self.why_plain
        inputs = _Inputs(
            torch.zeros(shape[0], dtype=torch.int64, device=self.device), torch.zeros((), device=self.device)
        )
        watched = _Watched(moment.step, moment.steps, moment.lr_scale)
        resident = self.resident
        assert resident is not None

        def work() -> None:
            self._add(resident.batch(inputs.rows, shape[1:]), inputs.share, watched)

        try:
            with self.lane.turn():
                seed_(self.device, 0)
                watched.looked.clear()
                self.graphs.warm_up_(shape, work)
                self.graphs.capture_(shape, work)
            if watched.looked:
                raise NotCaptured(f"the loss depends on where in the run it stands ({watched.looked[0]})")
        except NotCaptured as error:
            self.why_plain = str(error)
            return False
        self._inputs[shape] = inputs
        return True
