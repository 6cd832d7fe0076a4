"""Products of low types whose sums stay in float32: what linear layers multiply in their backward pass.

product          dX = dY W'          a CUDA device writes float32 from low types at once, without a pass that casts
weight_product   dW = dYᵀ X          the same; cut into parts over tokens, where that is wanted
weight_product_  G (+)= dYᵀ X_k      into a place that is there already (kept_gradients.py)
weight_products_                     of several layers that read the same X, at once where that is quicker
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steadytune.kernels.kept_gradients import KeptGradient

SPLIT_TILES = 0  # weight gradients are split over tokens into up to so many tiles (132 on an H200); 0: cuBLAS decides
SPLIT_TOKENS = 512  # and no part gets fewer tokens
# Up to so many tokens, or kept columns, one batched product is quicker than three: for BERT-large's query, key and
# value on an H200 (us) 26 against 31 with 4,096 tokens and 384 columns, 48 against 60 with 16,384 and 192, but 98
# against 81 with 16,384 and 384.
JOINT_TOKENS, JOINT_COLUMNS = 8192, 256


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b in `dtype`; a CUDA device writes float32 from low types at once, without a pass that casts."""
    if _writes_float32(a) and dtype == torch.float32:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


def weight_product(rows: Tensor, inputs: Tensor) -> Tensor:
    """dYᵀ X: [out, columns], or parts [splits, out, columns] that are still to be summed."""
    count = splits(len(rows), rows.shape[1], inputs.shape[1])
    if count == 1:
        return product(rows.t(), inputs, torch.float32 if _writes_float32(rows) else rows.dtype)
    left = rows.reshape(count, -1, rows.shape[1]).transpose(1, 2)
    right = inputs.view(count, -1, inputs.shape[1])
    return torch.bmm(left, right, out_dtype=torch.float32) if _writes_float32(rows) else torch.bmm(left, right)


def weight_product_(kept: KeptGradient, rows: Tensor, inputs: Tensor) -> None:
    """`weight_product` to where it stays: written there by the product itself, if it is the first of a step."""
    is_whole = splits(len(rows), rows.shape[1], inputs.shape[1]) == 1
    if is_whole and not kept.adds and _writes_float32(rows):
        torch.mm(rows.t(), inputs, out_dtype=torch.float32, out=kept.values)
        kept.written_()
    elif is_whole and not kept.adds and rows.dtype == torch.float32:
        torch.mm(rows.t(), inputs, out=kept.values)
        kept.written_()
    else:
        part = weight_product(rows, inputs)
        kept.take_(part if is_whole else part.sum(0))


def weight_products_(kept: Sequence[KeptGradient], rows: Tensor, inputs: Sequence[Tensor]) -> None:
    """`weight_product_` of layers whose dY lie side by side."""
    first, count = kept[0].values, len(kept)
    tokens, columns = inputs[0].shape
    few = tokens <= JOINT_TOKENS or columns <= JOINT_COLUMNS
    if count > 1 and few and _writes_float32(rows) and not any(each.adds for each in kept):
        places, together = joined([each.values for each in kept]), joined(inputs)
        if places is not None and together is not None:
            left = rows.view(tokens, count, len(first)).permute(1, 2, 0)
            torch.bmm(left, together, out_dtype=torch.float32, out=places)
            for each in kept:
                each.written_()
            return
    for each, own, taken in zip(kept, rows.split([len(each.values) for each in kept], 1), inputs, strict=True):
        weight_product_(each, own, taken)


def joined(parts: Sequence[Tensor]) -> Tensor | None:
    """Tensors of one shape that lie one behind the other, as one of them all; None where they do not."""
    first = parts[0]
    step = first.numel() * first.element_size()
    for number, each in enumerate(parts):
        alike = (each.shape, each.dtype, each.device) == (first.shape, first.dtype, first.device)
        if not alike or not each.is_contiguous() or each.data_ptr() != first.data_ptr() + number * step:
            return None
        if each.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return None
    return first.as_strided((len(parts), *first.shape), (first.numel(), *first.stride()))


def splits(tokens: int, out: int, columns: int) -> int:
    """Into how many parts the tokens of a weight gradient are cut, so that a small one keeps the whole device busy."""
    tiles, count = -(-out // 128) * -(-columns // 128), 1
    while 2 * count * tiles <= SPLIT_TILES and tokens % (2 * count) == 0 and tokens // (2 * count) >= SPLIT_TOKENS:
        count *= 2
    return count


def _writes_float32(rows: Tensor) -> bool:
    return rows.is_cuda and rows.dtype in (torch.bfloat16, torch.float16) and rows.numel() > 0
