"""A split's rows on the device, padded once, so that a batch is a gather there and not a copy from the host.

    resident = Resident(encoder, split, device)
    resident.batch(rows, widths)                  # rows: int64 on the device; what `collate` makes of the same rows

`widths` are the padded lengths of input and target, known on the host before: no shape depends on what the device
holds, so a batch can be made inside a CUDA graph. Tables are int32, each as wide as its longest row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from steadytune.engine.batches import pixel_numbers, to_pixels, width_of
from steadytune.engine.encode import Encoder, Ragged, Split
from steadytune.methods.loss import IGNORED

_SHARE = 0.1  # of a device's memory that one split may take

Widths = tuple[int, ...]


class Resident:
    """All rows of one split on one device."""

    def __init__(self, encoder: Encoder, split: Split, device: torch.device) -> None:
        self.encoder, self.split, self.device = encoder, split, device
        self._left = encoder.tokenizer is not None and encoder.tokenizer.padding_side == "left"
        self._labels_left = self._left and encoder.task.kind == "language-model"  # labels stand where their tokens do
        self._pixels = None if split.pixels is None else torch.from_numpy(split.pixels).to(device)
        self._numbers = None if encoder.pixels is None else pixel_numbers(encoder.pixels, device)
        self._inputs = {
            name: self._table(each, _fill(encoder, name), self._left) for name, each in split.inputs.items()
        }
        self._lengths: Tensor | None = None
        if split.pixels is None:
            self._lengths = torch.from_numpy(split.inputs["input_ids"].lengths.astype(np.int32)).to(device)
        self._labels: Tensor | None = None
        if isinstance(split.labels, Ragged):
            self._labels = self._table(split.labels, IGNORED, self._labels_left)
        elif split.labels is not None:
            kind = np.float32 if encoder.task.kind == "regression" else np.int64
            self._labels = torch.from_numpy(split.labels.astype(kind)).to(device)

    @staticmethod
    def fits(split: Split, device: torch.device) -> bool:
        """Whether the tables would take a small part of the device only."""
        if device.type != "cuda":
            return True
        ragged = [*split.inputs.values(), *([split.labels] if isinstance(split.labels, Ragged) else [])]
        needed = sum(4 * len(each) * int(each.lengths.max(initial=0)) for each in ragged)
        needed += 0 if split.pixels is None else split.pixels.nbytes
        return needed <= _SHARE * torch.cuda.get_device_properties(device).total_memory

    def widths(self, rows: np.ndarray, rounded: bool, multiple: int) -> Widths:
        """The padded lengths that `collate` would choose for these rows."""
        if self.split.pixels is not None:
            return ()
        encoder, labels = self.encoder, self.split.labels
        found = [width_of(self.split.inputs["input_ids"].lengths[rows], rounded, encoder.max_length, multiple)]
        if isinstance(labels, Ragged):
            most = encoder.max_length if encoder.task.kind == "language-model" else encoder.max_target_length
            found.append(width_of(labels.lengths[rows], rounded, most, multiple))
        return tuple(found)

    def batch(self, rows: Tensor, widths: Widths) -> dict[str, Tensor]:
        """The model's inputs and labels of these rows."""
        if self._pixels is not None:
            made = {"pixel_values": to_pixels(self._pixels[rows], self.encoder.pixels, self._numbers)}
        else:
            assert self._lengths is not None
            width = widths[0]
            made = {
                name: _cut(table, rows, width, _fill(self.encoder, name), self._left)
                for name, table in self._inputs.items()
            }
            places, lengths = torch.arange(width, device=self.device), self._lengths[rows].unsqueeze(1)
            made["attention_mask"] = (places >= width - lengths if self._left else places < lengths).long()
        if self._labels is not None:
            if isinstance(self.split.labels, Ragged):
                made["labels"] = _cut(self._labels, rows, widths[1], IGNORED, self._labels_left)
            else:
                made["labels"] = self._labels[rows]
        return made

    def _table(self, ragged: Ragged, fill: int, left: bool) -> Tensor:
        width = max(1, int(ragged.lengths.max(initial=1)))
        table = np.full((len(ragged), width), fill, dtype=np.int32)
        places = np.arange(width)
        there = places >= width - ragged.lengths[:, None] if left else places < ragged.lengths[:, None]
        table[there] = ragged.values
        return torch.from_numpy(table).to(self.device)


def _fill(encoder: Encoder, name: str) -> int:
    tokenizer = encoder.tokenizer
    return int(tokenizer.pad_token_id if name == "input_ids" else tokenizer.pad_token_type_id)


def _cut(table: Tensor, rows: Tensor, width: int, fill: int, left: bool) -> Tensor:
    """int64 [rows, width]: the end of the table where its rows end together, else its beginning."""
    most = table.shape[1]
    found = table[:, max(0, most - width) :] if left else table[:, :width]
    made = found.index_select(0, rows).long()
    if width <= most:
        return made
    edge = made.new_full((len(made), width - most), fill)  # rounded up beyond the longest row
    return torch.cat([edge, made] if left else [made, edge], dim=1)
