"""What a list of scores is, before any statistic sees it.

One score per run, higher is better (negate a loss or a perplexity). A run that diverged has a score that is not a
finite number. It is a failed run, not a missing one: dropping it would make an unstable method look good. So it is
given the task's floor (majority or chance score) when the caller names one, and is refused otherwise.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from steadytune.errors import SteadytuneError

Array: TypeAlias = NDArray[np.float64]
Scores: TypeAlias = Sequence[float] | NDArray[np.floating] | NDArray[np.integer]

FEWEST_RUNS = 3  # below this nothing is called significant (T7)


def settle_diverged(scores: Scores, floor: float | None = None, what: str = "scores") -> tuple[Array, int]:
    """The scores as a float array with diverged runs (NaN, +-inf, None) at `floor`, and how many those were."""
    values = np.array(scores, dtype=np.float64)  # a copy: the caller's array is never written to
    if values.ndim != 1:
        raise SteadytuneError(f"The {what} must be one number per run, not an array of shape {values.shape}.")
    if values.size == 0:
        raise SteadytuneError(f"The {what} are empty: there is no run to describe.")
    return floored(values, floor, what)


def floored(values: Array, floor: float | None, what: str) -> tuple[Array, int]:
    """`settle_diverged` for an array of any shape that the caller already owns."""
    diverged = ~np.isfinite(values)
    count = int(diverged.sum())
    if count == 0:
        return values, 0
    if floor is None:
        where = ", ".join(str(i) for i in np.flatnonzero(diverged.ravel())[:5]) + (", ..." if count > 5 else "")
        raise SteadytuneError(
            f"{count} of {values.size} {what} are not finite (position {where}): those runs diverged. "
            "Pass the task's majority or chance score as the floor to count them as failed; they are never dropped."
        )
    if not np.isfinite(floor):
        raise SteadytuneError(f"The floor for diverged runs must be a finite score, not {floor}.")
    values[diverged] = floor
    return values, count


def pair_by_seed(a: Mapping[Hashable, float], b: Mapping[Hashable, float]) -> tuple[Array, Array]:
    """Two methods' scores in one common seed order, so that paired tests compare the same seeds (T7, M18).

    A seed that only one of them ran is refused rather than left out: which runs are missing is rarely chance.
    """
    alone = sorted(map(str, set(a) ^ set(b)))
    if alone:
        raise SteadytuneError(
            f"Seeds {', '.join(alone[:5])}{', ...' if len(alone) > 5 else ''} were run by only one of the two methods. "
            "Run the missing ones, or compare unpaired."
        )
    return np.array([a[seed] for seed in a], dtype=np.float64), np.array([b[seed] for seed in a], dtype=np.float64)


def diverged_note(count: int, floor: float | None) -> str:
    """How a result says that some of its scores are floors."""
    if count == 0:
        return ""
    return f"{count} diverged {'run' if count == 1 else 'runs'} counted at the floor {floor:g}"


def all_equal(values: Array, scale: float | None = None) -> bool:
    """No spread beyond rounding. `scale`: the size of the numbers these were computed from, if larger."""
    size = float(np.abs(values).max()) if scale is None else scale
    return float(np.ptp(values)) <= 1e-12 * size


def joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
