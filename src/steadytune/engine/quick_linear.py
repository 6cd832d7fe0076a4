"""Plain linear layers that run through kernels/linear.py while they train under autocast.

    casts = quicken_linears_(model, torch.bfloat16)      # None where nothing can be gained
    for batch in batches:
        casts.refresh_()                         # one launch: every weight and bias of these layers in the low type
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
    unquicken_linears_(model)

A layer's class is exchanged (quick_layer.py). Only modules whose class is `nn.Linear` itself are taken: a subclass, and
a weight that pruning or a parametrisation computes, stay as they are. Methods that exchange classes too (mixout) come
first.

**Which weights a forward sees.** Those of the last `refresh_`. A weight that torch has changed since then, by an
optimiser's step or by hand, shows by its version and address, and its layer runs as a plain one: the right numbers,
more slowly. Three kinds of writes do not show, as they do not in autograd: those through `.data`, those of Triton
kernels (the fused step of `steadytune.AdamW` is one), and those of replayed CUDA graphs. After one of them `refresh_`
must come before the next training forward; the engine calls it at the beginning of every step. Call `clear_` where
nobody can promise that. Between a forward and its backward there must be no refresh: it writes over what backward
reads, which autograd notices and refuses. A captured graph reads the casts where they lie, and holds whatever was
decided in its capture: keep `casts` as long as the graph.

Layers that read the same tensor, as query, key and value do, are one product: the first of them that is called computes
the outputs of all, and the others take theirs (`Together`).

The plain layer runs in eval mode, outside autocast or under another type of it, in inference mode, under torch.func,
while torch.compile traces, before the first refresh, and in a copy of the model. The casts stay in memory between
steps: 2 bytes per weight, which autocast gives back after each; of an input that q, k and v read, autocast keeps three
casts until the backward pass, and this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from steadytune.engine.quick_layer import QuickLayer, give_back_class_
from steadytune.errors import SteadytuneError
from steadytune.kernels.handed_on import Handed, Jointly, SharedCast
from steadytune.kernels.linear import LOW_TYPES, CastTable, is_served, quick_linear, quick_linears
from steadytune.layers import find_layers


class LowCopy:
    """A parameter in the type of the products, in memory that stays where it is."""

    def __init__(self, source: Tensor, low: Tensor) -> None:
        self.source, self.low = source, low
        self._address = source.data_ptr()
        self._version: int | None = None  # of the source when it was cast

    def is_fresh(self, parameter: Tensor) -> bool:
        """Whether `low` is the cast of this parameter as it is now, as far as torch can tell."""
        return parameter is self.source and self._version == parameter._version and not self.has_moved()

    def has_moved(self) -> bool:
        return self.source.data_ptr() != self._address

    def mark_(self, fresh: bool) -> None:
        self._version = self.source._version if fresh else None


class QuickLinear(QuickLayer, nn.Linear):
    """`nn.Linear`, whose training forward under autocast reads the casts of `WeightCasts`."""

    quick_weight: LowCopy | None = None
    quick_bias: LowCopy | None = None
    quick_together: Together | None = None  # with the layers that read the same tensor
    quick_inputs: SharedCast | None = None  # where the layer before may have left its output in the low type

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or self.quick_weight is None or not self.is_quick_for(x):
            return super().forward(x)
        together = self.quick_together
        if together is not None and (found := together.output(self, x, lambda: together.of_all(x))) is not None:
            return found
        low_bias = self.quick_bias.low if self.quick_bias is not None else None
        return quick_linear(x, self.weight, self.bias, self.quick_weight.low, low_bias, self.given(x))

    def is_quick_for(self, x: Tensor) -> bool:
        if self.quick_weight is None or x.device != self.quick_weight.low.device:
            return False
        if not self.trains_on(x, self.quick_weight.low.dtype) or not self.quick_weight.is_fresh(self.weight):
            return False
        if self.bias is None or self.quick_bias is None:
            return self.bias is None and self.quick_bias is None
        return self.quick_bias.is_fresh(self.bias)

    def given(self, x: Tensor) -> Handed | None:
        """x as the layer before has left it in the low type, if it has."""
        if self.quick_inputs is None or self.quick_weight is None:
            return None
        return self.quick_inputs.get(x, self.quick_weight.low.dtype)


class Together(Jointly):
    """Quick layers that read the same tensor: one product gives the outputs of all."""

    def __init__(self, layers: Sequence[QuickLinear], low_weight: Tensor, low_bias: Tensor | None) -> None:
        super().__init__(layers)
        self._low_weight, self._low_bias = low_weight, low_bias

    def of_all(self, x: Tensor) -> Sequence[Tensor] | None:
        if not all(each.is_quick_for(x) for each in self.layers):
            return None
        weights, biases = [each.weight for each in self.layers], [each.bias for each in self.layers]
        return quick_linears(x, weights, biases, self._low_weight, self._low_bias, self.layers[0].given(x))


class WeightCasts:
    """The casts of all quick layers of a model; a parameter that several of them share is cast once."""

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.bfloat16, inputs: SharedCast | None = None) -> None:
        layers = dict(quick_layers(model))
        groups = _groups(model, layers)
        first = [[each.weight for each in group] for group in groups]
        first += [[each.bias for each in group] for group in groups if group[0].bias is not None]
        rest = [[p] for layer in layers.values() for p in (layer.weight, layer.bias) if p is not None]
        place: dict[int, int] = {}  # of a parameter among the sources
        sources: list[Tensor] = []
        following: set[int] = set()
        for run in first + rest:
            for number, parameter in enumerate(run):
                if id(parameter) not in place:
                    place[id(parameter)] = len(sources)
                    following |= {len(sources)} if number else set()
                    sources.append(parameter)
        if not sources:
            raise SteadytuneError(
                "WeightCasts: the model has no quick layers. Call quicken_linears_(model), which makes both."
            )
        self._table = CastTable.of(sources, dtype, following)
        self._copies = [LowCopy(source, low) for source, low in zip(sources, self._table.lows, strict=True)]
        for layer in layers.values():
            layer.quick_weight = self._copies[place[id(layer.weight)]]
            layer.quick_bias = self._copies[place[id(layer.bias)]] if layer.bias is not None else None
            layer.quick_inputs = inputs
        for group in groups:
            lows = [
                self._table.joined(place[id(parameter)], len(group)) if parameter is not None else None
                for parameter in (group[0].weight, group[0].bias)
            ]
            together = Together(group, *lows)
            for layer in group:
                layer.quick_together = together

    def refresh_(self) -> None:
        """Cast all weights as they are now. Not between a forward and its backward."""
        if any(copy.has_moved() for copy in self._copies):
            raise SteadytuneError(
                "WeightCasts: the model was moved, or its weights were given other memory, after the casts were made. "
                "Call quicken_linears_(model) again where it is now."
            )
        self._table.cast_()
        for copy in self._copies:
            copy.mark_(fresh=True)

    def clear_(self) -> None:
        """Until the next refresh every layer runs as a plain one."""
        for copy in self._copies:
            copy.mark_(fresh=False)


def quicken_linears_(
    model: nn.Module, dtype: torch.dtype = torch.bfloat16, inputs: SharedCast | None = None
) -> WeightCasts | None:
    """Put the quick class on every plain linear layer, for training under autocast to `dtype`.

    Whoever makes the input of a layer may leave it in `inputs` in the low type (quick_norm.py).

    None, and the model as it was, where no layer can gain: no device with the kernels, autocast to another type than
    bfloat16 or float16, layers on several devices, none whose class is `nn.Linear` and whose weights are float32. A
    model that has quick layers gets new ones.
    """
    unquicken_linears_(model)
    layers = [module for module in model.modules() if _can_be_quick(module)]
    if not layers or dtype not in LOW_TYPES or len({layer.weight.device for layer in layers}) > 1:
        return None
    for layer in layers:
        layer.__class__ = QuickLinear
    return WeightCasts(model, dtype, inputs)


def unquicken_linears_(model: nn.Module) -> None:
    """Give every quick layer its own class back. The weights stay."""
    for _, layer in list(quick_layers(model)):
        give_back_class_(layer, nn.Linear)


def quick_layers(model: nn.Module) -> Iterator[tuple[str, QuickLinear]]:
    for name, module in model.named_modules():
        if isinstance(module, QuickLinear):
            yield name, module


def _can_be_quick(module: nn.Module) -> bool:
    """A plain linear layer that nobody has changed, where the kernels run."""
    if type(module) is not nn.Linear or "forward" in vars(module):
        return False
    own = [parameter for parameter in (module.weight, module.bias) if parameter is not None]
    return all(
        type(each) is nn.Parameter  # not what pruning or a parametrisation computes, nor a sharded one
        and each.dtype == torch.float32
        and each.is_contiguous()
        and each.numel() > 0
        and not each.is_inference()
        and each.device == module.weight.device
        and is_served(each.device.type)
        for each in own
    )


def _groups(model: nn.Module, layers: dict[str, QuickLinear]) -> list[list[QuickLinear]]:
    """Layers that read the same tensor, and whose casts can lie one behind the other; as far as that can be told."""
    try:
        named = find_layers(model).same_input()
    except SteadytuneError:
        return []
    groups: list[list[QuickLinear]] = []
    taken: set[int] = set()  # parameters
    for names in named:
        group = [layers[name] for name in names if name in layers]
        own = [p for layer in group for p in (layer.weight, layer.bias) if p is not None]
        fits = len(group) == len(names) > 1 and len({layer.bias is None for layer in group}) == 1
        if fits and len(own) == len({id(p) for p in own} - taken) and not any(p.numel() % 8 for p in own):
            groups.append(group)
            taken |= {id(p) for p in own}
    return groups
