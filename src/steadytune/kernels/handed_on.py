"""What one layer has made of a tensor, for the next layer that is given that very tensor.

It is held no longer than the tensor itself lives, and handed to nobody who is given another one, or this one changed,
on another stream or in another mode: whoever finds nothing makes it anew. So threads that run one model at once only
lose the saving, and nothing is carried from one step or CUDA graph to the next.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadytune.kernels.kept_inputs import Source


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


class Jointly(HandedOn):
    """Layers that are given the same tensor, in the order of their calls: the first computes the outputs of all."""

    layers: tuple[Any, ...] = ()  # none in a copy: its layers compute for themselves

    def __init__(self, layers: Iterable[Any]) -> None:
        self.layers = tuple(layers)

    def output(self, layer: Any, x: Tensor, compute: Callable[[], Sequence[Tensor] | None]) -> Tensor | None:
        """The layer's output. None where it is not there: then the layer computes it alone.

        `compute` gives the outputs of all layers, or None where they cannot be computed together now.
        """
        if not self.layers or layer is not self.layers[0]:
            outputs = self.of(x)
            return outputs.pop(layer, None) if outputs else None
        self.clear_()
        made = compute()
        if made is None:
            return None
        self.put_(x, dict(zip(self.layers[1:], made[1:], strict=True)))
        return made[0]


class Handed(NamedTuple):
    """X, as the layer that made it leaves it for those that read it next."""

    rows: Tensor  # X in autocast's type, [N, D], without a gradient of its own
    door: Tensor | None = None  # X again: what is given back through it reaches its maker apart from X's own gradient
    source: Source | None = None  # who can make columns of X again in the backward pass


class SharedCast(HandedOn):
    """A tensor as `Handed`, in one type."""

    def get(self, x: Tensor, dtype: torch.dtype) -> Handed | None:
        handed: Handed | None = self.of(x)
        return handed if handed is not None and handed.rows.dtype == dtype else None


def is_plain(x: Tensor) -> bool:
    """An inference tensor does not count its changes; what a subclass does is unknown."""
    return type(x) in (Tensor, torch.nn.Parameter) and not x.is_inference()


def _context(x: Tensor) -> tuple[Any, ...]:
    """What must be the same when the cast is made and when it is taken."""
    stream: tuple[Any, ...] = ()
    if x.is_cuda:
        stream = (torch.cuda.current_stream(x.device).cuda_stream, torch.cuda.is_current_stream_capturing())
    return (x._version, torch.is_inference_mode_enabled(), torch.is_grad_enabled(), *stream)
