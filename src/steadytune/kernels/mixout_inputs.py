"""Layers that read the same tensor, as query, key and value do, share its cast to the type of the product.

    first reader     casts x, and leaves the cast for the next
    next readers     take it, if they are given the same tensor, unchanged, on the same stream
    last reader      takes it away

The cast is held as handed_on.py says: a reader that never comes costs no memory, and one that finds nothing casts for
itself. The first reader always casts anew, so nothing is carried from one step or recomputation to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steadytune.kernels.handed_on import SharedCast, is_plain


@dataclass(frozen=True, eq=False)
class Reader:
    """One of the layers that read the same tensor, in the order of their calls."""

    cast: SharedCast
    is_first: bool
    is_last: bool

    def find(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:
        """x in `dtype`, where a reader before has left it."""
        if self.is_first or not is_plain(x):
            return None
        return self.cast.get(x, dtype)

    def leave_(self, x: Tensor, low: Tensor) -> None:
        """Leave x in another type for the next reader; behind the last one nothing is left."""
        if self.is_last or not is_plain(x):
            self.cast.clear_()
        else:
            self.cast.put_(x, low)


def readers(count: int) -> list[Reader]:
    """One for each of `count` layers."""
    cast = SharedCast()
    return [Reader(cast, number == 0, number == count - 1) for number in range(count)]
