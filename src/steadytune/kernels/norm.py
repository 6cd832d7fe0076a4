"""A layer norm under autocast, with fewer and shorter kernels than torch's own.

For a row x of D numbers, with the gradient g of z, and means over the row:

    μ  = mean(x),   ρ = 1 / √(mean((x - μ)²) + ε),   x̂ = (x - μ) ρ
    z  = γ x̂ + β            in float32; and in the same pass z' = z in autocast's type, for the layers that read z
    dx = ρ [ γ g - mean(γ g) - x̂ mean(γ g x̂) ]      in x's type
    dγ = Σ_rows g x̂,        dβ = Σ_rows g            in float32

The function is that of `functional.layer_norm` under CUDA's autocast: in float32 whatever type x has. Autocast casts z
once for each layer that reads it; here whoever makes z leaves its cast (engine/quick_norm.py). What stays in memory
until the backward pass is x in its own type, where autocast keeps it in float32, and μ and ρ.

    x, z       [..., D]      all dimensions but the last are N rows
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


class Gradients(NamedTuple):
    """What a backward pass makes; None is what nobody asked for."""

    x: Tensor | None
    gamma: Tensor | None
    beta: Tensor | None


def is_served(device: str) -> bool:
    """Whether layers there may run this way. A CPU is for tests, in plain torch or through Triton's interpreter."""
    return device in DEVICES and (_HAS_TRITON or device != "cuda")


class _QuickNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        z, low, mean, rstd = normalise(x, gamma, beta, eps, dtype)
        ctx.save_for_backward(x, gamma, mean, rstd)
        ctx.mark_non_differentiable(low)
        ctx.set_materialize_grads(False)  # or autograd would write zeros for the gradient of `low`
        return z, low

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None, None
        asks_x, asks_gamma, asks_beta, *_ = ctx.needs_input_grad
        x, gamma, mean, rstd = ctx.saved_tensors
        found = gradients(grad.contiguous(), x, gamma, mean, rstd, asks_x, asks_gamma or asks_beta)
        return found.x, found.gamma if asks_gamma else None, found.beta if asks_beta else None, None, None


def quick_norm(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The layer norm of x over its last dimension, in x's shape, and its cast to `dtype` as rows [N, D].

    Only the first has a gradient: the second is for those who compute the gradient of what they read by themselves,
    as kernels/linear.py does. A second derivative is refused.
    """
    return _QuickNorm.apply(x, gamma, beta, eps, dtype)


def normalise(x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, dtype: torch.dtype) -> Normalised:
    """The forward pass, for a contiguous x."""
    if _has_kernels(x):
        from steadytune.kernels.norm_triton import normalise_triton

        return normalise_triton(x, gamma, beta, eps, dtype)
    return normalise_torch(x, gamma, beta, eps, dtype)


def normalise_torch(x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, dtype: torch.dtype) -> Normalised:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = wide.mean(-1)
    centred = wide - mean[..., None]
    rstd = (centred.square().mean(-1) + eps).rsqrt()
    z = centred * rstd[..., None]
    if gamma is not None:
        z = z * gamma
    if beta is not None:
        z = z + beta
    return Normalised(z, z.to(dtype).view(-1, x.shape[-1]), mean, rstd)


def gradients(
    grad: Tensor, x: Tensor, gamma: Tensor | None, mean: Tensor, rstd: Tensor, asks_x: bool, asks_sums: bool
) -> Gradients:
    """The backward pass: dx, and with `asks_sums` dγ and dβ; the same bits every time. `grad` is g, contiguous as x."""
    if _has_kernels(x) and grad.dtype in _TYPES:
        from steadytune.kernels.norm_triton import gradients_triton

        return gradients_triton(grad, x, gamma, mean, rstd, asks_x, asks_sums)
    return gradients_torch(grad, x, gamma, mean, rstd, asks_x, asks_sums)


def gradients_torch(
    grad: Tensor, x: Tensor, gamma: Tensor | None, mean: Tensor, rstd: Tensor, asks_x: bool, asks_sums: bool
) -> Gradients:
    g = grad.to(mean.dtype)
    x_hat = (x.to(mean.dtype) - mean[..., None]) * rstd[..., None]
    grad_x = None
    if asks_x:
        scaled = g * gamma if gamma is not None else g
        inner = scaled - scaled.mean(-1, keepdim=True) - x_hat * (scaled * x_hat).mean(-1, keepdim=True)
        grad_x = (inner * rstd[..., None]).to(x.dtype)
    if not asks_sums:
        return Gradients(grad_x, None, None)
    columns = x.shape[-1]
    return Gradients(grad_x, (g * x_hat).view(-1, columns).sum(0), g.view(-1, columns).sum(0))


def _has_kernels(x: Tensor) -> bool:
    """Whether there are any for this x; one without elements needs none."""
    if x.device.type not in DEVICES or not _HAS_TRITON:
        return False
    return x.dtype in _TYPES and x.numel() > 0 and x.shape[-1] <= WIDEST
