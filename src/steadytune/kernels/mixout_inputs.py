"""Layers that read the same tensor, as query, key and value do, share its cast to the type of the product.

    first reader     casts x, and leaves the cast for the next
    next readers     take it, if they are given the same tensor, unchanged, on the same stream
    last reader      takes it away

The cast is held no longer than x itself lives: a reader that never comes costs no memory. The first reader always casts
anew, so nothing is carried from one step, CUDA graph or recomputation to the next. Each reader that finds nothing casts
for itself; so threads that run one model at once only lose the saving.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Held(NamedTuple):
    source: weakref.ref[Tensor]
    context: tuple[Any, ...]
    what: Any


class HandedOn:
    """Something that was made of a tensor, for whoever is given that very tensor next. A copy or a pickle is empty."""

    _held: _Held | None = None

    def of(self, x: Tensor) -> Any:
        """What was made of x, if x is the same tensor, unchanged, on the same stream; else None."""
        held = self._held  # read once: another thread may exchange it
        if held is None or held.source() is not x or held.context != _context(x):
            return None
        return held.what

    def put_(self, x: Tensor, what: Any) -> None:
        self._held = _Held(weakref.ref(x, self._forget_), _context(x), what)

    def clear_(self) -> None:
        self._held = None

    def _forget_(self, source: weakref.ref[Tensor]) -> None:
        held = self._held
        if held is not None and held.source is source:
            self._held = None

    def __getstate__(self) -> dict[str, Any]:
        return {}


class SharedCast(HandedOn):
    """A tensor's cast to another type."""

    def get(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:
        low = self.of(x)
        return low if low is not None and low.dtype == dtype else None


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


def is_plain(x: Tensor) -> bool:
    """An inference tensor does not count its changes; what a subclass does is unknown."""
    return type(x) in (Tensor, torch.nn.Parameter) and not x.is_inference()


def _context(x: Tensor) -> tuple[Any, ...]:
    """What must be the same when the cast is made and when it is taken."""
    stream: tuple[Any, ...] = ()
    if x.is_cuda:
        stream = (torch.cuda.current_stream(x.device).cuda_stream, torch.cuda.is_current_stream_capturing())
    return (x._version, torch.is_inference_mode_enabled(), torch.is_grad_enabled(), *stream)
