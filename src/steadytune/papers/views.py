"""What an experiment shows of its studies: some of their lines, under the paper's names, as one `StudyResults`.

A table may show runs of several studies, a figure the runs that a choice was made on. Whatever reads results (samples,
figures, tables) sees only the view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from steadytune.errors import SteadytuneError
from steadytune.study.results import StudyResults, TrialResult, Variant, Which


@dataclass(frozen=True)
class Line:
    """A line of the view, and whose runs it shows: by default the reported ones of the variant of the same name."""

    shown: Variant
    variant: str
    tuning: bool = False  # the runs that a choice was made on


def line(name: str, variant: str | None = None, *, tuning: bool = False, **point: object) -> Line:
    """`line("Re-init, L=3", "Re-init, layers=3", tuning=True, L=3)`: a point makes it part of a sweep."""
    family = name.rpartition(", ")[0] if point else name
    return Line(Variant(name, family, point), name if variant is None else variant, tuning)


def view(
    studies: Sequence[StudyResults],
    lines: Sequence[Line] | None = None,
    *,
    tasks: Sequence[str] | None = None,
    split: str = "",
    name: str = "",
) -> StudyResults:
    """All reported runs of the studies, or those of `lines` under their new names; of all tasks, or of `tasks`."""
    if not studies:
        raise SteadytuneError("There are no runs to show.")
    first = studies[0]
    every = {task: info for study in studies for task, info in study.tasks.items()}
    kept = {task: info for task, info in every.items() if tasks is None or task in tasks}
    variants: dict[str, Variant] = {}
    trials: list[TrialResult] = []
    weights: set[Which] = set()
    for each in lines if lines is not None else _lines(studies):
        for study in studies:
            if found := _trials(study, each, kept):
                variants[each.shown.name] = each.shown
                trials += found
                weights.add(study.weights)
    if len(weights) > 1:
        raise SteadytuneError(f"{name}: some of these studies report a run's best weights, and some its last.")
    baseline = first.baseline if first.baseline in variants else next(iter(variants), "")
    return replace(
        first,
        name=name or first.name,
        tasks=kept,
        variants=variants,
        trials=trials,
        baseline=baseline,
        weights=next(iter(weights), first.weights),  # of those whose runs are shown; another study may have none here
        split="validation" if split == "validation" else "test" if split == "test" else first.split,
        chosen={},
        text="\n".join(study.text for study in studies),
    )


def _lines(studies: Sequence[StudyResults]) -> list[Line]:
    """Every reported variant; one of a choice is called as its group."""
    found: dict[str, Line] = {}
    for study in studies:
        for _, name in study.reported:
            found.setdefault(name, Line(study.variants.get(name, Variant(name, name)), name))
    return list(found.values())


def _trials(study: StudyResults, wanted: Line, tasks: Mapping[str, object]) -> list[TrialResult]:
    runs = study.tuning if wanted.tuning else study.reported
    return [
        replace(trial, variant=wanted.shown.name, phase="report")
        for (task, variant), trials in runs.items()
        if variant == wanted.variant and task in tasks
        for trial in trials
    ]
