"""What tests of kept gradients share, on the CPU and on a device."""

from torch import nn


def dense_gradients_(layers):
    """[(of the weight, of the bias or None)] of every layer, and their norm; afterwards the layers have none."""
    found = [(each.weight.grad, None if each.bias is None else each.bias.grad) for each in layers]
    for each in layers:
        each.weight.grad = None
        if each.bias is not None:
            each.bias.grad = None
    return found, nn.utils.get_total_norm([grad for pair in found for grad in pair if grad is not None])
