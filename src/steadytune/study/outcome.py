"""What a trial hands back to its worker, and how it is asked to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a trial. A diverged run is one too: it is counted, and never tried again.

    Where `result` has "best" or "last", mappings with "validation" and "test", these four numbers are also kept where
    `status` finds them without reading results; so is its "seconds".
    """

    status: Literal["finished", "diverged"]
    result: Mapping[str, Any]  # plain data for JSON; NaN and infinities become null
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)  # predictions by split: numbers, no objects


class Stopped(Exception):
    """Raised by a run that was asked to stop, once its checkpoint is written. It is given back and does not count."""


Run = Callable[[dict[str, Any], Path, Callable[[dict[str, Any]], None], threading.Event], Outcome]
"""run(spec, folder, progress, stop): one trial. `folder` is its own, with what an earlier attempt left there."""
