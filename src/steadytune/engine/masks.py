"""The mixout masks of a run's steps: one per layer and step, whatever the chunks.

    begin_   before the first chunk of a step: are the step's masks such that a recorded step may be replayed?
    again_   before each further chunk, which must see the masks of the first, as if the batch were one forward
    back_    the step begins anew (memory ran out)
    end_     after the last chunk

Masks are functions of counters (rng.py), so going back is setting counters back. On a GPU, where every layer draws once
in a step, a pool draws all of them in one go, and weight gradients are computed for kept columns only. Those have a
fixed capacity there. Which of the coming steps keep more is computed ahead, for many steps at once: such a step, one
in tens of thousands, takes the dense gradient and is not replayed. Nothing else here waits for the device. On a CPU
layers remember their masks for all chunks of a step and, in low precision, the mixed weights (`mix_memory`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor, nn

from steadytune.kernels import kept_gradients
from steadytune.kernels.kept_gradients import KeptGradient, KeptGradients
from steadytune.methods import mixed_layers as layers_of_mixout
from steadytune.methods.loss import noise_sources
from steadytune.methods.mask_pool import MaskPool, column_layers, use_kept_columns_
from steadytune.methods.mixed_layers import mixed_layers

_AHEAD = 256  # steps that one look ahead covers


class Masks:
    """The masks of one model; of one without mixed layers, nothing."""

    def __init__(self, model: nn.Module, low: torch.dtype | None = None) -> None:
        """With `low` the weights of all layers are mixed at once before the first forward of a step, in that type."""
        self._model, self._low = model, low
        self._counters = [layer.mix_state for _, layer in mixed_layers(model)]
        self._marked: list[Tensor] = []
        linear, pooled = column_layers(model).values(), layers_of_mixout.COLUMN_DEVICES
        self._remembering = [layer for layer in linear if layer.weight.device.type not in pooled]
        self._pool: MaskPool | None = None
        self._too_many: deque[bool] = deque()  # of the coming steps: does a mask keep more columns than fit?
        self.dense = False  # whether this step takes the dense gradient
        self.kept: KeptGradients | None = None
        self.why_alone = ""  # on a GPU: why layers draw one by one, and compute whole weight gradients

    def pool_(self, one_step: Callable[[], object]) -> None:
        """Draw all masks of a step in one go, if `one_step` (run for nothing here) asks each layer for one."""
        layers = column_layers(self._model)
        where = {layer.mix_state.device.type for layer in layers.values()}
        if not layers or not where <= layers_of_mixout.COLUMN_DEVICES:
            return
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        before = {name: layer.calls() for name, layer in layers.items()}
        with torch.no_grad():
            one_step()
            after = {name: layer.calls() for name, layer in layers.items()}
            for buffer, old in buffers:
                buffer.copy_(old)
        self.why_alone = _leaves_out(self._model) or MaskPool.why_not(before, after) or ""
        if not self.why_alone:
            self._pool = MaskPool(self._model, self._low)
            alone = [layer for _, layer in mixed_layers(self._model) if layer not in set(layers.values())]
            self._counters = [self._pool.states, *(layer.mix_state for layer in alone)]
            use_kept_columns_(self._model, True)

    def keep_gradients_(self, can: Callable[[list[Tensor]], bool]) -> KeptGradients | None:
        """Gradients of kept columns stay where they are written, where a pool draws and the optimiser `can` read it."""
        if self._pool is not None and self._pool.states.device.type in kept_gradients.DEVICES:
            self.kept = self._pool.keep_gradients_(can)
        return self.kept

    def keeps(self, parameter: Tensor) -> bool:
        """Whether its gradient stays where it is written, but for steps that take the dense one."""
        return self.kept is not None and self.kept.covers(parameter)

    def has_kept(self, parameter: Tensor) -> bool:
        """Whether no dense gradient of it is made in this step."""
        return not self.dense and self.keeps(parameter)

    def written(self) -> list[KeptGradient]:
        """The gradients that stay where they are written, of layers that have had one."""
        return [] if self.kept is None else [each for each in self.kept.of.values() if each.is_written]

    def begin_(self) -> bool:
        if self._counters:
            self._marked = [counter.clone() for counter in self._counters]
        for layer in self._remembering:
            layer.mix_memory = {}
        if self._pool is None:
            return True
        if not self._too_many:
            self._too_many.extend(self._pool.forecast(_AHEAD).tolist())
        dense = self._too_many.popleft()
        if dense != self.dense:
            use_kept_columns_(self._model, not dense)
            self.dense = dense
        self._pool.draw_()
        return not dense

    def again_(self) -> None:
        if self._pool is None:
            self._rewind_()

    def back_(self) -> None:
        self._rewind_()
        if self._pool is not None:
            self._pool.draw_()

    def end_(self) -> None:
        for layer in self._remembering:
            layer.mix_memory = None

    def forward_(self, first: bool = True) -> None:
        """A forward of one chunk comes: it may use the masks that are drawn. The first of a step has new weights."""
        if self._pool is not None:
            self._pool.reuse_()
            if self.kept is not None:
                self.kept.begin_(first)
            if first:
                self._pool.mix_()

    def backward_(self, first: bool) -> None:
        """The backward pass of a chunk has ended."""
        if first and self.kept is not None and not self.dense:
            self.kept.settle_()

    def _rewind_(self) -> None:
        if self._counters:
            torch._foreach_copy_(self._counters, self._marked)


def _leaves_out(model: nn.Module) -> str:
    """Why one step says nothing of the next: a layer that is left out has no use for its mask, and no gradient."""
    found = [name for name in noise_sources(model) if name.endswith("layerdrop")]
    return f"{found[0]} leaves out layers at random; a pool draws one mask for every layer." if found else ""
