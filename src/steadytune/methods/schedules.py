"""Learning-rate schedules: what the base learning rate is multiplied by at each step.

    linear          s/w in warm-up, then (T - s) / (T - w)                   few-sample paper, section 3: w = 10% of T
    inverse_sqrt    s/w in warm-up, then √(w / s)                            R-Drop translation: w = 4000
    polynomial      s/w in warm-up, then (1 - e) ((T - s) / (T - w))^k + e   R-Drop on GLUE: k = 1, e = 0
    constant        s/w in warm-up, then 1                                   w = 0 is the bare optimiser

for step s = 0, 1, ... of T steps, with w steps of warm-up. The functions equal those of transformers, number for
number.

Relations: polynomial with k = 1, e = 0 is linear. fairseq's `inverse_sqrt` (R9) is this one when its
`--warmup-init-lr` is 0; its `polynomial_decay` is this one with e = its end learning rate / the base one. They are
functions of the step alone, so a resumed run needs no scheduler state.
Caveats: as in transformers the first step has factor 0 where there is warm-up. A part of a step is rounded up, as the
Hugging Face trainer does; the few-sample code rounded down. `end` is a factor, while transformers' `lr_end` is a
learning rate.
"""

from __future__ import annotations

import math
import re

from steadytune.errors import SteadytuneError
from steadytune.methods.base import FEW_SAMPLE, RDROP, Length, Method, check_at_least, method

Amount = int | float | str  # of training: 100 or "100 steps"; 0.1 or "10%" of the run; "2 epochs"

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*(steps?|epochs?|%)")


def linear(step: int, steps: int, warmup: int = 0) -> float:
    """s/w up to w, then (T - s) / (T - w) down to 0 at T, and 0 after it."""
    if step < warmup:
        return step / warmup
    return max(0.0, (steps - step) / max(1, steps - warmup))


def inverse_sqrt(step: int, warmup: int = 4000) -> float:
    """s/w up to w, then √(w / s), which does not depend on the length of the run.

    Without warm-up: √(10000 / (s + 10000)), as in transformers (fairseq has no such case).
    """
    if step < warmup:
        return step / warmup
    timescale = warmup or 10_000
    return 1.0 / math.sqrt((step + timescale - warmup) / timescale)


def polynomial(step: int, steps: int, warmup: int = 0, power: float = 1.0, end: float = 0.0) -> float:
    """s/w up to w, then (1 - e) (1 - (s - w) / (T - w))^k + e down to e at T, and e after it."""
    if step < warmup:
        return step / warmup
    if step >= steps:
        return end
    return (1.0 - end) * (1 - (step - warmup) / (steps - warmup)) ** power + end


def constant(step: int, warmup: int = 0) -> float:
    """s/w up to w, then 1."""
    return step / warmup if step < warmup else 1.0


def amount_to_steps(amount: Amount, length: Length) -> int:
    """How many steps an amount of training is; a part of a step is rounded up.

    An int counts steps, a float in [0, 1) is a part of the run; or in words: "100 steps", "10%", "2 epochs".
    """
    number, unit = _parse(amount, "amount_to_steps")
    if unit == "steps":
        return int(number)
    return math.ceil((length.steps_per_epoch if unit == "epochs" else length.steps) * number)


def _parse(amount: Amount, owner: str) -> tuple[float, str]:
    """(number, "steps" | "epochs" | "ratio")"""
    if isinstance(amount, int) and not isinstance(amount, bool) and amount >= 0:
        return amount, "steps"
    if isinstance(amount, float) and 0.0 <= amount < 1.0:
        return amount, "ratio"
    if isinstance(amount, str) and (match := _AMOUNT.fullmatch(amount.strip())):
        number, unit = float(match[1]), match[2].rstrip("s") + "s"
        if unit == "steps" and number.is_integer():
            return number, "steps"
        if unit == "epochs":
            return number, "epochs"
        if match[2] == "%" and number <= 100.0:
            return number / 100.0, "ratio"
    raise SteadytuneError(
        f"{owner}: {amount!r} is no amount of training. Give steps as a whole number (100 or '100 steps'), a part of "
        "the run as a fraction below 1 (0.1 or '10%'), or epochs ('2 epochs')."
    )


def _warmup_within(amount: Amount, length: Length, owner: str) -> int:
    warmup = amount_to_steps(amount, length)
    if warmup > length.steps:
        raise SteadytuneError(
            f"{owner}: a warm-up of {amount!r} is {warmup} steps, but the run has only {length.steps}, so the "
            "learning rate would never reach its value. Shorten the warm-up or train longer."
        )
    return warmup


@method("linear_schedule", place="schedule", paper=FEW_SAMPLE, items="V9", null={})
class LinearSchedule(Method):
    """Warm up linearly, then decay linearly to 0: what every experiment of the few-sample paper uses."""

    warmup: Amount = 0.1  # steps (100), part of the run (0.1, "10%") or epochs ("1 epoch")

    def __post_init__(self) -> None:
        _parse(self.warmup, "LinearSchedule: warmup")

    def replaces(self) -> frozenset[str]:
        return frozenset({"schedule"})

    def lr_factor(self, step: int, length: Length) -> float:
        return linear(step, length.steps, _warmup_within(self.warmup, length, "LinearSchedule"))


@method("inverse_sqrt_schedule", place="schedule", paper=RDROP, items="R9", null={})
class InverseSqrtSchedule(Method):
    """Warm up linearly, then decay with the inverse square root of the step: for translation models."""

    warmup: Amount = 4000  # as in LinearSchedule; may be longer than the run, which then ends in warm-up

    def __post_init__(self) -> None:
        _parse(self.warmup, "InverseSqrtSchedule: warmup")

    def replaces(self) -> frozenset[str]:
        return frozenset({"schedule"})

    def lr_factor(self, step: int, length: Length) -> float:
        return inverse_sqrt(step, amount_to_steps(self.warmup, length))


@method("polynomial_schedule", place="schedule", paper=RDROP, items="R6", null={})
class PolynomialSchedule(Method):
    """Warm up linearly, then decay polynomially to an end value: fairseq's schedule for RoBERTa on GLUE."""

    warmup: Amount = 0.06  # as in LinearSchedule; RoBERTa's warm-up on GLUE is 6% of the run
    power: float = 1.0  # 1 is a straight line; larger falls faster at first
    end: float = 0.0  # factor at the end of the run, as a part of the base learning rate

    def __post_init__(self) -> None:
        _parse(self.warmup, "PolynomialSchedule: warmup")
        check_at_least("power", self.power, 0.0, "PolynomialSchedule")
        check_at_least("end", self.end, 0.0, "PolynomialSchedule")
        if self.power == 0.0 or self.end >= 1.0:
            raise SteadytuneError(
                f"PolynomialSchedule: with power={self.power!r} and end={self.end!r} nothing would decay. power must "
                "be above 0 and end, a part of the base learning rate, below 1; for a constant one use "
                "ConstantSchedule."
            )

    def replaces(self) -> frozenset[str]:
        return frozenset({"schedule"})

    def lr_factor(self, step: int, length: Length) -> float:
        warmup = _warmup_within(self.warmup, length, "PolynomialSchedule")
        return polynomial(step, length.steps, warmup, self.power, self.end)


@method("constant_schedule", place="schedule", paper=FEW_SAMPLE, items="V9", null={"warmup": 0})
class ConstantSchedule(Method):
    """Warm up linearly, then keep the learning rate. Without warm-up: the optimiser, with no schedule at all."""

    warmup: Amount = 0  # as in LinearSchedule

    def __post_init__(self) -> None:
        _parse(self.warmup, "ConstantSchedule: warmup")

    def replaces(self) -> frozenset[str]:
        return frozenset({"schedule"})

    def lr_factor(self, step: int, length: Length) -> float:
        return constant(step, _warmup_within(self.warmup, length, "ConstantSchedule"))
