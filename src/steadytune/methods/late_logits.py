"""Logits that are not computed before somebody asks for them. No method here.

A language model's logits are the last thing it computes, z = h Wᵀ + b, and for a large vocabulary by far the largest.
Inside `logits_later(model)` the output layer returns `LateLogits` instead: a tensor that knows h, W and b. A loss that
can work from those (kernels/rdrop.py) never makes the logits. For everyone else they are an ordinary tensor: the first
operation on them, whatever it is, computes them. Only three things leave them late: taking rows, a change to float32,
and adding a constant to each class (the final_logits_bias of BART and Marian).

So a model that does more to its logits (softcapping, scaling) gets what it would have got, and so does a model that
makes its logits without calling its output layer. That they are held in full after all is said in a warning, with the
reason, and by `why_in_full(model)`; the numbers are the same either way, but for rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from steadytune.methods.loss import unwrap

LARGE_VOCABULARY = 4096  # fewer classes than this: the logits are not what fills the memory

_IN_FULL: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # the sentence of models that hold their logits

_FACTS = {  # what can be asked of a tensor without its values
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda")),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point),
}
_ADDITIONS = {Tensor.add, Tensor.__add__, Tensor.__radd__, torch.add}


class LateLogits(Tensor):
    """hidden @ weight.T + bias + offset, in `product_type`, not computed yet; see the module."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    offset: Tensor | None  # a constant for each class, added to the product
    product_type: torch.dtype
    asked: str | None  # the first operation that needed the values
    _computed: Tensor | None

    @staticmethod
    def __new__(
        cls,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        product_type: torch.dtype,
        dtype: torch.dtype | None = None,
        offset: Tensor | None = None,
    ) -> LateLogits:
        made = Tensor._make_wrapper_subclass(
            cls,
            (*hidden.shape[:-1], len(weight)),
            dtype=dtype or product_type,
            device=hidden.device,
            requires_grad=torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad),
        )
        made.hidden, made.weight, made.bias, made.offset = hidden, weight, bias, offset
        made.product_type, made.asked, made._computed = product_type, None, None
        return made

    def compute(self) -> Tensor:
        """The logits, computed now, as the layer would have done it."""
        if self._computed is None:
            to = self.product_type
            with torch.autocast(self.hidden.device.type, enabled=False):
                bias = None if self.bias is None else self.bias.to(to)
                made = functional.linear(self.hidden.to(to), self.weight.to(to), bias)
            self._computed = (made if self.offset is None else made + self.offset).to(self.dtype)
        return self._computed

    def _with(self, **changes: Any) -> LateLogits:
        known = {name: getattr(self, name) for name in ("hidden", "weight", "bias", "product_type", "dtype", "offset")}
        return LateLogits(**(known | changes))

    def _still_late(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation that needs no values, or None."""
        given = args[1:]
        if func in (Tensor.chunk, torch.chunk) and len(given) == 1 and not kwargs and args[0] is self:
            return tuple(self._with(hidden=part) for part in self.hidden.chunk(*given))
        if func is Tensor.__getitem__ and isinstance(given[0], slice):
            return self._with(hidden=self.hidden[given[0]])
        if (func is Tensor.float or (func is Tensor.to and given == (torch.float32,))) and not kwargs:
            if self.dtype == torch.float64:
                return None
            return self._with(dtype=torch.float32)
        if func in _ADDITIONS and len(args) == 2 and not kwargs and self.offset is None:
            other = args[1] if args[0] is self else args[0]
            one_each = isinstance(other, Tensor) and other.shape[-1:] == self.shape[-1:] and other.ndim <= self.ndim
            if one_each and other.numel() == len(self.weight) and not other.requires_grad:
                return self._with(offset=other.reshape(-1), dtype=torch.promote_types(self.dtype, other.dtype))
        return None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        late = next((each for each in args if isinstance(each, LateLogits)), None)
        if late is not None:
            found = late._still_late(func, args, kwargs)
            if found is not None:
                return found

        def computed(logits: LateLogits) -> Tensor:
            logits.asked = logits.asked or getattr(func, "__name__", str(func))
            return logits.compute()

        return func(*tree_map_only(LateLogits, computed, args), **tree_map_only(LateLogits, computed, kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func} reached logits that were not computed yet.")  # __torch_function__ is first


@contextmanager
def logits_later(model: nn.Module, owner: str) -> Iterator[None]:
    """Inside, the model's logits are `LateLogits` where its vocabulary is large and nothing is in the way."""
    layer = output_layer(model)
    if layer is None or _classes(layer) < LARGE_VOCABULARY:
        yield
        return
    reason = why_not(model, layer)
    made: list[LateLogits] = []
    if reason is None:
        layer.forward = lambda input: _remember(made, _late(layer, input))
    try:
        yield
    finally:
        if reason is None:
            del layer.forward
    if reason is None and not made:
        reason = "it makes its logits without calling its output layer"
    asked = next((each.asked for each in made if each.asked is not None), None)
    if asked is not None:
        reason = f"it changes them after its output layer ({asked})"
    _IN_FULL.pop(unwrap(model), None)
    if reason is not None:
        _IN_FULL[unwrap(model)] = said = (
            f"{owner}: {type(unwrap(model)).__name__} holds the logits of all passes in full, because {reason}. The "
            "loss is the same, but takes more memory and time."
        )
        warnings.warn(said, stacklevel=3)


def why_in_full(model: nn.Module) -> str | None:
    """Why this model's logits were computed after all, as a sentence; None where they were not, or there are few."""
    return _IN_FULL.get(unwrap(model))


def output_layer(model: nn.Module) -> nn.Module | None:
    """The layer that a Hugging Face model says makes its logits."""
    find = getattr(unwrap(model), "get_output_embeddings", None)
    try:
        found = find() if callable(find) else None
    except NotImplementedError:
        return None
    return found if isinstance(found, nn.Module) and isinstance(getattr(found, "weight", None), Tensor) else None


def why_not(model: nn.Module, layer: nn.Module) -> str | None:
    """What is in the way of late logits, as the end of a sentence; None if nothing is."""
    inner = unwrap(model)
    if model is not inner and not callable(getattr(model, "get_base_model", None)):
        return f"it is inside {type(model).__name__}"
    if any(getattr(each, "_compiled_call_impl", None) is not None for each in (model, inner, layer)):
        return "it was compiled as a whole"
    if type(layer) is not nn.Linear and not getattr(layer, "is_quick", False):
        return f"its output layer is {type(layer).__name__}, not a plain nn.Linear"
    if "forward" in vars(layer) or layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
        return "its output layer has hooks"
    return None


def _classes(layer: nn.Module) -> int:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return int(weight.shape[0])


def _late(layer: nn.Module, hidden: Tensor) -> LateLogits:
    assert isinstance(layer, nn.Linear)
    kind = hidden.device.type
    cast = torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64
    return LateLogits(hidden, layer.weight, layer.bias, torch.get_autocast_dtype(kind) if cast else hidden.dtype)


def _remember(made: list[LateLogits], late: LateLogits) -> LateLogits:
    made.append(late)
    return late
