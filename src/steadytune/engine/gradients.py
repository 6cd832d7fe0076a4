"""The gradient of one batch, chunk by chunk: with little padding, in several processes, in the memory that there is.

    g = sum over chunks c of  (n_c / n) grad L_c        n_c: rows of the chunk, or tokens that it predicts

which is the gradient of the batch's mean loss, whatever the chunks are. Caveats: a loss that SUMS over its batch (some
public forms of R-Drop do) must see it whole. Batch normalisation sees chunks.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor, nn

from steadytune.apply import Applied
from steadytune.engine.batches import CHUNK_COST, MULTIPLE, Cutter, Order, chunk_cost_on_gpu, round_up
from steadytune.engine.chunk import Chunk, Shape
from steadytune.engine.encode import TEXT_PAIRS, Encoded
from steadytune.engine.evaluate import LOW_PRECISION
from steadytune.engine.graphs import Graphs
from steadytune.engine.lane import Lane
from steadytune.engine.masks import Masks
from steadytune.engine.processes import Processes
from steadytune.errors import SteadytuneError
from steadytune.layers import EMBEDDINGS, find_layers
from steadytune.methods.base import Moment
from steadytune.methods.late_logits import why_in_full
from steadytune.methods.rdrop import VARIANTS, RDrop
from steadytune.recipe import Recipe
from steadytune.rng import Streams, stream_seed

_LOOK_AHEAD = 500  # batches that tell which shapes come often
_OFTEN = 3  # times in a run that a shape must come to be worth recording: as long as two or three plain passes


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
        lane: Lane,
        bucket: bool = True,
        graphs: bool = True,
    ) -> None:
        self.model, self.streams, self.processes = applied.site.model, streams, processes
        self.split = encoded.splits["train"]
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.masks = Masks(self.model, LOW_PRECISION.get(recipe.precision))
        self.notes: list[str] = []
        self.wants_graphs = graphs
        self._expected: tuple[Order, int] | None = None
        self.summed = _summing_method(recipe, encoded)
        if self.summed and (recipe.micro_batches > 1 or processes.count > 1):
            raise SteadytuneError(
                f"{self.summed} adds up over a batch instead of taking its mean, so it cannot be cut into parts: train "
                "it with micro_batches=1, in one process, or choose variant='paper'."
            )
        alone = processes.count == 1
        why_plain = "it was not asked for" if not graphs else "" if alone else "several processes train"
        self.chunk = Chunk(
            applied, recipe, encoded, scaler, lane, self.masks, self.parameters, alone, bucket, why_plain
        )
        cut = bucket and not self.summed
        if processes.device.type == "cuda":
            grain = max(1, applied.batch_size(recipe.batch_size) // 4)
            cost = _gpu_cost(self.model) if self.chunk.packing is None else math.inf  # nothing to gain by cutting
            self.cutter = Cutter(cost, recipe.micro_batches, cut, None, MULTIPLE["cuda"], grain)
        else:
            self.cutter = Cutter(CHUNK_COST, recipe.micro_batches, cut)

    def expect(self, order: Order, steps: int) -> None:
        """Tell the chunks which shapes the run will bring often."""
        if self._expected is None and self.processes.count == 1:
            self.masks.pool_(self.chunk.rehearse)  # with graphs and without: the same kernels
        if self.chunk.resident is None or self.chunk.why_plain:
            return
        seen: Counter[Shape] = Counter()
        looked = min(steps, order.steps_per_epoch, _LOOK_AHEAD)
        for rows in order.batches(0, looked):
            rows = self._sorted(rows)
            chunks = self.cutter.chunks(self.split.sizes[rows])
            seen.update(self.chunk.shape(rows[part], number, self.cutter.form) for number, part in enumerate(chunks))
        self.chunk.expect(shape for shape, times in seen.items() if times * steps >= _OFTEN * looked)
        self._expected = (order, steps)

    def __call__(self, rows: np.ndarray, moment: Moment) -> Tensor:
        replay = self.masks.begin_()
        while True:
            self.chunk.loss.zero_()
            try:
                self._own_share(rows, moment, replay)
                full = False
            except torch.OutOfMemoryError:
                full = True
            several = self.parameters if self.processes.count > 1 else []
            full, *used = self.processes.agree([full, *(p.grad is not None for p in several)])
            if not full:
                break
            # Smaller chunks, and the step from its start. Not inside `except`, which keeps the failed tensors alive.
            self._shrink(rows, moment)
        self.masks.end_()
        self.processes.sum_gradients_(self.parameters, used)
        self.processes.sum_([self.chunk.loss])
        return self.chunk.loss

    def _own_share(self, rows: np.ndarray, moment: Moment, replay: bool) -> None:
        """Forward and backward of this process's rows."""
        split, rank, cutter = self.split, self.processes.rank, self.cutter
        total = float(split.weights[rows].sum())
        mine, counts = self._sorted(rows)[rank :: self.processes.count], 1.0
        if not len(mine):  # fewer rows than processes: a row of another, for nothing, keeps the masks in step
            mine, counts = self._sorted(rows)[:1], 0.0
        for number, part in enumerate(cutter.chunks(split.sizes[mine])):
            if number:
                self.masks.again_()  # one batch, one mixout mask
            seed = stream_seed("noise", self.streams.noise, moment.step, rank, number)
            share = counts * float(split.weights[mine[part]].sum()) / total
            self.chunk(mine[part], number, share, seed, moment, cutter.form, replay)

    def _sorted(self, rows: np.ndarray) -> np.ndarray:
        """By length, where batches are cut by length."""
        return rows[np.argsort(self.split.sizes[rows].sum(1), kind="stable")] if self.cutter.bucket else rows

    def _shrink(self, rows: np.ndarray, moment: Moment) -> None:
        widest = int(round_up(self.split.sizes[rows], self.cutter.multiple).max(0).sum())
        limit = (self.cutter.limit or widest * -(-len(rows) // self.processes.count)) // 2
        if limit < widest or self.summed:
            raise SteadytuneError(
                f"Out of memory at step {moment.step + 1}, and the batch cannot be cut further ({widest} tokens in its "
                "longest row). Use a smaller model, a shorter max_length, or precision='bf16'."
            )
        for parameter in self.parameters:
            parameter.grad = None
        if self.graphs is not None:
            self.graphs.clear()  # they have the gradients' old places
        self.masks.back_()
        self.limit_(limit)
        self.notes.append(
            f"Out of memory at step {moment.step + 1}: batches are cut into chunks of at most {limit} tokens now, "
            "and gradients added up."
        )
        if self.processes.device.type == "cuda":
            torch.cuda.empty_cache()

    def limit_(self, tokens: int | None) -> None:
        """Chunks of at most that many padded tokens from now on."""
        self.cutter = replace(self.cutter, limit=tokens)
        if self._expected is not None:
            self.expect(*self._expected)

    @property
    def graphs(self) -> Graphs | None:
        """Where work of the run may be recorded; None where nothing is to be."""
        return self.chunk.graphs if self.wants_graphs else None

    def remarks(self) -> list[str]:
        """What to say at the end of the run."""
        said = []
        if (why := why_in_full(self.model)) is not None:
            said.append(why)
        if self.masks.why_alone:
            said.append(f"Mixout computed whole weight gradients, layer by layer: {self.masks.why_alone}")
        if self.processes.device.type == "cuda" and find_spec("triton") is None:
            said.append("Triton is not installed, so the GPU ran plain torch in place of this library's kernels.")
        if self.processes.device.type == "cuda" and self.wants_graphs and self.chunk.why_plain:
            said.append(f"Steps were not recorded as CUDA graphs: {self.chunk.why_plain}.")
        return said


def _gpu_cost(model: nn.Module) -> float:
    """What a chunk costs in tokens. Embeddings are looked up, and cost nothing."""
    try:
        layers = find_layers(model)
    except SteadytuneError:
        return chunk_cost_on_gpu(6, sum(p.numel() for p in model.parameters()))
    blocks = [part for part in layers.parts() if isinstance(part, int)]
    weights = [p.numel() for part in layers.parts() if part != EMBEDDINGS for p in layers.parameters(part).values()]
    return chunk_cost_on_gpu(len(blocks), sum(weights))


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
