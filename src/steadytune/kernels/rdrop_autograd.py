"""The gradients of rdrop.py's losses: made in the forward pass, scaled in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from steadytune.errors import SteadytuneError
from steadytune.kernels.rdrop_rows import Terms, row_losses_

ALIGNED = 16  # on a CUDA device rows of logits are made this long or a multiple, with zeros behind: odd ones are slow


class FromHidden(torch.autograd.Function):
    """Σ_n ℓ_n for the logits h_i Wᵀ + b + offset, `chunk` positions at a time, times `unit` where there is one."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_1: Tensor,
        hidden_2: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        terms: Terms,
        offset: Tensor | None,
        unit: Tensor | None,
        dtype: torch.dtype,
        chunk: int,
    ) -> Tensor:
        wants_hidden = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        wants_weight, wants_bias = ctx.needs_input_grad[2], bias is not None and ctx.needs_input_grad[3]
        wants_any = wants_hidden or wants_weight or wants_bias
        precise = terms.nu.dtype
        (positions, width), classes = hidden_1.shape, len(weight)
        padding = -classes % ALIGNED if weight.is_cuda else 0
        matrix, vector = weight.to(dtype), None if bias is None else bias.to(dtype)
        if padding:
            matrix = functional.pad(matrix, (0, 0, 0, padding))
            vector = None if vector is None else functional.pad(vector, (0, padding))
        grad_hidden = hidden_1.new_empty(2, positions, width, dtype=precise) if wants_hidden else None
        grad_weight = matrix.new_zeros(matrix.shape, dtype=precise) if wants_weight else None
        grad_bias = matrix.new_zeros(len(matrix), dtype=precise) if wants_bias else None
        loss = hidden_1.new_zeros((), dtype=precise)
        for start in range(0, positions, chunk):
            stop = min(start + chunk, positions)
            rows = torch.cat((hidden_1[start:stop], hidden_2[start:stop])).to(dtype)
            z = functional.linear(rows, matrix, vector)
            both = z.view(2, stop - start, -1)[..., :classes]
            # Not in place: Dynamo (torch 2.11) gives zeros for the gradient of an output that `forward` writes over.
            loss = loss + row_losses_(both, terms.part(start, stop), offset, gradient=wants_any).sum()
            # z is now the gradient with respect to the logits, and still 0 in the padding.
            if grad_hidden is not None:
                grad_hidden[:, start:stop] = _product(z, matrix, precise).view(2, stop - start, width)
            if grad_weight is not None:
                _add_product_(grad_weight, z.t(), rows)
            if grad_bias is not None:
                grad_bias += z.sum(0, dtype=precise)
            del rows, z, both  # before the next chunk's are made
        ctx.save_for_backward(grad_hidden, _first(grad_weight, classes), _first(grad_bias, classes), unit)
        ctx.types = hidden_1.dtype, hidden_2.dtype, weight.dtype, None if bias is None else bias.dtype
        return loss if unit is None else loss * unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_derivative()
        hidden, weight, bias, unit = ctx.saved_tensors
        scale = grad if unit is None else grad * unit
        first, second = (None, None) if hidden is None else hidden.unbind()
        kept = [
            None if each is None else (each * scale).to(dtype)
            for each, dtype in zip((first, second, weight, bias), ctx.types)
        ]
        return (*kept, None, None, None, None, None)


class FromLogits(torch.autograd.Function):
    """Σ_n ℓ_n for given logits."""

    @staticmethod
    def forward(ctx: Any, logits_1: Tensor, logits_2: Tensor, terms: Terms, precise: torch.dtype) -> Tensor:
        wanted = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        z = torch.stack((logits_1, logits_2)).to(precise)
        loss = row_losses_(z.view(2, len(terms.labels), logits_1.shape[-1]), terms, gradient=wanted).sum()
        ctx.save_for_backward(z)
        ctx.types = logits_1.dtype, logits_2.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_derivative()
        (z,) = ctx.saved_tensors
        first, second = (z * grad).unbind()
        return first.to(ctx.types[0]), second.to(ctx.types[1]), None, None


def _first(values: Tensor | None, count: int) -> Tensor | None:
    return None if values is None else values[:count]


def _refuse_second_derivative() -> None:
    if torch.is_grad_enabled():  # only with create_graph=True
        raise SteadytuneError(
            "R-Drop's loss has no second derivative here: its gradient was worked out in the forward pass. Use "
            "steadytune.rdrop_loss on the logits of both passes for create_graph=True."
        )


def _product(a: Tensor, b: Tensor, precise: torch.dtype) -> Tensor:
    """a b, with the sums of the product kept in `precise` where the device can return them."""
    if a.is_cuda and a.dtype != precise:
        return torch.mm(a, b, out_dtype=precise)
    return torch.mm(*_wide_enough(a, b))


def _add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, likewise."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
        return
    a, b = _wide_enough(a, b)
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total.add_(torch.mm(a, b))


def _wide_enough(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Factors whose product cannot be too large for its type: float16 ends at 65504."""
    return (a.float(), b.float()) if a.dtype == torch.float16 else (a, b)
