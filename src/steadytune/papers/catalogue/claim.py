"""What a paper says, as statements that can come out true or false in a study.

A claim speaks of cells, by the names in the published data: ("Re-init", "RTE", "3 epochs"). Its kind, one of a closed
list, says which relation holds between them and how it is tested on measured runs. One sentence of a paper may speak of
several cases ("on all tasks", "usually"): `scope` says of how many it must hold.

What came out of testing a claim is a `Verdict` (steadytune.papers.verdicts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from steadytune.errors import SteadytuneError
from steadytune.strict import nearest


class Cell(NamedTuple):
    """One cell of a table, or one point of a figure."""

    row: str
    column: str
    setting: str = ""


Case = tuple[Cell, ...]
Kind = Literal[
    "greater",
    "less",
    "steadier",
    "fewer_degenerate",
    "rising",
    "falling",
    "best",
    "peak",
    "flatter",
    "narrower",
    "no_difference",
    "no_better",
    "ratio_at_most",
    "value",
    "bound",
    "reproduces",
]
Scope = Literal["every", "most", "not every"]  # most: more than half of the cases; each case is then reported alone
Quantity = Literal["score", "train_loss", "distance", "seconds", "source_score", "expected_score", "bias_ratio", "gap"]

QUANTITIES: dict[str, str] = {
    "score": "the task's metric, of the split that the item reports; one number per run",
    "train_loss": "loss on the training rows, one curve per run",
    "distance": "L2 distance of weights to where they started, or to a target; one number per run",
    "seconds": "wall time",
    "source_score": "accuracy on the task of pretraining, after fine-tuning",
    "expected_score": "expected score of the best of n runs",
    "bias_ratio": "update of Adam without bias correction over the update with it",
    "gap": "left side of an inequality that is proved",
}


class Meaning(NamedTuple):
    """What a kind says of the cells of one case, and how it is tested on measured runs (with steadytune.stats)."""

    cells: int | None  # of one case; None: two or more, in the order of the setting
    says: str
    test: str


_T = "student_t_test, one tail, paired by seed where seeds are shared"
KINDS: dict[str, Meaning] = {
    "greater": Meaning(2, "the first has the greater mean", _T),
    "less": Meaning(2, "the first has the smaller mean", _T),
    "steadier": Meaning(2, "the first spreads less over runs", "brown_forsythe_test, one tail"),
    "fewer_degenerate": Meaning(
        2, "fewer runs of the first are no better than guessing", "compare_degenerate, one tail"
    ),
    "rising": Meaning(None, "rises along the cells", "slope over the cells, one per seed, against 0, one tail"),
    "falling": Meaning(None, "falls along the cells", "slope over the cells, one per seed, against 0, one tail"),
    "best": Meaning(None, "the first has the greatest mean of the case", f"the first above each other: {_T}"),
    "peak": Meaning(None, "the greatest mean is not at the last cell", f"the best cell above the last: {_T}"),
    "flatter": Meaning(
        None,
        "the first half of the cells (one row, several settings) differ less than the second half (another row)",
        "greatest minus smallest over the settings, one per seed: student_t_test, one tail, paired",
    ),
    "narrower": Meaning(
        4,
        "first minus second is nearer to 0 than third minus fourth",
        "difference and sum of the two gaps, by seed, signed as the wider: student_t_test, one tail, larger p, twice",
    ),
    "no_difference": Meaning(
        2,
        "the two differ by no more than the margin",
        "two one-sided t-tests at the margin; beside it the paper's own two-tailed test",
    ),
    "no_better": Meaning(
        2,
        "the mean of the first is above that of the second by no more than the margin",
        "student_t_test at the margin, one tail; the opposite is shown by a one-tailed test at 0",
    ),
    "ratio_at_most": Meaning(2, "the first over the second is no more than the value", "compared, with the margin"),
    "value": Meaning(1, "is the value", "compared, with the margin"),
    "bound": Meaning(2, "the first is never below the second", "every draw or problem, up to its Monte Carlo error"),
    "reproduces": Meaning(
        1,
        "at full scale: the mean lies within one published standard deviation of the published mean",
        "compared; not asked of any other scale",
    ),
}
_STATISTIC = {"steadier": "std", "fewer_degenerate": "degenerate"}  # of the other kinds: mean, where nothing is said


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, in a form that can be tested."""

    text: str
    kind: Kind
    cases: tuple[Case, ...]
    source: str  # where the paper says so: "section 5, page 7"
    scope: Scope = "every"
    quantity: Quantity = "score"
    statistic: str = ""  # as published; "": what the kind is about. `value`: the paper prints one number, without seeds
    value: float | None = None  # of `value` and `ratio_at_most`
    uncounted: str = ""  # why it is no claim to be counted: what could not come out otherwise, or is counted elsewhere
    margin: float | None = None  # ours, as papers give none; on the scale measured here: fractions, BLEU, seconds

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SteadytuneError(f"{self.text!r}: no kind of claim {self.kind!r}. {nearest(self.kind, KINDS)}")
        if self.scope not in get_args(Scope) or self.quantity not in QUANTITIES:
            raise SteadytuneError(f"{self.text!r}: unknown scope {self.scope!r} or quantity {self.quantity!r}.")
        cells = KINDS[self.kind].cells
        for case in self.cases:
            if len(case) != cells if cells else len(case) < 2:
                raise SteadytuneError(f"{self.text!r}: a case of kind {self.kind} has {cells or 'at least 2'} cells.")
        if not self.cases:
            raise SteadytuneError(f"{self.text!r} speaks of no case.")
        if (self.value is None) == (self.kind in ("value", "ratio_at_most")):
            raise SteadytuneError(f"{self.text!r}: a value belongs to the kinds value and ratio_at_most, only to them.")
        if self.kind in ("no_difference", "no_better", "value") and self.margin is None:
            raise SteadytuneError(f"{self.text!r}: kind {self.kind} needs a margin.")
        if not self.statistic:
            object.__setattr__(self, "statistic", _STATISTIC.get(self.kind, "mean"))


def pairs(left: str, right: str, columns: Iterable[str], setting: str = "") -> tuple[Case, ...]:
    """The same two rows, compared in each column."""
    return tuple((Cell(left, column, setting), Cell(right, column, setting)) for column in columns)


def along(row: str, column: str, settings: Iterable[str]) -> Case:
    """One row and column, over the settings in their order."""
    return tuple(Cell(row, column, setting) for setting in settings)


def direction(claim: Claim, number: Callable[[Cell, str], float | None]) -> bool | None:
    """Whether the numbers lie as the claim says, without any test; None where too many of them are missing.

    `number(cell, statistic)` is a published or a measured number, on the scale that is measured here. A claim about
    every case is False as soon as one case is; it is None as long as one is missing.
    """
    found = [_holds(claim, case, number) for case in claim.cases]
    yes, no, unknown = (found.count(each) for each in (True, False, None))
    if claim.scope == "most":
        return True if yes > len(found) / 2 else None if yes + unknown > len(found) / 2 else False
    every = False if no else None if unknown else True
    if claim.scope == "every" or every is None:
        return every
    return not every


def _holds(claim: Claim, case: Case, number: Callable[[Cell, str], float | None]) -> bool | None:
    values = [number(cell, claim.statistic) for cell in case]
    known = [value for value in values if value is not None]
    return None if len(known) < len(values) else case_direction(claim, known)


def case_direction(claim: Claim, known: Sequence[float]) -> bool | None:
    """Whether the numbers of one case lie as the claim says; None for a kind that needs others beside them."""
    if claim.kind == "reproduces":
        return None
    margin = claim.margin or 0.0
    first, second, half = known[0], known[-1], len(known) // 2
    match claim.kind:
        case "greater":
            return first > second
        case "less" | "steadier" | "fewer_degenerate":
            return first < second
        case "rising":
            return slope(known) > 0
        case "falling":
            return slope(known) < 0
        case "best":
            return first == max(known)
        case "peak":
            return max(known) > second
        case "flatter":
            return max(known[:half]) - min(known[:half]) < max(known[half:]) - min(known[half:])
        case "narrower":
            return abs(known[0] - known[1]) < abs(known[2] - known[3])
        case "no_difference":
            return abs(first - second) <= margin
        case "no_better":
            return first - second <= margin
        case "ratio_at_most":
            return claim.value is not None and first / second <= claim.value + margin
        case "value":
            return claim.value is not None and abs(first - claim.value) <= margin
    return first >= second - margin  # bound


def slope(values: Sequence[float]) -> float:
    """Of a straight line by least squares through values at 0, 1, 2, ..."""
    middle = (len(values) - 1) / 2
    spread = sum((place - middle) ** 2 for place in range(len(values)))
    return sum((place - middle) * value for place, value in enumerate(values)) / spread
