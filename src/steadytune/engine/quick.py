"""Plain layers of a model, with fewer and shorter kernels while they train.

Under autocast, on a GPU:

linear layers   quick_linear.py    casts of all weights in one launch, one product for query, key and value,
                                   gradients in float32 from the product itself
layer norms     quick_norm.py      output in float32 and in the low type in one pass; the linear layer that reads it
                                   next takes the second instead of casting the first
residual sums   quick_residual.py  made by the norm that reads them, and so is the sum of its gradients
GELU            quick_activation.py  in front of mixed layers: makes the kept columns of its output in its backward pass

On a CPU:

embeddings      quick_embedding.py the gradient of a large table keeps its memory
"""

from __future__ import annotations

import torch
from torch import nn

from steadytune.engine.quick_activation import quicken_activations_, unquicken_activations_
from steadytune.engine.quick_embedding import quicken_embeddings_, unquicken_embeddings_
from steadytune.engine.quick_linear import WeightCasts, quicken_linears_, unquicken_linears_
from steadytune.engine.quick_norm import quicken_norms_, unquicken_norms_
from steadytune.engine.quick_residual import quicken_residuals_, unquicken_residuals_
from steadytune.kernels.handed_on import SharedCast
from steadytune.methods.mask_pool import column_layers


def quicken_(model: nn.Module, dtype: torch.dtype | None) -> WeightCasts | None:
    """Make every layer quick that can gain; `dtype` is that of autocast, None without.

    What comes back is to be refreshed before each step (quick_linear.py).
    """
    quicken_embeddings_(model)
    if dtype is None:
        return None
    handed = SharedCast()  # from a norm or an activation to the linear layer behind it, plain or mixed
    mixed = column_layers(model).values()
    if quicken_norms_(model, dtype, handed):
        quicken_residuals_(model)
        if mixed:
            quicken_activations_(model, dtype, handed)
        for layer in mixed:
            layer.mix_inputs = handed
    return quicken_linears_(model, dtype, handed)


def unquicken_(model: nn.Module) -> None:
    """Plain layers again, with the weights that they have now."""
    unquicken_embeddings_(model)
    unquicken_linears_(model)
    unquicken_activations_(model)
    unquicken_residuals_(model)
    unquicken_norms_(model)
    for layer in column_layers(model).values():
        layer.mix_inputs = None
