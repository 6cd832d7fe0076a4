"""Gradients of mixed layers that stay where the backward pass writes them: of kept columns only, all in one memory.

    G     = dYᵀ X_k, summed over the chunks of a step       float32 [out, capacity] of each layer (mixout_columns.py)
    db    = the last column of G, where X_k is 1; that column of G is 0 from then on        `finish_`: one launch
    dW    = c G at the kept columns, 0 elsewhere            never made: the optimiser reads G (adamw_triton.py)
    ‖dW‖  = c ‖G‖                                           X_k is 0 in slots without a column, and so is G

A dense dW of BERT-large is written, copied, and read twice in a step, and at p = 0.7 seven tenths of it are zeros. All
chunks of a step share one mask, so their G can be added up. A mask that does not fit the capacity takes the dense
gradient instead (`mixout_masks.overflows`); where none was foreseen, NaN tells.

    table    [L, 6] int64    of L layers: address of G, rows, capacity, address of the list's last entry, address of db
                             (0: no bias that trains), first block
    owners   [blocks] int32  which layer each block of BLOCK rows belongs to

In plain torch here, which is also the reference; kept_gradients_triton.py has the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steadytune.errors import SteadytuneError
from steadytune.kernels.mixout_masks import Columns, has_kernels, spread

DEVICES = {"cuda"}  # where a run's gradients are kept so; tests add the CPU, in plain torch
BLOCK = 128  # rows of a program
_ALIGNMENT = 128  # elements: where layers begin


class Kept(NamedTuple):
    """One layer: what is to be kept, and how to read it."""

    weight: Tensor
    bias: Tensor | None  # only one that trains
    columns: Columns
    factor: float  # c


class KeptGradient:
    """The gradient of one weight: c G at the kept columns."""

    def __init__(self, values: Tensor, columns: Columns, factor: float) -> None:
        self.values, self.columns, self.factor = values, columns, factor
        self.adds = False  # whether the next product is added to what is there
        self.is_written = False  # by a backward pass: a layer that the loss does not depend on has no gradient
        self.is_new = False  # written since the step began
        self.is_awaited = False  # its product waits for the layer before (kept_inputs.py)

    @torch.no_grad()
    def take_(self, part: Tensor) -> None:
        """The product of one chunk."""
        if self.adds:
            self.values.add_(part)
        else:
            self.values.copy_(part)
        self.written_()

    def written_(self) -> None:
        self.is_written = self.is_new = True

    def dense(self) -> Tensor:
        """dW, as `mixout_columns.expand` makes it."""
        place = self.columns.place
        return torch.where(place >= 0, spread(self.values, place) * self.factor, 0.0)


class KeptGradients:
    """Those of all layers that are given, float32 and of one device. What it holds does not move afterwards."""

    def __init__(self, layers: Sequence[Kept]) -> None:
        self.layers = sorted(layers, key=lambda layer: layer.factor)  # so that a factor has one stretch of memory
        device = self.layers[0].weight.device
        shapes = [(len(layer.weight), len(layer.columns.kept)) for layer in self.layers]
        room = [-(-rows * width // _ALIGNMENT) * _ALIGNMENT for rows, width in shapes]
        self.memory = torch.zeros(sum(room), dtype=torch.float32, device=device)  # also between layers, for the norm
        parts = [part[: rows * width].view(rows, width) for part, (rows, width) in zip(self.memory.split(room), shapes)]
        made = [KeptGradient(g, layer.columns, layer.factor) for g, layer in zip(parts, self.layers)]
        self.of: Mapping[Tensor, KeptGradient] = {layer.weight: g for layer, g in zip(self.layers, made)}
        heights = [0 if layer.bias is None else len(layer.bias) for layer in self.layers]
        rooms = [-(-height // _ALIGNMENT) * _ALIGNMENT for height in heights]
        self._bias_memory = torch.zeros(sum(rooms), dtype=torch.float32, device=device)
        biases = [part[:height] for part, height in zip(self._bias_memory.split(rooms), heights)]
        self._biases = {
            layer.bias: (g, own) for layer, g, own in zip(self.layers, made, biases) if layer.bias is not None
        }
        totals: dict[float, int] = {}
        for layer, size in zip(self.layers, room):
            totals[layer.factor] = totals.get(layer.factor, 0) + size
        self._stretches = dict(zip(totals, self.memory.split(list(totals.values()))))
        self._kernel = has_kernels(device.type, torch.float32)
        self._fill_(biases)

    def _fill_(self, biases: Sequence[Tensor]) -> None:
        """The table for the kernel. Waits for the device, so it is not for a capture."""
        entries, blocks = [], 0
        for layer, bias in zip(self.layers, biases):
            values, kept = self.of[layer.weight].values, layer.columns.kept
            last = kept.data_ptr() + (len(kept) - 1) * kept.element_size()
            entries.append([values.data_ptr(), *values.shape, last, bias.data_ptr() if len(bias) else 0, blocks])
            blocks += -(-len(values) // BLOCK)
        counts = torch.tensor([-(-len(layer.weight) // BLOCK) for layer in self.layers])
        owners = torch.arange(len(entries), dtype=torch.int32).repeat_interleave(counts)
        self.table = torch.tensor(entries, dtype=torch.int64).to(self.memory.device)
        self.owners, self.blocks = owners.to(self.memory.device), blocks

    def covers(self, parameter: Tensor) -> bool:
        """Whether its gradient comes from here, be it a weight or a bias."""
        return parameter in self.of or parameter in self._biases

    def begin_(self, first: bool) -> None:
        """A chunk comes, the first of its step or a further one."""
        for gradient in self.of.values():
            gradient.adds = not first
            gradient.is_new = gradient.is_new and not first

    @torch.no_grad()
    def settle_(self) -> None:
        """After the first chunk of a step: a layer that had no part in it has zeros, not what an earlier step left."""
        left = [gradient.values for gradient in self.of.values() if gradient.is_written and not gradient.is_new]
        if left:
            torch._foreach_zero_(left)

    @torch.no_grad()
    def finish_(self) -> None:
        """After the last chunk of a step: the biases' gradients, to `bias.grad`, and G without their column."""
        if any(gradient.is_awaited for gradient in self.of.values()):
            raise SteadytuneError(
                "Mixout: a backward pass ended before it came to the layer before a mixed one, whose gradient is made "
                "there. Ask for the gradients of all parameters at once, as the engine does."
            )
        for bias, (gradient, own) in self._biases.items():
            if gradient.is_written and bias.grad is not own:
                bias.grad = own
        if self._kernel:
            from steadytune.kernels.kept_gradients_triton import finish_triton_

            finish_triton_(self)
            return
        for layer in self.layers:
            own = None if layer.bias is None else self._biases[layer.bias][1]
            finish_torch_(self.of[layer.weight].values, layer.columns.kept, own)

    def norm(self, others: Sequence[Tensor]) -> Tensor:
        """Of these gradients, as if dense, and the others together. After `finish_`."""
        found = [factor * nn.utils.get_total_norm([part]) for factor, part in self._stretches.items()]
        if others:
            found.append(nn.utils.get_total_norm(others).to(self.memory.device))
        return torch.linalg.vector_norm(torch.stack(found))

    def drop_dense_(self) -> None:
        """After a step with dense gradients: their memory is not needed again for a long time."""
        for layer in self.layers:
            layer.weight.grad = None


def can_be_read(weight: Tensor) -> bool:
    """Whether the optimiser's kernel finds rows and columns of such a weight by small numbers."""
    return weight.numel() < 2**31 and weight.shape[1] < 2**20


def finish_torch_(values: Tensor, kept: Tensor, bias_gradient: Tensor | None) -> None:
    """`KeptGradients.finish_` for one layer. A list without a free last entry has no column of ones."""
    has_ones = kept[-1] < 0
    last = values[:, -1]
    if bias_gradient is not None:
        bias_gradient.copy_(torch.where(has_ones, last, torch.nan))
    last.masked_fill_(has_ones, 0.0)
