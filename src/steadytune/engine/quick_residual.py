"""Residual connections that end in a layer norm, as one pass: z = norm(dropout(dense(h)) + r).

    quicken_norms_(model, torch.bfloat16, produced)
    quicken_residuals_(model)                # how many modules became quick
    unquicken_residuals_(model)

In transformers many modules of many models (BERT's BertOutput and BertSelfOutput, and what was copied from them) have
this very forward:

    hidden_states = self.dense(hidden_states)
    hidden_states = self.dropout(hidden_states)
    hidden_states = self.LayerNorm(hidden_states + input_tensor)
    return hidden_states

A module is taken if its class's forward says just that, whatever its name, and its norm is a quick one: that is then
given both summands (quick_norm.py) and makes the sum in its own pass, as it makes the sum of gradients in its backward
pass. Where the norm is not quick for them it adds them up, as the plain module does.

The class is exchanged (quick_layer.py) for a subclass of the module's own class, made for it here; copies and pickles
are plain modules again.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

from torch import Tensor, nn

from steadytune.engine.quick_layer import give_back_class_
from steadytune.engine.quick_norm import QuickNorm

_BODY = """
hidden_states = self.dense(hidden_states)
hidden_states = self.dropout(hidden_states)
hidden_states = self.LayerNorm(hidden_states + input_tensor)
return hidden_states
"""


class QuickResidual:
    """Beside a module with the forward above."""

    dense: nn.Module
    dropout: nn.Module
    LayerNorm: nn.Module

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        hidden_states = self.dropout(self.dense(hidden_states))
        if isinstance(self.LayerNorm, QuickNorm):
            return self.LayerNorm(hidden_states, input_tensor)
        return self.LayerNorm(hidden_states + input_tensor)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As the plain module: nobody finds a class by its name that was made here."""
        return _new, (type(self).__mro__[2],), self.__getstate__()


def quicken_residuals_(model: nn.Module) -> int:
    """Put a quick class on every module with that forward and a quick norm; how many there are."""
    found = [module for module in model.modules() if _can_be_quick(module)]
    for module in found:
        module.__class__ = _quick_class(type(module))  # type: ignore[arg-type]
    return len(found)


def unquicken_residuals_(model: nn.Module) -> None:
    for module in list(quick_residuals(model)):
        give_back_class_(module, type(module).__mro__[2])


def quick_residuals(model: nn.Module) -> Iterator[nn.Module]:
    return (module for module in model.modules() if isinstance(module, QuickResidual))


def _can_be_quick(module: nn.Module) -> bool:
    if isinstance(module, QuickResidual) or "forward" in vars(module):
        return False
    parts = [getattr(module, name, None) for name in ("dense", "dropout", "LayerNorm")]
    return (
        isinstance(parts[2], QuickNorm)
        and all(isinstance(part, nn.Module) for part in parts)
        and _says_just_that(type(module))  # type: ignore[arg-type]  # mypy takes no class for hashable
    )


@cache
def _says_just_that(cls: type[nn.Module]) -> bool:
    """Whether this is the class's forward, to the letter."""
    if hasattr(cls.forward, "__wrapped__"):
        return False  # a decorator does more than the source says that it hands on
    try:
        lines = inspect.getsource(cls.forward).splitlines()
        names = list(inspect.signature(cls.forward).parameters)
    except (OSError, TypeError, ValueError):
        return False  # nobody has its source
    head = next((number for number, line in enumerate(lines, 1) if line.rstrip().endswith(":")), len(lines))
    return (
        names == ["self", "hidden_states", "input_tensor"] and textwrap.dedent("\n".join(lines[head:])) == _BODY.strip()
    )


@cache
def _quick_class(cls: type[nn.Module]) -> type[nn.Module]:
    return type(f"Quick{cls.__name__}", (QuickResidual, cls), {"__module__": __name__})


def _new(cls: type[nn.Module]) -> nn.Module:
    return cls.__new__(cls)
