"""GELUs in front of mixed layers that make kept columns again in their backward pass (kernels/activation.py).

    quicken_activations_(model, dtype, produced)      # how many became quick
    unquicken_activations_(model)

A module's class is exchanged (quick_layer.py). Taken are `nn.GELU` and transformers' `GELUActivation` with torch's
exact GELU. What it leaves in `produced` a mixed layer takes that is given its very output next. Without one, as in
front of a plain layer, it is the plain module with another backward node.

The plain module runs in eval mode, outside autocast or under another type of it, in inference mode, under torch.func,
while torch.compile traces, for inputs that are not in the low type, and in a copy of the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import GELUActivation

from steadytune.engine.quick_layer import QuickLayer, give_back_class_
from steadytune.kernels.activation import gelu
from steadytune.kernels.handed_on import SharedCast


class _Quick(QuickLayer):
    quick_dtype: torch.dtype | None = None  # of autocast
    quick_produced: SharedCast | None = None  # where the output is left for the layer that reads it

    def forward(self, input: Tensor) -> Tensor:
        produced = self.quick_produced
        if torch.compiler.is_compiling() or produced is None or not self._is_quick_for(input):
            return super().forward(input)  # type: ignore[misc]
        a, handed = gelu(input)
        produced.put_(a, handed)
        return a

    def _is_quick_for(self, x: Tensor) -> bool:
        low = self.quick_dtype
        return low is not None and x.dtype == low and x.requires_grad and x.dim() > 1 and self.trains_on(x, low)


class QuickGelu(_Quick, nn.GELU):
    pass


class QuickGELUActivation(_Quick, GELUActivation):
    pass


_QUICK: dict[type[nn.Module], type[nn.Module]] = {nn.GELU: QuickGelu, GELUActivation: QuickGELUActivation}


def quicken_activations_(model: nn.Module, dtype: torch.dtype, produced: SharedCast) -> int:
    """Put the quick class on every GELU, for training under autocast to `dtype`; how many there are."""
    unquicken_activations_(model)
    found = [module for module in model.modules() if _can_be_quick(module)]
    for module in found:
        module.__class__ = _QUICK[type(module)]
        vars(module).update(quick_dtype=dtype, quick_produced=produced)
    return len(found)


def unquicken_activations_(model: nn.Module) -> None:
    for module in [module for module in model.modules() if isinstance(module, _Quick)]:
        give_back_class_(module, type(module).__mro__[3])


def _can_be_quick(module: nn.Module) -> bool:
    if type(module) not in _QUICK or "forward" in vars(module):
        return False
    if isinstance(module, nn.GELU):
        return module.approximate == "none"
    return getattr(module, "act", None) is functional.gelu
