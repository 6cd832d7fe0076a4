"""What tests of kept gradients share, on the CPU and on a device."""

import torch
from torch import nn


def dense_gradients_(layers):
    """[(of the weight, of the bias or None)] of every layer, and their norm; afterwards the layers have none."""
    found = [(each.weight.grad, None if each.bias is None else each.bias.grad) for each in layers]
    for each in layers:
        each.weight.grad = None
        if each.bias is not None:
            each.bias.grad = None
    return found, nn.utils.get_total_norm([grad for pair in found for grad in pair if grad is not None])


def every_number(dtype, device="cpu"):
    """All that a type of 16 bits has, infinities and NaN among them; and what GELU's backward pass makes of a gradient
    of 1 and of GELU itself there, in float64."""
    h = torch.arange(2**16, dtype=torch.int32, device=device).to(torch.int16).view(dtype).view(256, 256)
    exact = h.double()
    normal, bell = torch.special.ndtr(exact), (-exact.square() / 2).exp() / (2 * torch.pi) ** 0.5
    return h, normal + exact * bell, exact * normal
