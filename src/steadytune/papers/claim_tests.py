"""Is a claim of the catalogue true of the runs? Each kind of claim has its test (catalogue/claim.py names them).

A claim about several cases:

    every        holds if all do; p is the largest of the cases' (intersection-union)
    most         holds if more than half do: with k of m cases needed, p = (m - k + 1) p_(k), the k-th smallest p of the
                 cases (partial conjunction, Benjamini & Heller 2008)
    not every    holds if the opposite is shown in some case: with m cases, p = m times the smallest p of the opposites
                 (Bonferroni); does not if every case is shown to hold; else it cannot be said

What a scale does not run is left out, and said; a trend, a peak or a best of many is read from the points that were
run, if these are at least FEWEST_POINTS. Nothing is said from fewer than 3 runs, nor while runs are missing. A
claim that is not shown is not thereby refuted: `measured` counts the cases in which the opposite is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from steadytune.papers.case_tests import Outcome, judge_case, reproduces
from steadytune.papers.catalogue import Case, Cell, Claim
from steadytune.papers.samples import Read, Sample
from steadytune.papers.verdicts import ALPHA, Verdict

_FULL_ONLY = "asked of the full scale only"
FEWEST_POINTS = 3
_OF_POINTS = ("rising", "falling", "peak", "best")
_RULES = {
    "every": "all must hold: largest p",
    "most": "more than half must hold: partial conjunction",
    "not every": "the opposite in one of them: smallest p, times their number",
}


@dataclass(frozen=True, eq=False)
class Tested:
    case: Case
    samples: tuple[Sample, ...]
    outcome: Outcome


Printed = Callable[[Cell, str], float | None]


def judge(claim: Claim, read: Read, printed: Printed, *, full: bool) -> Verdict:
    """`read` finds the runs of a cell, `printed` a published number; `full`: the scale is the paper's own."""
    return replace(_judged(claim, read, printed, full), uncounted=claim.uncounted)


def _judged(claim: Claim, read: Read, printed: Printed, full: bool) -> Verdict:
    asked_here = claim.kind != "reproduces" and not claim.statistic.startswith("share below")
    if not full and not asked_here:
        return Verdict(claim.text, None, None, 0, claim.source, _FULL_ONLY)
    tested, missing, thinned = [], 0, 0
    seen: set[tuple[object, ...]] = set()
    for case in claim.cases:
        cells, found = _run_here(claim, case, read)
        missing += not cells
        thinned += 0 < len(cells) < len(case)
        key = tuple(sample.place.key for sample in found)
        if cells and key not in seen:  # blocks of a paper's model may fall together here
            seen.add(key)
            same = reproduces(found[0], printed(case[0], "mean"), printed(case[0], "std"))
            tested.append(Tested(cells, found, same if claim.kind == "reproduces" else judge_case(claim, found)))
    left_out = f"{missing} of {len(claim.cases)} cases are not run here" if missing else ""
    if thinned:
        points = max(len(each.case) for each in tested)
        left_out += ("; " if left_out else "") + f"{points} of {len(claim.cases[0])} points are run here"
    if not tested:
        return Verdict(claim.text, None, None, 0, claim.source, left_out or "there are no runs")
    waiting = sum(sample.missing for each in tested for sample in each.samples)
    n = min(each.outcome.n for each in tested)
    if waiting:
        return Verdict(claim.text, None, None, n, claim.source, "some runs have not ended yet", left_out)
    holds, p = _combined(claim, [each.outcome for each in tested])
    told = "; ".join(filter(None, [_counted(tested), _numbers(claim, tested), left_out]))
    return Verdict(claim.text, holds, p, n, claim.source, _how(claim, tested), told, in_part=missing > 0)


def _run_here(claim: Claim, case: Case, read: Read) -> tuple[Case, tuple[Sample, ...]]:
    """The cells of a case with their samples; nothing where too few of them were run."""
    found = {cell: sample for cell in case if (sample := read(cell)) is not None}
    enough = len(found) == len(case)
    if claim.kind in _OF_POINTS and len(found) >= FEWEST_POINTS:
        enough = claim.kind != "best" or case[0] in found
    return (tuple(found), tuple(found.values())) if enough else ((), ())


def _combined(claim: Claim, found: Sequence[Outcome]) -> tuple[bool | None, float | None]:
    ps = [each.p for each in found if each.p is not None]
    largest = max(ps) if len(ps) == len(found) else None
    if claim.scope == "not every":
        against = min(1.0, len(found) * min((1.0 - p for p in ps), default=1.0))
        return (True if against < ALPHA else False if all(each.holds for each in found) else None), against
    if claim.scope == "most":
        return _most(found)
    if all(each.holds is True for each in found):
        return True, largest
    if any(each.holds is False for each in found):
        return False, largest
    return None, None


def _most(found: Sequence[Outcome]) -> tuple[bool | None, float | None]:
    needed = len(found) // 2 + 1
    ps = sorted(each.p if each.p is not None else 1.0 for each in found)
    if any(each.p is not None for each in found):
        p = min(1.0, (len(found) - needed + 1) * ps[needed - 1])
        holds: bool | None = p < ALPHA
    else:
        p, holds = None, sum(each.holds is True for each in found) >= needed
    silent = sum(each.holds is None for each in found)
    if not holds and sum(each.holds is True for each in found) + silent >= needed and silent:
        return None, None
    return holds, p


def _how(claim: Claim, tested: Sequence[Tested]) -> str:
    ways = list(dict.fromkeys(each.outcome.how for each in tested if each.outcome.how))
    several = ""
    if len(tested) > 1:
        several = f"; {len(tested)} cases, {_RULES[claim.scope]}"
    return (ways[0] if ways else "") + (f"; or {ways[1]}" if len(ways) == 2 else "") + several


def _counted(tested: Sequence[Tested]) -> str:
    """How many cases lie as claimed, and how many are shown to; also the other way round."""
    if len(tested) == 1:
        only = tested[0].outcome
        return only.words + ("; the opposite is shown" if only.reversed else "")
    outcomes = [each.outcome for each in tested]
    toward = sum(each.toward is True for each in outcomes)
    shown = sum(each.holds is True for each in outcomes)
    silent = sum(each.holds is None for each in outcomes)
    against = sum(each.reversed for each in outcomes)
    told = f"{toward} of {len(outcomes)} cases lie as claimed, {shown} are shown to"
    told += f", {silent} left open" if silent else ""
    return told + (f"; in {against} the opposite is shown" if against else "")


def _numbers(claim: Claim, tested: Sequence[Tested], most: int = 4) -> str:
    if not 1 < len(tested) <= most:
        return ""
    return "; ".join(f"{name}: {each.outcome.words}" for name, each in zip(_names(tested), tested))


def _names(tested: Sequence[Tested]) -> list[str]:
    """What tells the cases from each other: of the first cells, and of the second where these are the same."""
    made: list[list[str]] = [[] for _ in tested]
    for place in (0, 1):
        for part in ("row", "column", "setting"):
            found = [getattr(each.case[place], part) if len(each.case) > place else "" for each in tested]
            if len(set(found)) > 1:
                made = [[*name, each] if each else name for name, each in zip(made, found)]
        if len({tuple(name) for name in made}) == len(tested):
            break
    return [", ".join(name) for name in made]
