"""Forward and backward of one chunk of a batch: what a step spends its time on.

    gradients += share * grad L(rows),      loss += share * L(rows)          (= for the first chunk of a batch)

On a GPU the rows are gathered from tables that lie there (resident.py), and a shape that comes often is recorded as a
CUDA graph and replayed (graphs.py): the same kernels without the host. Which shapes come often is read off the first
epoch, so it is the same in a resumed run. Gradients have one place in memory for the whole run there: a graph knows
addresses only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from steadytune.apply import Applied
from steadytune.engine.attention import attention
from steadytune.engine.batches import Form, collate
from steadytune.engine.encode import Encoded
from steadytune.engine.evaluate import LOW_PRECISION, autocast
from steadytune.engine.graphs import Graphs, NotCaptured
from steadytune.engine.lane import Lane
from steadytune.engine.masks import Masks
from steadytune.engine.noise import seed_
from steadytune.engine.packing import packing_for
from steadytune.engine.quick import quicken_
from steadytune.engine.resident import Resident, Widths
from steadytune.errors import SteadytuneError
from steadytune.methods.base import Moment
from steadytune.methods.loss import call, kind_of, labels_of, logits_of, nll
from steadytune.recipe import Recipe


class Shape(NamedTuple):
    """What chunks must share to be one recording."""

    first: bool  # of its batch
    rows: int
    tokens: int  # that they are packed to (packing.py); 0 where they stay padded
    widths: Widths


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
        alone: bool,
        packs: bool,
        why_plain: str = "",
    ) -> None:
        self.applied, self.recipe, self.encoded, self.scaler = applied, recipe, encoded, scaler
        self.parameters = parameters
        self.casts = quicken_(applied.site.model, LOW_PRECISION.get(recipe.precision))
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
        if self.device.type == "cuda" and alone:
            kind = (recipe.model, recipe.start_from, recipe.precision, str(recipe.methods), encoded.fingerprint)
            self.graphs = Graphs(lane, self.model, parameters, kind, [self.loss])
        self._inputs: dict[Shape, _Inputs] = {}
        self._there = 0  # how many gradients there are
        self.packing = packing_for(self.model, encoded, recipe, lane) if packs else None

    def shape(self, rows: np.ndarray, number: int, form: Form) -> Shape:
        assert self.resident is not None
        widths = self.resident.widths(rows, form.rounded, form.multiple)
        tokens = self.packing.tokens(self.split, rows, widths[0]) if self.packing is not None else 0
        return Shape(number == 0, len(rows), tokens, widths)

    def rehearse(self) -> None:
        """One forward for nothing, to see what it does to the masks."""
        rows = np.arange(min(2, len(self.split)))
        batch = collate(self.encoded.encoder, self.split, rows, self.device)
        with self.lane.turn(), autocast(self.recipe.precision, self.device):
            self._loss(batch, Moment())

    def expect(self, shapes: Iterable[Shape]) -> None:
        """These come often enough to be recorded. What was recorded before is forgotten."""
        self.often = set(shapes)
        if self._inputs and self.graphs is not None:
            self.graphs.clear()
        self._inputs.clear()

    def __call__(
        self,
        rows: np.ndarray,
        number: int,
        share: float,
        seed: int,
        moment: Moment,
        form: Form,
        replay: bool = True,
    ) -> None:
        """`number` counts the chunks of a batch from 0; without `replay` the chunk runs plainly."""
        if self.resident is None:
            with self.lane.turn():
                seed_(self.device, seed)
                encoder, split = self.encoded.encoder, self.split
                batch = collate(encoder, split, rows, self.device, rounded=form.rounded, multiple=form.multiple)
                packing = self.packing
                tokens = 0 if packing is None else packing.tokens(split, rows, batch["input_ids"].shape[1])
                self._add(batch, share, moment, number == 0, tokens)
                self._notice_()
            return
        shape = self.shape(rows, number, form)
        wanted = torch.from_numpy(rows).pin_memory()  # copied from elsewhere it would wait for the steps before
        if replay and shape in self.often and self._is_captured(shape, moment):
            inputs = self._inputs[shape]
            inputs.rows.copy_(wanted, non_blocking=True)
            inputs.share.fill_(share)
            self.lane.generator.manual_seed(seed)
            self.graphs.replay(shape)  # type: ignore[union-attr]
            return
        with self.lane.turn():
            seed_(self.device, seed)
            batch = self.resident.batch(wanted.to(self.device, non_blocking=True), shape.widths)
            self._add(batch, share, moment, shape.first, shape.tokens)
            self._notice_()

    def _add(self, batch: dict[str, Tensor], share: float | Tensor, moment: Moment, first: bool, tokens: int) -> None:
        self.masks.forward_(first)
        if self.casts is not None and first:  # the weights are the same for all chunks of a batch
            self.casts.refresh_()
        packed = self.packing.packs(len(batch["labels"]), tokens) if self.packing is not None else nullcontext()
        with autocast(self.recipe.precision, self.device), attention(self.recipe.precision, batch), packed:
            loss = self._loss(batch, moment)
        loss = loss * share
        scaled = self.scaler.scale(loss)
        if self.graphs is None:
            scaled.backward()
        else:
            self._gather_(torch.autograd.grad(scaled, self.parameters, allow_unused=True), first)
        self.masks.backward_(first)
        self.loss += loss.detach()

    @torch.no_grad()
    def _gather_(self, gradients: Sequence[Tensor | None], first: bool) -> None:
        """Into the gradients' place in memory: all at once, instead of one kernel for each parameter."""
        for parameter, gradient in zip(self.parameters, gradients):
            if gradient is not None and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if any(g is not None and self.masks.has_kept(p) for p, g in zip(self.parameters, gradients)):
            raise SteadytuneError(
                "Mixout: the model uses the weight or bias of a mixed layer outside of it, too, so its gradient "
                "is not the layer's alone. Leave that layer out of `layers`."
            )
        found = [(p.grad, g) for p, g in zip(self.parameters, gradients) if p.grad is not None and g is not None]
        mine, new = [grad for grad, _ in found], [gradient for _, gradient in found]
        if not first:
            torch._foreach_add_(mine, new)
            return
        torch._foreach_copy_(mine, new)
        pairs = [(p, g) for p, g in zip(self.parameters, gradients) if not self.masks.has_kept(p)]
        unused = [p.grad for p, g in pairs if p.grad is not None and g is None]
        if unused:
            torch._foreach_zero_(unused)

    def _notice_(self) -> None:
        """Where a gradient is there for the first time, as of a layer that was left out so far, nothing stays recorded:
        older recordings would neither clear it nor step by it."""
        if self.graphs is None:
            return
        before, self._there = self._there, self._gradients()
        if self._there != before:
            self.graphs.forget_()

    def _gradients(self) -> int:
        dense = sum(p.grad is not None for p in self.parameters if not self.masks.keeps(p))
        return dense + len(self.masks.written())

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
            torch.zeros(shape.rows, dtype=torch.int64, device=self.device), torch.zeros((), device=self.device)
        )
        watched = _Watched(moment.step, moment.steps, moment.lr_scale)
        resident, gradients, written = self.resident, [p.grad for p in self.parameters], self.masks.written()
        assert resident is not None

        def work() -> None:
            self._add(resident.batch(inputs.rows, shape.widths), inputs.share, watched, shape.first, shape.tokens)

        try:
            with self.lane.turn():
                seed_(self.device, 0)
                watched.looked.clear()
                self.graphs.warm_up_(shape, work)
                self._notice_()
                is_first = self.graphs.is_empty()
                self.graphs.capture_(shape, work)
            if is_first:  # no older recording lacks the gradients that it has made
                self._there = self._gradients()
            self._notice_()
            if watched.looked:
                raise NotCaptured(f"the loss depends on where in the run it stands ({watched.looked[0]})")
        except NotCaptured as error:
            self.why_plain = str(error)
            # As if nothing had been tried: a layer that only the rehearsal had would be stepped by zeros.
            for parameter, gradient in zip(self.parameters, gradients):
                parameter.grad = gradient
            for each in self.masks.written():
                each.is_written = each in written
            return False
        self._inputs[shape] = inputs
        return shape in self.graphs
