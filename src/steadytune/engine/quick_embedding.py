"""Large embedding tables, on a CPU: their gradient keeps its memory from chunk to chunk and from step to step.

    dW[id] += g        for every token, in the gradient's own place; 0 for the padding token

A batch looks up a few hundred of some 30,000 rows, but torch makes a whole new table of zeros for the gradient of every
chunk, adds it to the one before and gives the memory back: for a small encoder as long as the chunk's own work.

    quicken_embeddings_(model)
    loss.backward()                # W.grad is where it was in the step before
    unquicken_embeddings_(model)

The gradient is written to `W.grad` by the backward pass itself, so it is there after `loss.backward()` and not in what
`torch.autograd.grad` returns; hooks of the parameter are not called. Hence it is for the engine alone, and for tables
that only one module reads and nobody has hooks on. A layer's class is exchanged (quick_layer.py).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from steadytune.engine.quick_layer import QuickLayer, give_back_class_

DEVICES = {"cpu"}
LEAST = 2**20  # elements: below that a table of zeros costs nothing to speak of


class GradientTable:
    """The memory of one table's gradient."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def add_(self, weight: Tensor, ids: Tensor, rows: Tensor) -> None:
        """Add `rows` to the gradient of the rows `ids`; zeros first, where there is no gradient yet."""
        if weight.grad is None:
            if self._memory is None:
                self._memory = torch.zeros_like(weight)
            else:
                self._memory.zero_()
            weight.grad = self._memory
        weight.grad.index_add_(0, ids, rows)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, table: GradientTable, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight, ctx.table, ctx.padding = weight, table, padding
        return functional.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, None]:
        (ids,) = ctx.saved_tensors
        flat, rows = ids.reshape(-1), grad.reshape(-1, grad.shape[-1]).to(ctx.weight.dtype)
        if ctx.padding is not None:
            rows = rows.masked_fill((flat == ctx.padding)[:, None], 0.0)
        ctx.table.add_(ctx.weight, flat, rows)
        return None, None, None, None


class QuickEmbedding(QuickLayer, nn.Embedding):
    """`nn.Embedding`, whose gradient is added up where it lies."""

    quick_table: GradientTable | None = None

    def forward(self, ids: Tensor) -> Tensor:
        if self.quick_table is None or not self.training or not torch.is_grad_enabled():
            return super().forward(ids)
        if torch.compiler.is_compiling() or not self.weight.requires_grad or self.weight.device.type not in DEVICES:
            return super().forward(ids)
        return _Lookup.apply(ids, self.weight, self.quick_table, self.padding_idx)


def quicken_embeddings_(model: nn.Module) -> int:
    """Put the quick class on every large plain embedding of a model; how many there are."""
    unquicken_embeddings_(model)
    readers = Counter(id(each) for module in model.modules() for each in module.parameters(recurse=False))
    found = [module for module in model.modules() if _can_be_quick(module) and readers[id(module.weight)] == 1]
    for layer in found:
        layer.__class__ = QuickEmbedding
        layer.quick_table = GradientTable()  # type: ignore[assignment]
    return len(found)


def unquicken_embeddings_(model: nn.Module) -> None:
    """Give every quick embedding its own class back. The weights stay, and so does a gradient."""
    for module in model.modules():
        if isinstance(module, QuickEmbedding):
            give_back_class_(module, nn.Embedding)


def _can_be_quick(module: nn.Module) -> bool:
    if type(module) is not nn.Embedding or "forward" in vars(module):
        return False
    weight = module.weight
    plain = type(weight) is nn.Parameter and weight.is_contiguous() and weight.dtype == torch.float32
    if not plain or weight.device.type not in DEVICES or weight.numel() < LEAST or not weight.requires_grad:
        return False
    if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
        return False
    return not weight._backward_hooks and not weight._post_accumulate_grad_hooks
