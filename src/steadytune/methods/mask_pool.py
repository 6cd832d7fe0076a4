"""The masks of all layers of a step, drawn in one go; and whether the coming masks fit their capacity.

    pool = MaskPool(model)
    too_long = pool.forecast(256).tolist()           # reading it is the only wait for the device, once in 256 steps
    for step in range(256):
        use_kept_columns_(model, not too_long[step])     # a mask that does not fit takes the dense gradient
        pool.draw_()                                     # one kernel; every layer's forward then uses its part
        loss(model, batch).backward()

For steps in which every layer runs once. A layer that runs twice on one draw (ALBERT's shared block, the two forwards
of R-Drop) is refused where it happens, in eager mode and while a graph is captured; `why_not` says it beforehand, from
the counters around a step without the pool. Counters end as if every layer had drawn for itself, so checkpoints and
resumed runs see the same masks.

The pool's counters are one tensor, and each layer's `mix_state` becomes a row of it. It stays the same tensor object,
so whoever holds it goes on; loading state and DDP's broadcast write into it. Moving or unmixing the model tears the
rows off, which `draw_` notices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from steadytune.errors import SteadytuneError
from steadytune.kernels.kept_gradients import Kept, KeptGradients, can_be_read
from steadytune.kernels.mixout_masks import Columns, draw_all_, new_table, overflows
from steadytune.kernels.mixout_table import MixTable, can_be_made
from steadytune.layers import find_layers
from steadytune.methods.mixed_layers import MixedLinear, mixed_layers
from steadytune.methods.mixing import JointlyMixed


def column_layers(model: nn.Module) -> dict[str, MixedLinear]:
    """The layers whose mask is a list of kept columns: linear ones with a Bernoulli mask by neuron."""
    return {
        name: layer
        for name, layer in mixed_layers(model)
        if isinstance(layer, MixedLinear)
        and (layer.mix.mask, layer.mix.distribution) == ("neuron", "bernoulli")
        and layer.mix.p < 1.0
    }


def use_kept_columns_(model: nn.Module, on: bool) -> None:
    """Whether the next forwards on a CUDA device compute the weight gradient for kept columns only.

    It stays so until it is changed. Turn it on where `forecast` says that the masks fit: one that does not gives a
    gradient of NaN. A captured graph has the setting of its capture.
    """
    for layer in column_layers(model).values():
        layer.mix_kept_only = on


def groups_of(model: nn.Module, layers: Mapping[str, MixedLinear]) -> list[list[MixedLinear]]:
    """Layers that read the same tensor, as query, key and value do, and have no weight in common with others.

    None for a model whose parts cannot be told; nothing but time depends on it.
    """
    try:
        named = find_layers(model).same_input()
    except SteadytuneError:
        return []
    uses = Counter(id(layer.weight) for layer in layers.values())
    found = [[layers[name] for name in names] for names in named if all(name in layers for name in names)]
    return [group for group in found if len(group) > 1 and all(uses[id(layer.weight)] == 1 for layer in group)]


class MaskPool:
    """Draws the masks of a model's linear layers at once. Other mixed layers go on drawing for themselves.

    `states`, int64 [L, 3], holds the counters of `layers`: setting it back repeats masks. With `low`, a type for the
    products, `mix_` makes the mixed weights of all layers in it (mixout_table.py); without, each layer mixes its own in
    its forward.
    """

    def __init__(self, model: nn.Module, low: torch.dtype | None = None) -> None:
        self._model, self.layers = model, column_layers(model)
        if not self.layers:
            raise SteadytuneError("MaskPool: the model has no linear layer with a Bernoulli mask by neuron.")
        devices = {layer.mix_state.device for layer in self.layers.values()}
        if len(devices) > 1:
            places = ", ".join(sorted(map(str, devices)))
            raise SteadytuneError(f"MaskPool: the model lies on several devices ({places}); each would need its own.")
        (device,) = devices
        rules = [layer.rule() for layer in self.layers.values()]
        self._table = new_table(rules, device)
        self.states = torch.stack([layer.mix_state for layer in self.layers.values()])
        for layer, row in zip(self.layers.values(), self.states, strict=True):
            layer.mix_state.set_(row)
        self._places = torch.empty(sum(rule.columns for rule in rules), dtype=torch.int32, device=device)
        self._kept = torch.empty(sum(rule.capacity for rule in rules), dtype=torch.int32, device=device)
        places = self._places.split([rule.columns for rule in rules])
        kept = self._kept.split([rule.capacity for rule in rules])
        self._columns = [Columns(*each) for each in zip(places, kept, strict=True)]
        groups = groups_of(model, self.layers)
        for group in groups:
            jointly = JointlyMixed(group)
            for layer in group:
                layer.mix_jointly = jointly
        self._mixes = None if low is None else self._weights(groups, low)

    def _weights(self, groups: list[list[MixedLinear]], low: torch.dtype) -> MixTable | None:
        """A table of all layers that can be in one; those that read the same tensor side by side."""
        first = next(iter(self.layers.values()))
        drawn = dict(zip(self.layers.values(), self._columns, strict=True))
        parts = {layer: layer.layer_of(columns) for layer, columns in drawn.items()}
        uses = Counter(id(layer.weight) for layer in parts)
        fits = {
            layer
            for layer, part in parts.items()
            if can_be_made(part) and layer.p == first.p and uses[id(layer.weight)] == 1
        }
        together = [group for group in groups if fits >= set(group) and len({g.bias is None for g in group}) == 1]
        inside = {layer for group in together for layer in group}
        together += [[layer] for layer in parts if layer in fits - inside]
        if not together:
            return None
        table = MixTable([[parts[layer] for layer in group] for group in together], first.p, low)
        for group, whole, each in zip(together, table.together, table.alone, strict=True):
            for layer, made in zip(group, each, strict=True):
                layer.mix_made = made
            if group[0].mix_jointly is not None and len(group) > 1:
                group[0].mix_jointly.made = whole
        return table

    def draw_(self) -> None:
        """The masks of the next step: one for every layer, good for one forward each."""
        for layer, row in zip(self.layers.values(), self.states, strict=True):
            state = getattr(layer, "mix_state", None)
            if state is None or state.data_ptr() != row.data_ptr():
                raise SteadytuneError(
                    "MaskPool: the model was moved or unmixed after the pool was made. Make a new one where it is now."
                )
        draw_all_(self.states, self._table, self._places, self._kept)
        # A kernel's writes do not count as changes: tell a backward pass that would still need the masks of before.
        torch.autograd.graph.increment_version((self._places, self._kept))
        for layer, columns in zip(self.layers.values(), self._columns, strict=True):
            layer.mix_drawn = columns
        self.reuse_()

    def mix_(self) -> None:
        """Make the weights of all layers for the masks that are drawn: one kernel, where a type for them was given.

        A layer whose weight or mask has changed since then mixes for itself.
        """
        if self._mixes is not None:
            self._mixes.mix_()

    def keep_gradients_(self, can: Callable[[list[Tensor]], bool]) -> KeptGradients | None:
        """From now on gradients of kept columns stay where backward passes write them, of all layers that have their
        weight and bias for themselves and of which the optimiser `can` read it; None where there is none.

        For engines, which call `begin_` before each chunk, and `finish_` after the last.
        """
        modules = list(self._model.modules())
        uses = Counter(id(each) for module in modules for each in module.parameters(recurse=False))
        unread = {module.out_proj for module in modules if isinstance(module, nn.MultiheadAttention)}  # not called
        found: dict[MixedLinear, Kept] = {}
        for layer, columns in zip(self.layers.values(), self._columns, strict=True):
            bias = layer.bias if layer.bias is not None and layer.bias.requires_grad else None
            own = [layer.weight] if bias is None else [layer.weight, bias]
            alone = layer not in unread and all(uses[id(each)] == 1 and not _is_watched(each) for each in own)
            fits = can_be_made(layer.layer_of(columns)) and can_be_read(layer.weight)
            if alone and fits and layer.weight.requires_grad and can([layer.weight]):
                found[layer] = Kept(layer.weight, bias, columns, layer.grad_scale())
        if not found:
            return None
        gradients = KeptGradients(list(found.values()))
        for layer, kept in found.items():
            layer.mix_gradient = gradients.of[kept.weight]
        return gradients

    def reuse_(self) -> None:
        """One more forward on the masks that are drawn: the next chunk of the same batch."""
        for layer in self.layers.values():
            layer.mix_uses = 1

    def clear_(self) -> None:
        """From now on every call draws a mask of its own again."""
        for layer in self.layers.values():
            layer.mix_drawn, layer.mix_uses = None, 0

    def forecast(self, calls: int, start: int = 0) -> Tensor:
        """bool [calls], on the device: whether some layer's mask does not fit, `start` + i calls from now."""
        return overflows(self.states, self._table, calls, start)

    def calls(self) -> dict[str, int]:
        """How often each layer has drawn. Waits for the device."""
        return dict(zip(self.layers, self.states[:, 2].tolist(), strict=True))

    @staticmethod
    def why_not(before: Mapping[str, int], after: Mapping[str, int]) -> str | None:
        """Why the pool is not for this model and loss, by `calls` before and after one step without it; None if it
        is."""
        for name, count in after.items():
            if count - before[name] != 1:
                return f"{name} draws {count - before[name]} masks in a step; a pool draws one for every layer."
        return None


def _is_watched(parameter: Tensor) -> bool:
    """Whether somebody waits for its gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
