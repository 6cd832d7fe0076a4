"""The gradient of one batch, chunk by chunk: with little padding, in several processes, in the memory that there is.

    g = sum over chunks c of  (n_c / n) grad L_c        n_c: rows of the chunk, or tokens that it predicts

which is the gradient of the batch's mean loss, whatever the chunks are. Caveats: a loss that SUMS over its batch (some
public forms of R-Drop do) must see it whole. Batch normalisation sees chunks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from steadytune.apply import Applied
from steadytune.engine.batches import CHUNK_COST, Cutter, collate, round_up
from steadytune.engine.encode import TEXT_PAIRS, Encoded
from steadytune.engine.evaluate import autocast
from steadytune.engine.noise import Masks, seed_
from steadytune.engine.processes import Processes
from steadytune.errors import SteadytuneError
from steadytune.methods.base import Moment
from steadytune.methods.loss import call, kind_of, labels_of, logits_of, nll
from steadytune.methods.rdrop import VARIANTS, RDrop
from steadytune.recipe import Recipe
from steadytune.rng import Streams


class BatchGradient:
    """Called with a step's rows, adds the gradient of their mean loss to the parameters, and returns that loss."""

    def __init__(
        self,
        applied: Applied,
        recipe: Recipe,
        encoded: Encoded,
        streams: Streams,
        processes: Processes,
        scaler: torch.amp.GradScaler,
        bucket: bool = True,
    ) -> None:
        self.model = applied.site.model
        self.applied, self.recipe, self.encoded, self.streams = applied, recipe, encoded, streams
        self.processes, self.scaler = processes, scaler
        self.split = encoded.splits["train"]
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.masks = Masks(self.model)
        self.notes: list[str] = []
        self.summed = _summing_method(recipe, encoded)
        if self.summed and (recipe.micro_batches > 1 or processes.count > 1):
            raise SteadytuneError(
                f"{self.summed} adds up over a batch instead of taking its mean, so it cannot be cut into parts: train "
                "it with micro_batches=1, in one process, or choose variant='paper'."
            )
        cost = CHUNK_COST.get(processes.device.type, CHUNK_COST["cpu"])
        self.cutter = Cutter(cost, recipe.micro_batches, bucket and not self.summed)

    def __call__(self, rows: np.ndarray, moment: Moment) -> Tensor:
        self.masks.mark()
        while True:
            try:
                loss, full = self._own_share(rows, moment), False
            except torch.OutOfMemoryError:
                loss, full = torch.zeros((), device=self.processes.device), True
            full, *used = self.processes.agree([full, *(p.grad is not None for p in self.parameters)])
            if not full:
                break
            # Smaller chunks, and the step from its start. Not inside `except`, which keeps the failed tensors alive.
            self._shrink(rows, moment)
        self.processes.sum_gradients_(self.parameters, used)
        self.processes.sum_([loss])
        return loss

    def _own_share(self, rows: np.ndarray, moment: Moment) -> Tensor:
        """Forward and backward of this process's rows; its part of the batch's loss."""
        split, device, rank = self.split, self.processes.device, self.processes.rank
        total = float(split.weights[rows].sum())
        if self.cutter.bucket:
            rows = rows[np.argsort(split.sizes[rows].sum(1), kind="stable")]
        mine, counts = rows[rank :: self.processes.count], 1.0
        if not len(mine):  # fewer rows than processes: a row of another, for nothing, keeps the masks in step
            mine, counts = rows[:1], 0.0
        loss = torch.zeros((), device=device)
        for number, part in enumerate(self.cutter.chunks(split.sizes[mine])):
            if number:
                self.masks.rewind_()  # one batch, one mixout mask
            seed_(device, "noise", self.streams.noise, moment.step, rank, number)
            batch = collate(self.encoded.encoder, split, mine[part], device, rounded=self.cutter.bucket)
            with autocast(self.recipe.precision, device):
                chunk_loss = self._loss(batch, moment)
            chunk_loss = chunk_loss * (counts * float(split.weights[mine[part]].sum()) / total)
            self.scaler.scale(chunk_loss).backward()
            loss += chunk_loss.detach()
        return loss

    def _loss(self, batch: dict[str, Tensor], moment: Moment) -> Tensor:
        if not self.recipe.label_smoothing:
            return self.applied.loss(self.model, batch, moment)[0]
        labels, logits = labels_of(batch), logits_of(call(self.model, batch))
        return nll(logits, labels, kind_of(self.model, logits, labels), self.recipe.label_smoothing)

    def _shrink(self, rows: np.ndarray, moment: Moment) -> None:
        widest = int(round_up(self.split.sizes[rows]).max(0).sum())
        limit = (self.cutter.limit or widest * -(-len(rows) // self.processes.count)) // 2
        if limit < widest or self.summed:
            raise SteadytuneError(
                f"Out of memory at step {moment.step + 1}, and the batch cannot be cut further ({widest} tokens in its "
                "longest row). Use a smaller model, a shorter max_length, or precision='bf16'."
            )
        for parameter in self.parameters:
            parameter.grad = None
        self.masks.rewind_()
        self.cutter = replace(self.cutter, limit=limit)
        self.notes.append(
            f"Out of memory at step {moment.step + 1}: batches are cut into chunks of at most {limit} tokens now, "
            "and gradients added up."
        )
        if self.processes.device.type == "cuda":
            torch.cuda.empty_cache()


def _summing_method(recipe: Recipe, encoded: Encoded) -> str | None:
    """The method whose loss is not a mean over rows or tokens, if there is one."""
    kind = encoded.task.kind
    tokens = kind in TEXT_PAIRS or kind == "language-model"
    for item in recipe.methods:
        if isinstance(item, RDrop) and not item.is_null() and kind != "regression":
            reduction = VARIANTS[item.variant].kl
            if reduction == "sum" or (reduction == "batchmean" and tokens):
                return f"RDrop(variant={item.variant!r})"
    return None


def gradient_norm(parameters: list[nn.Parameter], clip: float) -> Tensor:
    """The norm of all gradients, which are then scaled down to `clip` where they are longer; 0 leaves them."""
    if clip:
        return nn.utils.clip_grad_norm_(parameters, clip).detach()
    return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]).detach()
