"""The figures of a study, one file each. A figure that would have nothing to show is left out."""

from __future__ import annotations

from steadytune.report.study.comparisons import Comparisons, compare_all
from steadytune.report.study.figures.distribution import distribution
from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.telling import Telling
from steadytune.study.results import StudyResults

__all__ = ["Figure", "figures"]


def figures(results: StudyResults, compared: Comparisons | None = None) -> list[Figure]:
    """In the order of a report. `compared` saves computing the comparisons again."""
    tell = Telling(compared if compared is not None else compare_all(results))
    made = [distribution(tell)]
    return [figure for figure in made if figure is not None]
