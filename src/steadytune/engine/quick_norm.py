"""Plain layer norms that run through kernels/norm.py while they train under autocast.

    quicken_norms_(model, torch.bfloat16, produced)      # how many became quick
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    unquicken_norms_(model)

A layer's class is exchanged (quick_layer.py). Only modules whose class is `nn.LayerNorm` itself are taken, over one
dimension, with float32 weights or none.

**What it leaves.** One kernel writes the output z in float32, as autocast's layer norm does, and in autocast's type.
The second is left in `produced`, which is one for the whole model, with another door to z (kernels/handed_on.py). A
layer that is given that very tensor next, unchanged and on the same stream, takes it from there (`SharedCast.get`)
instead of casting z; as rows, [N, D]. It has no gradient of its own: whoever takes it is to return the gradient of z,
through the door, so that the norm's backward pass adds it to that of z. It is held until z is gone or the next layer
leaves something. Where another tensor comes next, as behind dropout, nobody takes it.

**Sums.** `norm(h, r)` is the norm of h + r, in one pass: how a residual connection ends (quick_residual.py).

The plain layer runs in eval mode, outside autocast or under another type of it, in inference mode, under torch.func,
while torch.compile traces, for inputs of other types than float32, bfloat16 and float16, and in a copy of the model.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from steadytune.engine.quick_layer import QuickLayer, give_back_class_
from steadytune.kernels.handed_on import SharedCast, is_plain
from steadytune.kernels.norm import LOW_TYPES, WIDEST, is_served, quick_norm


class QuickNorm(QuickLayer, nn.LayerNorm):
    """`nn.LayerNorm`, whose training forward under autocast makes its output in both types at once."""

    quick_dtype: torch.dtype | None = None  # of autocast
    quick_produced: SharedCast | None = None  # where the low copy is left

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if torch.compiler.is_compiling() or self.quick_dtype is None or not self._is_quick_for(x):
            return super().forward(x if residual is None else x + residual)
        if residual is not None and not self._is_summed_with(x, residual):
            x, residual = x + residual, None
        z, handed = quick_norm(x, self.weight, self.bias, self.eps, self.quick_dtype, residual)
        if self.quick_produced is not None:
            self.quick_produced.put_(z, handed)  # this very z: a reader is told by its identity
        return z

    def _is_summed_with(self, x: Tensor, residual: Tensor) -> bool:
        """Whether torch would make the sum in float32, without spreading one over the other."""
        alike = residual.shape == x.shape and residual.device == x.device
        return alike and residual.dtype == torch.float32 and is_plain(residual)

    def _is_quick_for(self, x: Tensor) -> bool:
        if self.quick_dtype is None or not is_served(x.device.type) or not self.trains_on(x, self.quick_dtype):
            return False
        if tuple(self.normalized_shape) != x.shape[-1:]:
            return False  # and the plain layer says what is wrong
        return all(  # they may have been exchanged since
            type(each) in (Tensor, nn.Parameter)
            and each.dtype == torch.float32
            and each.device == x.device
            and each.shape == x.shape[-1:]
            for each in (self.weight, self.bias)
            if each is not None
        )


def quicken_norms_(model: nn.Module, dtype: torch.dtype = torch.bfloat16, produced: SharedCast | None = None) -> int:
    """Put the quick class on every plain layer norm, for training under autocast to `dtype`; how many there are.

    0, and the model as it was, where no layer can gain: no device with the kernels, autocast to another type than
    bfloat16 or float16, no norm that nobody has changed. A model that has quick norms gets new ones.
    """
    unquicken_norms_(model)
    if dtype not in LOW_TYPES or not any(is_served(each.device.type) for each in model.parameters()):
        return 0  # a norm without weights does not say where it is, but others of the model do
    norms = [module for module in model.modules() if _can_be_quick(module)]
    for norm in norms:
        norm.__class__ = QuickNorm
        vars(norm).update(quick_dtype=dtype, quick_produced=produced)
    return len(norms)


def unquicken_norms_(model: nn.Module) -> None:
    """Give every quick norm its own class back. The weights stay."""
    for _, norm in list(quick_norms(model)):
        give_back_class_(norm, nn.LayerNorm)


def quick_norms(model: nn.Module) -> Iterator[tuple[str, QuickNorm]]:
    for name, module in model.named_modules():
        if isinstance(module, QuickNorm):
            yield name, module


def _can_be_quick(module: nn.Module) -> bool:
    """A plain layer norm over one dimension that nobody has changed, where the kernels run."""
    if type(module) is not nn.LayerNorm or "forward" in vars(module):
        return False
    if len(module.normalized_shape) != 1 or not 0 < module.normalized_shape[0] <= WIDEST:
        return False
    own = [parameter for parameter in (module.weight, module.bias) if parameter is not None]
    return all(
        type(each) is nn.Parameter  # not what a parametrisation computes, nor a sharded one
        and each.dtype == torch.float32
        and not each.is_inference()
        and is_served(each.device.type)
        for each in own
    )
