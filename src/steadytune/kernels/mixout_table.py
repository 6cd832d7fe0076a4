"""The mixed weights of all layers, made in one launch per step.

    W' = U + (M/μ)(W - U)      of every layer, in the type of the product; and the biases, cast

A layer whose W' lies ready has no pass of its own before its product, and makes nothing again in the backward pass. The
memory is that of all W', 2 bytes per weight, for as long as the table lives: about what a plain layer's casts take.
Layers whose outputs are computed together (mixout_columns.py) have their W' one below the other.

    table    [T, 8] int64    of T tensors: address, that of the result, rows, columns, first tile, tiles side by side,
                             address of U, address of the mask's places; 0 for both where there is nothing to mix
    owners   [tiles] int32   which tensor each tile belongs to

In plain torch here, which is also the reference; mixout_triton.py has the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from steadytune.errors import SteadytuneError
from steadytune.kernels.mixout_columns import Layer, mix_torch_
from steadytune.kernels.mixout_masks import has_kernels

TILE_ROWS, TILE_COLUMNS = 8, 512
_ALIGNMENT = 128  # elements: where layers begin


class Made(NamedTuple):
    """W' and biases of one layer, or of several one below the other, in a table."""

    weight: Tensor
    bias: Tensor | None
    table: MixTable

    def is_of(self, layers: Sequence[Layer], dtype: torch.dtype) -> bool:
        """Whether this is what these layers need now, as far as torch can tell: writes of kernels do not show."""
        return self.weight.dtype == dtype and all(self.table.has_seen(each) for each in _sources(layers))


class MixTable:
    """For float32 weights of one device, all with the same p. What it holds does not move afterwards."""

    def __init__(self, groups: Sequence[Sequence[Layer]], p: float, dtype: torch.dtype) -> None:
        """`groups` are layers whose outputs are computed together; either all of a group have a bias or none has."""
        self.p, self.groups = p, [list(group) for group in groups]
        device = self.groups[0][0].weight.device
        rows = [sum(len(layer.weight) for layer in group) for group in self.groups]
        sizes = [n * group[0].weight.shape[1] for n, group in zip(rows, self.groups)]
        sizes += [n if group[0].bias is not None else 0 for n, group in zip(rows, self.groups)]
        room = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        self.memory = torch.zeros(sum(room), dtype=dtype, device=device)
        parts = [whole[:size] for whole, size in zip(self.memory.split(room), sizes)]
        self.together: list[Made] = []  # of each group
        self.alone: list[list[Made]] = []  # of each of its layers
        self._sources = _sources(layer for group in self.groups for layer in group)
        self._addresses = [each.data_ptr() for each in self._sources]
        self._versions: dict[int, int] = {}  # by id, when the results were last made
        for group, weight, bias in zip(self.groups, parts, parts[len(groups) :]):
            heights, weight = [len(layer.weight) for layer in group], weight.view(-1, group[0].weight.shape[1])
            low_bias = bias if group[0].bias is not None else None
            self.together.append(Made(weight, low_bias, self))
            biases = low_bias.split(heights) if low_bias is not None else [None] * len(group)
            self.alone.append([Made(w, b, self) for w, b in zip(weight.split(heights), biases)])
        self._kernel = has_kernels(device.type, torch.float32, dtype)
        self._fill_()

    def _fill_(self) -> None:
        """The table for the kernel. Waits for the device, so it is not for a capture."""
        entries: list[list[int]] = []
        for group, made in zip(self.groups, self.alone):
            for layer, its in zip(group, made):
                place = layer.columns.place.data_ptr()
                entries.append([layer.weight.data_ptr(), its.weight.data_ptr(), *layer.weight.shape])
                entries[-1] += [0, 0, layer.target.data_ptr(), place]
                if layer.bias is not None and its.bias is not None:
                    entries.append([layer.bias.data_ptr(), its.bias.data_ptr(), 1, len(layer.bias), 0, 0, 0, 0])
        table = torch.tensor(entries, dtype=torch.int64)
        table[:, 5] = -(-table[:, 3] // TILE_COLUMNS)
        tiles = table[:, 5] * -(-table[:, 2] // TILE_ROWS)
        table[:, 4] = tiles.cumsum(0) - tiles
        self.aligned = not bool((table[:, [0, 1, 6]] % 16).any() or (table[:, 3] % 16).any())
        device = self.memory.device
        self.table, self.tiles = table.to(device), int(tiles.sum())
        self.owners = torch.arange(len(table), dtype=torch.int32).repeat_interleave(tiles).to(device)

    @torch.no_grad()
    def mix_(self) -> None:
        """Make all of them anew, from the weights and masks as they are now. Not between a forward and its backward."""
        if [each.data_ptr() for each in self._sources] != self._addresses:
            raise SteadytuneError(
                "MaskPool: the model's weights were given other memory after the pool was made. Make a new one."
            )
        if self._kernel:
            from steadytune.kernels.mixout_triton import mix_all_triton_

            mix_all_triton_(self)
        else:
            for group, made in zip(self.groups, self.alone):
                for layer, its in zip(group, made):
                    mix_torch_(
                        its.weight, its.bias, layer.weight, layer.target, layer.columns.place, layer.bias, self.p
                    )
        # A kernel's writes do not count as changes: tell a backward pass that would still need those of before.
        torch.autograd.graph.increment_version(self.memory)
        self._versions = {id(each): each._version for each in self._sources}

    def has_seen(self, source: Tensor) -> bool:
        """Whether the results are of this tensor as it is now."""
        return self._versions.get(id(source)) == source._version  # the table holds it: the id is nobody else's


def can_be_made(layer: Layer) -> bool:
    """Whether a table can hold the layer."""
    tensors = [layer.weight, layer.target, *([layer.bias] if layer.bias is not None else [])]
    return all(
        each.dtype == torch.float32
        and each.is_contiguous()
        and each.numel() > 0
        and type(each) in (Tensor, torch.nn.Parameter)
        for each in tensors
    )


def _sources(layers: Iterable[Layer]) -> list[Tensor]:
    """All that the results depend on, masks included."""
    found = [(layer.weight, layer.bias, layer.target, layer.columns.place) for layer in layers]
    return [each for tensors in found for each in tensors if each is not None]
