"""A layer norm under autocast, with fewer and shorter kernels than torch's own; also of a sum.

For a row x of D numbers, or x = h + r, with the gradient g of z, and means over the row:

    μ  = mean(x),   ρ = 1 / √(mean((x - μ)²) + ε),   x̂ = (x - μ) ρ
    z  = γ x̂ + β            in float32; and in the same pass z' = z in autocast's type, for the layers that read z
    g  = g₁ + g₂            what readers of z and those of its other door give back, each on its own
    dx = ρ [ γ g - mean(γ g) - x̂ mean(γ g x̂) ]      in x's type; dr = dx, and dh = dx in h's type
    dγ = Σ_rows g x̂,        dβ = Σ_rows g            in float32

The function is that of `functional.layer_norm` under CUDA's autocast: in float32 whatever type x has. Autocast casts z
once for each layer that reads it; here whoever makes z leaves its cast (engine/quick_norm.py). What stays in memory
until the backward pass is x in its own type, where autocast keeps it in float32, and μ and ρ.

A residual connection ends in such a sum, and its z is read twice: by the next layer, and by the next sum. So h + r is
no pass of its own, nor are g₁ + g₂ and the cast of dx. The sums are those of torch, bit for bit.

    x, h, r, z [..., D]      all dimensions but the last are N rows; with h in a low type or float32, r and z float32
    z'         [N, D]
    μ, ρ       [...]         float32
    partial    [2, S, D]     dγ and dβ of S parts of the rows, in float32, which a second launch adds up

In plain torch here, which is also the reference; norm_triton.py has a kernel for the forward pass and two for the
backward pass.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from steadytune.kernels.handed_on import Handed

DEVICES = {"cuda"}  # where layers may run so
WIDEST = 8192  # columns: a program holds a whole row
LOW_TYPES = (torch.bfloat16, torch.float16)
_TYPES = (torch.float32, *LOW_TYPES)
_HAS_TRITON = find_spec("triton") is not None


class Normalised(NamedTuple):
    """What a forward pass makes."""

    z: Tensor
    low: Tensor  # z'
    mean: Tensor  # μ
    rstd: Tensor  # ρ
    x: Tensor  # as it was given, or the sum


class Asked(NamedTuple):
    """What a backward pass is to make."""

    x: bool
    sums: bool  # dγ and dβ
    low: torch.dtype | None = None  # dx in this type, too


class Gradients(NamedTuple):
    """What a backward pass makes; None is what nobody asked for."""

    x: Tensor | None
    gamma: Tensor | None
    beta: Tensor | None
    low: Tensor | None = None


def is_served(device: str) -> bool:
    """Whether layers there may run this way. A CPU is for tests, in plain torch or through Triton's interpreter."""
    return device in DEVICES and (_HAS_TRITON or device != "cuda")


class _QuickNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        gamma: Tensor | None,
        beta: Tensor | None,
        eps: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, ...]:
        x = x.contiguous()
        made = normalise(x, gamma, beta, eps, dtype, residual.contiguous() if residual is not None else None)
        ctx.save_for_backward(made.x, gamma, made.mean, made.rstd)
        ctx.low = x.dtype if residual is not None and x.dtype != made.x.dtype else None
        door = torch.ops.aten._unsafe_view(made.z, made.z.shape)  # for autograd another tensor, and no view
        ctx.mark_non_differentiable(made.low)
        ctx.set_materialize_grads(False)  # or autograd would write zeros for gradients that nobody gives
        return made.z, door, made.low

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, other: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            grad, other = other, None
        if grad is None:
            return (None,) * 6
        asks_x, asks_residual, asks_gamma, asks_beta, *_ = ctx.needs_input_grad
        x, gamma, mean, rstd = ctx.saved_tensors
        low = ctx.low if asks_x else None
        asked = Asked(asks_residual or (asks_x and low is None), asks_gamma or asks_beta, low)
        other = other.contiguous() if other is not None else None
        found = gradients(grad.contiguous(), x, gamma, mean, rstd, asked, other)
        grad_x = found.x if low is None else found.low
        sums = found.gamma if asks_gamma else None, found.beta if asks_beta else None
        return grad_x if asks_x else None, found.x if asks_residual else None, *sums, None, None


class Output(NamedTuple):
    z: Tensor
    handed: Handed  # z for those that read it next


def quick_norm(
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    residual: Tensor | None = None,
) -> Output:
    """The layer norm of x, or of x + residual, over its last dimension, in x's shape, and what readers are handed: its
    cast to `dtype` as rows [N, D], and its other door.

    z and the door have a gradient, and the cast has none: it is for those who compute the gradient of what they read by
    themselves, as kernels/linear.py does. A second derivative is refused.
    """
    z, door, low = _QuickNorm.apply(x, residual, gamma, beta, eps, dtype)
    return Output(z, Handed(low, door))


def normalise(
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    residual: Tensor | None = None,
) -> Normalised:
    """The forward pass, for a contiguous x and residual."""
    if _has_kernels(x):
        from steadytune.kernels.norm_triton import normalise_triton

        return normalise_triton(x, gamma, beta, eps, dtype, residual)
    return normalise_torch(x, gamma, beta, eps, dtype, residual)


def normalise_torch(
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    residual: Tensor | None = None,
) -> Normalised:
    x = x if residual is None else x + residual
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = wide.mean(-1)
    centred = wide - mean[..., None]
    rstd = (centred.square().mean(-1) + eps).rsqrt()
    z = centred * rstd[..., None]
    if gamma is not None:
        z = z * gamma
    if beta is not None:
        z = z + beta
    return Normalised(z, z.to(dtype).view(-1, x.shape[-1]), mean, rstd, x)


def gradients(
    grad: Tensor,
    x: Tensor,
    gamma: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    asked: Asked,
    other: Tensor | None = None,
) -> Gradients:
    """The backward pass; the same bits every time. `grad` and `other` are g₁ and g₂, contiguous as x."""
    if _has_kernels(x) and grad.dtype in _TYPES and (other is None or other.dtype in _TYPES):
        from steadytune.kernels.norm_triton import gradients_triton

        return gradients_triton(grad, x, gamma, mean, rstd, asked, other)
    return gradients_torch(grad, x, gamma, mean, rstd, asked, other)


def gradients_torch(
    grad: Tensor,
    x: Tensor,
    gamma: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    asked: Asked,
    other: Tensor | None = None,
) -> Gradients:
    g = grad.to(mean.dtype) if other is None else grad.to(mean.dtype) + other
    x_hat, columns = (x.to(mean.dtype) - mean[..., None]) * rstd[..., None], x.shape[-1]
    grad_x = low = grad_gamma = grad_beta = None
    if asked.x or asked.low is not None:
        scaled = g * gamma if gamma is not None else g
        inner = scaled - scaled.mean(-1, keepdim=True) - x_hat * (scaled * x_hat).mean(-1, keepdim=True)
        whole = inner * rstd[..., None]
        grad_x = whole.to(x.dtype) if asked.x else None
        low = whole.to(asked.low) if asked.low is not None else None
    if asked.sums:
        grad_gamma, grad_beta = (g * x_hat).view(-1, columns).sum(0), g.view(-1, columns).sum(0)
    return Gradients(grad_x, grad_gamma, grad_beta, low)


def _has_kernels(x: Tensor) -> bool:
    """Whether there are any for this x; one without elements needs none."""
    if x.device.type not in DEVICES or not _HAS_TRITON:
        return False
    return x.dtype in _TYPES and x.numel() > 0 and x.shape[-1] <= WIDEST
