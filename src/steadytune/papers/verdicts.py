"""What came out of testing a claim of a paper.

A claim that speaks of several cases ("for all p") holds only if it holds in every one of them. Its p-value is then the
largest of the cases' (an intersection-union test, Berger 1982), which needs no correction for their number. How the
claims of the catalogue are tested on the runs of a study: claim_tests.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from steadytune.stats import TestResult

ALPHA = 0.05
WORDS = {True: "holds", False: "does not hold at this scale", None: "cannot be said"}
IDENTITY, CODE = "an identity", "a check of the code"  # why a verdict is not counted among the claims
IN_PART = "holds as far as run"  # a claim about several cases, of which some were not run


@dataclass(frozen=True)
class Verdict:
    """One sentence of a paper. `holds` is None where nothing may be said, for instance from fewer than 3 runs."""

    text: str
    holds: bool | None
    p_value: float | None  # None where nothing random was compared, or nothing may be said
    n: int  # runs, problems or draws behind it
    source: str  # the place in the paper, or the item of the acceptance list
    how: str = ""  # test, tail, pairing; or what was compared
    measured: str = ""  # the numbers, in words
    in_part: bool = False  # whether some of the cases that it speaks of were not run
    uncounted: str = ""  # why it is no claim to be counted: what could not come out otherwise, or is counted elsewhere

    @property
    def word(self) -> str:
        return IN_PART if self.holds and self.in_part else WORDS[self.holds]

    def to_data(self) -> dict[str, Any]:
        found = asdict(self)
        if not self.uncounted:
            del found["uncounted"]
        return found

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Verdict:
        return cls(**data)


def by_tests(text: str, results: Sequence[TestResult], *, source: str, measured: str = "") -> Verdict:
    """A claim that holds if every one of the tests rejects its null hypothesis at 0.05."""
    n = min((min(result.n) for result in results), default=0)
    silent = next((result for result in results if result.p is None), None)
    if not results or silent is not None:
        how = f"{silent.setting()}: {silent.note}" if silent is not None else "nothing to compare"
        return Verdict(text, None, None, n, source, how, measured)
    largest = max(result.p for result in results if result.p is not None)
    several = f", largest p of {len(results)}" if len(results) > 1 else ""
    return Verdict(text, largest < ALPHA, largest, n, source, results[0].setting() + several, measured)
