"""`KeptGradients.finish_` as one Triton kernel for all layers: it touches one element of each row of G."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from steadytune.kernels.kept_gradients import BLOCK, KeptGradients

WARPS = 4


@triton.jit
def _finish(table, owners, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    block = tl.program_id(0)
    entry = table + tl.load(owners + block) * 6
    rows, width = tl.load(entry + 1), tl.load(entry + 2)
    row = (block - tl.load(entry + 5)) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    last = tl.load(entry).to(tl.pointer_type(tl.float32)) + row * width + (width - 1)
    # Spread out before they are compared: Triton's interpreter (3.9) takes a single truth value for a whole number.
    has_ones = tl.broadcast_to(tl.load(tl.load(entry + 3).to(tl.pointer_type(tl.int32))), [BLOCK]) < 0
    value = tl.load(last, mask=inside, other=0.0)
    bias = tl.load(entry + 4)
    has_bias = tl.broadcast_to(bias, [BLOCK]) != 0
    value = tl.where(has_ones, value, float("nan"))
    tl.store(bias.to(tl.pointer_type(tl.float32)) + row, value, mask=inside & has_bias)
    tl.store(last, tl.zeros([BLOCK], tl.float32), mask=inside & has_ones)


def finish_triton_(gradients: KeptGradients) -> None:
    with torch.cuda.device_of(gradients.memory):
        _finish[(gradients.blocks,)](gradients.table, gradients.owners, BLOCK=BLOCK, num_warps=WARPS)
