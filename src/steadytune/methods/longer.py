"""Train longer: more optimiser steps than the three epochs that became a habit.

    T' = steps,   or ⌈epochs · T_epoch⌉,   or ⌈times · T⌉          with T' >= T

Three epochs of 1,000 rows are 96 steps; the few-sample paper (section 6) tunes T' in {200, 400, 800, 1600, 3200} and
finds that most small datasets want more than 96, each its own number.

Relations: a schedule given as a part of the run (warm-up of 10%) stretches with it, as in the paper. Re-init needs
fewer steps to get to its best, and longer training closes part of the gap between the two.
Caveats: evaluate as often in the long run as in the short one (10 times in the paper), or the longer run also gets
more checkpoints to choose from. What would make the run shorter, or leave it as it is, is an error.
"""

from __future__ import annotations

import math

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.methods.base import FEW_SAMPLE, Length, Method, check_at_least, method

STEPS = (200, 400, 800, 1600, 3200)  # the paper's grid, section 6
_TIMES = 3.0  # where nothing is given: 288 steps on the paper's 1k sets, near the low end of its grid


def longer(length: Length, steps: int | None = None, epochs: float | None = None, times: float | None = None) -> Length:
    """T' = steps, or ⌈epochs · T_epoch⌉, or ⌈times · T⌉, for the one that is given; never below T."""
    words = _check_one(steps, epochs, times)
    if steps is not None:
        asked = steps
    elif epochs is not None:
        asked = math.ceil(epochs * length.steps_per_epoch)
    else:
        assert times is not None
        asked = math.ceil(times * length.steps)
    if asked < length.steps:
        raise SteadytuneError(
            f"Longer({words}) would cut the run from {length.steps} steps to {asked}. Ask for more, or leave Longer "
            "out: the paper skips values below the usual length."
        )
    if asked == length.steps and times != 1.0:
        raise NoEffect(
            f"Longer({words}) asks for the {asked} steps that the run has anyway. Ask for more, or leave it out."
        )
    return Length(asked, length.steps_per_epoch)


@method("longer", place="schedule", paper=FEW_SAMPLE, items="V16", null={"times": 1.0})
class Longer(Method):
    """Train for more steps: give steps, epochs or times. With nothing given, three times as long."""

    steps: int | None = None  # optimiser steps in all; the paper tunes 200, 400, 800, 1600, 3200
    epochs: float | None = None  # passes over the data in all
    times: float | None = None  # this many times the run's own length; 3 if nothing is given

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None and self.times is None:
            object.__setattr__(self, "times", _TIMES)  # written down, so that the run's record says it
        _check_one(self.steps, self.epochs, self.times)

    def replaces(self) -> frozenset[str]:
        return frozenset() if self.is_null() else frozenset({"length"})

    def length(self, length: Length) -> Length:
        return longer(length, self.steps, self.epochs, self.times)


def _check_one(steps: int | None, epochs: float | None, times: float | None) -> str:
    """Refuse all but one valid setting; returns it as it was written."""
    given = {k: v for k, v in (("steps", steps), ("epochs", epochs), ("times", times)) if v is not None}
    if len(given) != 1:
        named = " and ".join(given) or "nothing"
        raise SteadytuneError(f"Longer: give exactly one of steps, epochs and times; {named} was given.")
    if steps is not None:
        check_at_least("steps", steps, 1, "Longer")
        if not isinstance(steps, int):
            raise SteadytuneError(f"Longer: steps must be a whole number, not {steps!r}.")
    if epochs is not None:
        check_at_least("epochs", epochs, 0.0, "Longer")
    if times is not None:
        check_at_least("times", times, 1.0, "Longer")
    return ", ".join(f"{key}={value:g}" for key, value in given.items())
