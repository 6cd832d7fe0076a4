"""One file per method. `all_methods()` finds them: a new file is listed, documented and tested by the suites without
being named."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steadytune.methods.base import Method


def all_methods() -> dict[str, type[Method]]:
    """Every method by name, in the order of the places of a run."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    from steadytune.methods.base import METHODS, PLACES

    places = list(PLACES)
    return dict(sorted(METHODS.items(), key=lambda item: (places.index(item[1].place), item[0])))
