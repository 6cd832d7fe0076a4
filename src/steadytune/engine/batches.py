"""Which rows a step sees, and how they are cut into parts that waste little padding.

    epoch e of n rows:   order = randperm(n) drawn from (stream order, e)
    batch k of it:       rows order[k B : (k + 1) B]; the last one is smaller, none is dropped

That alone decides WHICH rows a step learns from. Inside a batch the rows are sorted by length and cut into chunks, each
padded to its own longest row only. A chunk costs its padded tokens plus a constant for the time that it takes anyway,
and the cut with the least cost is taken. The loss of a chunk is weighted by its rows (or predicted tokens), so that the
chunks' gradients add up to that of the batch's mean.

Relations: one chunk per batch is what Trainer does. RTE averages 67 of 128 tokens: there padding is most of the work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from steadytune.engine.encode import Encoder, Pixels, Ragged, Split
from steadytune.methods.loss import IGNORED
from steadytune.rng import Streams

MULTIPLE = {"cpu": 8, "cuda": 16}  # widths are rounded up to it: few shapes (each is a CUDA graph), full tensor cores
CHUNK_COST = 64  # of a chunk on a CPU on top of its tokens, in tokens: little more than adding up the gradients


def chunk_cost_on_gpu(blocks: int, parameters: int) -> float:
    """The same on a GPU: the time that a forward and backward take however short the rows, over the time of a token.

    latency of the kernels, some 100 us a block, and reading and writing every weight and gradient (18 bytes each)
    --------------------------------------------------------------------------------------------------------------
    6 operations per token and parameter
    """
    return (4e-4 * blocks + 18 * parameters / 4e12) / (6 * parameters / 3e14)


@dataclass(frozen=True)
class Order:
    """The rows of every step of a run: a function of (stream, epoch), so that a resumed run needs no state."""

    rows: int
    batch_size: int
    streams: Streams

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.rows / self.batch_size)

    def epoch(self, number: int) -> np.ndarray:
        return torch.randperm(self.rows, generator=self.streams.generator("order", number)).numpy()

    def batches(self, first: int, steps: int) -> Iterator[np.ndarray]:
        """The rows of steps first, first + 1, ..., steps - 1."""
        order, drawn = np.zeros(0, dtype=np.int64), -1
        for step in range(first, steps):
            epoch, batch = divmod(step, self.steps_per_epoch)
            if epoch != drawn:
                order, drawn = self.epoch(epoch), epoch
            yield order[batch * self.batch_size : (batch + 1) * self.batch_size]


class Form(NamedTuple):
    """How rows are padded: to a multiple of something, or to the longest of them."""

    rounded: bool
    multiple: int


@dataclass(frozen=True)
class Cutter:
    """How batches are cut into chunks: `bucket` sorts and cuts by length; without it rows stay as they are."""

    chunk_cost: float
    least: int = 1  # chunks, where there are as many rows
    bucket: bool = True
    limit: int | None = None  # padded tokens of a chunk, where more did not fit into memory
    multiple: int = MULTIPLE["cpu"]  # of which widths are
    grain: int = 1  # rows, by which chunks differ: few shapes

    @property
    def form(self) -> Form:
        return Form(self.bucket, self.multiple)

    def chunks(self, sizes: np.ndarray) -> list[np.ndarray]:
        """Positions of a batch's rows, chunk by chunk, for rows of these sizes ([rows, 1 or 2])."""
        if not self.bucket:
            return self._small_enough(np.array_split(np.arange(len(sizes)), self.least), sizes)
        widths = round_up(sizes, self.multiple)
        order = np.lexsort((np.arange(len(sizes)), sizes.sum(1), widths.sum(1)))
        cuts = _cheapest_cuts(widths[order], self.chunk_cost, self.grain)
        found = self._small_enough([order[start:end] for start, end in itertools.pairwise(cuts)], sizes)
        while len(found) < min(self.least, len(sizes)):
            largest = max((len(part) > 1, self.padded(sizes, part), at) for at, part in enumerate(found))
            found = _halved(found, largest[2])
        return found

    def _small_enough(self, found: list[np.ndarray], sizes: np.ndarray) -> list[np.ndarray]:
        found = [part for part in found if len(part)]
        while self.limit is not None:
            large = [at for at, part in enumerate(found) if len(part) > 1 and self.padded(sizes, part) > self.limit]
            if not large:
                break
            found = _halved(found, large[0])
        return found

    def padded(self, sizes: np.ndarray, rows: np.ndarray) -> int:
        """Tokens of a chunk after padding."""
        return int(len(rows) * round_up(sizes[rows], self.multiple).max(0).sum())


def round_up(sizes: np.ndarray, multiple: int = MULTIPLE["cpu"]) -> np.ndarray:
    return -(-sizes // multiple) * multiple


def _halved(chunks: list[np.ndarray], at: int) -> list[np.ndarray]:
    middle = len(chunks[at]) // 2
    return [*chunks[:at], chunks[at][:middle], chunks[at][middle:], *chunks[at + 1 :]]


def _cheapest_cuts(widths: np.ndarray, chunk_cost: float, grain: int = 1) -> list[int]:
    """Where to cut rows that are sorted by width: the positions 0 = c_0 < c_1 < ... = n with the least

        sum over chunks of  rows * widest + chunk_cost

    Dynamic programming over the places where the width changes: elsewhere a cut gains nothing. With a grain, over its
    multiples.
    """
    n = len(widths)
    if n * widths.max(0).sum() - widths.sum() <= chunk_cost:
        return [0, n]  # all of the padding costs less than one more chunk
    places = [0, *(np.flatnonzero((widths[1:] != widths[:-1]).any(1)) + 1).tolist(), n]
    if grain > 1:
        places = sorted({0, n, *range(n % grain or grain, n, grain)})  # what is over goes with the shortest
    between = [widths[start:end].max(0) for start, end in itertools.pairwise(places)]
    cost, before = [0.0], [0]
    for end in range(1, len(places)):
        best, chosen, widest = math.inf, 0, np.zeros_like(widths[0])
        for start in range(end - 1, -1, -1):
            widest = np.maximum(widest, between[start])
            total = cost[start] + (places[end] - places[start]) * int(widest.sum()) + chunk_cost
            if total < best:
                best, chosen = total, start
        cost.append(best)
        before.append(chosen)
    cuts = [len(places) - 1]
    while cuts[-1]:
        cuts.append(before[cuts[-1]])
    return [places[at] for at in reversed(cuts)]


def collate(
    encoder: Encoder,
    split: Split,
    rows: np.ndarray,
    device: torch.device,
    *,
    rounded: bool = True,
    multiple: int = MULTIPLE["cpu"],
    labels: bool = True,
) -> dict[str, Tensor]:
    """The model's inputs for these rows, padded to the longest of them (rounded up to a multiple of 8)."""
    if split.pixels is not None:
        batch = {"pixel_values": to_pixels(_on(split.pixels[rows], device), encoder.pixels)}
    else:
        tokenizer = encoder.tokenizer
        left = tokenizer.padding_side == "left"
        lengths = split.inputs["input_ids"].lengths[rows]
        width = width_of(lengths, rounded, encoder.max_length, multiple)
        fills = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        made = {name: each.padded(rows, width, fills[name], left) for name, each in split.inputs.items()}
        places = np.arange(width)
        there = places >= width - lengths[:, None] if left else places < lengths[:, None]
        made["attention_mask"] = there.astype(np.int64)
        batch = {name: _on(array, device) for name, array in made.items()}
    if labels and split.labels is not None:
        batch["labels"] = _on(_labels(encoder, split, rows, rounded, multiple), device)
    return batch


def _labels(encoder: Encoder, split: Split, rows: np.ndarray, rounded: bool, multiple: int) -> np.ndarray:
    if isinstance(split.labels, Ragged):
        causal = encoder.task.kind == "language-model"  # labels stand where their tokens do
        left = causal and encoder.tokenizer.padding_side == "left"
        most = encoder.max_length if causal else encoder.max_target_length
        return split.labels.padded(rows, width_of(split.labels.lengths[rows], rounded, most, multiple), IGNORED, left)
    assert split.labels is not None
    return split.labels[rows].astype(np.float32 if encoder.task.kind == "regression" else np.int64)


def width_of(lengths: np.ndarray, rounded: bool, most: int, multiple: int = MULTIPLE["cpu"]) -> int:
    """Not rounded beyond `most`: the model may have no positions there."""
    longest = int(lengths.max())
    return max(longest, min(most, -(-longest // multiple) * multiple)) if rounded else longest


def _on(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_pixels(images: Tensor, pixels: Pixels | None, numbers: Tensor | None = None) -> Tensor:
    """uint8 [rows, height, width] or [..., 3] -> float32 [rows, channels, height, width], scaled and normalised.

    `numbers`, from `pixel_numbers`, are the constants on the images' device, for where they must be there beforehand.
    """
    assert pixels is not None
    luma, mean, std = (pixel_numbers(pixels, images.device) if numbers is None else numbers).unbind()
    made = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
    made = made.to(torch.float32) / 255.0
    if made.shape[1] != pixels.channels:
        grey = (made * luma[:3, None, None]).sum(1, keepdim=True) if pixels.channels == 1 else None
        made = grey if grey is not None else made.expand(-1, pixels.channels, -1, -1)
    if pixels.size is not None and made.shape[-2:] != pixels.size:
        made = functional.interpolate(made, pixels.size, mode="bilinear", antialias=True, align_corners=False)
    mean, std = (each[: pixels.channels, None, None] for each in (mean, std))
    return ((made - mean) / std).contiguous()


def pixel_numbers(pixels: Pixels, device: torch.device) -> Tensor:
    """float32 [3, channels or more]: ITU-R 601 luma (as PIL's convert("L")), mean and standard deviation."""
    width = max(3, pixels.channels)
    rows = [(0.299, 0.587, 0.114), pixels.mean, pixels.std]
    return torch.tensor([[*row, *[1.0] * (width - len(row))] for row in rows], dtype=torch.float32, device=device)
