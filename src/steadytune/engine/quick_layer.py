"""What quick layers have in common: when they run, and how they become plain ones again.

A layer is not replaced: its class is exchanged for a subclass of its own that also has this one, and what the subclass
needs are attributes whose names begin with `quick_`. The Parameters stay, and with them keys, hooks and optimisers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from steadytune.kernels.handed_on import is_plain
from steadytune.kernels.linear import LOW_TYPES


class QuickLayer:
    """Beside `nn.Linear` or `nn.LayerNorm`."""

    training: bool
    is_quick = True  # for those who ask whether this is a plain layer: it is one, by another way

    def trains_on(self, x: Tensor, dtype: torch.dtype) -> bool:
        """Whether this is a training pass under autocast to `dtype`, of a tensor that hides nothing."""
        device = x.device.type
        if not self.training or not torch.is_autocast_enabled(device) or torch.get_autocast_dtype(device) != dtype:
            return False
        if torch.is_inference_mode_enabled() or torch._C._are_functorch_transforms_active():
            return False
        return is_plain(x) and x.dtype in (torch.float32, *LOW_TYPES)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles start plain: what is quick belongs to the original."""
        return {name: value for name, value in vars(self).items() if not name.startswith("quick_")}


def give_back_class_(layer: nn.Module, plain: type[nn.Module]) -> None:
    """The layer's own class again, with the weights that it has now."""
    for name in [name for name in vars(layer) if name.startswith("quick_")]:
        del vars(layer)[name]
    layer.__class__ = plain
