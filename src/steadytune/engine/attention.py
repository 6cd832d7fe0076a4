"""How attention is computed in a training pass, where torch's own choice is slow.

On a CPU torch takes its flash kernel for attention without dropout. In a low precision its forward and backward pass
take 1.4 to 6 times as long as plain matrix products for rows of 16 to 128 tokens, and longer than in float32 (x86-64
with AVX-512 bfloat16, torch 2.13; `python benchmarks/attention.py`). Beyond that, mostly in float32, and where nothing
is learned, it is the faster one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

SHORT = 128  # tokens


def attention(precision: str, batch: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """For the forward pass of a batch; its backward pass goes the same way."""
    rows = [batch[name] for name in ("input_ids", "labels") if name in batch and batch[name].ndim == 2]
    if precision == "fp32" or not rows or rows[0].device.type != "cpu":
        return nullcontext()
    return sdpa_kernel(SDPBackend.MATH) if max(each.shape[1] for each in rows) <= SHORT else nullcontext()
